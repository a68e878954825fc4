"""Clients that break the rules. The server must answer what can be answered, and serve everybody else."""

import json
import random
import socket
import unittest

from harness import LARGE_TOKENS, MoesaicServer, RawClient, large_stream, long_request, post

CONNECTIONS = "moe_http_connections"
GET = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


class RawSocketsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = MoesaicServer(endless=True)

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()

    def tearDown(self):
        """Whatever a test did, the server is well and lets go of what it held."""
        status, _, body = self.server.call("/v1/completions", {"prompt": "x", "max_tokens": 2})
        self.assertEqual(status, 200, body)
        self.server.wait_idle()
        # One connection: the one that asks.
        self.server.wait_for_metric(CONNECTIONS, lambda v: v <= 1)

    def test_half_requests(self):
        whole = post("/v1/completions", {"prompt": "x", "max_tokens": 1})
        for length in range(1, len(whole), 7):
            with RawClient(self.server) as client:
                client.send(whole[:length])
                if length % 2:
                    client.reset()

    def test_garbage(self):
        generator = random.Random(4711)
        samples = [
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + generator.randbytes(500),  # TLS
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\0" * 70000,
            b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET " + b"/" * 60000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ] + [generator.randbytes(generator.randrange(1, 5000)) + b"\r\n\r\n" for _ in range(30)]
        for sample in samples:
            with RawClient(self.server) as client:
                client.send(sample)
                status, head, body = client.response()
                self.assertTrue(400 <= status < 600 and status != 500, (sample[:60], head))
                if status != 404:  # \xff\xfe is a path, if a strange one
                    self.assertIn(b"Connection: close", head)
                self.assertIn("message", json.loads(body)["error"])

    def test_giant_headers(self):
        with RawClient(self.server) as client:
            client.send("GET / HTTP/1.1\r\nHost: localhost\r\n")
            try:
                for i in range(2000):
                    client.send(f"X-{i}: {'y' * 1000}\r\n")
            except ConnectionError:
                pass
            self.assertEqual(client.response()[0], 431)

    def test_a_body_that_is_too_large(self):
        with RawClient(self.server) as client:
            client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
            self.assertEqual(client.response()[0], 413)

    def test_bodies_that_are_not_what_they_should_be(self):
        bodies = [b"", b"{", b"[]", b"null", b'{"prompt":NaN}', b'{"prompt":"\xff"}', b"[" * 100000,
                  b'{"prompt":"x","prompt":"y"}', b'{"prompt":1e400}', b'{"prompt":"a\0b"}',
                  b'{"model":7,"prompt":"x"}', b'{"a":' * 5000]
        paths = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
        cases = [(path, body) for path in paths for body in bodies]
        cases.append(("/v1/completions", b'{"prompt":"x","max_tokens":99999999999999999999}'))
        with RawClient(self.server) as client:
            for path, body in cases:
                client.send(
                    f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                    + body
                )
                status, _, answer = client.response()
                self.assertEqual(status, 400, (path, body[:40], answer))
                self.assertEqual(set(json.loads(answer)["error"]), {"message", "type", "param", "code"})

    def test_pipelining(self):
        with RawClient(self.server) as client:
            requests = ""
            for i in range(10):
                requests += post("/v1/completions", {"prompt": "x", "max_tokens": i + 1, "ignore_eos": True})
                requests += GET
            client.send(requests)
            for i in range(10):
                _, _, body = client.response()
                self.assertEqual(json.loads(body)["usage"]["completion_tokens"], i + 1)
                self.assertEqual(client.response()[0], 200)

    def test_disconnects_in_mid_stream(self):
        aborted = 'moe_request_success_total{model_name="sample",finished_reason="abort"}'
        before = self.server.metrics()[aborted]
        for i in range(6):
            with RawClient(self.server) as client:
                client.send(post("/v1/completions", long_request(stream=True)))
                self.assertTrue(client.until(b"data: "))
                if i % 3 == 0:
                    client.reset()
                elif i % 3 == 1:
                    client.socket.shutdown(socket.SHUT_RDWR)
        self.server.wait_for_metric(aborted, lambda v: v == before + 6)

    def test_a_slow_reader(self):
        """It gets everything, late; others do not wait for it."""
        with RawClient(self.server, receive_buffer_bytes=4096) as slow:
            slow.send(post("/v1/completions", large_stream()))
            self.assertTrue(slow.until(b"data: "))
            status, _, _ = self.server.call("/v1/completions", {"prompt": "x", "max_tokens": 4})
            self.assertEqual(status, 200)
            self.server.wait_idle()  # the engine has finished although nobody reads
            _, _, events = slow.response()
            self.assertTrue(events.endswith(b"data: [DONE]\n\n"))
            tokens = 0
            for event in events.decode().split("\n\n"):
                if event.startswith("data: {"):
                    logprobs = json.loads(event[6:])["choices"][0]["logprobs"]
                    tokens += len(logprobs["tokens"])
            self.assertEqual(tokens, LARGE_TOKENS)

    def test_hundreds_of_idle_and_slow_clients(self):
        clients = [RawClient(self.server) for _ in range(300)]
        for i, client in enumerate(clients):
            if i % 3:
                client.send("POST /v1/completions HTTP/1.1\r\nHo"[: 5 + i % 25])
        self.server.wait_for_metric(CONNECTIONS, lambda v: v >= 300)
        for _ in range(5):
            self.assertEqual(
                self.server.call("/v1/completions", {"prompt": "x", "max_tokens": 8})[0], 200
            )
        for client in clients:
            client.socket.close()

    def test_bytes_that_trickle_in(self):
        with RawClient(self.server) as client:
            for byte in post("/v1/completions", {"prompt": "x", "max_tokens": 1}).encode():
                client.send(bytes([byte]))
            self.assertEqual(client.response()[0], 200)


if __name__ == "__main__":
    unittest.main()
