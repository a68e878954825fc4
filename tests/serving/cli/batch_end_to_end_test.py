#!/usr/bin/env python3
"""`moesaic batch` as a user meets it: formats, bad lines, crashes, full disks, Ctrl-C.

    batch_end_to_end_test.py PROGRAM SAMPLE_MODEL_DIR

Standard library only; run by ctest.
"""

import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "e2e"))
from batch_answers import WORDS, answers, prompt  # noqa: E402

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("MOESAIC_")}
SETTINGS = ["--expert-memory", "25%", "--threads", "2", "--max-num-seqs", "8"]


def request(custom_id, chat=False, **fields):
    body = {"max_tokens": 12, "temperature": 0, **fields}
    url = "/v1/chat/completions" if chat else "/v1/completions"
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


class Batch(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.here = pathlib.Path(self.directory.name)
        self.input, self.output = self.here / "in.jsonl", self.here / "out.jsonl"
        self.errors = self.here / "out.jsonl.errors.jsonl"

    def command(self, *more, output=None):
        out = output or self.output
        return [PROGRAM, "batch", MODEL, "-i", str(self.input), "-o", str(out), *SETTINGS, *more]

    def run_batch(self, *more, output=None, **options):
        return subprocess.run(
            self.command(*more, output=output), capture_output=True, text=True, timeout=300, env=ENVIRONMENT, **options
        )

    def write_requests(self, count, seed=1, **fields):
        rng = random.Random(seed)
        self.input.write_text("".join(request(f"id-{i}", prompt=prompt(rng, 40), **fields) + "\n" for i in range(count)))

    def test_both_apis(self):
        self.input.write_text(
            request("c", prompt=["It was a cold", "The old man"], n=2, temperature=1) + "\n\n"
            + request("m", chat=True, messages=[{"role": "user", "content": "Who are you?"}], logprobs=True) + "\n"
        )
        result = self.run_batch()
        self.assertEqual(result.returncode, 0, result.stderr)
        found = answers(self.output)
        self.assertEqual(sorted(found), ["c", "m"])
        self.assertEqual([choice["index"] for choice in found["c"][0]], [0, 1, 2, 3])
        self.assertIn("content", found["m"][0][0]["message"])
        self.assertIn("content", found["m"][0][0]["logprobs"])
        self.assertEqual(self.errors.read_text(), "")
        # What samples without a seed has the same answer every time.
        again = self.here / "again.jsonl"
        self.run_batch(output=again)
        self.assertEqual(answers(again), found)
        self.run_batch("--overwrite", "--seed", "5", output=again)
        self.assertNotEqual(answers(again)["c"], found["c"])
        self.assertEqual(answers(again)["m"], found["m"])

    def test_lines_begin_together(self):
        # All prompts fit into the first pass, so that no expert is read for the first line alone.
        self.input.write_text("".join(request(f"id-{i}", prompt="The old man", ignore_eos=True) + "\n" for i in range(8)))
        self.assertEqual(self.run_batch("--report", str(self.here / "report"), "--no-prefix-cache").returncode, 0)
        self.assertEqual(json.loads((self.here / "report.json").read_text())["passes"], 12)

    def test_prompts_a_line(self):
        self.input.write_text("It was a cold and stormy night\n\nThe old man\r\n")
        plain = ["--raw", "-t", "0", "-n", "5", "--json"]
        result = self.run_batch(*plain)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["output_tokens"], 10)
        found = answers(self.output)
        self.assertEqual(sorted(found), ["line-1", "line-3"])
        self.input.write_text(
            json.dumps({"prompt": "The old man", "custom_id": "x"}) + "\n"
            + json.dumps({"prompt": "The old man", "max_tokens": 2}) + "\n"
        )
        second = self.here / "second.jsonl"
        self.assertEqual(self.run_batch(*plain, output=second).returncode, 0)
        again = answers(second)
        self.assertEqual(again["x"], found["line-3"])
        self.assertEqual(again["line-2"][1], 2)
        # With the chat template it is another prompt.
        third = self.here / "third.jsonl"
        self.assertEqual(self.run_batch("-t", "0", "-n", "5", output=third).returncode, 0)
        self.assertIn("message", answers(third)["x"][0][0])

    def test_bad_lines_stop_nothing(self):
        lines = [
            request("good", prompt="It was"),
            "{not json",
            request("good", prompt="twice"),
            request("long", prompt="word " * 5000),
            request("temperature", prompt="x", temperature=-1),
            json.dumps({"custom_id": "url", "url": "/v1/embeddings", "body": {}}),
            json.dumps({"custom_id": "body", "url": "/v1/completions", "body": 5}),
            request("", prompt="no id"),
            request("model", prompt="x", model="another"),
            request("stream", prompt="x", stream=True),
            "[1, 2]",
            '"\udcff"'.encode("utf-8", "surrogateescape").decode("latin-1"),
            request("last", prompt="It was"),
        ]
        self.input.write_bytes(b"\n".join(line.encode("latin-1") for line in lines))
        result = self.run_batch("--max-model-len", "256")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("11 bad and 0 failed lines", result.stderr)
        found = answers(self.output)
        self.assertEqual(sorted(found), ["good", "last"])
        self.assertEqual(found["good"], found["last"])
        errors = [json.loads(line) for line in self.errors.read_text().splitlines()]
        self.assertEqual(sorted(error["line"] for error in errors), list(range(2, 13)))
        by_line = {error["line"]: error for error in errors}
        self.assertEqual(by_line[4]["custom_id"], "long")
        self.assertEqual(by_line[4]["error"]["code"], "context_length_exceeded")
        self.assertEqual(
            [by_line[line]["custom_id"] for line in range(2, 13)],
            [None, "good", "long", "temperature", "url", "body", None, "model", "stream", None, None],
        )
        self.assertIn("earlier line", by_line[3]["error"]["message"])
        self.assertEqual(by_line[9]["response"]["status_code"], 404)
        # The same on resume: nothing is answered again, and the bad lines are told again.
        before = self.output.read_bytes()
        self.assertEqual(self.run_batch("--max-model-len", "256", "--resume").returncode, 2)
        self.assertEqual(self.output.read_bytes(), before)
        self.assertEqual(len(self.errors.read_text().splitlines()), 11)

    def test_files_that_do_not_fit(self):
        self.write_requests(2)
        self.output.write_text("{}\n")
        result = self.run_batch()
        self.assertEqual(result.returncode, 2)
        self.assertIn("--resume", result.stderr)
        result = self.run_batch("--resume")
        self.assertEqual(result.returncode, 2)
        self.assertIn("out.jsonl:1", result.stderr)
        self.assertEqual(self.output.read_text(), "{}\n")
        self.assertEqual(self.run_batch("--resume", "--overwrite").returncode, 2)
        self.assertEqual(self.run_batch("--overwrite").returncode, 0)
        self.assertEqual(len(answers(self.output)), 2)
        self.input.unlink()
        self.assertEqual(self.run_batch("--resume").returncode, 2)
        result = subprocess.run([PROGRAM, "batch", MODEL, "-i", "x"], capture_output=True, text=True)
        self.assertIn("-o FILE", result.stderr)

    def test_no_file_of_a_job_is_another_one(self):
        self.write_requests(2)
        requests = self.input.read_bytes()
        symlink, hardlink = self.here / "symlink", self.here / "hardlink"
        symlink.symlink_to(self.input)
        hardlink.hardlink_to(self.input)
        config = pathlib.Path(MODEL) / "config.json"
        before = config.read_bytes()
        for output in (self.input, symlink, hardlink):
            for more in (["--overwrite"], ["--resume"], []):
                result = self.run_batch(*more, output=output)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn("are the same file", result.stderr)
            result = self.run_batch("--errors", str(output))
            self.assertEqual(result.returncode, 2, result.stderr)
        for more in (
            ["--errors", str(self.output)],
            ["--report", str(self.here / "r"), "--errors", str(self.here / "r.json")],
            ["--errors", str(self.output) + ".progress"],
            ["--errors", str(config), "--overwrite"],
            ["--state-file", str(self.output), "--mode", "latency"],
        ):
            result = self.run_batch(*more)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn("are the same file", result.stderr)
        self.assertEqual(self.input.read_bytes(), requests)
        self.assertEqual(config.read_bytes(), before)
        self.assertFalse(self.output.exists())
        precious = self.here / "precious"
        precious.write_text("precious")
        result = self.run_batch("--errors", str(precious))
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(precious.read_text(), "precious")

    def test_resume_leaves_other_files_alone(self):
        self.write_requests(2)
        self.output.write_text("my notes, which have no end")
        result = self.run_batch("--resume")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("out.jsonl:1", result.stderr)
        self.assertEqual(self.output.read_text(), "my notes, which have no end")

    def test_resume_knows_its_input(self):
        plain = ["--raw", "-t", "0", "-n", "3"]
        self.input.write_text("It was a cold night\nThe old man\nA ship\n")
        self.assertEqual(self.run_batch(*plain).returncode, 0)
        before = answers(self.output)
        for text, line in (("New\nIt was a cold night\nThe old man\nA ship\n", 1),
                           ("It was a cold night\nThe old man\nA boat\n", 3), ("It was a cold night\n", 2)):
            self.input.write_text(text)
            result = self.run_batch(*plain, "--resume")
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(f"in.jsonl:{line}:", result.stderr)
            self.assertEqual(answers(self.output), before)
        self.input.write_text("It was a cold night\nThe old man\nA ship\nThe sea\n")
        result = self.run_batch(*plain, "--resume")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn(".progress", result.stderr)
        self.assertEqual(sorted(answers(self.output)), [f"line-{n}" for n in range(1, 5)])
        (self.here / "out.jsonl.progress").unlink()  # as an older version leaves it
        for warned in (True, False):
            result = self.run_batch(*plain, "--resume")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual("out.jsonl.progress" in result.stderr, warned, result.stderr)

    def test_a_line_that_changes_while_the_job_runs(self):
        self.write_requests(200)
        lines = self.input.read_text().splitlines(keepends=True)
        # Behind what the program has read ahead.
        self.input.write_text("".join(lines) + "\n" * (2 << 20) + request("late", prompt="It was") + "\n")
        process = subprocess.Popen(self.command(), stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        self.wait_for_answers(process, 1)
        with self.input.open("r+b") as file:
            file.seek(-10, os.SEEK_END)
            file.write(b"x")
        _, stderr = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 2, stderr)
        self.assertIn("has changed since the job began", stderr)
        self.assertNotIn("late", answers(self.output))

    def test_a_broken_first_line_is_one_bad_line(self):
        self.input.write_text("broken\n" + request("a", prompt="It was") + "\n" + request("b", prompt="The") + "\n")
        self.assertEqual(self.run_batch().returncode, 2)
        self.assertEqual(sorted(answers(self.output)), ["a", "b"])
        self.assertEqual([json.loads(line)["line"] for line in self.errors.read_text().splitlines()], [1])
        self.input.write_text("{broken\n{too\n")
        result = self.run_batch("--overwrite")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--input-format", result.stderr)
        self.assertEqual(sorted(answers(self.output)), ["a", "b"])

    def test_killed_at_any_time(self):
        self.write_requests(60)
        expected_output = self.here / "expected.jsonl"
        begin = os.times()
        self.assertEqual(self.run_batch(output=expected_output).returncode, 0)
        end = os.times()
        # Of two threads; a machine that pauses or is busy makes the whole longer, and no kill too late.
        cpu_s = end.children_user - begin.children_user + end.children_system - begin.children_system
        whole_s = min(end.elapsed - begin.elapsed, cpu_s / 2)
        expected = answers(expected_output)
        self.assertEqual(len(expected), 60)
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        kills = strangers = 0
        for attempt in range(40):
            before = self.output.read_bytes().count(b"\n") if self.output.exists() else 0
            process = subprocess.Popen(
                self.command("--resume"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT
            )
            if attempt < 12:
                if attempt % 2 == 0:  # while it starts, or later
                    try:
                        process.wait(timeout=rng.uniform(0.05, 0.7) * whole_s)
                    except subprocess.TimeoutExpired:
                        pass
                else:  # in the middle of the answers
                    self.wait_for_answers(process, before + rng.randint(1, 4))
                kills += process.poll() is None
                process.kill()
            if process.wait(timeout=300) == 0:
                break
            if rng.random() < 0.5 and self.output.exists():  # a write that was cut by a crash
                with self.output.open("ab") as file:
                    file.write(b'{"id":"batch_req_1","custom_id":"id-5","resp')
            if self.output.exists() and b"\n" in self.output.read_bytes():
                # Whenever it was killed, it knows its input: another one is refused, and nothing is changed.
                right = self.input.read_text()
                self.input.write_text(right.replace("id-0", "id-x"))
                held = self.output.read_bytes()
                result = self.run_batch("--resume")
                self.assertEqual(result.returncode, 2, f"seed {seed}: {result.stderr}")
                self.assertIn("in.jsonl:1:", result.stderr)
                self.assertEqual(self.output.read_bytes(), held, f"seed {seed}")
                self.input.write_text(right)
                strangers += 1
        self.assertGreater(kills, 0, f"seed {seed}")
        self.assertGreater(strangers, 0, f"seed {seed}")
        self.assertEqual(answers(self.output), expected, f"seed {seed}")
        self.assertEqual(self.errors.read_text(), "")

    def test_full_disk(self):
        self.write_requests(30)
        expected_output = self.here / "expected.jsonl"
        self.assertEqual(self.run_batch(output=expected_output).returncode, 0)
        size = expected_output.stat().st_size

        def limit():  # SIGXFSZ is as it is by default: it would end the process
            resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))

        result = self.run_batch(preexec_fn=limit)
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertIn("out.jsonl", result.stderr)
        self.assertIn("ulimit -f", result.stderr)
        self.assertIn("--resume", result.stderr)
        some = answers(self.output)
        self.assertTrue(0 < len(some) < 30)
        self.assertEqual(self.run_batch("--resume").returncode, 0)
        self.assertEqual(answers(self.output), answers(expected_output))
        result = self.run_batch("--errors", str(self.here / "e"), output=pathlib.Path("/dev/full"))
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertIn("No space left on device", result.stderr)

    def wait_for_answers(self, process, count):
        while process.poll() is None and (
            not self.output.exists() or self.output.read_bytes().count(b"\n") < count
        ):
            time.sleep(0.01)

    def test_modes_agree_and_report(self):
        self.write_requests(30)
        self.assertEqual(self.run_batch("--mode", "latency").returncode, 0)
        expected = answers(self.output)
        for memory in ("80KiB", "25%", "100%"):
            result = self.run_batch(
                "--overwrite", "--expert-memory", memory, "--report", str(self.here), "--max-num-seqs", "24"
            )
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(answers(self.output), expected, memory)
            report = json.loads((self.here / "report.json").read_text())
            self.assertEqual(report["sizes"]["sequences"], 24)
            self.assertGreater(report["experts"]["bytes_read"], 0)
            self.assertEqual(report["memory"]["ledger_bytes"], sum(report["memory"]["ledger"].values()))
            self.assertIn("<svg", (self.here / "report.html").read_text())
        result = self.run_batch("--overwrite", "--memory", "1MiB")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("--memory", result.stderr)
        self.assertNotIn("--kv-memory", result.stderr)  # which nobody gave
        self.assertEqual(self.run_batch("--overwrite", "--mode", "latency", "--report", "x").returncode, 2)

    def test_memory_is_as_planned(self):
        """What one job holds more than another is what its ledger has more, and no job holds more than its ledger."""
        version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, env=ENVIRONMENT).stdout
        if "sanitize" in version:
            self.skipTest("sanitizers need memory of their own")
        rng = random.Random(2)
        prompts = [" ".join(rng.choice(WORDS) for _ in range(120)) for _ in range(96)]
        self.input.write_text(
            "".join(request(f"id-{i}", prompt=text, max_tokens=8) + "\n" for i, text in enumerate(prompts))
        )
        planned, held = [], []
        for sequences, tokens, experts in ((16, 256, "25%"), (768, 4096, "25%"), (1024, 8192, "100%")):
            result = self.run_batch(
                *("--overwrite", "--max-num-seqs", str(sequences), "--max-num-batched-tokens", str(tokens)),
                *("--max-model-len", "1024", "--expert-memory", experts, "--report", str(self.here)),
            )
            self.assertEqual(result.returncode, 0, result.stderr)
            memory = json.loads((self.here / "report.json").read_text())["memory"]
            planned.append(memory["ledger_bytes"])
            held.append(memory["peak_rss_bytes"])
            self.assertLessEqual(held[-1], planned[-1], memory)
        for i in (1, 2):  # most of it keys and values and workspace, all of which is touched
            ratio = (held[i] - held[0]) / (planned[i] - planned[0])
            self.assertAlmostEqual(ratio, 1, delta=0.05)

    def test_interrupt_drains(self):
        self.write_requests(200)
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            self.output.unlink(missing_ok=True)
            process = subprocess.Popen(self.command(), stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
            self.wait_for_answers(process, 5)
            process.send_signal(number)
            _, stderr = process.communicate(timeout=300)
            self.assertEqual(process.returncode, code, stderr)
            self.assertIn("--resume goes on", stderr)
            some = answers(self.output)
            self.assertTrue(5 <= len(some) < 200)
            self.assertEqual(self.run_batch("--resume").returncode, 0)
            self.assertEqual(len(answers(self.output)), 200)

    def test_second_interrupt_stops_at_once(self):
        # All begin together. One ends early, and tells that the others are far from their end.
        self.write_requests(99, max_tokens=400, ignore_eos=True)
        with self.input.open("a") as lines:
            lines.write(request("short", prompt="It was", max_tokens=1) + "\n")
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            self.output.unlink(missing_ok=True)
            process = subprocess.Popen(self.command(), stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
            self.wait_for_answers(process, 1)
            process.send_signal(number)
            time.sleep(0.3)
            process.send_signal(number)
            process.communicate(timeout=300)
            self.assertEqual(process.returncode, code)
            self.assertLess(len(answers(self.output)), 100)

    def test_two_jobs_do_not_share_an_output(self):
        self.write_requests(200)
        first = subprocess.Popen(self.command(), stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        self.wait_for_answers(first, 1)
        first.send_signal(signal.SIGSTOP)  # or it may be done before the second one looks
        self.assertIsNone(first.poll())
        second = self.run_batch("--resume")
        first.kill()
        first.communicate()
        self.assertIn("another process is writing it", second.stderr)
        self.assertNotEqual(second.returncode, 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:], verbosity=2)
