"""moesaic.ray: batch jobs on two nodes of a Ray cluster on loopback, with processes that are killed; the parts that need none."""

import contextlib
import json
import os
import pathlib
import queue
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import batch_answers
import moesaic
import numpy as np
from harness import BINARY, ENVIRONMENT, MODEL, PATIENCE_S
from moesaic.ray import ClusterNode, MoesaicProcessor, _shares, plan_cluster
from moesaic.ray.plan import nodes_of

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.setdefault("RAY_raylet_start_wait_time_s", "60")  # a busy machine
import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

SETTINGS = ["--expert-memory", "25%", "--memory", "600MiB", "--max-num-seqs", "4"]
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}


def request(number, tokens, **fields):
    prompt = batch_answers.prompt(random.Random(number), 20)
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **fields}
    return json.dumps({"custom_id": f"id-{number}", "method": "POST", "url": "/v1/completions", "body": body})


def answers(path):
    return batch_answers.answers(path, of_usage=lambda usage: usage)


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} does not happen")
        time.sleep(0.02)


def two_nodes():
    """A cluster on loopback, and its second node."""
    for attempt in range(4):
        try:
            cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
            return cluster, cluster.add_node(**NODE)
        except Exception as error:  # A raylet waits for its agent for 15 s, which is short on a busy machine.
            print(f"attempt {attempt + 1}: no cluster: {error}", file=sys.stderr)
    raise AssertionError("no cluster starts here")


class Job:
    """A running command, and what it says."""

    def __init__(self, command, environment):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.log = []
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line.rstrip())
            self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, pattern):
        """The match in the next line that has one."""
        while True:
            line = self._lines.get(timeout=PATIENCE_S)
            if line is None:
                raise AssertionError("the job ended:\n" + "\n".join(self.log))
            if match := re.search(pattern, line):
                return match

    def end(self):
        """Exit code and standard output."""
        out = self.process.stdout.read()
        code = self.process.wait(PATIENCE_S)
        self._reader.join()
        return code, out

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()
        self.process.stderr.close()


class RayBatchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster, cls.second = two_nodes()
        cls.addClassCleanup(cls.cluster.shutdown)

    def setUp(self):
        # A node that an earlier test has killed counts as alive until Ray has missed it.
        self.cluster.wait_for_nodes(PATIENCE_S)
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.here = pathlib.Path(directory.name)
        self.input, self.output = self.here / "in.jsonl", self.here / "out.jsonl"
        path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**ENVIRONMENT, "PATH": path, "PYTHONPATH": os.environ["PYTHONPATH"]}
        if "MOESAIC_ISA" in os.environ:
            self.environment["MOESAIC_ISA"] = os.environ["MOESAIC_ISA"]

    def begin(self, *more, command=(sys.executable, "-m", "moesaic.ray.batch")):
        words = [*command, MODEL, "-i", self.input, "-o", self.output, "--ray", self.cluster.address, *SETTINGS, *more]
        job = Job([str(word) for word in words], self.environment)
        self.addCleanup(job.close)
        return job

    def expected(self):
        """The answers of one machine."""
        out = self.here / "alone.jsonl"
        words = [BINARY, "batch", MODEL, "-i", self.input, "-o", out, "--mode", "latency"]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=self.environment, timeout=PATIENCE_S)
        self.assertIn(done.returncode, (0, 2), done.stderr)
        return answers(out)

    def answered(self):
        return self.output.read_bytes().count(b"\n") if self.output.exists() else 0

    def test_a_process_that_is_killed_twice(self):
        lines = [request(n, tokens=40) for n in range(200)]
        bad = {13: request(13, tokens=40, temperature=-1), 150: lines[20]}
        self.input.write_text("\n".join(bad.get(n, line) for n, line in enumerate(lines)) + "\n\n")
        job = self.begin("--json", "--report", self.here / "report")
        killed = []
        pid = int(job.wait_for(r"actor 1: pid (\d+) on")[1])
        for _ in range(2):
            moesaic_pid = int(job.wait_for(r"actor 1: \d+ lines, moesaic batch is pid (\d+)")[1])
            before = self.answered()
            wait_until(lambda: self.answered() >= before + 6, "an answer")
            os.kill(pid, signal.SIGKILL)
            killed.append(moesaic_pid)
            again = job.wait_for(r"actor 1 was lost|actor 1: pid (\d+) on")
            if again[1] is None:
                again = job.wait_for(r"actor 1: pid (\d+) on")
            pid = int(again[1])
        code, out = job.end()
        self.assertEqual(code, 2, "\n".join(job.log))  # the bad lines
        found = answers(self.output)
        wanted = self.expected()
        self.assertEqual(len(wanted), 198)
        self.assertEqual(found, wanted)
        errors = [json.loads(line) for line in (self.here / "out.jsonl.errors.jsonl").read_text().splitlines()]
        self.assertEqual(
            sorted((error["line"], error["custom_id"]) for error in errors), [(14, "id-13"), (151, "id-20")]
        )
        self.assertTrue(out, "\n".join(job.log))
        summary = json.loads(out)
        self.assertEqual([len(actor["lost"]) for actor in summary["actors"]], [0, 2])
        self.assertEqual((summary["lines"], summary["answered"], summary["bad"], summary["left"]), (200, 198, 2, 0))
        self.assertTrue(all(actor["answered"] > 0 for actor in summary["actors"]))
        report = json.loads((self.here / "report.json").read_text())
        self.assertEqual(report["answered"], 198)
        self.assertTrue(report["actors"][0]["reports"][0])  # that of `moesaic batch`
        self.assertIn('href="report.actor-0.html"', (self.here / "report.html").read_text())
        wait_until(lambda: not any(map(alive, killed)), "the end of moesaic batch")

    def test_stopping_a_lost_node_and_going_on(self):
        # By the command, and another shape of lines.
        self.input.write_text("\n".join(json.dumps({"prompt": f"Chapter {n}. It was"}) for n in range(60)))
        job = self.begin("--raw", "-n", "150", "-t", "0", "--ray-speeds", "1,2", command=(BINARY, "batch"))
        sizes = {int(job.wait_for(r"actor \d: (\d+) lines")[1]) for _ in (0, 1)}
        self.assertEqual(sizes, {20, 40})
        wait_until(lambda: self.answered() >= 2, "an answer")
        job.process.send_signal(signal.SIGTERM)
        code, _ = job.end()
        self.assertEqual(code, 143, "\n".join(job.log))
        self.assertIn("--resume goes on", job.log[-1])
        before = self.answered()
        self.assertLess(before, 60)

        job = self.begin("--raw", "-n", "150", "-t", "0", "--resume", command=(BINARY, "batch"))
        for _ in (0, 1):
            job.wait_for(r"actor \d: \d+ lines, moesaic batch is pid")
        wait_until(lambda: self.answered() >= before + 1, "an answer")
        type(self).cluster.remove_node(self.second, allow_graceful=False)
        try:
            code, _ = job.end()
        finally:
            type(self).second = self.cluster.add_node(**NODE)
        self.assertEqual(code, 0, "\n".join(job.log))
        self.assertIn("was lost", "\n".join(job.log))
        found = answers(self.output)
        self.assertEqual(set(found), {f"line-{n}" for n in range(1, 61)})
        # One machine goes on with what a cluster has begun: nothing is left.
        words = [BINARY, "batch", MODEL, "-i", self.input, "-o", self.output, "--resume", "--raw", "-n", "150", "-t", "0", "--json"]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=self.environment, timeout=PATIENCE_S)
        self.assertEqual((done.returncode, json.loads(done.stdout)["answered_before"]), (0, 60), done.stderr)

    def test_what_is_refused(self):
        self.input.write_text(request(1, 8) + "\n")
        for more, text in (
            (["--ray-speeds", "1,0"], "2 positive numbers"),
            (["--expert-memry", "25%"], "expert-memory"),
            (["--errors", str(self.input)], "the same file"),
        ):
            with self.subTest(more):
                job = self.begin(*more)
                code, _ = job.end()
                self.assertEqual(code, 2, job.log)
                self.assertIn(text, job.log[-1])
                self.assertTrue(job.log[-1].startswith("error: "), job.log)
        self.assertEqual(answers(self.output), {})

    def test_datasets(self):
        try:
            import pandas  # noqa: F401
            import pyarrow  # noqa: F401
        except ModuleNotFoundError:
            self.skipTest("ray.data wants pyarrow and pandas, which CI does not install")
        import ray.data

        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="error")
        self.addCleanup(ray.shutdown)
        rows = [{"id": n, "prompt": f"Chapter {n}. It was"} for n in range(24)]
        arguments = {"actors": 1, "batch_size": 8, "mode": "latency", "id_column": "id", "memory": "600MiB"}
        done = moesaic.ray.process(
            ray.data.from_items(rows), MODEL, sampling_params={"max_tokens": 8, "temperature": 1}, **arguments
        ).take_all()
        self.assertEqual(sorted(row["id"] for row in done), list(range(24)))
        texts = {row["id"]: row["generated_text"] for row in done}
        processor = MoesaicProcessor(MODEL, mode="latency", id_column="id", sampling_params={"max_tokens": 8, "temperature": 1})
        with contextlib.closing(processor):
            batch = processor({"id": np.arange(24), "prompt": np.array([row["prompt"] for row in rows], dtype=object)})
        self.assertEqual(texts, dict(enumerate(batch["generated_text"])))


class WithoutAClusterTest(unittest.TestCase):
    def test_importing_moesaic_imports_no_ray(self):
        script = "import sys, moesaic, moesaic.ray; sys.exit('ray' in sys.modules)"
        self.assertEqual(subprocess.run([sys.executable, "-c", script], timeout=PATIENCE_S).returncode, 0)

    def test_the_command_says_what_is_missing(self):
        for path, text in ((os.environ["PATH"], "pip install 'moesaic[ray]'"), ("/nowhere", "python3 cannot be run")):
            done = subprocess.run(
                [BINARY, "batch", MODEL, "-i", "in", "-o", "out", "--ray", "auto"],
                capture_output=True, text=True, env={"PATH": path, "PYTHONNOUSERSITE": "1"}, timeout=PATIENCE_S,
            )
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(text, done.stderr)

    def test_shares_follow_the_work(self):
        lines = [_shares.Line(n, 1 + n % 7, 10 if n < 50 else 40) for n in range(100)]
        parts = _shares.split(lines, [1, 2, 1])
        self.assertEqual([line for part in parts for line in part], lines)
        works = [sum(line.work for line in part) for part in parts]
        for work, share in zip(works, (0.25, 0.5, 0.25)):
            self.assertAlmostEqual(work / sum(works), share, delta=0.02)
        self.assertLess(len(parts[1]), 50)  # its lines are long ones
        self.assertEqual([len(part) for part in _shares.split(lines[:1], [1, 1, 1])], [0, 1, 0])
        self.assertEqual(_shares.split([], [1, 1]), [[], []])

    def test_a_batch_of_a_dataset(self):
        params = moesaic.SamplingParams(temperature=1, max_tokens=6)
        processor = MoesaicProcessor(MODEL, mode="latency", id_column="name", sampling_params=params)
        names = np.array(["a", "b", "c"], dtype=object)
        prompts = np.array(["The old man", "It was", "It was"], dtype=object)
        with contextlib.closing(processor):
            both = processor({"name": names, "prompt": prompts})
            last = processor({"name": names[2:], "prompt": prompts[2:]})
            with self.assertRaisesRegex(moesaic.InvalidArgumentError, "no column 'prompt'"):
                processor({"name": names})
        self.assertEqual(both["generated_text"][2], last["generated_text"][0])  # whatever runs beside it
        self.assertNotEqual(both["generated_text"][1], both["generated_text"][2])
        self.assertEqual(both["output_tokens"].tolist(), [6, 6, 6])
        self.assertEqual(both["name"].tolist(), ["a", "b", "c"])

    def test_plans_of_three_to_eight_nodes(self):
        workload = "prompt=98,gen=64,requests=20000"
        before = 0.0
        for count in (1, 3, 5, 8):
            planned = plan_cluster("mixtral-8x7b", workload, [ClusterNode("l4")] * count)
            self.assertEqual(sum(share.requests for share in planned.shares), 20000)
            self.assertGreater(planned.speedup, before)
            self.assertLessEqual(planned.speedup, count * 1.001)
            self.assertGreater(planned.efficiency, 0.5)
            self.assertLessEqual(planned.speedup_here(1, cpus=2), 2.0)
            before = planned.speedup
        mixed = plan_cluster("mixtral-8x7b", workload, nodes_of("t4,2*l4:120GiB"))
        walls = [share.wall_s for share in mixed.shares]
        self.assertLess(max(walls) - min(walls), 0.1 * max(walls))
        self.assertNotEqual(mixed.shares[0].requests, mixed.shares[1].requests)
        self.assertLess(abs(mixed.shares[1].requests - mixed.shares[2].requests), 2)
        for text in ("l4,", "0*l4", "x*l4", ":1GiB"):
            with self.assertRaises(moesaic.InvalidArgumentError, msg=text):
                nodes_of(text)


if __name__ == "__main__":
    unittest.main()
