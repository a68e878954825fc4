"""Keys, queue limits, leaving clients, draining and exit codes of the server process."""

import json
import signal
import unittest

import openai
from harness import PATIENCE_S, MoesaicServer, RawClient, long_request, post

ABORTED = 'moe_request_success_total{model_name="sample",finished_reason="abort"}'
RUNNING = 'moe_num_requests_running{model_name="sample"}'


def connect(server, api_key="none", max_retries=0):
    return openai.OpenAI(
        base_url=server.url + "/v1", api_key=api_key, max_retries=max_retries, timeout=PATIENCE_S
    )


def start_long(server):
    """A stream that has begun."""
    client = RawClient(server)
    client.send(post("/v1/completions", long_request(stream=True)))
    assert client.until(b"data: "), client.buffer
    return client


class LifecycleTest(unittest.TestCase):
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
        with MoesaicServer("--max-num-seqs", "1", "--max-queue", "1") as server:
            with start_long(server), RawClient(server) as waiting:
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

    def test_leaving_cancels(self):
        with MoesaicServer() as server:
            with connect(server).completions.create(
                model="sample", stream=True, extra_body={"ignore_eos": True}, prompt="x", max_tokens=900
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
        with MoesaicServer() as server, start_long(server) as stream, RawClient(server) as idle:
            idle.send("GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            self.assertEqual(idle.response()[0], 200)
            server.terminate()
            server.wait_for_log("draining")
            # The drain lasts as long as the stream; on a fast machine that is a second or two.
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
        with MoesaicServer("--shutdown-timeout", "0") as server, start_long(server) as stream:
            server.terminate()
            _, _, events = stream.response()
            last = events.strip().split(b"\n\n")[-1]
            self.assertEqual(json.loads(last.removeprefix(b"data: "))["error"]["code"], "draining")
            self.assertEqual(server.wait_exit(), 0)

    def test_a_second_signal_exits_at_once(self):
        with MoesaicServer("--shutdown-timeout", "600", "--threads", "1") as server:
            streams = [start_long(server) for _ in range(8)]
            server.terminate()
            server.wait_for_log("draining")
            server.process.send_signal(signal.SIGINT)
            self.assertEqual(server.wait_exit(), 128 + signal.SIGINT)
            for stream in streams:
                stream.socket.close()

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
