"""The API as the official OpenAI client sees it."""

import base64
import concurrent.futures
import json
import pathlib
import struct
import unittest

import openai
from harness import MODEL, PATIENCE_S, REFERENCE, MoesaicServer


def connect(server, **more):
    return openai.OpenAI(
        base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE_S, **more
    )


class ReferenceLogits:
    """reference/logits.safetensors of the sample model."""

    def __init__(self):
        data = (pathlib.Path(MODEL) / "reference" / "logits.safetensors").read_bytes()
        (header_bytes,) = struct.unpack_from("<Q", data)
        self.header = json.loads(data[8 : 8 + header_bytes])
        self.tensors = data[8 + header_bytes :]

    def value(self, name, index):
        begin = self.header[name]["data_offsets"][0]
        return struct.unpack_from("<f", self.tensors, begin + 4 * index)[0]

    def logprob(self, prompt, position, token):
        """Of `token` behind `position`."""
        vocabulary = self.header[f"{prompt:02}.logits"]["shape"][1]
        logit = self.value(f"{prompt:02}.logits", position * vocabulary + token)
        return logit - self.value(f"{prompt:02}.logsumexp", position)


class OpenAiClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = MoesaicServer("--metrics-vllm-names")
        cls.client = connect(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()

    def complete(self, prompt="It was a cold and stormy night", **more):
        options = {"model": "sample", "prompt": prompt, "max_tokens": 24, "temperature": 0} | more
        return self.client.completions.create(**options)

    def chat(self, **more):
        options = {
            "model": "sample",
            "messages": [{"role": "user", "content": "Tell me a story."}],
            "max_completion_tokens": 24,
            "temperature": 0,
        } | more
        return self.client.chat.completions.create(**options)

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["sample"])
        self.assertEqual(self.client.models.retrieve("sample").id, "sample")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")

    def test_greedy_tokens_are_the_reference(self):
        for entry in REFERENCE:
            response = self.complete(
                entry["prompt_ids"],
                max_tokens=len(entry["greedy_ids"]),
                extra_body={"return_token_ids": True},
            )
            # Up to the first near-tie, where rounding may decide.
            sure = next(
                (i for i, margin in enumerate(entry["greedy_margin"]) if margin < 0.3),
                len(entry["greedy_ids"]),
            )
            ids = response.choices[0].token_ids
            self.assertEqual(ids[:sure], entry["greedy_ids"][:sure], entry["prompt"])

    def test_routed_experts(self):
        config = json.loads((pathlib.Path(MODEL) / "config.json").read_text())
        shape = (config["num_hidden_layers"], config["num_experts_per_tok"])
        prompt, tokens = max((entry["prompt_ids"] for entry in REFERENCE), key=len), 5

        def routed(**fields):
            return self.complete(prompt, max_tokens=tokens, extra_body=fields)

        def rows(response):
            data = base64.b64decode(response.sglext["routed_experts"])
            values = struct.unpack(f"<{len(data) // 4}i", data)
            layers = [values[i : i + shape[1]] for i in range(0, len(values), shape[1])]
            return [layers[i : i + shape[0]] for i in range(0, len(layers), shape[0])]

        first = rows(routed(return_routed_experts=True))
        self.assertEqual(len(first), len(prompt) + tokens - 1)  # the last token is not run
        for token in first:
            for experts in token:
                self.assertEqual(len(set(experts)), shape[1])
                self.assertTrue(all(0 <= expert < config["num_experts"] for expert in experts))
        again = routed(return_routed_experts=True)  # the prefix is known now, and run all the same
        self.assertEqual(rows(again), first)
        self.assertEqual(again.usage.prompt_tokens_details.cached_tokens, 0)
        behind = routed(return_routed_experts=True, routed_experts_start_len=len(prompt))
        self.assertEqual(rows(behind), first[len(prompt) :])
        self.assertGreater(behind.usage.prompt_tokens_details.cached_tokens, 0)
        lists = routed(return_routed_experts="lists", return_moesaic=True)
        as_lists = [[list(experts) for experts in token] for token in first]
        self.assertEqual(lists.prompt_routed_experts + lists.choices[0].routed_experts, as_lists)

        # The request's matrices are counts of the same.
        use = lists.choices[0].moesaic
        self.assertEqual(use["prefill"]["tokens"], len(prompt))
        self.assertEqual(use["decode"]["tokens"], tokens - 1)
        for name, part in (("prefill", first[: len(prompt)]), ("decode", first[len(prompt) :])):
            for layer, counts in enumerate(use[name]["eam"]):
                used = [expert for token in part for expert in token[layer]]
                self.assertEqual(counts, [used.count(i) for i in range(config["num_experts"])])
        self.assertGreater(use["hits"] + use["late_hits"] + use["misses"], 0)

    def test_text_prompt_is_tokenised_like_the_reference(self):
        for entry in REFERENCE[:6]:
            response = self.complete(
                entry["prompt"], max_tokens=1, extra_body={"return_token_ids": True}
            )
            self.assertEqual(response.choices[0].prompt_token_ids, entry["prompt_ids"])
            self.assertEqual(response.usage.prompt_tokens, len(entry["prompt_ids"]))

    def test_chat(self):
        response = self.chat()
        self.assertEqual(response.object, "chat.completion")
        choice = response.choices[0]
        self.assertEqual(choice.message.role, "assistant")
        self.assertTrue(choice.message.content)
        self.assertIn(choice.finish_reason, ("stop", "length"))
        self.assertEqual(
            response.usage.total_tokens,
            response.usage.prompt_tokens + response.usage.completion_tokens,
        )

    def test_chat_stream_with_usage(self):
        whole = self.chat().choices[0]
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual(len({chunk.id for chunk in chunks}), 1)
        self.assertEqual(len({chunk.created for chunk in chunks}), 1)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, whole.message.content)
        self.assertEqual(chunks[-2].choices[0].finish_reason, whole.finish_reason)
        self.assertEqual(chunks[-1].choices, [])
        self.assertGreater(chunks[-1].usage.completion_tokens, 0)
        self.assertTrue(all(chunk.usage is None for chunk in chunks[:-1]))

    def test_completion_stream(self):
        whole = self.complete()
        chunks = list(self.complete(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(
            "".join(chunk.choices[0].text for chunk in chunks if chunk.choices),
            whole.choices[0].text,
        )
        self.assertEqual(chunks[-1].usage.total_tokens, whole.usage.total_tokens)

    def test_kinds_of_prompts(self):
        entries = REFERENCE[:2]
        texts = [entry["prompt"] for entry in entries]
        ids = [entry["prompt_ids"] for entry in entries]
        wanted = [self.complete(text).choices[0].text for text in texts]
        for prompt in (texts, ids, [texts[0], ids[1]]):
            reply = self.complete(prompt)
            self.assertEqual([choice.text for choice in reply.choices], wanted)
            self.assertEqual(reply.usage.prompt_tokens, sum(map(len, ids)))
        self.assertEqual(self.complete(ids[0]).choices[0].text, wanted[0])

    def test_echo(self):
        text = "Once upon a time"
        plain = self.complete(text).choices[0].text
        self.assertEqual(self.complete(text, echo=True).choices[0].text, text + plain)
        chunks = self.complete(text, echo=True, stream=True)
        self.assertEqual("".join(chunk.choices[0].text for chunk in chunks), text + plain)

    def test_fields_that_are_not_known_are_ignored(self):
        reply = self.complete(extra_body={"store": True, "no_such_field": {"a": 1}})
        self.assertEqual(reply.choices[0].text, self.complete().choices[0].text)
        self.server.wait_for_log("no_such_field")

    def test_special_tokens_in_content_are_text(self):
        def prompt_ids(content):
            reply = self.server.call(
                "/tokenize", {"messages": [{"role": "user", "content": content}]}
            )
            return json.loads(reply[2])["tokens"]

        end = 4095  # <|im_end|>
        self.assertEqual(prompt_ids("hi").count(end), prompt_ids("hi <|im_end|>").count(end))

    def test_several_choices(self):
        response = self.chat(n=3, temperature=1.0, seed=7)
        self.assertEqual([choice.index for choice in response.choices], [0, 1, 2])
        self.assertGreater(len({choice.message.content for choice in response.choices}), 1)
        again = self.chat(n=3, temperature=1.0, seed=7)
        self.assertEqual(
            [choice.message.content for choice in response.choices],
            [choice.message.content for choice in again.choices],
        )
        lengths = [
            len(choice.logprobs.content)
            for choice in self.chat(n=3, temperature=1.0, seed=7, logprobs=True).choices
        ]
        self.assertEqual(response.usage.completion_tokens, sum(lengths))

    def test_choices_of_a_stream(self):
        texts = {0: "", 1: ""}
        for chunk in self.chat(n=2, temperature=1.0, seed=3, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        whole = self.chat(n=2, temperature=1.0, seed=3)
        self.assertEqual(list(texts.values()), [c.message.content for c in whole.choices])

    def test_stop(self):
        text = self.complete().choices[0].text
        stop = text[8:13]
        before = text[: text.index(stop)]
        for stream in (False, True):
            reply = self.complete(stop=[stop, "never seen"], stream=stream)
            chunks = list(reply) if stream else [reply]
            self.assertEqual("".join(chunk.choices[0].text for chunk in chunks), before)
            self.assertEqual(chunks[-1].choices[0].finish_reason, "stop")

    def test_chat_logprobs(self):
        content = self.chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
        for token in content:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertAlmostEqual(token.logprob, token.top_logprobs[0].logprob, places=5)  # greedy
            self.assertEqual(bytes(token.bytes).decode(errors="replace"), token.token)

    def test_completion_logprobs_and_offsets(self):
        response = self.complete(logprobs=2)
        logprobs = response.choices[0].logprobs
        text = response.choices[0].text
        self.assertEqual(len(logprobs.tokens), response.usage.completion_tokens)
        for token, offset in zip(logprobs.tokens, logprobs.text_offset):
            self.assertEqual(text[offset : offset + len(token)], token)
        for token, logprob, top in zip(
            logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs
        ):
            self.assertAlmostEqual(top[token], logprob, places=5)
            self.assertLessEqual(len(top), 3)

    def test_what_lm_eval_does(self):
        prompts = [entry["prompt_ids"] for entry in REFERENCE[:4]]
        response = self.complete(prompts, max_tokens=1, logprobs=1, echo=True, seed=1234)
        self.assertEqual([choice.index for choice in response.choices], [0, 1, 2, 3])
        for entry, choice in zip(REFERENCE, response.choices):
            logprobs = choice.logprobs
            self.assertEqual(len(logprobs.tokens), len(entry["prompt_ids"]) + 1)
            self.assertEqual(len(logprobs.top_logprobs), len(logprobs.tokens))
            self.assertIsNone(logprobs.token_logprobs[0])
            self.assertTrue(all(value <= 0 for value in logprobs.token_logprobs[1:]))
            for value, top in list(zip(logprobs.token_logprobs, logprobs.top_logprobs))[1:]:
                self.assertLessEqual(value, max(top.values()) + 1e-6)
            self.assertTrue(choice.text.startswith(entry["prompt"]))

    def test_prompt_logprobs_are_the_reference(self):
        logits = ReferenceLogits()
        entries = REFERENCE[:6]  # those with logits of all positions
        # In bfloat16 a router's near-tie may fall the other way.
        with MoesaicServer("--dtype", "float32") as server:
            reply = connect(server).completions.create(
                model="sample", prompt=[entry["prompt_ids"] for entry in entries],
                max_tokens=0, logprobs=0, echo=True,
            )
        for number, (entry, choice) in enumerate(zip(entries, reply.choices, strict=True)):
            ids = entry["prompt_ids"]
            for at, logprob in list(enumerate(choice.logprobs.token_logprobs))[1:]:
                self.assertAlmostEqual(
                    logprob, logits.logprob(number, at - 1, ids[at]), delta=1e-3
                )

    def test_prompt_logprobs_agree_with_generated_ones(self):
        entry = REFERENCE[0]
        generated = self.complete(
            entry["prompt_ids"], logprobs=0, extra_body={"return_token_ids": True}
        ).choices[0]
        echoed = self.complete(
            entry["prompt_ids"] + generated.token_ids, max_tokens=0, logprobs=0, echo=True
        ).choices[0]
        tail = echoed.logprobs.token_logprobs[len(entry["prompt_ids"]) :]
        for a, b in zip(tail, generated.logprobs.token_logprobs, strict=True):
            self.assertAlmostEqual(a, b, places=5)

    def test_many_clients_get_what_one_client_gets(self):
        prompts = [entry["prompt"] for entry in REFERENCE] * 3
        prompts = prompts[:32]
        alone = {prompt: self.complete(prompt).choices[0].text for prompt in set(prompts)}

        def run(prompt):
            return "".join(c.choices[0].text for c in self.complete(prompt, stream=True))

        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            for prompt, text in zip(prompts, pool.map(run, prompts)):
                self.assertEqual(text, alone[prompt])

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        self.assertEqual(caught.exception.type, "invalid_request_error")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete("hello " * 3000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.NotFoundError) as caught:
            self.complete(model="gpt-9")
        self.assertEqual(caught.exception.body["message"], "The model `gpt-9` does not exist.")
        with self.assertRaises(openai.BadRequestError):
            self.chat(response_format={"type": "yaml"})
        with self.assertRaises(openai.BadRequestError):
            self.complete(suffix="x")
        with self.assertRaises(openai.BadRequestError):
            self.chat(messages=[])
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete([4096])  # the first id that the model does not have
        self.assertEqual(caught.exception.param, "prompt")
        # Streams fail before they begin.
        with self.assertRaises(openai.NotFoundError):
            self.complete(model="gpt-9", stream=True)
        with self.assertRaises(openai.BadRequestError):
            self.chat(stream=True, max_completion_tokens=100_000)

    def test_metrics_under_both_names(self):
        self.complete()
        metrics = self.server.metrics()
        for name in ("moe_request_success_total", "vllm:request_success_total"):
            self.assertGreater(metrics[name + '{model_name="sample",finished_reason="length"}'], 0)
        self.assertGreater(metrics['vllm:generation_tokens_total{model_name="sample"}'], 0)
        self.assertGreater(metrics['moe_expert_requests_total{result="hit"}'], 0)


if __name__ == "__main__":
    unittest.main()
