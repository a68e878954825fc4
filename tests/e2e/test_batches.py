"""OpenAI's Files and Batch APIs, with the official client: what it reads, crashes, keys, and who goes first."""

import json
import pathlib
import tempfile
import time
import unittest

import openai
from harness import MODEL, PATIENCE_S, MoesaicServer, serve_and_fail

TOKENS = 24


def connect(server, key="none"):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=PATIENCE_S)


def line(number, prompt=None, tokens=TOKENS, **more):
    body = {"model": "sample", "prompt": prompt or f"Chapter {number}. It was", "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True} | more
    return json.dumps({"custom_id": f"request-{number}", "method": "POST", "url": "/v1/completions", "body": body})


def upload(client, lines, name="in.jsonl"):
    return client.files.create(file=(name, "\n".join(lines).encode() + b"\n"), purpose="batch")


def begin(client, file, endpoint="/v1/completions", **more):
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


def wait(client, batch, *statuses):
    """The batch, when it is one of these."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        batch = client.batches.retrieve(batch.id)
        if batch.status in statuses:
            return batch
        if time.monotonic() > deadline or batch.status in ("completed", "failed", "cancelled", "expired"):
            raise AssertionError(f"the batch is {batch}")
        time.sleep(0.05)


def answers(client, file_id):
    """custom_id -> line; fails when one is there twice."""
    found = {}
    for text in client.files.content(file_id).text.splitlines():
        answer = json.loads(text)
        assert answer["custom_id"] not in found, text
        found[answer["custom_id"]] = answer
    return found


def text_of(answer):
    return answer["response"]["body"]["choices"][0]["text"]


class BatchesTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def server(self, *flags, **options):
        server = MoesaicServer("--batch-dir", str(self.directory / "batches"), *flags, **options)
        self.addCleanup(server.kill)
        return server

    def test_the_whole_way(self):
        server = self.server()
        client = connect(server)
        lines = [line(n) for n in range(20)]
        lines[3] = line(3, temperature=-1)
        lines[4] = json.dumps({"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": {
            "model": "sample", "messages": []}})
        file = upload(client, lines)
        self.assertEqual((file.filename, file.purpose, file.bytes), ("in.jsonl", "batch", len("\n".join(lines)) + 1))
        self.assertEqual(client.files.content(file.id).text, "\n".join(lines) + "\n")
        batch = begin(client, file, metadata={"of": "a test"})
        self.assertEqual(batch.metadata, {"of": "a test"})
        batch = wait(client, batch, "completed")
        counts = batch.request_counts
        self.assertEqual((counts.total, counts.completed, counts.failed), (20, 18, 2))
        self.assertLessEqual(batch.created_at, batch.in_progress_at)
        self.assertLessEqual(batch.in_progress_at, batch.completed_at)
        found = answers(client, batch.output_file_id)
        self.assertEqual(len(found), 18)
        for number in (0, 11, 19):
            body = json.loads(lines[number])["body"]
            del body["ignore_eos"]
            direct = client.completions.create(**body, extra_body={"ignore_eos": True})
            self.assertEqual(text_of(found[f"request-{number}"]), direct.choices[0].text)
        refused = answers(client, batch.error_file_id)
        self.assertEqual(set(refused), {"request-3", "chat"})
        self.assertIn("temperature", json.dumps(refused["request-3"]))
        self.assertIn("/v1/completions", json.dumps(refused["chat"]))
        # What there is now, in pages.
        self.assertEqual({f.id for f in client.files.list()}, {file.id, batch.output_file_id, batch.error_file_id})
        self.assertEqual([f.id for f in client.files.list(purpose="batch")], [file.id])
        other = wait(client, begin(client, upload(client, lines[:1])), "completed")
        self.assertEqual({b.id for b in client.batches.list(limit=1)}, {batch.id, other.id})
        self.assertTrue(client.files.delete(batch.output_file_id).deleted)
        with self.assertRaises(openai.NotFoundError):
            client.files.content(batch.output_file_id)

    def test_what_is_refused(self):
        server = self.server("--max-body", "64KiB", "--batch-dir-size", "300KiB", "--max-upload", "256KiB")
        client = connect(server)
        file = upload(client, [line(1)])
        for wrong in ({"endpoint": "/v1/embeddings"}, {"input_file_id": "file-none"},
                      {"completion_window": "1h"}, {"metadata": {"a": "b" * 513}}):
            with self.assertRaises((openai.BadRequestError, openai.NotFoundError), msg=wrong):
                client.batches.create(**{"input_file_id": file.id, "endpoint": "/v1/completions",
                                         "completion_window": "24h"} | wrong)
        for lines in ([line(1, model="another")], ["not json"], [""]):
            with self.assertRaises(openai.BadRequestError, msg=lines):
                begin(client, upload(client, lines))
        with self.assertRaises(openai.BadRequestError):
            client.files.create(file=("a", b"{}"), purpose="fine-tune")
        upload(client, [line(1, prompt="a" * 100_000)])  # more than --max-body
        with self.assertRaises(openai.APIStatusError) as too_large:
            upload(client, ["a" * 300_000])
        self.assertEqual(too_large.exception.status_code, 413)
        with self.assertRaises(openai.APIStatusError) as full:
            upload(client, ["a" * 220_000])
        self.assertEqual(full.exception.status_code, 507)
        with self.assertRaises(openai.NotFoundError):
            client.batches.retrieve("../../etc/passwd")
        for path in ("/v1/files/..%2f..%2fetc%2fpasswd/content", "/v1/files/lock/content"):
            self.assertEqual(server.call(path)[0], 404)
        with MoesaicServer() as without:
            self.assertEqual(without.call("/v1/batches")[0], 404)
            self.assertIn("--batch-dir", without.call("/v1/files")[2])

    def test_kills_lose_no_line_and_double_none(self):
        lines = [line(n, tokens=200) for n in range(40)]
        server = self.server("--max-num-seqs", "4")
        client = connect(server)
        batch = begin(client, upload(client, lines))
        for restart in range(3):
            wait(client, batch, "in_progress")
            done = client.batches.retrieve(batch.id).request_counts.completed
            deadline = time.monotonic() + PATIENCE_S
            while client.batches.retrieve(batch.id).request_counts.completed < min(done + 2, 38):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.02)
            if restart == 2:
                server.terminate()
                self.assertEqual(server.wait_exit(), 0)
            server.kill()
            server = self.server("--max-num-seqs", "4")
            client = connect(server)
        batch = wait(client, batch, "completed")
        self.assertEqual(batch.request_counts.completed, 40)
        found = answers(client, batch.output_file_id)
        self.assertEqual(set(found), {f"request-{n}" for n in range(40)})
        self.assertIsNone(batch.error_file_id)
        with MoesaicServer() as other:
            direct = connect(other).completions.create(
                model="sample", prompt="Chapter 7. It was", max_tokens=200, temperature=0,
                extra_body={"ignore_eos": True})
        self.assertEqual(text_of(found["request-7"]), direct.choices[0].text)

    def test_others_go_first(self):
        server = self.server("--max-num-seqs", "4", "--batch-num-seqs", "4", endless=True)
        client = connect(server)
        file = upload(client, [line(n, tokens=20_000) for n in range(6)])
        batch = begin(client, file)
        server.wait_for_metric('moe_num_requests_running{model_name="sample"}', lambda v: v == 4)
        for _ in range(3):
            answer = client.completions.create(model="sample", prompt="A word", max_tokens=20)
            self.assertEqual(answer.usage.completion_tokens, 20)
        self.assertEqual(client.batches.retrieve(batch.id).status, "in_progress")
        with self.assertRaises(openai.ConflictError):
            client.files.delete(file.id)
        # All of its places are taken, and still there is one for every other request.
        self.assertEqual(client.batches.cancel(batch.id).status, "cancelling")
        batch = wait(client, batch, "cancelled")
        self.assertEqual(batch.request_counts.total, 6)
        server.wait_idle()
        with self.assertRaises(openai.ConflictError):
            client.batches.cancel(batch.id)
        self.assertTrue(client.files.delete(file.id).deleted)

    def test_keys_see_their_own(self):
        keys = self.directory / "keys"
        keys.write_text('{"key": "a", "name": "ann"}\n{"key": "b", "name": "bob"}\n')
        server = self.server("--api-key-file", str(keys), key="a")
        ann, bob = connect(server, "a"), connect(server, "b")
        file = upload(ann, [line(1)])
        batch = wait(ann, begin(ann, file), "completed")
        self.assertEqual(list(bob.files.list()), [])
        self.assertEqual(list(bob.batches.list()), [])
        for refused in (lambda: bob.files.retrieve(file.id), lambda: bob.files.content(batch.output_file_id),
                        lambda: bob.files.delete(file.id), lambda: bob.batches.retrieve(batch.id),
                        lambda: bob.batches.cancel(batch.id), lambda: begin(bob, file)):
            self.assertRaises(openai.NotFoundError, refused)
        self.assertEqual(server.call("/v1/files", headers={"Authorization": "Bearer c"})[0], 401)

    def test_a_directory_that_is_in_use(self):
        self.server()
        result = serve_and_fail(MODEL, "--port", "0", "--batch-dir", str(self.directory / "batches"))
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("another process has it", result.stderr)


if __name__ == "__main__":
    unittest.main()
