#!/usr/bin/env python3
"""The `moesaic` program as a user meets it: exit codes, messages, streams, signals.

    cli_end_to_end_test.py PROGRAM SAMPLE_MODEL_DIR

Standard library only; run by ctest.
"""

import concurrent.futures
import http.client
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("MOESAIC_")}
GREEDY = ["--raw", "--temperature", "0", "--max-tokens", "24"]
PROMPT = "It was a cold and stormy night, and the old man"


def run(*arguments, stdin="", environment=None, timeout=120):
    return subprocess.run(
        [PROGRAM, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**ENVIRONMENT, **(environment or {})},
    )


class CommandLine(unittest.TestCase):
    def assert_error(self, result, code, *parts):
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertTrue(result.stderr.startswith("error: "), result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)

    def test_help_of_every_command(self):
        overview = run("--help")
        self.assertEqual(overview.returncode, 0)
        self.assertEqual(run().stdout, overview.stdout)
        commands = re.findall(r"^  (\w+(?: serve)?) {2,}", overview.stdout, re.MULTILINE)
        for name in ("run", "serve", "show", "pack", "plan", "profile", "bench", "bench serve", "trace",
                     "version"):
            self.assertIn(name, commands)
            result = run(*name.split(), "--help")
            self.assertEqual(result.returncode, 0, name)
            self.assertTrue(result.stdout.startswith(f"Usage: moesaic {name}"), name)
            self.assertLessEqual(max(map(len, result.stdout.splitlines())), 110, name)
            self.assertEqual(run("help", *name.split()).stdout, result.stdout)

    def test_man_pages_and_completions_are_of_the_help(self):
        root = pathlib.Path(__file__).resolve().parents[3]
        with tempfile.TemporaryDirectory() as directory:
            written = [sys.executable, root / "scripts/cli_docs.py", PROGRAM, directory, "2026-11-25"]
            subprocess.run(written, check=True, timeout=120)
            share = pathlib.Path(directory) / "share"
            pages = {page.stem: page.read_text() for page in (share / "man/man1").iterdir()}
            for name in re.findall(r"^  (\w+(?: serve)?) {2,}", run("--help").stdout, re.MULTILINE):
                self.assertIn("moesaic-" + name.replace(" ", "-"), pages)
            flags = set(re.findall(r"^  (?:-\w, )?--([a-z-]+)", run("serve", "--help").stdout, re.MULTILINE))
            self.assertIn("expert-memory", flags)
            zsh = (share / "zsh/vendor-completions/_moesaic").read_text()
            fish = (share / "fish/vendor_completions.d/moesaic.fish").read_text()
            for flag in flags:
                self.assertIn("\\fB\\-\\-" + flag.replace("-", "\\-") + "\\fR", pages["moesaic-serve"])
                self.assertRegex(zsh, rf"'\*--{flag}[=\[]")
                self.assertRegex(fish, rf" -l {flag} ")
            bash = shutil.which("bash")
            if bash is None:
                self.skipTest("no bash here")
            for words, wanted in (
                (["moesaic", "trace", "re"], ["record"]),
                (["moesaic", "serve", "--dtype", "in"], ["int8", "int4"]),
                (["moesaic", "serve", "--dtype", "=", "fl"], ["float32"]),
                (["moesaic", "bench", "serve", "--max-conc"], ["--max-concurrency"]),
                (["moesaic", "serve", "--port", ""], []),
            ):
                script = '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _moesaic; echo "${COMPREPLY[@]}"'
                completions = share / "bash-completion/completions/moesaic"
                done = subprocess.run([bash, "-c", script, completions, *words], capture_output=True, text=True, timeout=60)
                self.assertEqual((done.stdout.split(), done.stderr), (wanted, ""), words)

    def test_pull_asks_before_it_downloads(self):
        with tempfile.TemporaryDirectory() as directory:
            directory = pathlib.Path(directory)
            hf, calls = directory / "bin" / "hf", directory / "calls"
            hf.parent.mkdir()
            environment = {"PATH": f"{hf.parent}:/usr/bin:/bin", "HF_HOME": str(directory / "home")}

            def pull(*arguments, says="Will download 3 files (out of 4) totalling 61.1M.", code=0, **more):
                """hf answers a dry run with this, and notes what it is called with."""
                hf.write_text(
                    f"""#!/bin/sh\necho "$@" >>'{calls}'\ncase "$*" in
                    *--dry-run) echo "[dry-run] {says}"; exit {code} ;; esac\necho downloaded\n"""
                )
                hf.chmod(0o755)
                calls.write_text("")
                return run("pull", *arguments, environment={**environment, **more})

            asked = "download Qwen/Qwen3-30B-A3B"
            done = pull("Qwen/Qwen3-30B-A3B")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertRegex(done.stdout, r"3 files, 58.3 MiB to download into .*home/hub \(.* free\)\ndownloaded\n")
            self.assertEqual(calls.read_text(), f"{asked} --dry-run\n{asked}\n")
            done = pull("gpt2", "--revision", "v1", "--include", "*.json", "--include", "*.model", "--dry-run")
            self.assertEqual(done.returncode, 0)
            self.assertEqual(calls.read_text(), "download gpt2 --revision v1 --include *.json --include *.model --dry-run\n")
            done = pull("gpt2", says="Will download 0 files (out of 4) totalling 0.0.")
            self.assertIn("everything is here", done.stdout)

            def refused(result, code, *parts):
                self.assert_error(result, code, *parts)
                self.assertNotIn(f"{asked}\n", calls.read_text())

            refused(pull("Qwen/Qwen3-30B-A3B", says="Will download 9 files (out of 9) totalling 999.9P."), 3, "free in", "HF_HOME")
            refused(pull("Qwen/Qwen3-30B-A3B", says="Error: Access denied. This repository requires approval.", code=1), 4,
                    "requires approval", "ended with 1")
            refused(pull("Qwen/Qwen3-30B-A3B", says="Will download 9 files (out of 9) totalling an unknown size."), 2, "unknown size", asked)
            refused(pull("Qwen/Qwen3-30B-A3B", says="hello"), 2, "hello")
            refused(pull("Qwen/Qwen3-30B-A3B", HF_HOME=f"{hf}/models"), 4, f"{hf}: cannot be written (Not a directory)")
            refused(pull("models/../x"), 2, "the id of a model")
            refused(pull(), 2, "the id of a model")
            hf.unlink()
            self.assert_error(run("pull", "gpt2", environment=environment), 2, "pip install huggingface_hub", "hf download gpt2")
            self.assert_error(run("show", "nobody/nothing", environment=environment), 2, "moesaic pull nobody/nothing")

    def test_version(self):
        result = run("--version")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stdout, r"^moesaic \d+\.\d+\.\d+\n")
        for part in ("commit", "build", "kernels", "libraries"):
            self.assertIn(part, result.stdout)

    def test_mistakes_get_the_nearest_name_and_exit_code_2(self):
        self.assert_error(run("srve", MODEL), 2, "did you mean `moesaic serve`?")
        self.assert_error(run("bench"), 2, "no model given")
        self.assert_error(run("run", MODEL, "--thread", "2"), 2, "did you mean --threads?")
        self.assert_error(run("run", MODEL, "x", "--threads", "two"), 2, "--threads: expected an integer")
        self.assert_error(run("run"), 2, "no model given")
        self.assert_error(run("show", "/nowhere"), 2, "/nowhere")
        self.assert_error(run("show", MODEL, "extra"), 2, "unexpected argument 'extra'")
        self.assert_error(run("run", MODEL, "x", environment={"MOESAIC_THREADS": "-1"}), 2, "MOESAIC_THREADS")
        self.assert_error(run("run", MODEL, "x", environment={"MOESAIC_ISA": "mmx"}), 2, "MOESAIC_ISA")

    def test_configuration_file(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "c.yaml"
            path.write_text("threads: 1\nexpert_memry: 5MiB\n")
            self.assert_error(
                run("run", MODEL, "x", "--config", str(path)), 2, "c.yaml:2", "did you mean 'expert-memory'?"
            )
            path.write_text("expert-memory: 30%\nport: 1234\n")
            shown = run("serve", "--print-config", "--config", str(path), environment={"MOESAIC_PORT": "99"})
            self.assertRegex(shown.stdout, r"expert-memory: 30% +# .*c\.yaml:1")
            self.assertRegex(shown.stdout, r"port: 99 +# MOESAIC_PORT")
            self.assertRegex(shown.stdout, r"max-queue: 256 +# default")
            self.assertRegex(shown.stdout, r'model: "" +# default')
            shown = run("serve", "some/model", "--print-config", environment={"MOESAIC_MODEL": "other"})
            self.assertRegex(shown.stdout, r"model: some/model +# argument")
            shown = run("serve", "some/model", "--model", "third", "--print-config")
            self.assertRegex(shown.stdout, r"model: third +# --model")

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assert_error(result, 4, "standard output")

    def test_reader_that_leaves_is_no_error(self):
        process = subprocess.Popen([PROGRAM, "serve", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.close()
        self.assertEqual(process.wait(timeout=60), 0)
        self.assertEqual(process.stderr.read(), b"")
        process.stderr.close()


class Show(unittest.TestCase):
    def test_text(self):
        result = run("show", MODEL)
        self.assertEqual(result.returncode, 0, result.stderr)
        for part in ("Qwen3MoeForCausalLM", "32 per layer, top 4", "one expert", "--expert-memory", "all experts"):
            self.assertIn(part, result.stdout)

    def test_json(self):
        shown = json.loads(run("show", MODEL, "--json").stdout)
        self.assertEqual(shown["architecture"]["experts_per_layer"], 32)
        self.assertEqual(shown["parameters"]["total"], 11062976)
        self.assertEqual(shown["bytes"]["expert"], 73728)
        half = next(row for row in shown["expert_memory"] if row["expert_memory"] == "50%")
        self.assertEqual(half["expert_slots"], 128)

    def test_without_weights_sizes_are_those_with_them(self):
        with tempfile.TemporaryDirectory() as directory:
            shutil.copy(pathlib.Path(MODEL) / "config.json", directory)
            result = run("show", directory, "--json", "--dtype", "bfloat16")
            self.assertEqual(result.returncode, 0, result.stderr)
            bare = json.loads(result.stdout)
            whole = json.loads(run("show", MODEL, "--json", "--dtype", "bfloat16").stdout)
            self.assertEqual(bare["parameters"], whole["parameters"])
            for with_weights, without in zip(whole["expert_memory"], bare["expert_memory"], strict=True):
                self.assertEqual(without.get("expert_slots"), with_weights.get("expert_slots"))
            self.assertIn("no weights here", run("show", directory).stdout)
            # A model of which a part is missing is another matter.
            index = {"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}
            (pathlib.Path(directory) / "model.safetensors.index.json").write_text(json.dumps(index))
            self.assert_missing(run("show", directory), "model-00001-of-00002.safetensors")

    def assert_missing(self, result, name):
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn(name, result.stderr)

    def test_too_little_memory(self):
        shown = json.loads(run("show", MODEL, "--json", "--memory", "1MiB").stdout)
        self.assertFalse(any(row["fits"] for row in shown["expert_memory"]))
        result = run("run", MODEL, "x", "--memory", "1MiB")
        self.assertEqual(result.returncode, 3, result.stderr)


class Run(unittest.TestCase):
    def test_the_budget_does_not_change_the_answer(self):
        answers = {
            run("run", MODEL, *GREEDY, PROMPT, "--expert-memory", budget, "--threads", threads,
                "--io-threads", io_threads).stdout
            for budget, threads, io_threads in (("100%", "1", "1"), ("25%", "2", "3"), ("80KiB", "1", "1"))
        }
        self.assertEqual(len(answers), 1)
        self.assertTrue(answers.pop().startswith(" was afraid of the world."))

    def test_a_chat_template_that_does_not_parse(self):
        with tempfile.TemporaryDirectory() as directory:
            model = pathlib.Path(directory) / "model"
            shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("reference"))
            (model / "chat_template.jinja").write_text("a\n{% for m in messages recursive %}{% endfor %}")
            why = "chat_template.jinja, line 2: the template uses a recursive loop, which is not supported"
            chat = run("run", str(model), *GREEDY[1:], PROMPT)
            self.assertEqual(chat.returncode, 2, chat.stderr)
            self.assertIn(why, chat.stderr)
            self.assertEqual(run("run", str(model), *GREEDY, PROMPT, "--raw").returncode, 0)
            lines = [
                {"custom_id": "c", "url": "/v1/chat/completions",
                 "body": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}},
                {"custom_id": "p", "url": "/v1/completions", "body": {"prompt": "hi", "max_tokens": 2}},
            ]
            jobs = pathlib.Path(directory) / "jobs.jsonl"
            jobs.write_text("".join(json.dumps(line) + "\n" for line in lines))
            output = pathlib.Path(directory) / "out.jsonl"
            for mode in ("latency", "throughput"):
                done = run("batch", str(model), "-i", str(jobs), "-o", str(output), "--overwrite", "--mode", mode)
                answers = {answer["custom_id"]: answer for answer in map(json.loads, output.read_text().splitlines())}
                self.assertEqual(list(answers), ["p"], done.stderr)
                errors = pathlib.Path(f"{output}.errors.jsonl").read_text()
                self.assertIn("line 2: the template uses a recursive loop", errors)

    def test_devices_do_not_change_the_answer(self):
        expected = run("run", MODEL, *GREEDY, PROMPT).stdout
        for miss in ("fetch", "host", "auto"):
            result = run("run", MODEL, *GREEDY, PROMPT, "--devices", "2", "--miss", miss, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            answer = json.loads(result.stdout)
            self.assertEqual(answer["text"] + "\n", expected)
            self.assertEqual([device["slots"] for device in answer["stats"]["devices"]], [32, 32])
            self.assertEqual(answer["stats"]["experts"]["on_host"] > 0, miss != "fetch")
        many = run("run", MODEL, *GREEDY, PROMPT, "--devices", "40")
        self.assertEqual((many.returncode, many.stdout), (0, run("run", MODEL, *GREEDY, PROMPT).stdout), many.stderr)
        self.assertIn("--devices 40: the model has 32 experts in a layer, so 32 devices are used", many.stderr)
        shown = run("run", MODEL, *GREEDY, PROMPT, "--devices", "1", "--stats").stderr
        self.assertIn("found on devices", shown)

    def test_prompt_from_file_pipe_and_flag(self):
        expected = run("run", MODEL, *GREEDY, PROMPT).stdout
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(PROMPT)
            file.flush()
            self.assertEqual(run("run", MODEL, *GREEDY, "--prompt-file", file.name).stdout, expected)
        self.assertEqual(run("run", MODEL, *GREEDY, stdin=PROMPT).stdout, expected)
        self.assertEqual(run("run", "--model", MODEL, *GREEDY, *PROMPT.split()).stdout, expected)

    def test_stats_go_to_standard_error(self):
        result = run("run", MODEL, *GREEDY, PROMPT, "--expert-memory", "25%", "--stats")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, run("run", MODEL, *GREEDY, PROMPT).stdout)
        for part in ("prompt", "output", "found in memory", "read", " of 256 experts in 4.5 MiB"):
            self.assertIn(part, result.stderr)

    def test_json(self):
        result = run("run", MODEL, *GREEDY, PROMPT, "--expert-memory", "25%", "--json")
        answer = json.loads(result.stdout)
        self.assertEqual(answer["usage"]["completion_tokens"], 24)
        self.assertEqual(answer["finish_reason"], "length")
        self.assertGreater(answer["stats"]["experts"]["bytes_read"], 0)
        full = json.loads(run("run", MODEL, *GREEDY, PROMPT, "--expert-memory", "100%", "--json").stdout)
        self.assertEqual(full["stats"]["experts"]["misses"], 0)
        self.assertEqual(full["text"], answer["text"])

    def test_chat_template_is_applied(self):
        asked = run("run", MODEL, "--temperature", "0", "-n", "8", "--json", "How many are two and two?")
        raw = run("run", MODEL, "--raw", "--temperature", "0", "-n", "8", "--json", "How many are two and two?")
        self.assertGreater(
            json.loads(asked.stdout)["usage"]["prompt_tokens"], json.loads(raw.stdout)["usage"]["prompt_tokens"]
        )

    def test_conversation_from_a_pipe(self):
        result = run("run", MODEL, "--chat", "--temperature", "0", "-n", "8", stdin="Hello\n/nonsense\n/clear\n/quit\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("There is no /nonsense", result.stdout)

    def test_mistakes(self):
        for arguments in (
            [""],
            ["x", "--chat", "--json"],
            ["x", "--raw", "--system", "s"],
            ["x", "--prompt-file", "/nowhere.txt"],
            ["--prompt-file", "/nowhere.txt"],
            ["x", "--temperature", "-1"],
            ["x", "--top-p", "0"],
            ["x", "--expert-memory", "150%"],
            ["x", "--max-tokens", "100000"],
        ):
            result = run("run", MODEL, *arguments)
            self.assertEqual(result.returncode, 2, f"{arguments}: {result.stderr}")
            self.assertTrue(result.stderr.startswith("error: "), result.stderr)

    def test_interrupt_ends_the_answer(self):
        process = subprocess.Popen(
            [PROGRAM, "run", MODEL, "--raw", "-n", "0", "--ignore-eos", PROMPT],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=ENVIRONMENT,
        )
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), 130)
        process.stdout.close()
        process.stderr.close()

    def test_reader_that_leaves_ends_the_answer(self):
        process = subprocess.Popen(
            [PROGRAM, "run", MODEL, "--raw", "-n", "0", "--ignore-eos", PROMPT],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=ENVIRONMENT,
        )
        process.stdout.read(1)
        process.stdout.close()
        self.assertEqual(process.wait(timeout=60), 0)
        self.assertEqual(process.stderr.read(), b"")
        process.stderr.close()


class Pack(unittest.TestCase):
    def test_store_is_written_verified_used_and_rebuilt(self):
        with tempfile.TemporaryDirectory() as directory:
            model = pathlib.Path(directory) / "model"
            store = pathlib.Path(directory) / "store"
            shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("reference"))
            written = run("pack", str(model), "-o", str(store), "--verify")
            self.assertEqual(written.returncode, 0, written.stderr)
            self.assertIn("256 experts", written.stdout)
            self.assertIn("verified", written.stdout)
            self.assertIn("is current", run("pack", str(model), "-o", str(store)).stdout)

            use = ["run", str(model), *GREEDY, PROMPT, "--expert-memory", "25%", "--expert-store", str(store)]
            self.assertEqual(run(*use).stdout, run("run", str(model), *GREEDY, PROMPT).stdout)

            weights = model / "model.safetensors"
            os.utime(weights, ns=(time.time_ns() + 10**9, time.time_ns() + 10**9))
            stale = run(*use)
            self.assertEqual(stale.returncode, 2, stale.stderr)
            self.assertIn("pack", stale.stderr)
            self.assertNotIn("is current", run("pack", str(model), "-o", str(store)).stdout)
            self.assertEqual(run(*use).returncode, 0)

    def test_quantised_store(self):
        with tempfile.TemporaryDirectory() as directory:
            store = str(pathlib.Path(directory) / "store")
            self.assertIn("6.0 MiB", run("pack", MODEL, "-o", store, "--dtype", "int4", "--verify").stdout)
            use = ["run", MODEL, *GREEDY, PROMPT, "--dtype", "int4"]
            whole = run(*use)
            self.assertEqual(whole.returncode, 0, whole.stderr)
            self.assertEqual(run(*use, "--expert-memory", "25%", "--expert-store", store).stdout, whole.stdout)
            other = run("run", MODEL, *GREEDY, PROMPT, "--expert-store", store)
            self.assertEqual(other.returncode, 2)
            self.assertIn("are i4 and not bf16 (--dtype)", other.stderr)

    def test_two_stores_share_the_reading(self):
        with tempfile.TemporaryDirectory() as directory:
            first, second, other = (pathlib.Path(directory) / name for name in ("first", "second", "other"))
            self.assertEqual(run("pack", MODEL, "-o", str(first)).returncode, 0)
            shutil.copytree(first, second)
            both = f"{first},{second}"
            use = ["run", MODEL, *GREEDY, PROMPT, "--expert-memory", "25%"]
            whole = run(*use).stdout
            answer = run(*use, "--expert-store", both, "--stats")
            self.assertEqual(answer.returncode, 0, answer.stderr)
            self.assertTrue((answer.stdout + answer.stderr).find(whole.strip()) >= 0)
            for store in (first, second):
                self.assertRegex(answer.stdout + answer.stderr, rf"store +\S+ \S+ read in .* from {store}\n")
            self.assertEqual(json.loads(run(*use, "--expert-store", both, "--json").stdout)["stats"]["stores"][1]["name"],
                             str(second))
            # A copy that is damaged is read elsewhere, which is said once; one that is gone is left out.
            with open(second / "experts.bin", "r+b") as data:
                data.write(bytes(1 << 20))
            damaged = run(*use, "--expert-store", both, "--log-level", "warn")
            self.assertEqual((damaged.returncode, damaged.stdout), (0, whole))
            self.assertEqual(damaged.stderr.count("does not have the checksum"), 1, damaged.stderr)
            self.assertIn(f"it is read from {first}", damaged.stderr)
            shutil.rmtree(second)
            gone = run(*use, "--expert-store", both, "--log-level", "warn")
            self.assertEqual((gone.returncode, gone.stdout), (0, whole))
            self.assertIn(f"{second}: is not an expert store", gone.stderr)
            self.assertEqual(run("pack", MODEL, "-o", str(other), "--dtype", "int8").returncode, 0)
            refused = run(*use, "--expert-store", f"{first},{other}")
            self.assertEqual(refused.returncode, 2)
            self.assertIn(f"{first} and {other} do not have the same experts", refused.stderr)

    def test_damage_is_found(self):
        with tempfile.TemporaryDirectory() as directory:
            store = pathlib.Path(directory) / "store"
            self.assertEqual(run("pack", MODEL, "-o", str(store)).returncode, 0)
            with open(store / "experts.bin", "r+b") as data:
                data.seek(100_000)
                byte = data.read(1)
                data.seek(100_000)
                data.write(bytes([byte[0] ^ 1]))
            result = run("pack", MODEL, "-o", str(store), "--verify")
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertIn("differs", result.stderr)
            # Nor is it used: what is read is compared with its checksum.
            for preload in ((), ("--no-preload",)):
                used = run("run", MODEL, *GREEDY, PROMPT, "--expert-store", str(store), *preload)
                self.assertEqual(used.returncode, 2, used.stderr)
                self.assertRegex(used.stderr, r"experts\.bin: expert \d+ of layer \d+ .*run `moesaic pack` again")
            self.assertEqual(run("pack", MODEL, "-o", str(store), "--force").returncode, 0)
            self.assertEqual(run("run", MODEL, *GREEDY, PROMPT, "--expert-store", str(store)).returncode, 0)

    def test_mistakes(self):
        self.assertEqual(run("pack", MODEL).returncode, 2)
        self.assertEqual(run("pack", MODEL, "-o", "/proc/nowhere/store").returncode, 4)


class ServeExperts(unittest.TestCase):
    assert_error = CommandLine.assert_error

    def serve_experts(self, key, *arguments):
        """A `moesaic serve-experts` that listens, and its address."""
        server = subprocess.Popen(
            [PROGRAM, "serve-experts", *arguments, "--port", "0", "--expert-store-key-file", str(key)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
        )
        self.addCleanup(server.stderr.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        said = ""
        while "serving the experts of" not in said:
            line = server.stderr.readline()
            self.assertTrue(line, said)
            said += line
        return server, re.search(r"on (tcp://\S+)", said)[1]

    @staticmethod
    def damage(store):
        """All experts: which of them is read from where is a matter of time."""
        data = store / "experts.bin"
        data.write_bytes(bytes(data.stat().st_size))

    def test_experts_of_another_process(self):
        with tempfile.TemporaryDirectory() as directory:
            store, copy, key = (pathlib.Path(directory) / name for name in ("store", "copy", "key"))
            self.assertEqual(run("pack", MODEL, "-o", str(store)).returncode, 0)
            shutil.copytree(store, copy)
            key.write_text("what both of them know\n")
            use = ["run", MODEL, *GREEDY, PROMPT, "--expert-memory", "25%", "--log-level", "warn"]
            with_key = ["--expert-store-key-file", str(key)]
            whole = run(*use).stdout
            server, peer = self.serve_experts(key, str(store), "--verify")
            both = ["--expert-store", f"{copy},{peer}"]
            answer = run(*use, *both, *with_key, "--json")
            self.assertEqual((answer.returncode, answer.stderr), (0, ""))
            self.assertEqual(json.loads(answer.stdout)["text"], whole.rstrip("\n"))
            links = json.loads(answer.stdout)["stats"]["stores"]
            self.assertEqual([link["name"] for link in links], [str(copy), peer])
            for link in links:
                self.assertGreater(link["bytes_read"], 0)

            self.assert_error(run(*use, *both), 2, "no key is given", "--expert-store-key-file FILE")
            other = run(*use, *both, environment={"MOESAIC_EXPERT_STORE_KEY": "what nobody knows at all"})
            self.assert_error(other, 2, f"{peer}: the server does not have the same shared key")
            self.assert_error(run(*use, "--expert-store", peer, *with_key), 2, "a server alone is not enough")
            self.assert_error(run(*use, "--expert-store", f"{copy},{peer}/store", *with_key), 2, "is no address")
            others = pathlib.Path(directory) / "others"
            self.assertEqual(run("pack", MODEL, "-o", str(others), "--dtype", "int8").returncode, 0)
            refused = run(*use, "--dtype", "int8", "--expert-store", f"{others},{peer}", *with_key)
            self.assert_error(refused, 2, f"{peer}: the server has no store with the experts of the one here")

            # A copy that is damaged here is read from there.
            self.damage(copy)
            damaged = run(*use, *both, *with_key)
            self.assertEqual((damaged.returncode, damaged.stdout), (0, whole), damaged.stderr)
            self.assertIn(f"it is read from {peer}", damaged.stderr)
            server.send_signal(signal.SIGTERM)
            said = server.communicate(timeout=60)[1]
            self.assertEqual(server.returncode, 0, said)
            self.assertIn("does not know the shared key", said)
            self.assertRegex(said, r"\S+ \S+ were read by \d+ clients in \d+ reads; 1 connections were refused")

    def test_a_lost_server_of_experts_costs_time_only(self):
        with tempfile.TemporaryDirectory() as directory:
            store, damaged, key = (pathlib.Path(directory) / name for name in ("store", "damaged", "key"))
            self.assertEqual(run("pack", MODEL, "-o", str(store)).returncode, 0)
            shutil.copytree(store, damaged)
            self.damage(damaged)
            key.write_text("what both of them know\n")
            use = ["run", MODEL, "--raw", "--temperature", "0", "--max-tokens", "120", PROMPT, "--expert-memory", "10%"]
            whole = run(*use).stdout
            # What the server has damaged is read here.
            server, peer = self.serve_experts(key, str(damaged))
            both = ["--expert-store", f"{store},{peer}", "--expert-store-key-file", str(key), "--log-level", "warn"]
            answer = run(*use, *both)
            self.assertEqual((answer.returncode, answer.stdout), (0, whole), answer.stderr)
            self.assertRegex(answer.stderr, rf"{peer}: expert \d+ of layer \d+ .* does not have the checksum")
            self.assertIn(f"it is read from {store}", answer.stderr)
            server.kill()
            gone = run(*use, *both)
            self.assertEqual((gone.returncode, gone.stdout), (0, whole))
            self.assertEqual(gone.stderr.count(f"{peer}: a read failed (Connection refused); "), 1, gone.stderr)

            # And one that is killed while it is read from.
            server, peer = self.serve_experts(key, str(store), "--client-bandwidth", "4MiB")
            both[1] = f"{store},{peer}"
            process = subprocess.Popen([PROGRAM, *use, *both], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       text=True, env=ENVIRONMENT)
            self.assertIn("reads", server.stderr.readline())
            server.kill()
            out, err = process.communicate(timeout=120)
            self.assertEqual((process.returncode, out), (0, whole), err)
            self.assertEqual(err.count(f"{peer}: a read failed"), 1, err)

    def test_serving_experts_says_what_is_wrong(self):
        with tempfile.TemporaryDirectory() as directory:
            key = pathlib.Path(directory) / "key"
            self.assert_error(run("serve-experts"), 2, "STORE is missing")
            self.assert_error(run("serve-experts", directory), 2, "no key is given", "openssl rand -hex 32")
            key.write_text("short")
            with_key = ["--expert-store-key-file", str(key)]
            self.assert_error(run("serve-experts", directory, *with_key), 2, f"{key}: the shared key has 5 characters")
            key.write_text("what both of them know")
            self.assert_error(run("serve-experts", directory, *with_key), 2, "is not an expert store")


class Perplexity(unittest.TestCase):
    TEXT = str(pathlib.Path(MODEL).parent.parent / "LICENSE")

    def measure(self, *arguments):
        result = run("perplexity", MODEL, self.TEXT, "--context", "256", "--windows", "6", "--json", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_the_budget_does_not_change_it(self):
        all_of_it = self.measure()
        self.assertEqual((all_of_it["tokens"], all_of_it["windows"]), (6 * 127, 6))
        self.assertAlmostEqual(math.log(all_of_it["perplexity"]), all_of_it["mean_nll"], 9)
        self.assertGreater(all_of_it["perplexity"], 20)
        self.assertLess(all_of_it["perplexity"], 2000)
        self.assertEqual(self.measure("--expert-memory", "25%")["mean_nll"], all_of_it["mean_nll"])

    def test_what_quantising_costs(self):
        exact = self.measure()["mean_nll"]
        for dtype, most in (("int8", 0.02), ("int4", 0.08)):
            quantised = self.measure("--dtype", dtype)["mean_nll"]
            self.assertNotEqual(quantised, exact)
            self.assertLess(abs(quantised - exact), most, dtype)

    def test_mistakes(self):
        result = run("perplexity", MODEL, self.TEXT, "--context", "100000")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--context", result.stderr)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as short:
            short.write("too short")
            short.flush()
            result = run("perplexity", MODEL, short.name)
            self.assertEqual(result.returncode, 2)
            self.assertIn("fewer than a window", result.stderr)
        self.assertEqual(run("perplexity", MODEL).returncode, 2)
        self.assertEqual(run("perplexity", MODEL, "/nowhere/text").returncode, 2)


class Profile(unittest.TestCase):
    def test_quick(self):
        with tempfile.TemporaryDirectory() as directory:
            output = pathlib.Path(directory) / "p.json"
            result = run("profile", "--quick", "--path", directory, "-o", str(output))
            self.assertEqual(result.returncode, 0, result.stderr)
            for part in ("Processor", "Compute", "Memory", "Disk", "best use"):
                self.assertIn(part, result.stdout)
            profile = json.loads(output.read_text())
            self.assertTrue(profile["quick"])
            self.assertEqual(os.listdir(directory), ["p.json"])
        self.assertEqual(run("profile", "--quick", "--path", "/nowhere").returncode, 2)


class Plan(unittest.TestCase):
    UNIFORM = ["--workload", "prompt=77,gen=32,requests=200"]

    def test_presets_need_neither_model_nor_machine(self):
        result = run("plan", "mixtral-8x7b", "--machine", "l4", *self.UNIFORM)
        self.assertEqual(result.returncode, 0, result.stderr)
        for part in ("schedule", "Memory of the device", "Memory of the host", "bottleneck", "link rate +10%",
                     "measured", "wall time"):
            self.assertIn(part, result.stdout)

    def test_json_and_limits(self):
        arguments = ["plan", "--model", "mixtral-8x7b", "--machine", "l4", *self.UNIFORM, "--json", "--no-what-if"]
        plan = json.loads(run(*arguments).stdout)
        self.assertEqual(plan["machine"], "l4")
        self.assertEqual(plan["workload"]["requests"], 200)
        self.assertEqual(plan["what_if"], [])
        for ledger in plan["ledgers"]:
            self.assertEqual(ledger["total_bytes"], sum(item["bytes"] for item in ledger["items"]))
            self.assertLessEqual(ledger["total_bytes"], ledger["limit_bytes"])
        less = json.loads(run(*arguments, "--gpu-memory", "12GiB", "--schedule", "module-batching").stdout)
        self.assertEqual(less["policy"]["schedule"], "module-batching")
        self.assertEqual(less["ledgers"][0]["limit_bytes"], 12 << 30)
        self.assertLess(less["policy"]["resident_experts_per_layer"], plan["policy"]["resident_experts_per_layer"] + 1)

    def test_this_machine_and_a_file_of_prompts(self):
        with tempfile.TemporaryDirectory() as directory:
            profile = pathlib.Path(directory) / "p.json"
            self.assertEqual(run("profile", "--quick", "--path", directory, "-o", str(profile)).returncode, 0)
            lines = pathlib.Path(directory) / "w.jsonl"
            lines.write_text('{"prompt": "One two three", "max_tokens": 8}\n{"prompt": "Four"}\n')
            result = run("plan", MODEL, "--machine", str(profile), "--workload", str(lines), "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            plan = json.loads(result.stdout)
            self.assertEqual(plan["workload"]["generated_tokens"], 8 + 128)
            self.assertEqual(plan["policy"]["resident_experts_per_layer"], 32)
            self.assertIn("measured", {constant["from"] for constant in plan["constants"]})

    def test_mistakes(self):
        def refused(code, part, *arguments):
            result = run("plan", *arguments)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(part, result.stderr)

        refused(2, "--workload is missing", "mixtral-8x7b", "--machine", "l4")
        refused(2, "requests=N is missing", "mixtral-8x7b", "--machine", "l4", "--workload", "prompt=1,gen=1")
        refused(2, "qwen3-30b-a3b", "qwen3", "--machine", "l4", *self.UNIFORM)
        refused(2, "a100", "mixtral-8x7b", "--machine", "b200", *self.UNIFORM)
        refused(3, "is missing (--host-memory)", "dbrx", "--machine", "t4", *self.UNIFORM)
        with tempfile.TemporaryDirectory() as empty:
            result = run("plan", "mixtral-8x7b", *self.UNIFORM, environment={"XDG_CACHE_HOME": empty})
            self.assertEqual(result.returncode, 2)
            self.assertIn("run `moesaic profile` first", result.stderr)


class Server:
    """`moesaic serve` on a free port; what it logs tells when it listens and when it is ready."""

    def __init__(self, *arguments, environment=None, models=(MODEL,)):
        self.log = ""
        self.dropping = None
        self.process = subprocess.Popen(
            [PROGRAM, "serve", *models, "--port", "0", *arguments],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**ENVIRONMENT, **(environment or {})},
        )
        self.port = int(re.search(r"listens on http://[^:]+:(\d+)", self.read_log_until("listens on"))[1])
        self.read_log_until("serving ")

    def read_log_until(self, text):
        while True:
            line = self.process.stderr.readline()
            if not line:
                raise AssertionError(f"the server ended before it logged '{text}':\n{self.log}")
            self.log += line
            if text in line:
                return line

    def drop_log(self):
        """Reads what it logs from now on and keeps none of it: a full pipe would stop a server of many requests."""
        self.dropping = threading.Thread(target=self.process.stderr.read)
        self.dropping.start()
        return self

    def end_of_log(self):
        if self.dropping is not None:
            self.dropping.join()
        self.log += self.process.stderr.read()
        self.process.stderr.close()

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, json.dumps(body) if body else None,
                               {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        self.end_of_log()
        return code, self.log


class Serve(unittest.TestCase):
    def test_serves_and_ends_on_sigterm(self):
        server = Server("--served-model-name", "sample")
        status, body = server.request("POST", "/v1/completions", {
            "model": "sample", "prompt": PROMPT, "max_tokens": 8, "temperature": 0})
        self.assertEqual(status, 200, body)
        self.assertTrue(json.loads(body)["choices"][0]["text"].startswith(" was afraid"))
        code, log = server.stop()
        self.assertEqual(code, 0, log)
        self.assertIn("listens on", log)
        self.assertIn("serving sample", log)

    def test_sigint_lets_a_running_request_end(self):
        server = Server("--shutdown-timeout", "60")
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({
            "model": MODEL, "prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "stream": True}),
            {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.readline()
        server.process.send_signal(signal.SIGINT)
        rest = response.read().decode()
        connection.close()
        self.assertIn('"finish_reason":"length"', rest)
        self.assertIn("[DONE]", rest)
        self.assertEqual(server.process.wait(timeout=60), 0)
        server.process.stderr.close()

    def test_second_signal_ends_at_once(self):
        server = Server("--shutdown-timeout", "600")
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({
            "model": MODEL, "prompt": PROMPT, "max_tokens": 900, "ignore_eos": True, "stream": True}),
            {"Content-Type": "application/json"})
        connection.getresponse().readline()
        server.process.send_signal(signal.SIGTERM)
        server.read_log_until("draining")
        server.process.send_signal(signal.SIGTERM)
        self.assertIn(server.process.wait(timeout=30), (128 + signal.SIGTERM, 0))
        connection.close()
        server.process.stderr.close()

    def test_api_key_file_and_environment(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("# keys\none\n\n two \n")
            keys.flush()
            server = Server("--api-key-file", keys.name, environment={"MOESAIC_API_KEY": "three"})
            self.assertEqual(server.request("GET", "/v1/models")[0], 401)
            for key in ("one", "two", "three"):
                self.assertEqual(
                    server.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})[0], 200)
            self.assertEqual(server.stop()[0], 0)

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            result = run("serve", MODEL, "--port", str(taken.getsockname()[1]))
            self.assertEqual(result.returncode, 4, result.stderr)
            self.assertIn("error: ", result.stderr)

    def test_model_that_cannot_be_loaded_ends_the_server(self):
        result = run("serve", MODEL, "--port", "0", "--memory", "1MiB")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("--memory", result.stderr)
        self.assertNotIn("--kv-memory", result.stderr)  # which nobody gave


class ServeSeveral(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)

    def write(self, text):
        path = pathlib.Path(self.directory.name, "models.yaml")
        path.write_text(text)
        return str(path)

    def complete(self, server, model):
        status, body = server.request("POST", "/v1/completions", {
            "model": model, "prompt": PROMPT, "max_tokens": 24, "temperature": 0})
        self.assertEqual(status, 200, body)
        return json.loads(body)["choices"][0]["text"]

    def test_a_file_of_models(self):
        alone = run("run", MODEL, PROMPT, *GREEDY).stdout.rstrip("\n")
        int8 = run("run", MODEL, PROMPT, *GREEDY, "--dtype", "int8").stdout.rstrip("\n")
        states = os.path.join(self.directory.name, "states")
        server = Server("--models", self.write(f"""
models:
  - {{id: one, aliases: [uno], path: {MODEL}}}
  - {{id: two, path: {MODEL}, dtype: int8, load: demand}}
"""), "--expert-memory", "25%", "--state-file", states, models=())
        self.assertIn("serving 2 models", server.log)
        listed = {model["id"]: model["status"]["state"]
                  for model in json.loads(server.request("GET", "/v1/models")[1])["data"]}
        self.assertEqual(listed, {"one": "resident", "uno": "resident", "two": "unloaded"})
        self.assertEqual(self.complete(server, "uno"), alone)
        self.assertEqual(self.complete(server, "two"), int8)  # which is loaded for it
        self.assertEqual(self.complete(server, "one"), alone)
        status, body = server.request("POST", "/v1/completions", {"model": "three", "prompt": "x"})
        self.assertEqual(status, 404)
        self.assertIn("`one`, `uno`, `two`", json.loads(body)["error"]["message"])
        metrics = server.request("GET", "/metrics")[1].decode()
        self.assertIn('moe_steps_total{model_name="two"}', metrics)
        for order, state in (("unload", "unloaded"), ("load", "resident"), ("unload", "unloaded")):
            status, body = server.request("POST", f"/models/{order}", {"model": "two"})
            self.assertEqual((status, json.loads(body)), (200, {"success": True}))
            listed = json.loads(server.request("GET", "/models")[1])["data"]
            self.assertEqual([m["status"]["state"] for m in listed if m["id"] == "two"], [state])
        self.assertEqual(self.complete(server, "two"), int8)
        code, log = server.stop()
        self.assertEqual(code, 0, log)
        self.assertEqual(sorted(os.listdir(states)), ["one.state", "two.state"])

    def test_what_is_refused(self):
        def refused(code, parts, *arguments):
            result = run("serve", *arguments, "--port", "0")
            self.assertEqual(result.returncode, code, result.stderr)
            for part in parts:
                self.assertIn(part, result.stderr)
        refused(2, ["twice", "argument 1"], MODEL, MODEL)
        refused(2, ["there already"], MODEL, MODEL + "/.")
        refused(2, ["--served-model-name"], MODEL, MODEL + "/.", "--served-model-name", "x")
        one = f"models:\n  - {{id: a, path: {MODEL}}}\n"
        refused(2, ["--models and a model"], MODEL, "--models", self.write(one))
        refused(2, ["models.yaml:3", "'a'"], "--models", self.write(one + "  - {id: a, path: x}\n"))
        refused(2, ["models.yaml:3", "alias", "'aliases'"], "--models", self.write(one + "  - {path: x, alias: y}\n"))
        two = self.write(one + f"  - {{id: b, path: {MODEL}, dtype: int8}}\n")
        refused(3, ["--memory", "a: dense weights", "b: expert cache", "missing"], "--models", two, "--memory", "200MiB")


class LearnedState(unittest.TestCase):
    """--state-file: what is learned outlives the process, however that ends."""

    def ask(self, server, tokens=24):
        status, body = server.request("POST", "/v1/completions", {
            "model": MODEL, "prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True})
        self.assertEqual(status, 200, body)

    def metric(self, server, name):
        text = server.request("GET", "/metrics")[1].decode()
        return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)[1])

    def test_run_saves_at_its_end_and_restores(self):
        with tempfile.TemporaryDirectory() as directory:
            state = pathlib.Path(directory) / "sample.state"
            use = ["run", MODEL, *GREEDY, PROMPT, "--expert-memory", "25%", "--log-level", "info"]
            plain = run(*use)
            first = run(*use, "--state-file", str(state))
            self.assertNotIn("restored", first.stderr)
            self.assertGreater(state.stat().st_size, 100_000)
            second = run(*use, "--state-file", str(state))
            self.assertIn("3 parts of what was learned restored", second.stderr)
            self.assertEqual({plain.stdout}, {first.stdout, second.stdout})
            self.assertEqual(os.listdir(directory), ["sample.state"])

            damaged = bytearray(state.read_bytes())
            damaged[len(damaged) // 2] ^= 1
            state.write_bytes(damaged)
            third = run(*use, "--state-file", str(state))
            self.assertEqual(third.returncode, 0, third.stderr)
            self.assertIn("checksum", third.stderr)
            self.assertEqual(third.stdout, plain.stdout)
            self.assertEqual((state.parent / "sample.state.rejected-1").read_bytes(), damaged)
            self.assertIn("restored", run(*use, "--state-file", str(state)).stderr)

    def test_a_file_that_is_no_state_file_is_left_alone(self):
        with tempfile.TemporaryDirectory() as directory:
            config = pathlib.Path(directory) / "config.json"
            config.write_bytes((pathlib.Path(MODEL) / "config.json").read_bytes())
            for command in (["run", MODEL, *GREEDY, PROMPT], ["serve", MODEL, "--port", "0"]):
                result = run(*command, "--state-file", str(config))
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn("not a state file", result.stderr)
                self.assertEqual(config.read_bytes(), (pathlib.Path(MODEL) / "config.json").read_bytes())
            self.assertEqual(os.listdir(directory), ["config.json"])

    def test_sigterm_saves(self):
        with tempfile.TemporaryDirectory() as directory:
            state = pathlib.Path(directory) / "sample.state"
            server = Server("--state-file", str(state), "--expert-memory", "25%")
            self.ask(server)
            self.assertFalse(state.exists())
            self.assertEqual(server.stop()[0], 0)
            server = Server("--state-file", str(state), "--expert-memory", "25%")
            self.assertEqual(self.metric(server, "moe_state_file_bytes"), state.stat().st_size)
            self.assertLess(abs(time.time() - self.metric(server, "moe_state_saved_timestamp_seconds")), 120)
            self.assertEqual(server.stop()[0], 0)

    def test_kill_at_any_moment_leaves_the_last_good_file(self):
        moments = random.Random(4)
        with tempfile.TemporaryDirectory() as directory:
            state = pathlib.Path(directory) / "sample.state"
            for kill in range(6):
                server = Server("--state-file", str(state), "--state-interval", "0.01", "--expert-memory", "25%")
                self.assertEqual("restored" in server.log, kill > 0, server.log)
                self.assertNotIn("kept under another name", server.log)
                self.ask(server)
                while self.metric(server, 'moe_state_saves_total{result="ok"}') == 0:
                    self.ask(server, 1)
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
                connection.request("POST", "/v1/completions", json.dumps({
                    "model": MODEL, "prompt": PROMPT, "max_tokens": 900, "ignore_eos": True, "stream": True}),
                    {"Content-Type": "application/json"})
                connection.getresponse().readline()
                time.sleep(moments.uniform(0, 0.15))
                server.process.kill()
                server.process.wait(timeout=60)
                server.process.stderr.close()
                connection.close()
            self.assertEqual([name for name in os.listdir(directory) if "rejected" in name], [])


class KvStore(unittest.TestCase):
    """--kv-store: keys and values outlive the process, however that ends."""

    def ask(self, server):
        status, body = server.request("POST", "/v1/completions", {
            "model": MODEL, "prompt": PROMPT * 8, "max_tokens": 24, "ignore_eos": True, "temperature": 0,
            "logprobs": 1})
        self.assertEqual(status, 200, body)
        answer = json.loads(body)
        return answer["choices"][0], answer["usage"]

    def metric(self, server, name):
        text = server.request("GET", "/metrics")[1].decode()
        return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)[1])

    def test_kill_loses_no_block_that_was_written(self):
        with tempfile.TemporaryDirectory() as directory:
            flags = ("--kv-store", str(pathlib.Path(directory) / "store"), "--kv-store-size", "64MiB")
            server = Server(*flags)
            first, usage = self.ask(server)
            self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 0)
            self.wait_until_written(server, usage["total_tokens"] - 1)
            server.process.kill()
            server.process.wait(timeout=60)
            server.process.stderr.close()
            server = Server(*flags)
            second, usage = self.ask(server)
            self.assertEqual(second, first)
            self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], (usage["prompt_tokens"] - 1) // 16 * 16)
            self.assertEqual(server.stop()[0], 0)

    def wait_until_written(self, server, tokens):
        """All blocks of a request, or more, are on the disk."""
        deadline = time.time() + 60
        while (self.metric(server, "moe_kv_store_blocks") < tokens // 16 or
               self.metric(server, "moe_kv_store_written_bytes_total") < self.metric(server, "moe_kv_store_bytes")):
            self.assertLess(time.time(), deadline)
            time.sleep(0.01)

    def test_a_long_chat_outlives_a_kill_and_a_thousand_others(self):
        """Each turn computes what is new, and has the bits of a server that computes all of it."""
        config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64,
                  "intermediate_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_experts": 8,
                  "num_experts_per_tok": 2, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32,
                  "vocab_size": 512, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
                  "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": True,
                  "torch_dtype": "bfloat16"}
        generator = random.Random(27)

        def message(length):
            return [generator.randrange(512) for _ in range(length)]

        def ask(server, prompt, max_tokens):
            status, body = server.request("POST", "/v1/completions", {
                "model": str(model), "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0,
                "logprobs": 5, "return_token_ids": True})
            self.assertEqual(status, 200, body)
            answer = json.loads(body)
            choice, usage = answer["choices"][0], answer["usage"]
            return choice["token_ids"], choice["logprobs"], usage["prompt_tokens_details"]["cached_tokens"]

        with tempfile.TemporaryDirectory() as directory:
            model, experts = pathlib.Path(directory) / "model", pathlib.Path(directory) / "experts"
            model.mkdir()
            (model / "config.json").write_text(json.dumps(config))
            self.assertEqual(run("pack", "--load-format", "dummy", str(model), "-o", str(experts)).returncode, 0)
            serving = dict(models=(str(model),))
            flags = ("--load-format", "dummy", "--expert-store", str(experts), "--max-model-len", "16700")
            kept = (*flags, "--kv-memory", "6MiB", "--kv-store", str(pathlib.Path(directory) / "store"),
                    "--kv-store-size", "256MiB")
            first = message(16384)
            server = Server(*kept, **serving)
            tokens, _, cached = ask(server, first, 12)
            self.assertEqual(cached, 0)
            self.wait_until_written(server, len(first) + len(tokens) - 1)
            server.process.kill()
            server.process.wait(timeout=60)
            server.end_of_log()

            second = first + tokens + message(25)
            server = Server(*kept, **serving).drop_log()
            tokens, of_second, cached = ask(server, second, 12)
            self.assertEqual(cached, 16384)  # 16395 positions were computed

            # The pool has room for less than these use.
            others = [message(40) for _ in range(1000)]
            with concurrent.futures.ThreadPoolExecutor(4) as clients:
                self.assertEqual(len(list(clients.map(lambda prompt: ask(server, prompt, 1), others))), 1000)
            read = self.metric(server, 'moe_prefix_cache_tokens_total{tier="disk"}')
            third = second + tokens + message(25)
            _, of_third, cached = ask(server, third, 12)
            self.assertEqual(cached, len(second + tokens) // 16 * 16)
            self.assertEqual(self.metric(server, 'moe_prefix_cache_tokens_total{tier="disk"}') - read, cached)
            self.assertEqual(server.stop()[0], 0)

            server = Server(*flags, "--no-prefix-cache", **serving)
            for prompt, wanted in ((second, of_second), (third, of_third)):
                _, computed, cached = ask(server, prompt, 12)
                self.assertEqual((computed, cached), (wanted, 0))
            self.assertEqual(server.stop()[0], 0)

    def test_a_directory_of_somebody_else_is_refused(self):
        with tempfile.TemporaryDirectory() as directory:
            (pathlib.Path(directory) / "thesis.txt").write_text("precious")
            result = run("run", MODEL, *GREEDY, PROMPT, "--kv-store", directory)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn("not a store", result.stderr)
            self.assertEqual(os.listdir(directory), ["thesis.txt"])


class Bench(unittest.TestCase):
    SHORT = ("--prompt-tokens", "32,70", "--output-tokens", "8")
    QUICK = ("--repetitions", "2", *SHORT)

    def measure(self, *arguments):
        result = run("bench", *arguments, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_every_combination_is_measured(self):
        rows = self.measure(MODEL, *self.QUICK, "--batch", "1,3", "--threads", "1,2",
                            "--max-num-batched-tokens", "64")
        self.assertEqual([(row["threads"], row["test"], row["batch"]) for row in rows],
                         [(threads, *test) for threads in (1, 2)
                          for test in (("pp32", 1), ("pp70", 1), ("tg8", 1), ("tg8", 3))])
        for row in rows:
            self.assertEqual(row["weight_type"], "bf16")
            self.assertEqual(len(row["samples"]), 2)
            self.assertLessEqual(row["tokens_per_s_min"], row["tokens_per_s"])
            self.assertLessEqual(row["tokens_per_s"], row["tokens_per_s_max"])
            for key in ("tokens_per_s_min", "bytes_per_s", "flops_per_s", "peak_share"):
                self.assertGreater(row[key], 0, key)
            self.assertEqual(row["expert_hit_rate"], 1)
        # The same work per token, whatever the number of threads; less of it when tokens share weights. One repetition:
        # the tokens of each are others.
        rows = self.measure(MODEL, *self.SHORT, "--repetitions", "1", "--batch", "1,3", "--threads", "1,2",
                            "--max-num-batched-tokens", "64")

        def per_token(row, key):
            return row[key] / row["tokens_per_s"]
        for one, two in zip(rows[:4], rows[4:]):
            for key in ("bytes_per_s", "flops_per_s"):
                self.assertAlmostEqual(per_token(two, key) / per_token(one, key), 1, 6)
        self.assertLess(per_token(rows[3], "bytes_per_s"), 0.8 * per_token(rows[2], "bytes_per_s"))

    def test_experts_on_disk(self):
        row = self.measure(MODEL, "--repetitions", "2", "--prompt-tokens", "0", "--output-tokens", "8", "--expert-memory",
                           "25%")[0]
        self.assertEqual(row["test"], "tg8")
        self.assertLess(row["expert_hit_rate"], 1)
        self.assertGreater(row["expert_bytes_read_per_s"], 0)

    def test_prompts_that_take_longer_than_the_output(self):
        row = self.measure(MODEL, "--repetitions", "1", "--prompt-tokens", "0", "--context-tokens", "400", "--batch", "8",
                           "--output-tokens", "4")[0]
        one = self.measure(MODEL, "--repetitions", "1", "--prompt-tokens", "0", "--context-tokens", "400",
                           "--output-tokens", "4")[0]
        self.assertLess(0, row["bytes_per_s"] / row["tokens_per_s"])
        self.assertLess(row["bytes_per_s"] / row["tokens_per_s"], one["bytes_per_s"] / one["tokens_per_s"])

    def test_random_weights(self):
        with tempfile.TemporaryDirectory() as directory:
            model, store = os.path.join(directory, "model"), os.path.join(directory, "store")
            os.mkdir(model)
            shutil.copy(os.path.join(MODEL, "config.json"), model)
            self.assertEqual(run("pack", model, "--load-format", "dummy", "-o", store).returncode, 0)
            rows = self.measure(model, *self.QUICK, "--load-format", "dummy", "--expert-store", store)
            self.assertEqual([row["test"] for row in rows], ["pp32", "pp70", "tg8"])

    def test_text(self):
        result = run("bench", MODEL, *self.QUICK)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"\ntg8 +1 +\d+ +bf16 +[\d.]+ ")

    def test_mistakes(self):
        for part, *arguments in (("--threads", "--threads", "1,x"), ("--batch", "--batch", "0"),
                                 ("nothing to measure", "--prompt-tokens", "0", "--output-tokens", "0"),
                                 ("position", "--prompt-tokens", "100000")):
            result = run("bench", MODEL, *arguments)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(part, result.stderr)
        result = run("bench", MODEL, "--batch", "64", "--kv-memory", "512KiB")
        self.assertEqual(result.returncode, 3, result.stderr)


class BenchServe(unittest.TestCase):
    def test_against_our_server(self):
        server = Server()
        with tempfile.TemporaryDirectory() as directory:
            arguments = ["bench", "serve", "--port", str(server.port), "--num-prompts", "6",
                         "--random-input-len", "16", "--random-output-len", "8", "--ignore-eos"]
            result = run(*arguments, "--max-concurrency", "3", "--save-result", "--result-dir", directory,
                         "--result-filename", "r.json", "--save-detailed", "--goodput", "ttft:60000")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("Serving Benchmark Result", result.stdout)
            saved = json.loads((pathlib.Path(directory) / "r.json").read_text())
            self.assertEqual(saved["completed"], 6)
            self.assertEqual(saved["total_input_tokens"], 6 * 16)
            self.assertEqual(saved["total_output_tokens"], 6 * 8)
            self.assertEqual(len(saved["ttfts"]), 6)
            self.assertGreater(saved["request_goodput"], 0)
            self.assertGreater(saved["mean_ttft_ms"], 0)

            dataset = pathlib.Path(directory) / "d.jsonl"
            dataset.write_text('{"messages":[{"role":"user","content":"Hello"}],"max_tokens":4}\n')
            chat = run("bench", "serve", "--port", str(server.port), "--backend", "openai-chat", "--dataset-name",
                       "jsonl", "--dataset-path", str(dataset), "--num-prompts", "3", "--request-rate", "50", "--json")
            self.assertEqual(chat.returncode, 0, chat.stderr)
            self.assertEqual(json.loads(chat.stdout)["completed"], 3)
        self.assertEqual(server.stop()[0], 0)

    def test_no_server(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        result = run("bench", "serve", "--port", str(port), "--ready-check-timeout-sec", "0")
        self.assertEqual(result.returncode, 1)
        self.assertIn("no server to measure", result.stderr)


class Traces(unittest.TestCase):
    """`moesaic trace`: from prompts to a file of learned state, through every form."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.temporary.name)
        (cls.dir / "prompts.jsonl").write_text(
            json.dumps({"prompt": PROMPT, "id": "storm", "domain": "story"})
            + "\n"
            + json.dumps({"question_id": 81, "category": "maths", "turns": ["How many legs do three cats have?"]})
            + "\nA plain line.\n"
        )
        cls.recorded = run(
            "trace", "record", MODEL, "--prompts", cls.path("prompts.jsonl"), "--raw", "-n", "6", "-o", cls.path("a.trace")
        )

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    @classmethod
    def path(cls, name):
        return str(cls.dir / name)

    def info(self, name, *arguments):
        result = run("trace", "info", self.path(name), "--json", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_record_and_info(self):
        self.assertEqual(self.recorded.returncode, 0, self.recorded.stderr)
        self.assertIn("3 requests", self.recorded.stdout)
        info = self.info("a.trace")
        self.assertEqual(info["form"], "binary")
        self.assertEqual(info["sequences"], 3)
        self.assertEqual([d["domain"] for d in info["domains"]], ["maths", "prompts", "story"])
        self.assertTrue(info["weights"] and info["token_ids"])
        # The last token of an answer is never run.
        self.assertLessEqual(info["tokens"] - info["prefill_tokens"], 3 * 5)
        self.assertGreater(info["tokens"], info["prefill_tokens"])
        self.assertEqual(self.info("a.trace", "--phase", "decode")["prefill_tokens"], 0)
        self.assertEqual(self.info("a.trace", "--domain", "story")["sequences"], 1)
        text = run("trace", "info", self.path("a.trace"), environment={"COLUMNS": "80"})
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertIn("Reuse of experts", text.stdout)
        self.assertIn("Experts used by the trace", text.stdout)

    def test_recording_changes_no_answer_and_goes_on_in_the_file(self):
        plain = run("run", MODEL, PROMPT, *GREEDY)
        for count in (1, 2):
            recorded = run("run", MODEL, PROMPT, *GREEDY, "--record-trace", self.path("run.trace"))
            self.assertEqual(recorded.stdout, plain.stdout)
            self.assertEqual(self.info("run.trace")["sequences"], count)
        lines = run("trace", "export", self.path("run.trace"), "-o", self.path("run.jsonl"))
        self.assertEqual(lines.returncode, 0, lines.stderr)
        first, second = [json.loads(l) for l in (self.dir / "run.jsonl").read_text().splitlines()[1:]]
        self.assertEqual(first["experts"], second["experts"])
        self.assertEqual(first["token_ids"], second["token_ids"])

    def test_forms_keep_everything(self):
        def convert(*arguments):
            result = run("trace", *arguments)
            self.assertEqual(result.returncode, 0, result.stderr)

        convert("export", self.path("a.trace"), "-o", self.path("a.jsonl"))
        convert("import", self.path("a.jsonl"), "-o", self.path("b.trace"))
        convert("export", self.path("b.trace"), "-o", self.path("b.jsonl"))
        self.assertEqual((self.dir / "a.jsonl").read_text(), (self.dir / "b.jsonl").read_text())
        header, *lines = [json.loads(line) for line in (self.dir / "a.jsonl").read_text().splitlines()]
        values = header["n_moe_layers"] * header["top_k"]
        for line in lines:
            self.assertTrue(all(len(token) == values for token in line["experts"]))
            self.assertEqual(len(line["token_ids"]), line["n_tokens"])
        self.assertEqual(lines[0]["id"], "storm")
        convert("merge", self.path("a.trace"), self.path("b.jsonl"), "-o", self.path("c.trace"))
        self.assertEqual(self.info("c.trace")["sequences"], 6)

    def test_compact(self):
        output = self.path("model.state")
        result = run("trace", "compact", self.path("a.trace"), "--capacity", "2", "-o", output)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("2 of 3 requests kept", result.stdout)
        info = self.info("model.state")
        self.assertEqual([s["name"] for s in info["sections"]], ["eam-collection"])
        # A damaged state file is set aside; what is no state file is left alone.
        damaged = pathlib.Path(output).read_bytes()[:-1]
        pathlib.Path(output).write_bytes(damaged)
        again = run("trace", "compact", self.path("a.trace"), "--phase", "decode", "-o", output)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("model.state.rejected-1", again.stderr)
        self.assertEqual((self.dir / "model.state.rejected-1").read_bytes(), damaged)
        pathlib.Path(output).write_text("precious")
        refused = run("trace", "compact", self.path("a.trace"), "-o", output)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertEqual(pathlib.Path(output).read_text(), "precious")

    def test_mistakes(self):
        def expect(code, part, *arguments):
            result = run("trace", *arguments)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(part, result.stderr)

        expect(2, "did you mean `moesaic trace info`?", "inf")
        expect(2, "no trace given", "merge", "-o", self.path("x"))
        expect(2, "-o FILE is missing", "import", self.path("a.trace"))
        expect(2, "must end in .jsonl", "export", self.path("a.trace"), "-o", self.path("x.txt"))
        expect(2, "absent", "info", self.path("absent"))
        expect(2, "expected a JSON object", "info", PROGRAM)
        expect(2, "not a routing trace", "record", MODEL, "--prompts", self.path("prompts.jsonl"), "-o", PROGRAM)
        help_text = run("trace", "compact", "--help")
        self.assertTrue(help_text.stdout.startswith("Usage: moesaic trace compact"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
