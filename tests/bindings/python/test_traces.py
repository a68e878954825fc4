"""Traces and collections of EAMs as arrays, simulate, plan, and throughput mode."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import moesaic
import numpy as np
from harness import BINARY, ENVIRONMENT, MODEL, PATIENCE_S
from moesaic import LLM, EamCollection, SamplingParams, read_trace, write_trace

ROOT = pathlib.Path(__file__).resolve().parents[3]
RECORDED = ROOT / "tests/data/traces/gpt_oss_20b_part.jsonl.gz"
COMMAND_ENVIRONMENT = ENVIRONMENT | {name: os.environ[name] for name in ("MOESAIC_ISA",) if name in os.environ}
PROMPTS = ["The old man", "It was a cold night", "Once upon a time there was", "def main():"]


def command_json(*arguments):
    done = subprocess.run(
        [BINARY, *map(str, arguments), "--json"], capture_output=True, text=True, env=COMMAND_ENVIRONMENT, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class TracesTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def test_reading(self):
        trace = read_trace(RECORDED)
        first = trace.sequences[0]
        experts = first.experts
        self.assertEqual((experts.shape, experts.dtype), ((first.tokens, trace.num_layers, trace.top_k), np.uint16))
        self.assertFalse(experts.flags.writeable or experts.flags.owndata)
        self.assertEqual(int(first.eam.sum()), experts.size)
        for layer in range(trace.num_layers):
            counts = np.bincount(experts[:, layer].ravel(), minlength=trace.num_experts)
            self.assertTrue((counts == first.eam[trace.first_layer + layer]).all())
        del trace, first
        self.assertGreaterEqual(int(experts.max()), 1)  # the array keeps its memory
        with self.assertRaises(moesaic.NotFoundError):
            read_trace(self.directory / "none.trace")

    def test_what_is_written_comes_back(self):
        trace = read_trace(RECORDED)
        for name in ("a.trace", "a.jsonl", "a.jsonl.gz"):
            write_trace(self.directory / name, trace)
            again = read_trace(self.directory / name)
            self.assertEqual(len(again.sequences), len(trace.sequences))
            for one, other in zip(trace.sequences, again.sequences):
                self.assertTrue((one.experts == other.experts).all())

    def test_writing_of_arrays(self):
        generator = np.random.default_rng(1)
        experts = np.argsort(generator.random((7, 3, 10)), axis=2)[:, :, :2]
        weights = np.round(generator.random((7, 3, 2)) * 16384) / 16384
        sequence = {
            "id": "one",
            "domain": "test",
            "experts": experts,
            "weights": weights,
            "token_ids": np.arange(7),
            "prefill_tokens": 4,
        }
        file = self.directory / "made.trace"
        write_trace(file, [sequence], num_experts=10, first_layer=1)
        (read,) = read_trace(file).sequences
        self.assertTrue((read.experts == experts).all() and (read.weights == weights.astype(np.float32)).all())
        self.assertEqual((read.id, read.domain, read.prefill_tokens), ("one", "test", 4))
        self.assertEqual(read.token_ids.tolist(), list(range(7)))
        self.assertEqual(read.eam.shape[1], 10)
        self.assertEqual(int(read.eam[0].sum()), 0)
        for change, text in (
            ({"experts": experts + 9}, "are not within 0 and 9"),
            ({"experts": np.zeros((7, 3, 2), int)}, "twice"),
            ({"weights": weights[:3]}, "shape"),
            ({"prefill_tokens": 8}, "shape"),
            ({"experts": experts[0]}, "dimensions"),
        ):
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                write_trace(self.directory / "bad.trace", [sequence | change], num_experts=10)

    def test_a_collection(self):
        matrices = [np.zeros((3, 8), np.uint32) for _ in range(3)]
        for i, matrix in enumerate(matrices):
            matrix[:, i] = 5 + i
            matrix[1, 7] = 1
        collection = EamCollection(3, 8, 2)
        self.assertEqual([collection.insert(matrix) for matrix in matrices[:2]], [0, 1])
        self.assertEqual(collection.insert(np.zeros((3, 8))), -1)
        entry, similarity = collection.nearest(matrices[1])
        self.assertEqual(entry, 1)
        self.assertAlmostEqual(similarity, 1, places=5)
        self.assertTrue((collection[0] == matrices[0]).all())
        self.assertTrue((collection.counts == np.array(matrices[:2])).all())
        self.assertEqual((len(collection), collection.capacity, collection.shape), (2, 2, (3, 8)))

        file = self.directory / "kept.state"
        collection.save(file)
        loaded = EamCollection.load(file, capacity=4)
        self.assertTrue((loaded.counts == collection.counts).all())
        other = EamCollection(3, 8, 1)
        other.insert(matrices[2])
        loaded.merge(other)
        self.assertEqual(len(loaded), 3)
        self.assertTrue((loaded[2] == matrices[2]).all())
        with self.assertRaisesRegex(moesaic.InvalidArgumentError, r"\[2, 8\]"):
            collection.insert(matrices[0][:2])
        with self.assertRaises(IndexError):
            collection[2]
        with self.assertRaises(moesaic.UnsupportedError):
            loaded.merge(EamCollection(3, 9, 1))
        with self.assertRaises(moesaic.InvalidArgumentError):
            EamCollection(0, 8, 1)

    def test_compacting(self):
        trace = read_trace(RECORDED)
        try:
            collection = EamCollection.compact(trace, 2)
        except moesaic.UnsupportedError as error:
            self.skipTest(str(error))
        self.assertEqual(len(collection), min(2, len(trace.sequences)))

    def test_learned_collections_leave_an_engine_and_come_back(self):
        params = SamplingParams(temperature=0, max_tokens=8)
        with LLM(MODEL, expert_memory="25%", predictor="eamc") as llm:
            answers = [output.outputs[0] for output in llm.generate(PROMPTS, params)]
            learned = EamCollection.of_engine(llm)
            self.assertEqual(len(learned), len(PROMPTS))
            for answer in answers:
                self.assertGreater(learned.nearest(answer.eam)[1], 0.99)
            learned.save(self.directory / "learned.state")
        loaded = EamCollection.load(self.directory / "learned.state")
        with LLM(MODEL, expert_memory="25%", predictor="eamc") as llm:
            self.assertEqual(len(EamCollection.of_engine(llm)), 0)
            loaded.put_into(llm)
            self.assertTrue((EamCollection.of_engine(llm).counts == learned.counts).all())
            loaded.put_into(llm, merge=True)
            self.assertEqual(len(EamCollection.of_engine(llm)), 2 * len(PROMPTS))
            again = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params)]
            self.assertEqual(again, [answer.token_ids for answer in answers])
            with self.assertRaises(moesaic.UnsupportedError):
                EamCollection(3, 8, 2).put_into(llm)
        with LLM(MODEL) as llm, self.assertRaisesRegex(moesaic.UnsupportedError, 'predictor="eamc"'):
            EamCollection.of_engine(llm)

    def test_an_answers_experts_make_a_trace(self):
        params = SamplingParams(temperature=0, max_tokens=8, return_routed_experts=True)
        with LLM(MODEL, prefix_cache=False) as llm:
            outputs = llm.generate(PROMPTS, params)
        sequences = [
            {"id": output.request_id, "experts": output.outputs[0].routed_experts, "prefill_tokens": len(output.prompt_token_ids)}
            for output in outputs
        ]
        write_trace(self.directory / "answers.trace", sequences, num_experts=32)
        for output, sequence in zip(outputs, read_trace(self.directory / "answers.trace").sequences, strict=True):
            self.assertTrue((sequence.eam == output.outputs[0].eam).all())


class JobsTest(unittest.TestCase):
    def test_simulate_is_the_command(self):
        options = {"slots": "25%", "predictor": "none", "policy": "lru", "hold_out": 2}
        flags = ["--slots", "25%", "--predictor", "none", "--policy", "lru", "--hold-out", 2]
        expected = command_json("simulate", "--trace", RECORDED, *flags)
        self.assertEqual(moesaic.simulate(RECORDED, **options), expected)
        self.assertEqual(moesaic.simulate(read_trace(RECORDED), **options), expected)
        with self.assertRaisesRegex(moesaic.InvalidArgumentError, "did you mean predictor"):
            moesaic.simulate(RECORDED, predictr="none")

    def test_plan_is_the_command(self):
        workload = "prompt=77,gen=64,requests=5000"
        expected = command_json("plan", "mixtral-8x7b", "--machine", "l4", "--workload", workload, "--no-what-if")
        planned = moesaic.plan("mixtral-8x7b", workload, machine="l4", what_if=False)
        self.assertEqual(planned["workload"], expected["workload"])
        self.assertEqual(planned, expected)

    def test_throughput_mode_answers_alike(self):
        params = SamplingParams(temperature=0, max_tokens=8)
        with LLM(MODEL) as llm:
            expected = llm.generate(PROMPTS * 5, params)
        with LLM(MODEL, mode="throughput", workload="prompt=8,gen=8,requests=20", expert_memory="25%") as llm:
            outputs = llm.generate(PROMPTS * 5, params)
            self.assertGreater(llm.stats()["steps"], 0)
            self.assertEqual(llm.residency().shape, (8, 32))
            self.assertGreater(llm.ledger()[0]["total_bytes"], 0)
        self.assertEqual([o.outputs[0].token_ids for o in outputs], [o.outputs[0].token_ids for o in expected])
        with self.assertRaisesRegex(moesaic.InvalidArgumentError, "latency or throughput"):
            LLM(MODEL, mode="fast")
        with self.assertRaisesRegex(moesaic.InvalidArgumentError, "throughput"):
            LLM(MODEL, workload="prompt=8,gen=8,requests=20")


if __name__ == "__main__":
    unittest.main()
