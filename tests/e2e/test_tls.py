"""TLS and keys from files: real clients, certificates of the openssl command, reloading by SIGHUP."""

import contextlib
import json
import pathlib
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import unittest

import anthropic
import httpx
import httpx2
import openai
from harness import MODEL, PATIENCE_S, MoesaicServer, long_request, post, serve_and_fail

CONNECTIONS = "moe_http_connections"


def make_certificate(directory, name):
    """(certificate, key): self-signed for localhost; the name is its organisation."""
    certificate, key = (str(pathlib.Path(directory) / f"{name}.{kind}") for kind in ("crt", "key"))
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
         "-days", "2", "-subj", f"/O={name}/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )
    return certificate, key


class TlsTest(unittest.TestCase):
    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.directory = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.certificate, self.key = make_certificate(self.directory, "first")
        self.keys = self.directory / "keys"
        self.keys.write_text(
            'plain\n{"key": "alice-key", "name": "alice", "models": ["sample"]}\n'
            '{"key": "bob-key", "name": "bob", "models": ["another"]}\n'
        )

    def serve(self, *flags, **more):
        return self.stack.enter_context(MoesaicServer(
            "--ssl-certfile", self.certificate, "--ssl-keyfile", self.key, "--api-key-file", str(self.keys), *flags,
            tls=ssl.create_default_context(cafile=self.certificate), key="plain", **more,
        ))

    def organisation(self, server, trusted):
        """Of the certificate that a new connection is shown."""
        context = ssl.create_default_context(cafile=trusted)
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as plain:
            with context.wrap_socket(plain, server_hostname="localhost") as secure:
                return dict(field[0] for field in secure.getpeercert()["subject"])["organizationName"]

    def test_official_clients(self):
        server = self.serve()
        self.assertTrue(server.url.startswith("https://"))
        context = ssl.create_default_context(cafile=self.certificate)
        with httpx.Client(verify=context, timeout=PATIENCE_S) as http:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="alice-key", http_client=http, max_retries=0)
            messages = [{"role": "user", "content": "Tell me a story."}]
            whole = client.chat.completions.create(model="sample", messages=messages, max_tokens=20, temperature=0)
            stream = client.chat.completions.create(
                model="sample", messages=messages, max_tokens=20, temperature=0, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            self.assertEqual(text, whole.choices[0].message.content)
            with self.assertRaises(openai.NotFoundError):
                client.with_options(api_key="bob-key").chat.completions.create(
                    model="sample", messages=messages, max_tokens=1)
            with self.assertRaises(openai.AuthenticationError):
                client.with_options(api_key="nobody").models.list()
            self.assertEqual([m.id for m in client.models.list()], ["sample"])
            self.assertEqual([m.id for m in client.with_options(api_key="bob-key").models.list()], [])
        with httpx2.Client(verify=context, timeout=PATIENCE_S) as http:
            claude = anthropic.Anthropic(base_url=server.url, api_key="alice-key", http_client=http, max_retries=0)
            answer = claude.messages.create(model="sample", messages=messages, max_tokens=20,
                                            extra_body={"temperature": 0})
            self.assertEqual(answer.content[0].text, whole.choices[0].message.content)
        with self.assertRaises(openai.APIConnectionError):  # who does not trust the certificate
            openai.OpenAI(base_url=server.url + "/v1", api_key="plain", max_retries=0).models.list()
        server.terminate()
        self.assertEqual(server.wait_exit(), 0)
        log = "".join(server.log)
        self.assertIn("key=alice", log)
        for secret in ("alice-key", "bob-key", "plain"):
            self.assertNotIn(secret, log)

    def test_reload_on_sighup(self):
        server = self.serve(endless=True)
        second, second_key = make_certificate(self.directory, "second")
        context = ssl.create_default_context(cafile=self.certificate)
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as plain, \
                context.wrap_socket(plain, server_hostname="localhost") as stream:
            request = post("/v1/completions", long_request(stream=True))
            stream.sendall(request.replace("\r\n", "\r\nAuthorization: Bearer plain\r\n", 1).encode())
            self.assertIn(b"200 OK", stream.recv(100))

            def reload(*lines):
                server.process.send_signal(signal.SIGHUP)
                for line in lines:
                    server.wait_for_log(line)

            self.keys.write_text('{"key": "new-key", "name": "eve"}\n')
            pathlib.Path(self.certificate).write_bytes(pathlib.Path(second).read_bytes())
            # Half of a change: the certificate is not this key's. The keys are new all the same.
            reload("api-key-file was read again", "the certificate stays as it was")
            self.assertEqual(server.call("/v1/models", headers={"Authorization": "Bearer new-key"})[0], 200)
            self.assertEqual(server.call("/v1/models")[0], 401)
            pathlib.Path(self.key).write_bytes(pathlib.Path(second_key).read_bytes())
            self.keys.write_text("{ broken\n")
            reload("api-key-file stays as it was: .*line 1", "the certificate was read again")
            self.assertEqual(self.organisation(server, second), "second")
            server.tls = ssl.create_default_context(cafile=second)
            server.key = "new-key"
            self.assertEqual(server.call("/v1/models")[0], 200)
            # The stream has lost nothing: more of it arrives.
            for _ in range(3):
                self.assertTrue(stream.recv(1 << 16))
        server.wait_idle()
        server.terminate()
        self.assertEqual(server.wait_exit(), 0)
        self.assertNotIn("new-key", "".join(server.log))

    def test_hostile_clients(self):
        server = self.serve()
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while more := plain.recv(4096):
                answer += more
            self.assertTrue(answer.startswith(b"HTTP/1.1 400 "), answer)
        context = ssl.create_default_context(cafile=self.certificate)
        for cut in (1, 5, 60, 200):  # the beginning of a real handshake, then nothing or the end
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            hello = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            with self.assertRaises(ssl.SSLWantReadError):
                hello.do_handshake()
            client = socket.create_connection(("127.0.0.1", server.port))
            client.sendall(outgoing.read()[:cut])
            silent.append(client) if cut % 2 else client.close()
        # A client with an old version, and one that wants to negotiate again and again.
        old = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-tls1_1", "-cipher", "ALL:@SECLEVEL=0"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertNotEqual(old.returncode, 0)
        again = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-tls1_2"],
            input="R\n", capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertIn("no renegotiation", again.stderr)

        def many():
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as plain:
                    with context.wrap_socket(plain, server_hostname="localhost") as secure:
                        secure.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                        self.assertIn(b"200 OK", secure.recv(4096))

        threads = [threading.Thread(target=many) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        for client in silent:
            client.close()
        server.wait_for_metric(CONNECTIONS, lambda v: v <= 1)
        self.assertEqual(server.call("/v1/completions", {"prompt": "x", "max_tokens": 2})[0], 200)

    def test_connections_are_in_the_ledger(self):
        """Connections that stay open behind a request take no more than the ledger says."""
        count = 400
        server = self.serve()
        context = ssl.create_default_context(cafile=self.certificate)
        model = json.loads(server.call("/v1/moesaic/snapshot")[2])["model"]
        items = {item["name"]: item["bytes"] for item in model["memory"][0]["items"]}
        each = items["connections"] // (1024 + 64)

        def resident():
            for line in pathlib.Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
            raise AssertionError("no VmRSS")

        def opened():
            plain = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
            secure = context.wrap_socket(plain, server_hostname="localhost")
            body = json.dumps({"prompt": "word " * 2000})
            secure.sendall(f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           f"Authorization: Bearer plain\r\nX-Filler: {'x' * 8000}\r\n"
                           f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
            answer = b""
            while b'"tokens":[' not in answer or not answer.endswith(b"}"):
                answer += secure.recv(1 << 16)
            return secure

        first = [opened() for _ in range(20)]  # what the process makes once
        before = resident()
        rest = [opened() for _ in range(count)]
        grown = (resident() - before) / count
        for client in first + rest:
            client.close()
        self.assertLess(grown, each)

    def test_wrong_files(self):
        other = make_certificate(self.directory, "other")
        encrypted = str(self.directory / "encrypted.key")
        subprocess.run(["openssl", "rsa", "-aes128", "-passout", "pass:word", "-in", self.key, "-out", encrypted],
                       check=True, capture_output=True)
        for flags, what in (
            (("--ssl-certfile", self.certificate, "--ssl-keyfile", other[1]), "--ssl-keyfile"),
            (("--ssl-certfile", self.certificate, "--ssl-keyfile", encrypted), "--ssl-keyfile"),
            (("--ssl-certfile", "/none"), "--ssl-certfile"),
            (("--ssl-keyfile", self.key), "--ssl-certfile"),
            (("--host", "0.0.0.0"), "--insecure"),
        ):
            result = serve_and_fail(MODEL, "--port", "0", *flags)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(what, result.stderr)

    def test_insecure_is_told(self):
        with MoesaicServer("--host", "0.0.0.0", "--insecure") as server:
            self.assertIn("everybody who reaches it can use it", "".join(server.log))
            server.url = f"http://127.0.0.1:{server.port}"
            self.assertEqual(json.loads(server.call("/v1/models")[2])["data"][0]["id"], "sample")


if __name__ == "__main__":
    unittest.main()
