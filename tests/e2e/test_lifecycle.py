"""Loading, keys, limits, leaving clients, draining and exit codes of the server process."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import unittest

import openai
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


@contextlib.contextmanager
def loading_server():
    """A server that goes on loading until release(), with random weights.

    It reads the routing of its experts from a pipe, which is opened only when somebody writes."""
    with tempfile.TemporaryDirectory() as directory:
        store = pathlib.Path(directory) / "experts"
        pack = ("pack", MODEL, "--load-format", "dummy", "-o", str(store))
        subprocess.run([BINARY, *pack], check=True, capture_output=True, env=ENVIRONMENT)
        pipe = pathlib.Path(directory) / "trace.jsonl"
        os.mkfifo(pipe)

        def release():
            header = {"model": "m", "phase": "decode", "n_moe_layers": 8, "first_moe_layer": 0,
                      "n_experts": 32, "top_k": 4, "weight_scale": 100}
            sequence = {"id": "a", "domain": "d", "experts": [[0, 1, 2, 3] * 8]}
            pipe.write_text(json.dumps(header) + "\n" + json.dumps(sequence) + "\n")

        flags = ("--load-format", "dummy", "--expert-store", str(store), "--route-from", str(pipe))
        with MoesaicServer(*flags, wait_ready=False) as server:
            yield server, release


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


if __name__ == "__main__":
    unittest.main()
