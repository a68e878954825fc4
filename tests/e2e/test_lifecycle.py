"""Loading, keys, limits, leaving clients, draining and exit codes of the server process."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import unittest

import openai
import yaml
from harness import (
    BINARY, ENVIRONMENT, MODEL, PATIENCE_S, MoesaicServer, RawClient, large_stream, long_request, post, serve_and_fail,
)

ABORTED = 'moe_request_success_total{model_name="sample",finished_reason="abort"}'
RUNNING = 'moe_num_requests_running{model_name="sample"}'


def connect(server, api_key="none", max_retries=0):
    return openai.OpenAI(
        base_url=server.url + "/v1", api_key=api_key, max_retries=max_retries, timeout=PATIENCE_S
    )


def start_stream(server, request):
    """A stream that has begun and is not read on."""
    client = RawClient(server, receive_buffer_bytes=4096)
    client.send(post("/v1/completions", request))
    assert client.until(b"data: "), client.buffer
    return client


def pack_random_experts(directory):
    """The expert store of the model with random weights, in the directory."""
    store = pathlib.Path(directory) / "experts"
    pack = ("pack", MODEL, "--load-format", "dummy", "-o", str(store))
    subprocess.run([BINARY, *pack], check=True, capture_output=True, env=ENVIRONMENT)
    return str(store)


def write_routing(pipe):
    header = {"model": "m", "phase": "decode", "n_moe_layers": 8, "first_moe_layer": 0, "n_experts": 32, "top_k": 4,
              "weight_scale": 100}
    sequence = {"id": "a", "domain": "d", "experts": [[0, 1, 2, 3] * 8]}
    pipe.write_text(json.dumps(header) + "\n" + json.dumps(sequence) + "\n")


@contextlib.contextmanager
def loading_server():
    """A server that goes on loading until release(), with random weights.

    It reads the routing of its experts from a pipe, which is opened only when somebody writes."""
    with tempfile.TemporaryDirectory() as directory:
        store = pack_random_experts(directory)
        pipe = pathlib.Path(directory) / "trace.jsonl"
        os.mkfifo(pipe)
        flags = ("--load-format", "dummy", "--expert-store", store, "--route-from", str(pipe))
        with MoesaicServer(*flags, wait_ready=False) as server:
            yield server, lambda: write_routing(pipe)


def for_client(request):
    """The arguments of the client's functions that make this request."""
    request["extra_body"] = {"ignore_eos": request.pop("ignore_eos")}
    return request


@contextlib.contextmanager
def taken_port():
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


class LifecycleTest(unittest.TestCase):
    def test_loading_and_then_ready(self):
        with loading_server() as (server, release):
            self.assertEqual(server.call("/health")[0], 200)
            for path, body in (("/ready", None), ("/v1/models", None), ("/v1/completions", {})):
                status, headers, text = server.call(path, body)
                self.assertEqual(status, 503, path)
                self.assertEqual(headers["Retry-After"], "5")
                self.assertEqual(json.loads(text)["error"]["code"], "loading")
            with self.assertRaises(openai.InternalServerError) as caught:
                connect(server).chat.completions.create(model="sample", messages=[])
            self.assertEqual(caught.exception.code, "loading")
            release()
            server.wait_ready()
            self.assertEqual(server.call("/ready")[0], 200)
            # Or the first token, which is drawn, may be the last.
            options = {"model": "sample", "prompt": "x", "max_tokens": 2, "extra_body": {"ignore_eos": True}}
            reply = connect(server).completions.create(**options)
            self.assertEqual(reply.usage.completion_tokens, 2)

    def test_a_signal_while_loading_ends_it(self):
        with loading_server() as (server, _):
            server.terminate()
            self.assertEqual(server.wait_exit(), 128 + signal.SIGTERM)

    def test_mistakes_end_it_with_code_2(self):
        for arguments, message in (
            ((MODEL, "--port", "http"), "--port: expected an integer"),
            ((MODEL, "--prot", "1"), "did you mean --port"),
            ((MODEL, "--expert-memory", "lots"), "--expert-memory"),
            ((MODEL, "--port", "0", "--host", "no.such.host.invalid"), "--host"),
            ((MODEL, "--port", "0", "--api-key-file", "/no/keys"), "/no/keys"),
            (("/no/model", "--port", "0"), "/no/model"),
        ):
            result = serve_and_fail(*arguments)
            self.assertEqual(result.returncode, 2, (arguments, result.stderr))
            self.assertIn(message, result.stderr)

    def test_a_port_that_is_taken(self):
        with taken_port() as port:
            result = serve_and_fail(MODEL, "--port", str(port))
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertIn(f"port {port}", result.stderr)

    def test_api_key(self):
        with MoesaicServer("--api-key", "secret") as server:
            for path in ("/health", "/live", "/ready"):
                self.assertEqual(server.call(path)[0], 200)
            self.assertEqual(server.call("/metrics")[0], 401)
            with self.assertRaises(openai.AuthenticationError):
                connect(server).models.list()
            models = connect(server, "secret").models.list()
            self.assertEqual([model.id for model in models], ["sample"])

    def test_a_full_queue_is_503(self):
        with MoesaicServer("--max-num-seqs", "1", "--max-queue", "1", endless=True) as server:
            with start_stream(server, long_request(stream=True)), RawClient(server) as waiting:
                waiting.send(post("/v1/completions", long_request()))
                server.wait_for_metric(
                    'moe_num_requests_waiting{model_name="sample"}', lambda v: v == 1
                )
                with self.assertRaises(openai.InternalServerError) as caught:
                    connect(server).completions.create(model="sample", prompt="x", stream=True)
                self.assertEqual(caught.exception.status_code, 503)
                self.assertEqual(caught.exception.response.headers["retry-after"], "1")
                self.assertEqual(server.call("/ready")[0], 200)
            # Both left; a client that retries as the header says gets through.
            connect(server, max_retries=5).completions.create(model="sample", prompt="x")

    def test_keys_take_turns(self):
        """One place: what another key, and then a lower priority, asks for is answered though the first key's requests, which came before, never end."""
        with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
            keys = pathlib.Path(directory) / "keys"
            keys.write_text('{"key": "a", "name": "a"}\n{"key": "b", "name": "b", "priority": 0}\n')
            server = stack.enter_context(MoesaicServer("--max-num-seqs", "1", "--api-key-file", str(keys), endless=True, key="a"))
            endless = post("/v1/completions", long_request(stream=True), "X-Api-Key: a\r\n")
            first = stack.enter_context(RawClient(server, receive_buffer_bytes=4096))
            first.send(endless)
            self.assertTrue(first.until(b"data: "))
            waiting = 'moe_num_requests_waiting{model_name="sample"}'
            for count in (1, 2):
                stack.enter_context(RawClient(server, receive_buffer_bytes=4096)).send(endless)
                server.wait_for_metric(waiting, lambda v, count=count: v == count)
            short = {"prompt": "x", "max_tokens": 4, "temperature": 0}
            other = stack.enter_context(RawClient(server))
            other.send(post("/v1/completions", short, "X-Api-Key: b\r\n"))
            server.wait_for_metric(waiting, lambda v: v == 3)
            urgent = connect(server, "a").completions.create(model="sample", extra_body={"priority": -1}, **short)
            first.socket.close()
            status, _, body = other.response()
            self.assertEqual(status, 200, body)
            self.assertEqual(json.loads(body)["choices"][0]["text"], urgent.choices[0].text)
            with self.assertRaises(openai.BadRequestError) as caught:
                connect(server, "b").completions.create(model="sample", extra_body={"priority": -1}, **short)
            self.assertEqual(caught.exception.param, "priority")

    def test_a_model_that_is_loaded_says_how_far_it_is(self):
        with tempfile.TemporaryDirectory() as directory:
            pipe = pathlib.Path(directory) / "trace.jsonl"  # which is opened when somebody writes
            os.mkfifo(pipe)
            models = pathlib.Path(directory) / "models.yaml"
            models.write_text(yaml.safe_dump({"models": [
                {"id": "first", "path": MODEL, "dtype": "float32"},
                {"id": "later", "path": MODEL, "load": "demand", "load-format": "dummy", "route-from": str(pipe),
                 "expert-store": pack_random_experts(directory)}]}))
            with MoesaicServer(models=str(models), wait_ready=False) as server:
                server.wait_for_log(r"serving 2 models on")
                with RawClient(server) as client:
                    client.send(post("/v1/completions", {"model": "later", "prompt": "x"}, "X-Request-Timeout: 0.5\r\n"))
                    status, _, body = client.response()
                self.assertEqual(status, 504, body)
                status, _, text = server.call("/v1/models/later")
                self.assertEqual(json.loads(text)["status"]["value"], "loading", text)
                self.assertEqual(json.loads(text)["status"]["progress"], 0, text)
                write_routing(pipe)
                self.assertEqual(server.call("/v1/completions", {"model": "later", "prompt": "x", "max_tokens": 1})[0], 200)

    def test_limits_that_the_server_sets(self):
        flags = ("--max-body", "10KiB", "--request-timeout", "0.001")
        with MoesaicServer(*flags, endless=True) as server:
            client = connect(server)
            with self.assertRaises(openai.APIStatusError) as caught:
                client.completions.create(model="sample", prompt="x" * 20000)
            self.assertEqual(caught.exception.status_code, 413)
            self.assertEqual(caught.exception.code, "body_too_large")
            with self.assertRaises(openai.InternalServerError) as caught:
                client.completions.create(model="sample", **for_client(long_request()))
            self.assertEqual(caught.exception.status_code, 504)
            self.assertEqual(caught.exception.code, "request_timeout")
            server.wait_idle()

    def test_leaving_cancels(self):
        with MoesaicServer(endless=True) as server:
            with connect(server).completions.create(
                model="sample", stream=True, **for_client(long_request())
            ) as stream:
                next(iter(stream))
            server.wait_for_metric(ABORTED, lambda v: v == 1)
            with RawClient(server) as client:
                client.send(post("/v1/completions", long_request(n=2)))
                server.wait_for_metric(RUNNING, lambda v: v == 2)
            server.wait_for_metric(ABORTED, lambda v: v == 3)
            server.wait_idle()
            self.assertEqual(server.metrics()['moe_kv_cache_usage_ratio{model_name="sample"}'], 0)

    def test_sigterm_drains(self):
        with (
            MoesaicServer("--shutdown-timeout", str(PATIENCE_S)) as server,
            start_stream(server, large_stream()) as stream,
            RawClient(server) as idle,
        ):
            idle.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertEqual(idle.response()[0], 200)
            server.terminate()
            server.wait_for_log("draining")
            while (status := server.call("/ready")[0]) == 200:
                pass
            self.assertEqual(status, 503)
            self.assertEqual(server.call("/health")[0], 200)
            status, headers, body = server.call("/v1/completions", {"prompt": "x"})
            self.assertEqual(status, 503)
            self.assertIn("Retry-After", headers)
            self.assertEqual(json.loads(body)["error"]["code"], "draining")
            _, _, events = stream.response()
            self.assertTrue(events.endswith(b"data: [DONE]\n\n"), events[-300:])
            self.assertIn(b'"finish_reason":"length"', events)
            self.assertEqual(server.wait_exit(), 0)
            self.assertEqual(idle.to_end(), b"")

    def test_without_patience_streams_end_with_an_error(self):
        with MoesaicServer("--shutdown-timeout", "0", endless=True) as server:
            stream = connect(server).completions.create(
                model="sample", stream=True, **for_client(long_request())
            )
            next(iter(stream))
            server.terminate()
            with self.assertRaises(openai.APIError) as caught:
                list(stream)
            self.assertEqual(caught.exception.code, "draining")
            self.assertEqual(server.wait_exit(), 0)

    def test_a_second_signal_exits_at_once(self):
        with MoesaicServer("--shutdown-timeout", "600", endless=True) as server:
            with start_stream(server, long_request(stream=True)):
                server.terminate()
                server.wait_for_log("draining")
                server.process.send_signal(signal.SIGINT)
                self.assertEqual(server.wait_exit(), 128 + signal.SIGINT)

    def test_experts_that_do_not_fit_change_nothing(self):
        def answer(server):
            reply = connect(server).completions.create(
                model="sample", prompt="It was a cold and stormy night", max_tokens=48, temperature=0
            )
            return reply.choices[0].text

        with MoesaicServer() as server:
            whole = answer(server)
        with MoesaicServer("--expert-memory", "20%") as server:
            self.assertEqual(answer(server), whole)
            metrics = server.metrics()
            self.assertGreater(metrics['moe_expert_read_bytes_total{from="disk",to="host"}'], 0)
            self.assertGreater(metrics["moe_expert_evictions_total"], 0)


class Deployment(unittest.TestCase):
    """What deploy/ says, held to what the program takes."""

    ROOT = pathlib.Path(__file__).resolve().parents[2] / "deploy"

    def settings(self, variables, *arguments):
        """--print-config of a server: the settings that are not defaults, as their text."""
        command = [BINARY, "serve", *arguments, "--print-config"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**ENVIRONMENT, **variables})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return dict(re.findall(r"^([a-z-]+): (.*?) +# (?!default$)", done.stdout, re.MULTILINE))

    def test_kubernetes(self):
        base = self.ROOT / "kubernetes" / "base"
        kinds = {}
        for path in (self.ROOT / "kubernetes").rglob("*.yaml"):
            for document in yaml.safe_load_all(path.read_text()):
                kinds.setdefault(document["kind"], []).append(document)
                for name in document.get("resources", []):
                    self.assertTrue((path.parent / name).exists(), f"{path}: {name}")
        (deployment,), (monitor,) = kinds["Deployment"], kinds["PodMonitor"]
        pod = deployment["spec"]["template"]
        labels = pod["metadata"]["labels"]
        for selector in (
            deployment["spec"]["selector"]["matchLabels"],
            kinds["Service"][0]["spec"]["selector"],
            monitor["spec"]["selector"]["matchLabels"],
        ):
            self.assertLessEqual(selector.items(), labels.items())
        (container,) = pod["spec"]["containers"]
        self.assertEqual(container["resources"]["limits"], container["resources"]["requests"])
        (port,) = container["ports"]
        self.assertEqual(monitor["spec"]["podMetricsEndpoints"][0]["port"], port["name"])
        variables = dict(line.split("=", 1) for line in (base / "model.env").read_text().split())
        settings = self.settings(variables, *container["args"])
        self.assertEqual((settings["host"], settings["port"]), ("0.0.0.0", str(port["containerPort"])))
        self.assertGreater(pod["spec"]["terminationGracePeriodSeconds"], int(settings["shutdown-timeout"]))
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        for setting in ("model", "state-file", "api-key-file"):
            self.assertIn(str(pathlib.Path(settings[setting]).parent), mounts, setting)
        secret = kinds["Secret"][0]["stringData"]
        with tempfile.TemporaryDirectory() as directory:
            keys = pathlib.Path(directory) / "keys"
            keys.write_text(secret["keys"])
            with MoesaicServer("--api-key-file", str(keys)) as server:
                for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                    self.assertEqual(server.call(container[probe]["httpGet"]["path"])[0], 200)
                scrape = {"Authorization": f"Bearer {secret['metrics']}"}
                self.assertEqual(server.call("/metrics")[0], 401)
                self.assertEqual(server.call("/metrics", headers=scrape)[0], 200)
                self.assertEqual(json.loads(server.call("/v1/models", headers=scrape)[2])["data"], [])

    def test_image_and_service(self):
        text = (self.ROOT / "docker" / "Dockerfile").read_text()
        variables = dict(re.findall(r"(MOESAIC_\w+)=(\S+)", text.split("\nENV ")[1]))
        settings = self.settings(variables, MODEL)
        self.assertEqual(settings, {"host": "0.0.0.0", "port": "8000", "insecure": "true", "model": MODEL})
        profile = json.loads((self.ROOT / "docker" / "seccomp.json").read_text())
        allowed = {name for group in profile["syscalls"] for name in group["names"]}
        self.assertLessEqual({"io_uring_setup", "io_uring_enter", "io_uring_register", "mbind", "clone3"}, allowed)
        self.assertEqual(profile["defaultAction"], "SCMP_ACT_ERRNO")
        unit = (self.ROOT / "debian" / "moesaic.service").read_text()
        settings = self.settings({}, "--config", str(self.ROOT / "debian" / "server.yaml"))
        self.assertLess(int(settings["shutdown-timeout"]), int(re.search(r"^TimeoutStopSec=(\d+)", unit, re.M)[1]))


if __name__ == "__main__":
    unittest.main()
