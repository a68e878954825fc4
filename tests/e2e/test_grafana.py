"""Every expression of the Grafana boards, in a real Prometheus that scrapes a loaded server."""

import json
import math
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

from harness import PATIENCE_S, MoesaicServer

PROMETHEUS = shutil.which("prometheus")
if not PROMETHEUS:
    print("SKIPPED: prometheus is not installed (Debian: apt-get install prometheus)", file=sys.stderr)
    sys.exit(77)

BOARDS = sorted((pathlib.Path(__file__).resolve().parents[2] / "deploy" / "grafana").glob("*.json"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Prometheus:
    """A process that scrapes one target each second, with an empty database."""

    def __init__(self, target):
        self.directory = tempfile.TemporaryDirectory()
        config = pathlib.Path(self.directory.name) / "prometheus.yml"
        config.write_text(json.dumps({"scrape_configs": [{
            "job_name": "moesaic", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}]}))  # JSON is YAML
        self.port = free_port()
        self.log = open(pathlib.Path(self.directory.name) / "log", "w+")
        self.process = subprocess.Popen(
            [PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={self.directory.name}/data",
             f"--web.listen-address=127.0.0.1:{self.port}"], stdout=self.log, stderr=self.log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()
        self.directory.cleanup()

    def query(self, expression):
        """[(labels, value)]; None while it does not answer yet."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return None
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        except OSError:
            return None
        return [(series["metric"], float(series["value"][1])) for series in answer["data"]["result"]]

    def wait(self, expression, wanted):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            result = self.query(expression)
            if result and all(wanted(value) for _, value in result):
                return result
            if time.monotonic() > deadline:
                self.log.seek(0)
                raise AssertionError(f"{expression} stays {result}\n{self.log.read()[-2000:]}")
            time.sleep(0.2)


class GrafanaTest(unittest.TestCase):
    def expressions(self):
        self.assertEqual([board.name for board in BOARDS], ["moesaic-experts.json", "moesaic-vllm-names.json"])
        for file in BOARDS:
            board = json.loads(file.read_text())
            ids = [panel["id"] for panel in board["panels"]]
            self.assertEqual(len(ids), len(set(ids)))
            for panel in board["panels"]:
                self.assertTrue(panel["targets"], panel["title"])
                for target in panel["targets"]:
                    yield f"{file.name}, {panel['title']}", target["expr"]

    def test_every_expression(self):
        with MoesaicServer("--expert-memory", "25%", "--metrics-vllm-names") as server, \
                Prometheus(f"127.0.0.1:{server.port}") as prometheus:
            stop = threading.Event()

            def load():
                for seed in range(1 << 30):
                    if stop.is_set():
                        return
                    server.call("/v1/completions", {"prompt": f"Chapter {seed}", "max_tokens": 30, "seed": seed})

            thread = threading.Thread(target=load)
            thread.start()
            try:
                prometheus.wait('count_over_time(up{job="moesaic"}[1m])', lambda n: n >= 6)
                prometheus.wait('rate(moe_request_success_total{finished_reason="length"}[5s])', lambda r: r > 0)
                for where, template in self.expressions():
                    with self.subTest(where):
                        expression = template.replace("$__rate_interval", "10s").replace("$instance", ".*")
                        self.assertNotIn("$", expression)
                        result = prometheus.query(expression)
                        self.assertTrue(result, f"nothing for {expression}")
                        for labels, value in result:
                            self.assertTrue(math.isfinite(value) and value >= 0, f"{expression} {labels}: {value}")
                shares = prometheus.query('sum(rate(moe_expert_requests_total{result="hit"}[10s])) / sum(rate(moe_expert_requests_total[10s]))')
                self.assertTrue(0 < shares[0][1] < 1, shares)
            finally:
                stop.set()
                thread.join(PATIENCE_S)


if __name__ == "__main__":
    unittest.main()
