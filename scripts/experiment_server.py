"""A `moesaic serve` of an experiment, and calls of its API. Ends the experiment when either fails; however the experiment ends, its servers end, too."""

import http.client
import json
import re
import subprocess
import threading


# In front of a command: the kernel ends it when the thread that started it is gone, so begin it in the main one. Of util-linux.
ENDS_WITH_US = ("setpriv", "--pdeathsig", "TERM")


class ExperimentServer:
    def __init__(self, binary, model, *arguments):
        self.process = subprocess.Popen([*ENDS_WITH_US, binary, "serve", "--port", "0", str(model), *arguments],
                                        stderr=subprocess.PIPE, text=True)
        self.log = ""
        self.port = int(re.search(r"listens on http://[^:]+:(\d+)", self.wait_for("listens on"))[1])
        self.wait_for("serving ")
        self.reader = threading.Thread(target=self.read_log, daemon=True)  # else it would wait for us
        self.reader.start()
        self.model = json.loads(self.call("GET", "/v1/models"))["data"][0]["id"]

    def wait_for(self, text):
        for line in self.process.stderr:
            self.log += line
            if text in line:
                return line
        raise SystemExit(f"the server ended:\n{self.log}")

    def read_log(self):
        for line in self.process.stderr:
            self.log += line

    def open(self, method, path, body=None):
        """The response, whose body is still to be read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"{path}: {response.status} {response.read().decode()}")
        return response

    def call(self, method, path, body=None):
        return self.open(method, path, body).read().decode()

    def complete(self, prompt, **more):
        """The response to token ids, greedy and to the last token."""
        return self.open("POST", "/v1/completions", {"model": self.model, "prompt": prompt, "temperature": 0,
                                                     "ignore_eos": True, **more})

    def metrics(self):
        """Series (name with labels) to value."""
        values = re.findall(r"^(moe_\S+) (\S+)$", self.call("GET", "/metrics"), re.MULTILINE)
        return {name: float(value) for name, value in values}

    def stop(self):
        self.process.terminate()
        assert self.process.wait() == 0
        self.reader.join()
