"""moesaic.LLM on the sample model: answers, fields, errors, signals, processes, closing."""

import importlib.util
import json
import multiprocessing
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import forced_model
import moesaic
import numpy as np
from harness import BINARY, ENVIRONMENT, MODEL, PATIENCE_S, MoesaicServer, with_long_context
from moesaic import LLM, SamplingParams

ROOT = pathlib.Path(__file__).resolve().parents[3]
FIXTURE = ROOT / "tests/data/models/qwen3_moe_fp32_odd"
REFERENCE = json.loads((pathlib.Path(MODEL) / "reference" / "prompts.json").read_text())
# The kernels that are tested are the command's, too.
COMMAND_ENVIRONMENT = ENVIRONMENT | {name: os.environ[name] for name in ("MOESAIC_ISA",) if name in os.environ}
GREEDY = SamplingParams(temperature=0, max_tokens=24)


def run_command(*arguments):
    """The JSON that `moesaic run` prints."""
    done = subprocess.run(
        [BINARY, "run", *arguments, "--json"], capture_output=True, text=True, env=COMMAND_ENVIRONMENT, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class AnswersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(MODEL, expert_memory="25%")

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()

    def test_greedy_answers_are_those_of_the_command(self):
        prompts = [entry["prompt"] for entry in REFERENCE[:3]]
        outputs = self.llm.generate(prompts, GREEDY)
        for prompt, output in zip(prompts, outputs, strict=True):
            answer = run_command(MODEL, "--raw", prompt, "--temperature", "0", "--max-tokens", "24")
            self.assertEqual(output.outputs[0].text, answer["text"])
            self.assertEqual(output.outputs[0].finish_reason, answer["finish_reason"])
            self.assertEqual(len(output.prompt_token_ids), answer["usage"]["prompt_tokens"])
            self.assertEqual(output.prompt, prompt)

    def test_shapes_are_those_of_vllm(self):
        (output,) = self.llm.generate("The old man", SamplingParams(n=2, seed=1, max_tokens=8))
        self.assertTrue(output.finished)
        self.assertEqual([answer.index for answer in output.outputs], [0, 1])
        for answer in output.outputs:
            self.assertLessEqual(len(answer.token_ids), 8)
            self.assertTrue(answer.finished())
            self.assertIsNone(answer.logprobs)
        self.assertNotEqual(output.outputs[0].token_ids, output.outputs[1].token_ids)
        (again,) = self.llm.generate(["The old man"], [SamplingParams(n=2, seed=1, max_tokens=8)])
        self.assertEqual([a.token_ids for a in again.outputs], [a.token_ids for a in output.outputs])

    def test_prompts_are_text_or_token_ids(self):
        ids = self.llm.encode("The old man")
        forms = ["The old man", {"prompt": "The old man"}, ids, {"prompt_token_ids": ids}, np.array(ids)]
        outputs = self.llm.generate(forms, GREEDY)
        self.assertEqual(len({tuple(output.outputs[0].token_ids) for output in outputs}), 1)
        self.assertEqual([output.prompt_token_ids for output in outputs], [ids] * len(forms))
        self.assertEqual(self.llm.generate(ids, GREEDY)[0].outputs[0].text, outputs[0].outputs[0].text)
        self.assertEqual(self.llm.decode(ids), "The old man")
        self.assertEqual(self.llm.generate([], GREEDY), [])

    def test_logprobs(self):
        params = SamplingParams(temperature=0, max_tokens=6, logprobs=3, prompt_logprobs=2)
        (output,) = self.llm.generate("The old man", params)
        answer = output.outputs[0]
        self.assertEqual(len(answer.logprobs), len(answer.token_ids))
        for token, logprobs in zip(answer.token_ids, answer.logprobs):
            self.assertEqual(len(logprobs), 3)
            self.assertEqual(logprobs[token].rank, 1)  # greedy
            values = [entry.logprob for entry in logprobs.values()]
            self.assertEqual(values, sorted(values, reverse=True))
            self.assertEqual(logprobs[token].decoded_token, self.llm.decode([token]))
        total = sum(logprobs[token].logprob for token, logprobs in zip(answer.token_ids, answer.logprobs))
        self.assertAlmostEqual(answer.cumulative_logprob, total, places=5)
        self.assertEqual(len(output.prompt_logprobs), len(output.prompt_token_ids))
        self.assertIsNone(output.prompt_logprobs[0])
        for token, logprobs in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:]):
            self.assertIn(token, logprobs)
            self.assertIn(len(logprobs), (2, 3))

    def test_ends(self):
        (plain,) = self.llm.generate("The old man", GREEDY)
        word = plain.outputs[0].text.split()[3]
        (stopped,) = self.llm.generate("The old man", SamplingParams(temperature=0, max_tokens=24, stop=[word]))
        self.assertEqual(stopped.outputs[0].finish_reason, "stop")
        self.assertEqual(stopped.outputs[0].stop_reason, word)
        self.assertNotIn(word, stopped.outputs[0].text)
        self.assertEqual(plain.outputs[0].finish_reason, "length")
        (whole,) = self.llm.generate("The old man", SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
        self.assertEqual(len(whole.prompt_token_ids) + len(whole.outputs[0].token_ids), self.llm.max_model_len)
        (silent,) = self.llm.generate("The old man", SamplingParams(temperature=0, max_tokens=4, detokenize=False))
        self.assertEqual((silent.outputs[0].text, len(silent.outputs[0].token_ids)), ("", 4))

    def test_experts_of_an_answer(self):
        params = SamplingParams(temperature=0, max_tokens=5, return_routed_experts=True)
        prompt = self.llm.encode("An answer whose experts are counted, and no other test has this prompt")
        (output,) = self.llm.generate(prompt, params)
        answer = output.outputs[0]
        tokens = len(prompt) + 4  # the last token is not run
        routed = answer.routed_experts
        self.assertEqual((routed.shape, routed.dtype), ((tokens, 8, 4), np.int16))
        self.assertFalse(routed.flags.writeable or routed.flags.owndata)
        self.assertEqual((answer.eam.shape, answer.eam.dtype), ((8, 32), np.uint32))
        for part, rows in ((answer.prefill_eam, routed[: len(prompt)]), (answer.decode_eam, routed[len(prompt) :])):
            self.assertFalse(part.flags.writeable or part.flags.owndata)
            for layer in range(8):
                counts = np.bincount(rows[:, layer].ravel(), minlength=32)
                self.assertTrue((counts == part[layer]).all())
        # A prompt of more than a block is found in the prefix cache; its experts are not known then.
        (again,) = self.llm.generate(prompt, params)
        cached = again.num_cached_tokens
        self.assertGreater(cached, 0)
        self.assertEqual(again.outputs[0].token_ids, answer.token_ids)
        self.assertTrue((again.outputs[0].routed_experts[:cached] == -1).all())
        self.assertTrue((again.outputs[0].routed_experts[cached:] == routed[cached:]).all())
        (plain,) = self.llm.generate(prompt, GREEDY)
        self.assertIsNone(plain.outputs[0].routed_experts)

    def test_stream(self):
        (whole,) = self.llm.generate("The old man", GREEDY)
        seen = list(self.llm.stream("The old man", GREEDY))
        self.assertGreater(len(seen), 1)
        self.assertEqual(seen[-1].outputs[0].token_ids, whole.outputs[0].token_ids)
        self.assertTrue(seen[-1].finished)
        for earlier, later in zip(seen, seen[1:]):
            self.assertTrue(later.outputs[0].text.startswith(earlier.outputs[0].text))
        delta = SamplingParams(temperature=0, max_tokens=24, output_kind=moesaic.RequestOutputKind.DELTA)
        pieces = list(self.llm.stream("The old man", delta))
        self.assertEqual("".join(piece.outputs[0].text for piece in pieces), whole.outputs[0].text)
        self.assertEqual([t for piece in pieces for t in piece.outputs[0].token_ids], whole.outputs[0].token_ids)

    def test_what_the_engine_holds(self):
        self.llm.generate("The old man", GREEDY)
        stats = self.llm.stats()
        self.assertGreater(stats["decode_tokens"], 0)
        self.assertGreater(stats["expert_misses"], 0)
        residency = self.llm.residency()
        self.assertEqual((residency.shape, residency.dtype), ((8, 32), np.uint8))
        # Prefetching goes on for a moment.
        self.assertLess(abs(int(residency.sum()) - self.llm.stats()["experts_resident"]), 16)
        self.assertLessEqual(int(residency.sum()), stats["expert_slots"])
        self.assertGreater(int(residency.sum()), stats["expert_slots"] // 2)
        (host,) = self.llm.ledger()
        self.assertEqual(sum(host["items"].values()), host["total_bytes"])
        self.assertLessEqual(host["total_bytes"], host["limit_bytes"])

    def test_chat(self):
        messages = [{"role": "user", "content": "How many legs do three cats have?"}]
        (output,) = self.llm.chat(messages, GREEDY)
        answer = run_command(MODEL, messages[0]["content"], "--temperature", "0", "--max-tokens", "24")
        self.assertEqual(output.outputs[0].text, answer["text"])
        self.assertEqual(output.outputs[0].message, {"role": "assistant", "content": answer["text"]})
        two = self.llm.chat([messages, messages], GREEDY)
        self.assertEqual([one.outputs[0].text for one in two], [answer["text"]] * 2)

    def test_structured_output(self):
        schema = {"type": "object", "properties": {"legs": {"enum": [4, 12]}}, "required": ["legs"]}
        messages = [{"role": "user", "content": "How many legs do three cats have?"}]
        form = {"type": "json_schema", "json_schema": {"name": "legs", "schema": schema}}
        try:
            (output,) = self.llm.chat(messages, SamplingParams(temperature=0, max_tokens=200), response_format=form)
        except moesaic.InvalidArgumentError as error:
            self.skipTest(str(error))  # a build without xgrammar
        self.assertEqual(list(json.loads(output.outputs[0].text)), ["legs"])
        choice = SamplingParams(temperature=0, max_tokens=20, structured_outputs={"choice": ["red", "green"]})
        self.assertIn(self.llm.generate("A colour:", choice)[0].outputs[0].text, ("red", "green"))

    def test_errors_are_the_servers(self):
        cases = [
            (lambda: self.llm.generate("x", SamplingParams(temperature=-1)), "temperature", "temperature"),
            (lambda: self.llm.generate([[1, 2], [99999]]), "prompt holds token id 99999", "prompt"),
            (lambda: self.llm.generate("x", SamplingParams(max_tokens=5000)), "maximum context length", "max_tokens"),
            (lambda: self.llm.generate(["x"], [GREEDY, GREEDY]), "2 sampling_params for 1 prompts", ""),
            (lambda: self.llm.chat([{"role": "user"}]), "content", "messages[0].content"),
            (lambda: self.llm.chat([], GREEDY), "messages", "messages"),
            (lambda: self.llm.chat([{"role": "user", "content": "x"}], GREEDY, nonsense=1), "'nonsense'", ""),
            (lambda: self.llm.generate({"text": "x"}), "prompt_token_ids", ""),
            (lambda: self.llm.generate([[]]), "prompt has no tokens", ""),
        ]
        for call, text, param in cases:
            with self.subTest(text), self.assertRaises(moesaic.InvalidArgumentError) as caught:
                call()
            self.assertIn(text, str(caught.exception))
            self.assertEqual(caught.exception.kind, "invalid_argument")
            if param:
                self.assertEqual(caught.exception.param, param)
        self.assertTrue(issubclass(moesaic.InvalidArgumentError, ValueError))

    def test_the_gil_is_free_while_the_engine_works(self):
        counted = 0
        done = threading.Event()

        def count():
            nonlocal counted
            while not done.is_set():
                counted += 1
                time.sleep(0.0005)

        thread = threading.Thread(target=count)
        thread.start()
        self.llm.generate(["The old man"] * 8, SamplingParams(temperature=0, max_tokens=100, ignore_eos=True))
        done.set()
        thread.join()
        self.assertGreater(counted, 10)

    def test_threads_may_ask_at_once(self):
        (expected,) = self.llm.generate("The old man", GREEDY)
        results = []
        threads = [
            threading.Thread(target=lambda: results.append(self.llm.generate("The old man", GREEDY)[0]))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([r.outputs[0].token_ids for r in results], [expected.outputs[0].token_ids] * 4)

    def test_a_fork_is_refused(self):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                self.llm.generate("x", GREEDY)
                text = "no error"
            except moesaic.UnsupportedError as error:
                text = str(error)
            except BaseException as error:
                text = repr(error)
            os.write(writer, text.encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            self.assertIn("is a fork of it", pipe.read())
        os.waitpid(child, 0)
        self.llm.generate("The old man", GREEDY)  # the parent goes on


class MoETest(unittest.TestCase):
    def test_scripts_of_moe_infinity(self):
        model = moesaic.MoE(MODEL, {"offload_path": "/nowhere", "device_memory_ratio": 0.25})
        self.addCleanup(model.close)
        self.assertEqual(model.llm.stats()["expert_slots"], 64)
        short, long = model.llm.encode("The old"), model.llm.encode("The old man went to")
        padded = [0] * (len(long) - len(short)) + short
        mask = [[0] * (len(long) - len(short)) + [1] * len(short), [1] * len(long)]
        result = model.generate(np.array([padded, long]), np.array(mask), max_new_tokens=6, use_cache=True)
        self.assertEqual(result.dtype, np.int64)
        self.assertEqual(result[:, : len(long)].tolist(), [padded, long])
        for row, prompt in zip(result, (short, long)):
            (expected,) = model.llm.generate(prompt, SamplingParams(temperature=0, max_tokens=6))
            answer = expected.outputs[0].token_ids
            self.assertEqual(row[len(long) : len(long) + len(answer)].tolist(), answer)


class ForcedAnswerTest(unittest.TestCase):
    """A model whose answer to one question is known: reasoning, text and two calls of tools."""

    @classmethod
    def setUpClass(cls):
        cls.forced = forced_model.ForcedModel()

    @classmethod
    def tearDownClass(cls):
        cls.forced.cleanup()

    def test_reasoning_and_calls(self):
        tools = [
            {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
            for name in ("weather", "time")
        ]
        with LLM(self.forced.path, chat_template=self.forced.template) as llm:
            (output,) = llm.chat(forced_model.MESSAGES, SamplingParams(max_tokens=100), tools=tools)
        answer = output.outputs[0]
        self.assertEqual(answer.finish_reason, "tool_calls")
        self.assertEqual(answer.reasoning.strip(), "I must look.")
        self.assertEqual(answer.text.strip(), "One moment.")
        self.assertEqual([call["function"]["name"] for call in answer.tool_calls], ["weather", "time"])
        self.assertEqual(json.loads(answer.tool_calls[0]["function"]["arguments"]), {"city": "Rome {"})
        self.assertEqual(answer.message["tool_calls"], answer.tool_calls)


class StartTest(unittest.TestCase):
    def test_a_fixture_answers_as_the_command(self):
        store = pathlib.Path(self.directory()) / "store"
        dummy = ["--load-format", "dummy", "--seed", "7"]
        subprocess.run(
            [BINARY, "pack", str(FIXTURE), *dummy, "-o", str(store)], check=True, capture_output=True, env=COMMAND_ENVIRONMENT
        )
        with LLM(FIXTURE, load_format="dummy", seed=7, expert_store=store, max_num_seqs=2) as llm:
            (output,) = llm.generate("1 2 3 4", SamplingParams(temperature=0, max_tokens=8))
        command = [*dummy, "--expert-store", str(store), "--raw", "1 2 3 4", "--temperature", "0", "-n", "8"]
        answer = run_command(str(FIXTURE), *command)
        self.assertEqual(output.outputs[0].text, answer["text"])

    def test_refusals(self):
        cases = [
            (lambda: LLM(), moesaic.InvalidArgumentError, "no model given"),
            (lambda: LLM("no/such/model"), moesaic.NotFoundError, "no/such/model"),
            (lambda: LLM(MODEL, expert_memry="25%"), moesaic.InvalidArgumentError, "did you mean expert_memory?"),
            (lambda: LLM(MODEL, expert_memory="much"), moesaic.InvalidArgumentError, "expert_memory: "),
            (lambda: LLM(MODEL, threads={}), moesaic.InvalidArgumentError, "threads: a setting is a text"),
            (lambda: LLM(MODEL, port=8000), moesaic.InvalidArgumentError, "port: "),
            (lambda: LLM(MODEL, memory="2MiB"), moesaic.ResourceExhaustedError, "memory"),
            (lambda: LLM(MODEL, config="no-such-preset"), moesaic.NotFoundError, "no-such-preset"),
        ]
        for make, kind, text in cases:
            with self.subTest(text), self.assertRaises(kind) as caught:
                make()
            self.assertIn(text, str(caught.exception))

    def test_settings_come_from_keywords_environment_and_yaml(self):
        yaml = pathlib.Path(self.directory()) / "settings.yaml"
        yaml.write_text("max-model-len: 64\nexpert-memory: 25%\nmax-num-seqs: 3\n")
        os.environ["MOESAIC_EXPERT_MEMORY"] = "50%"
        self.addCleanup(os.environ.pop, "MOESAIC_EXPERT_MEMORY")
        with LLM(MODEL, config=yaml, max_model_len=128) as llm:
            self.assertEqual(llm.max_model_len, 128)
            self.assertEqual(llm.stats()["expert_slots"], 128)  # of 256
        with LLM(MODEL, config=yaml) as llm:
            self.assertEqual(llm.max_model_len, 64)

    def directory(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        return directory.name

    def test_closing(self):
        threads = threading.active_count()
        llm = LLM(MODEL)
        before = len(os.listdir("/proc/self/task"))
        (output,) = llm.generate("The old man", SamplingParams(temperature=0, max_tokens=4))
        eam = output.outputs[0].decode_eam
        llm.close()
        self.assertLess(len(os.listdir("/proc/self/task")), before)
        llm.close()
        self.assertTrue(llm.closed)
        self.assertEqual(int(eam.sum()), 3 * 8 * 4)  # its memory outlives the engine
        for call in (lambda: llm.generate("x"), llm.stats, llm.residency, lambda: llm.max_model_len):
            with self.assertRaisesRegex(moesaic.UnavailableError, "closed"):
                call()
        self.assertEqual(threading.active_count(), threads)

    def test_closing_ends_what_runs(self):
        llm = LLM(with_long_context(self.directory()))
        caught = []

        def ask():
            try:
                llm.generate("The old man", SamplingParams(max_tokens=None, ignore_eos=True))
            except moesaic.UnavailableError as error:
                caught.append(str(error))

        thread = threading.Thread(target=ask)
        thread.start()
        while llm.stats()["decode_tokens"] < 10:
            time.sleep(0.01)
        llm.close()
        thread.join(PATIENCE_S)
        self.assertEqual(len(caught), 1)
        self.assertIn("closed", caught[0])

    def test_leaving_a_stream_ends_its_request(self):
        with LLM(with_long_context(self.directory())) as llm:
            for _ in llm.stream("The old man", SamplingParams(max_tokens=None, ignore_eos=True)):
                break
            deadline = time.monotonic() + PATIENCE_S
            while llm.stats()["running"] > 0:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)

    def test_ctrl_c_interrupts(self):
        script = f"""
import sys, threading, moesaic
llm = moesaic.LLM({with_long_context(self.directory())!r})
print("ready", flush=True)
try:
    llm.generate("The old man", moesaic.SamplingParams(max_tokens=None, ignore_eos=True))
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(llm.generate("The old man", moesaic.SamplingParams(max_tokens=4))[0].finished, flush=True)
"""
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
            self.assertEqual(process.stdout.readline(), "ready\n")
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=PATIENCE_S)
        self.assertEqual(out.split(), ["interrupted", "True"])

    def test_a_spawned_process_has_its_own(self):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            texts = pool.apply(answer_in_child, (MODEL,))
        with LLM(MODEL) as llm:
            self.assertEqual(llm.generate("The old man", GREEDY)[0].outputs[0].text, texts)


def answer_in_child(model):
    with LLM(model) as llm:
        return llm.generate("The old man", SamplingParams(temperature=0, max_tokens=24))[0].outputs[0].text


@unittest.skipUnless(importlib.util.find_spec("lm_eval"), "lm-eval is not installed (pip install 'lm-eval[api]')")
class LmEvalTest(unittest.TestCase):
    """The harness's model in the process gives what its client of servers gets from the server."""

    REQUESTS = {
        "loglikelihood": [
            ("The old man went to the", " door"),
            ("The old man went to the", " elephant"),
            ("", "It was a cold night."),
            ("She said ", "nothing at all to him"),
        ],
        "loglikelihood_rolling": [("Once upon a time there was a king. " * 12,), ("Hm.",)],
        "generate_until": [
            ("Once upon a time", {"until": ["."], "max_gen_toks": 24}),
            ("It was a cold night and", {"until": ["\n\n"], "max_gen_toks": 8, "temperature": 0}),
        ],
    }

    def test_both_ways_give_the_same(self):
        from lm_eval.api.instance import Instance
        from lm_eval.models.openai_completions import LocalCompletionsAPI

        from moesaic.lm_eval import MoesaicLM

        def ask(model):
            answers = {}
            for kind, all_arguments in self.REQUESTS.items():
                requests = [Instance(kind, {}, arguments, index) for index, arguments in enumerate(all_arguments)]
                answers[kind] = getattr(model, kind)(requests, disable_tqdm=True)
            return answers

        with LLM(MODEL, expert_memory="25%") as llm:
            here = ask(MoesaicLM(llm=llm, max_length=64))
        with MoesaicServer("--expert-memory", "50%") as server:
            there = ask(
                LocalCompletionsAPI(
                    base_url=server.url + "/v1/completions", model="sample", tokenizer_backend="remote", max_length=64
                )
            )
        self.assertEqual(here["generate_until"], there["generate_until"])
        for kind in ("loglikelihood", "loglikelihood_rolling"):
            self.assertEqual(len(here[kind]), len(self.REQUESTS[kind]))
            self.assertEqual(here[kind], there[kind], kind)
        self.assertGreater(here["loglikelihood"][0][0], here["loglikelihood"][1][0])

    # Tasks of files, which need no hub. ("Which word comes next", "go on", "how likely is the text".)
    TASKS = {
        "next_word": """
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: "{{words}}"
doc_to_target: "{{right}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
        "going_on": """
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{words[right]}}"
generation_kwargs: {until: ["."], max_gen_toks: 16, do_sample: false}
metric_list: [{metric: exact_match}]
""",
        "likely": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}} {{words[right]}}"
metric_list: [{metric: word_perplexity}]
""",
    }

    def test_tasks_have_the_same_results_both_ways(self):
        from lm_eval import simple_evaluate
        from lm_eval.models.openai_completions import LocalCompletionsAPI
        from lm_eval.tasks import TaskManager

        from moesaic.lm_eval import MoesaicLM

        rng = random.Random(7)
        words = "door sea night king house river winter stone".split()
        beginnings = ("He shut the", "They sailed over the", "It was a cold", "She looked at the old", "He crossed the wide")
        with tempfile.TemporaryDirectory() as directory:
            here = pathlib.Path(directory)
            with open(here / "questions.jsonl", "w") as file:
                for _ in range(24):
                    chosen = rng.sample(words, 4)
                    file.write(json.dumps({"text": rng.choice(beginnings), "words": chosen, "right": rng.randrange(4)}) + "\n")
            for name, task in self.TASKS.items():
                data = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {here}/questions.jsonl}}}}\ntest_split: test\n"
                (here / f"{name}.yaml").write_text(f"task: {name}\n{data}{task}")

            def evaluate(model):
                manager = TaskManager(include_path=str(here), include_defaults=False)
                found = simple_evaluate(model, tasks=list(self.TASKS), task_manager=manager, bootstrap_iters=0, log_samples=True)
                answers = {
                    name: [(sample["doc_id"], sample["filtered_resps"]) for sample in samples]
                    for name, samples in found["samples"].items()
                }
                return found["results"], answers

            with mock.patch.dict(os.environ, {"HF_DATASETS_CACHE": str(here / "cache"), "HF_HUB_OFFLINE": "1"}):
                with LLM(MODEL, expert_memory="25%") as llm:
                    in_process, answers = evaluate(MoesaicLM(llm=llm))
                with MoesaicServer() as server:
                    over_http, same = evaluate(
                        LocalCompletionsAPI(
                            base_url=server.url + "/v1/completions", model="sample", tokenizer_backend="remote", max_length=1024,
                            num_concurrent=4, batch_size=1,
                        )
                    )
        self.assertEqual(in_process, over_http)
        self.assertEqual(answers, same)
        self.assertEqual({name: len(of_task) for name, of_task in answers.items()}, {name: 24 for name in self.TASKS})
        self.assertGreater(in_process["likely"]["word_perplexity,none"], 1)


if __name__ == "__main__":
    unittest.main()
