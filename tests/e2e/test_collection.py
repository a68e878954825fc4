"""What an eamc predictor has learned leaves one server and comes to another."""

import json
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

from harness import PATIENCE_S, MoesaicServer

PATH = "/v1/moesaic/eamc"
FLAGS = ("--predictor", "eamc", "--expert-memory", "25%", "--no-prefix-cache")
PROMPTS = ("Once upon a time", "The quick brown fox", "1, 2, 3,", "Dear Sir or Madam,", "def main():")


def transfer(server, data=None, query=""):
    """(status, body) of a GET, or of a PUT of `data`."""
    request = urllib.request.Request(server.url + PATH + query, data, method="GET" if data is None else "PUT")
    if server.key is not None:
        request.add_header("Authorization", f"Bearer {server.key}")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def generate(server, prompt):
    status, _, body = server.call("/v1/completions", {
        "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True})
    assert status == 200, body
    return body


def predictions(server):
    """Experts that steps used, by distance and by whether they were foreseen."""
    return {series: value for series, value in server.metrics().items()
            if series.startswith("moe_expert_predictions_total")}


def predicted_for(server, prompt):
    before = predictions(server)
    generate(server, prompt)
    return {series: value - before.get(series, 0) for series, value in predictions(server).items()}


class CollectionTest(unittest.TestCase):
    def test_another_server_predicts_the_same(self):
        with MoesaicServer(*FLAGS) as teacher, MoesaicServer(*FLAGS) as pupil, MoesaicServer(*FLAGS) as ignorant:
            for prompt in PROMPTS:
                generate(teacher, prompt)
            status, learned = transfer(teacher)
            self.assertEqual(status, 200)
            generate(pupil, "something else, which is replaced")
            status, answer = transfer(pupil, learned)
            self.assertEqual(status, 200, answer)
            self.assertEqual(json.loads(answer), {"entries": len(PROMPTS), "capacity": 1000, "mode": "replace"})
            self.assertEqual(transfer(pupil), (200, learned))
            expected = predicted_for(teacher, "A story about a fox")
            self.assertGreater(sum(expected.values()), 0)
            self.assertEqual(predicted_for(pupil, "A story about a fox"), expected)
            self.assertNotEqual(predicted_for(ignorant, "A story about a fox"), expected)
            # Both have learned the same from it.
            self.assertEqual(transfer(pupil), transfer(teacher))

    def test_merge(self):
        with MoesaicServer(*FLAGS) as first, MoesaicServer(*FLAGS) as second:
            generate(first, PROMPTS[0])
            generate(second, PROMPTS[1])
            status, answer = transfer(second, transfer(first)[1], "?mode=merge")
            self.assertEqual((status, json.loads(answer)["entries"]), (200, 2))

    def test_while_requests_run(self):
        with MoesaicServer(*FLAGS, "--max-num-seqs", "4") as server:
            answers = {prompt: json.loads(generate(server, prompt))["choices"] for prompt in PROMPTS}
            learned = transfer(server)[1]
            stop = threading.Event()
            refused = []

            def swap():
                while not stop.is_set():
                    status, body = transfer(server, learned)
                    if status != 200:
                        refused.append(body)

            swapper = threading.Thread(target=swap)
            swapper.start()
            try:
                for prompt in PROMPTS * 2:
                    self.assertEqual(json.loads(generate(server, prompt))["choices"], answers[prompt])
            finally:
                stop.set()
                swapper.join(PATIENCE_S)
            self.assertEqual(refused, [])

    def test_what_is_refused(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write('user\n{"key": "boss", "name": "boss", "admin": true}\n')
            keys.flush()
            with MoesaicServer(*FLAGS, "--api-key-file", keys.name, key="user") as server:
                generate(server, PROMPTS[0])
                self.assertEqual(transfer(server)[0], 403)
                self.assertEqual(transfer(server, b"x")[0], 403)
                server.key = "boss"
                status, learned = transfer(server)
                self.assertEqual(status, 200)
                for damaged in (b"", b"x", learned[:-1], learned[:40], learned[:60] + b"\xff" + learned[61:]):
                    status, body = transfer(server, damaged)
                    self.assertEqual(status, 400, body)
                    self.assertEqual(transfer(server), (200, learned))
        with MoesaicServer() as server:  # its predictor is another
            status, body = transfer(server)
            self.assertEqual((status, json.loads(body)["error"]["code"]), (404, "no_collection"))


if __name__ == "__main__":
    unittest.main()
