"""moesaic.AsyncLLM on the sample model: streams, cancelling, slow readers, consumers that fail, closing."""

import asyncio
import contextvars
import gc
import tempfile
import unittest

import moesaic
from harness import MODEL, PATIENCE_S, with_long_context
from moesaic import LLM, AsyncLLM, RequestOutputKind, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=24)
DELTA = SamplingParams(temperature=0, max_tokens=24, output_kind=RequestOutputKind.DELTA)
ENDLESS = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)


async def collect(stream):
    return [output async for output in stream]


class AsyncTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        model = with_long_context(cls.directory.name)
        cls.llm = AsyncLLM(model, max_num_seqs=8)
        with LLM(model) as llm:
            (cls.expected,) = llm.generate("The old man", GREEDY)

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()
        cls.directory.cleanup()

    def run_async(self, work):
        return asyncio.run(asyncio.wait_for(work, PATIENCE_S))

    async def wait_until_idle(self):
        while self.llm.stats()["running"] + self.llm.stats()["waiting"] > 0:
            await asyncio.sleep(0.01)

    def test_outputs_come_as_they_are_wanted(self):
        tokens = self.expected.outputs[0].token_ids

        async def work():
            cumulative, delta, final = await asyncio.gather(
                collect(self.llm.generate("The old man", GREEDY)),
                collect(self.llm.generate("The old man", DELTA)),
                collect(
                    self.llm.generate(
                        "The old man",
                        SamplingParams(temperature=0, max_tokens=24, output_kind=RequestOutputKind.FINAL_ONLY),
                    )
                ),
            )
            self.assertEqual(cumulative[-1].outputs[0].token_ids, tokens)
            self.assertGreater(len(cumulative), 1)
            lengths = [len(output.outputs[0].token_ids) for output in cumulative]
            self.assertEqual(lengths, sorted(lengths))  # earlier outputs did not grow with later ones
            self.assertLess(lengths[0], 24)
            self.assertEqual([t for output in delta for t in output.outputs[0].token_ids], tokens)
            self.assertEqual("".join(o.outputs[0].text for o in delta), self.expected.outputs[0].text)
            self.assertEqual([output.outputs[0].token_ids for output in final], [tokens])
            for outputs in (cumulative, delta, final):
                self.assertEqual([output.finished for output in outputs], [False] * (len(outputs) - 1) + [True])
                self.assertEqual(int(outputs[-1].outputs[0].decode_eam.sum()), 23 * 8 * 4)

        self.run_async(work())

    def test_many_at_once_and_several_loops(self):
        async def work():
            results = await asyncio.gather(*(collect(self.llm.generate("The old man", GREEDY)) for _ in range(40)))
            return [outputs[-1].outputs[0].token_ids for outputs in results]

        for _ in range(2):  # the second loop after the first is closed
            self.assertEqual(self.run_async(work()), [self.expected.outputs[0].token_ids] * 40)

    def test_chat_streams(self):
        async def work():
            messages = [{"role": "user", "content": "How many legs do three cats have?"}]
            outputs = await collect(self.llm.chat(messages, DELTA))
            text = "".join(output.outputs[0].text for output in outputs)
            whole = await collect(self.llm.chat(messages, GREEDY))
            self.assertEqual(text, whole[-1].outputs[0].text)
            self.assertTrue(text)

        self.run_async(work())

    def test_a_cancelled_task_ends_its_request(self):
        async def work():
            task = asyncio.create_task(collect(self.llm.generate("The old man", ENDLESS)))
            while self.llm.stats()["running"] == 0:
                await asyncio.sleep(0.01)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            await self.wait_until_idle()

        self.run_async(work())

    def test_an_exception_in_a_consumer_ends_its_request_only(self):
        async def fail():
            async for output in self.llm.generate("The old man", ENDLESS):
                if len(output.outputs[0].token_ids) > 3:
                    raise RuntimeError("of the consumer")

        async def work():
            results = await asyncio.gather(
                fail(), collect(self.llm.generate("The old man", GREEDY)), return_exceptions=True
            )
            self.assertEqual(str(results[0]), "of the consumer")
            self.assertEqual(results[1][-1].outputs[0].token_ids, self.expected.outputs[0].token_ids)
            results.clear()  # the exception's frames hold the iterator
            gc.collect()
            await self.wait_until_idle()

        self.run_async(work())

    def test_a_dropped_iterator_ends_its_request(self):
        async def work():
            stream = self.llm.generate("The old man", ENDLESS)
            await anext(stream)
            await stream.aclose()
            await self.wait_until_idle()

        self.run_async(work())

    def test_abort_by_name(self):
        async def work():
            outputs = []
            async for output in self.llm.generate("The old man", ENDLESS, "mine"):
                outputs.append(output)
                if len(outputs) == 2:
                    await self.llm.abort("mine")
            self.assertEqual(outputs[-1].request_id, "mine")
            self.assertEqual(outputs[-1].outputs[0].finish_reason, "abort")
            await self.llm.abort("nobody's")
            await self.wait_until_idle()

        self.run_async(work())

    def test_a_slow_reader_gets_fewer_and_larger_outputs(self):
        params = SamplingParams(
            temperature=0, max_tokens=200, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )

        async def work():
            fast = await collect(self.llm.generate("The old man", params))
            slow = []
            before = self.llm.stats()["decode_tokens"]
            stream = self.llm.generate("The old man", params)
            slow.append(await anext(stream))
            while self.llm.stats()["decode_tokens"] < before + 199:  # the engine does not wait for this reader
                await asyncio.sleep(0.01)
            async for output in stream:
                slow.append(output)
            self.assertLess(len(slow), len(fast))
            for outputs in (fast, slow):
                self.assertEqual(sum(len(output.outputs[0].token_ids) for output in outputs), 200)
            self.assertEqual(
                "".join(output.outputs[0].text for output in slow), "".join(output.outputs[0].text for output in fast)
            )

        self.run_async(work())

    def test_an_interval_makes_larger_outputs(self):
        params = SamplingParams(temperature=0, max_tokens=42, ignore_eos=True, output_kind=RequestOutputKind.DELTA)

        async def work(directory):
            async with AsyncLLM(with_long_context(directory), stream_interval=10) as llm:
                outputs = await collect(llm.generate("The old man", params))
            lengths = [len(output.outputs[0].token_ids) for output in outputs]
            self.assertEqual(sum(lengths), 42)
            self.assertLessEqual(len(lengths), 6)  # its first token, four times ten or more, the rest
            every = await collect(self.llm.generate("The old man", params))
            for part in "token_ids", "text":
                joined = [[one for output in some for one in getattr(output.outputs[0], part)] for some in (outputs, every)]
                self.assertEqual(*joined)

        with tempfile.TemporaryDirectory() as directory:
            self.run_async(work(directory))
        with self.assertRaisesRegex(moesaic.InvalidArgumentError, "stream_interval"):
            AsyncLLM("models/sample", stream_interval=0)

    def test_news_reach_tasks_that_others_cancel_and_end(self):
        async def work():
            done = []

            async def read(number, others):
                async for output in self.llm.generate("The old man", ENDLESS, f"of {number}"):
                    if len(output.outputs[0].token_ids) > 5 and others:
                        others[0].cancel("by a neighbour")  # woken in the same round, perhaps
                        await self.llm.abort("of 2")
                        break
                done.append((number, output.outputs[0].finish_reason))

            cancelled = asyncio.create_task(read(1, []))
            aborted = asyncio.create_task(read(2, []))
            while self.llm.stats()["running"] < 2:
                await asyncio.sleep(0.01)
            first = asyncio.create_task(read(0, [cancelled]))
            await asyncio.gather(first, aborted)
            with self.assertRaisesRegex(asyncio.CancelledError, "by a neighbour"):
                await cancelled
            self.assertEqual(sorted(done), [(0, None), (2, "abort")])
            await self.wait_until_idle()

        self.run_async(work())

    def test_a_task_keeps_its_context_and_its_timeout(self):
        variable = contextvars.ContextVar("variable", default=None)

        async def read(value):
            variable.set(value)
            async for _ in self.llm.generate("The old man", GREEDY):
                self.assertEqual(variable.get(), value)
                self.assertIsNotNone(asyncio.current_task())

        async def work():
            await asyncio.gather(*(read(value) for value in range(4)))
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(collect(self.llm.generate("The old man", ENDLESS)), 0.05)
            await self.wait_until_idle()

        self.run_async(work())

    def test_errors(self):
        async def work():
            with self.assertRaisesRegex(moesaic.InvalidArgumentError, "temperature"):
                await collect(self.llm.generate("x", SamplingParams(temperature=-1)))
            await self.wait_until_idle()

        self.run_async(work())


class CloseTest(unittest.TestCase):
    def test_a_full_queue_refuses(self):
        async def work(llm):
            tasks = [asyncio.create_task(collect(llm.generate("The old man", ENDLESS))) for _ in range(2)]
            while llm.stats()["running"] + llm.stats()["waiting"] < 2:
                await asyncio.sleep(0.01)
            with self.assertRaisesRegex(moesaic.UnavailableError, "queue is full"):
                await collect(llm.generate("The old man", GREEDY))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        with tempfile.TemporaryDirectory() as directory:
            with AsyncLLM(with_long_context(directory), max_num_seqs=1, max_queue=1) as llm:
                asyncio.run(asyncio.wait_for(work(llm), PATIENCE_S))

    def test_closing_tells_who_waits(self):
        async def work(directory):
            async with AsyncLLM(with_long_context(directory)) as llm:
                task = asyncio.create_task(collect(llm.generate("The old man", ENDLESS)))
                while llm.stats()["running"] == 0:
                    await asyncio.sleep(0.01)
            with self.assertRaisesRegex(moesaic.UnavailableError, "closed"):
                await task

        with tempfile.TemporaryDirectory() as directory:
            asyncio.run(asyncio.wait_for(work(directory), PATIENCE_S))

    def test_closing_from_another_thread(self):
        async def work(llm):
            task = asyncio.create_task(collect(llm.generate("The old man", ENDLESS)))
            while llm.stats()["running"] == 0:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(llm.close)
            with self.assertRaisesRegex(moesaic.UnavailableError, "closed"):
                await task

        with tempfile.TemporaryDirectory() as directory:
            asyncio.run(asyncio.wait_for(work(AsyncLLM(with_long_context(directory))), PATIENCE_S))


if __name__ == "__main__":
    unittest.main()
