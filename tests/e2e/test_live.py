"""What a real engine shows while it works: events, snapshots, the experts of a request."""

import base64
import json
import signal
import threading
import time
import unittest

from harness import PATIENCE_S, MoesaicServer, RawClient

TOP_K = 4
REQUEST = {"prompt": "It was a cold and stormy night", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


class Events:
    """A reader of the events in the background."""

    def __init__(self, server):
        self.client = RawClient(server)
        self.client.send("GET /v1/moesaic/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.samples = []
        self.text = b""
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.socket.close()

    def read(self):
        try:
            while self.client.until(b"\r\n"):  # chunk after chunk
                size, self.client.buffer = self.client.buffer.split(b"\r\n", 1)
                if size.startswith(b"HTTP/") or b":" in size or not size:
                    continue
                size = int(size, 16)
                while len(self.client.buffer) < size + 2 and self.client.fill():
                    pass
                self.text += self.client.buffer[:size]
                self.client.buffer = self.client.buffer[size + 2:]
                while b"\n\n" in self.text:
                    event, self.text = self.text.split(b"\n\n", 1)
                    data = [json.loads(line[6:]) for line in event.splitlines() if line.startswith(b"data: ")]
                    with self.changed:
                        self.samples += [sample for sample in data if sample["type"] == "sample"]
                        self.changed.notify_all()
        except OSError:
            pass

    def wait(self, wanted):
        """The first sample that wanted(sample) is true of."""
        with self.changed:
            found = self.changed.wait_for(lambda: next((s for s in self.samples if wanted(s)), None), PATIENCE_S)
        assert found, self.samples[-1:]
        return found


def answer(server, **more):
    status, headers, body = server.call("/v1/completions", {**REQUEST, **more})
    assert status == 200, body
    return headers["X-Request-Id"], json.loads(body)


class LiveTest(unittest.TestCase):
    def test_a_request(self):
        with MoesaicServer("--expert-memory", "25%", "--predictor", "eamc", "--no-prefix-cache") as server:
            unwatched = answer(server)[1]["choices"]
            with Events(server) as events:
                events.wait(lambda sample: True)
                name, body = answer(server)
                self.assertEqual(body["choices"], unwatched)  # who looks changes nothing
                sample = events.wait(lambda s: any(r["request_id"] == name and r["phase"] == "ended" for r in s["requests"]))
                request = sample["requests"][0]
                usage = body["usage"]
                self.assertEqual((request["ended"], request["prompt_tokens"], request["output_tokens"], request["max_tokens"]),
                                 ("length", usage["prompt_tokens"], 24, 24))
                self.assertGreater(request["age_us"], request["queue_us"])
                self.assertGreater(request["blocked_us"], 0)
                self.assertEqual(sample["running"], 0)
                metrics = server.metrics()
                self.assertEqual(sample["totals"]["hits"], metrics['moe_expert_requests_total{result="hit"}'])
                self.assertEqual(sample["totals"]["misses"], metrics['moe_expert_requests_total{result="miss"}'])
                self.assertEqual(sample["experts_resident"], base64.b64decode(sample["places"]).count(1))
                self.assertGreater(sample["links"][0]["on_demand_us"], 0)
                # A layer's shares add up to the experts of a token, roots and rounding aside.
                use = base64.b64decode(sample["use"])
                for layer in range(8):
                    shares = [(byte / 255) ** 2 for byte in use[layer * 32:(layer + 1) * 32]]
                    self.assertAlmostEqual(sum(shares), TOP_K, delta=0.2)
                status, _, text = server.call(f"/v1/moesaic/requests/{request['id']}")
                self.assertEqual(status, 200, text)
                experts = json.loads(text)
                self.assertEqual((experts["prefill_tokens"], experts["decode_tokens"]), (usage["prompt_tokens"], 23))
                for phase in ("prefill", "decode"):
                    for row in experts[phase]:
                        self.assertEqual(sum(row), experts[f"{phase}_tokens"] * TOP_K)
                # The one before was the same.
                self.assertGreater(experts["nearest"]["similarity"], 0.9999)
                self.assertEqual(experts["nearest"]["counts"],
                                 [[a + b for a, b in zip(*rows)] for rows in zip(experts["prefill"], experts["decode"])])
                self.assertIsNone(json.loads(server.call(f"/v1/moesaic/requests/{request['id']}?nearest=false")[2])["nearest"])
            self.assertEqual(server.call("/v1/moesaic/requests/1")[0], 404)  # it ended while nobody watched

    def test_a_running_request_and_a_snapshot(self):
        with MoesaicServer("--expert-memory", "25%", endless=True) as server, RawClient(server) as client:
            body = json.dumps({**REQUEST, "max_tokens": 60_000, "stream": True})
            client.send(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        f"Content-Length: {len(body)}\r\n\r\n{body}")
            client.until(b"data: ")
            sample = json.loads(server.call("/v1/moesaic/snapshot")[2])["sample"]
            self.assertEqual((sample["running"], sample["waiting"]), (1, 0))
            self.assertEqual(sample["requests"][0]["phase"], "decode")
            experts = json.loads(server.call(f"/v1/moesaic/requests/{sample['requests'][0]['id']}")[2])
            self.assertGreater(experts["decode_tokens"], 0)
            self.assertFalse(experts["collection"])  # of the default predictor
            self.assertIsNone(experts["nearest"])

    def test_a_stream_does_not_hold_up_the_end(self):
        with MoesaicServer() as server, Events(server) as events:
            events.wait(lambda sample: True)
            start = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(PATIENCE_S), 0)
            self.assertLess(time.monotonic() - start, 25)  # --shutdown-timeout is 30


if __name__ == "__main__":
    unittest.main()
