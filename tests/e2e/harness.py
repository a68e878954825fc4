"""Starts `moesaic serve` on the sample model and watches it, for the end-to-end tests."""

import json
import os
import pathlib
import queue
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

BINARY = os.environ["MOESAIC_E2E_BINARY"]
MODEL = os.environ["MOESAIC_E2E_MODEL"]
REFERENCE = json.loads((pathlib.Path(MODEL) / "reference" / "prompts.json").read_text())
PATIENCE_S = 120  # sanitizer builds on a busy machine are slow
ENDLESS_TOKENS = 1 << 16
LARGE_TOKENS = 500


ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("MOESAIC_")}


def with_long_context(directory):
    """A copy of the sample model in `directory` that takes ENDLESS_TOKENS tokens."""
    directory = pathlib.Path(directory)
    for file in pathlib.Path(MODEL).resolve().iterdir():
        if file.is_file() and file.name != "config.json":
            (directory / file.name).symlink_to(file)
    config = json.loads((pathlib.Path(MODEL) / "config.json").read_text())
    config["max_position_embeddings"] = ENDLESS_TOKENS
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory)


def serve_and_fail(*arguments):
    """The result of a `moesaic serve` that is expected to end by itself."""
    return subprocess.run(
        [BINARY, "serve", *arguments],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=PATIENCE_S,
    )


class MoesaicServer:
    """A server process on a free port; use it in a `with`. Ready when made, unless told otherwise.

    `models` is a file for --models, in place of `model`. With `endless`, the model's context is so long that long_request() outlasts any test. `tls` is the
    ssl.SSLContext and `key` the API key that call() uses."""

    def __init__(self, *flags, endless=False, wait_ready=True, model=MODEL, models=None, tls=None,
                 key=None):
        self.tls = tls
        self.key = key
        self._directory = tempfile.TemporaryDirectory() if endless else None
        if endless:
            model = with_long_context(self._directory.name)
        command = [BINARY, "serve", model, "--port", "0", "--served-model-name", "sample", *flags]
        if models is not None:
            command = [BINARY, "serve", "--models", models, "--port", "0", *flags]
        if endless:
            command += ["--max-model-len", str(ENDLESS_TOKENS)]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=ENVIRONMENT
        )
        self.log = []
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self.url = self.wait_for_log(r"listens on (https?://\S+)").group(1)
        self.port = int(self.url.rsplit(":", 1)[1])
        if wait_ready:
            self.wait_ready()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line)
            self._lines.put(line)
        self._lines.put(None)

    def wait_for_log(self, pattern):
        """The match in the next log line that has one."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            line = self._lines.get(timeout=max(0.1, deadline - time.monotonic()))
            if line is None:
                raise AssertionError("the server ended:\n" + "".join(self.log[-50:]))
            if match := re.search(pattern, line):
                return match

    def wait_ready(self):
        self.wait_for_log(r"serving \S+ on")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        self.process.stderr.close()
        if self._directory is not None:
            self._directory.cleanup()

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def wait_exit(self):
        return self.process.wait(PATIENCE_S)

    def call(self, path, body=None, headers=None):
        """(status, headers, body text) of a GET, or of a POST with a JSON body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers or {})
        if data is not None:
            request.add_header("Content-Type", "application/json")
        if self.key is not None and not request.has_header("Authorization"):
            request.add_header("Authorization", f"Bearer {self.key}")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S, context=self.tls) as response:
                return response.status, response.headers, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read().decode()

    def metrics(self):
        """Series (name with labels) -> value."""
        values = {}
        for line in self.call("/metrics")[2].splitlines():
            if not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                values[series] = float(value)
        return values

    def wait_for_metric(self, series, wanted):
        """Waits until wanted(value); returns the value."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            value = self.metrics().get(series, 0.0)
            if wanted(value):
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"{series} stays at {value}")
            time.sleep(0.02)

    def wait_idle(self):
        self.wait_for_metric('moe_num_requests_running{model_name="sample"}', lambda v: v == 0)
        self.wait_for_metric('moe_num_requests_waiting{model_name="sample"}', lambda v: v == 0)


class RawClient:
    """A plain socket that can misbehave."""

    def __init__(self, server, receive_buffer_bytes=0):
        self.socket = socket.socket()
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(("127.0.0.1", server.port))
        self.buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data if isinstance(data, bytes) else data.encode())

    def fill(self):
        """False at the end of the connection."""
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            return False
        self.buffer += data
        return bool(data)

    def until(self, mark):
        while mark not in self.buffer:
            if not self.fill():
                return False
        return True

    def to_end(self):
        while self.fill():
            pass
        return self.buffer

    def response(self):
        """(status, head, body) of the next response; status 0 when there is none."""
        if not self.until(b"\r\n\r\n"):
            return 0, b"", b""
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        status = int(head.split(b" ", 2)[1])
        if match := re.search(rb"(?i)content-length: (\d+)", head):
            length = int(match.group(1))
            while len(self.buffer) < length:
                if not self.fill():
                    break
            body, self.buffer = self.buffer[:length], self.buffer[length:]
            return status, head, body
        body = b""
        while True:
            self.until(b"\r\n")
            size, self.buffer = self.buffer.split(b"\r\n", 1)
            size = int(size, 16)
            while len(self.buffer) < size + 2 and self.fill():
                pass
            body, self.buffer = body + self.buffer[:size], self.buffer[size + 2 :]
            if size == 0:
                return status, head, body

    def reset(self):
        """Closes with RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.socket.close()


def post(path, body, headers=""):
    """`headers`: whole lines, with their ends."""
    data = json.dumps(body)
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}"
        f"Content-Length: {len(data)}\r\n\r\n{data}"
    )


def long_request(**more):
    """A completion that goes on until it is cancelled, on an `endless` server."""
    return {"prompt": "Once", "max_tokens": ENDLESS_TOKENS - 100, "ignore_eos": True,
            "temperature": 0, **more}


def large_stream():
    """A stream that is larger than what sockets buffer: it ends when it is read."""
    return long_request(max_tokens=LARGE_TOKENS, stream=True, logprobs=20)
