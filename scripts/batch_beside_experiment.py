#!/usr/bin/env python3
"""What a batch of /v1/batches costs requests that come meanwhile, and what they cost the batch.

    scripts/batch_beside_experiment.py models/sample [--binary build/release/bin/moesaic] [--expert-memory 25%] [--rounds 3]

One server, and --rounds times in turn for --seconds each: requests alone, a batch alone, both. Requests are streams of --prompt and --tokens
tokens that come every --every seconds, whether the one before has ended or not; a batch's lines have --batch-prompt and --batch-tokens. Prints for
requests the time to the first token and the gaps between tokens (median, 99th percentile, in milliseconds), for the batch its tokens a second, and
the ratios: of the gaps' and first tokens' percentiles, and of the batch's rate to its rate alone times the share of the time in which requests
alone would have left the server idle; and how much later first tokens come beside a batch, in layers of a module batch. Tokens of steps that gave
way and were computed again count once; those of module batches count when their last layer has run.

--serve has more flags of the server, such as --serve=--module-batches=off. --compare NAME=FLAGS or NAME@BINARY=FLAGS, once for each, runs several
servers, each with these flags besides (FLAGS may be empty), whose rounds come in turn; a server that is not asked does nothing.
"""

import argparse
import http.client
import json
import pathlib
import random
import shlex
import statistics
import tempfile
import threading
import time

from experiment_server import ExperimentServer


def tokens(seed, count):
    generator = random.Random(seed)
    return [generator.randrange(300, 2000) for _ in range(count)]


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


class Stream(threading.Thread):
    """A request: the times of its tokens."""

    def __init__(self, server, seed, flags):
        super().__init__()
        self.server, self.prompt, self.count = server, tokens(seed, flags.prompt), flags.tokens
        self.times, self.experts = [], None
        self.begin = time.monotonic()
        self.start()

    def run(self):
        response = self.server.complete(self.prompt, max_tokens=self.count, stream=True, return_moesaic=True)
        while line := response.readline():
            if line.startswith(b'data: {'):
                self.times.append(time.monotonic())
                choices = json.loads(line[6:])["choices"]
                if choices and "moesaic" in choices[0]:
                    self.experts = choices[0]["moesaic"]
        response.close()

    def gaps(self):
        return [(after - before) * 1e3 for before, after in zip(self.times, self.times[1:])]


class Batch:
    """A batch that does not end while it is looked at."""

    def __init__(self, server, seed, flags):
        self.server = server
        lines = [json.dumps({"custom_id": f"{seed}-{number}", "method": "POST", "url": "/v1/completions", "body": {
            "model": server.model, "prompt": tokens(seed * 1000 + number, flags.batch_prompt), "max_tokens": flags.batch_tokens,
            "temperature": 0, "ignore_eos": True}}) for number in range(flags.lines)]
        body = "".join(f'--x\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{text}\r\n' for name, more, text in [
            ("purpose", "", "batch"), ("file", '; filename="in.jsonl"', "\n".join(lines) + "\n")]) + "--x--\r\n"
        before = computed(server)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
        connection.request("POST", "/v1/files", body, {"Content-Type": "multipart/form-data; boundary=x"})
        file = json.loads(connection.getresponse().read())
        self.id = json.loads(server.call("POST", "/v1/batches", {
            "input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}))["id"]
        while computed(server) == before:
            time.sleep(0.02)

    def end(self):
        self.server.open("POST", f"/v1/batches/{self.id}/cancel", {}).read()
        while json.loads(self.server.call("GET", f"/v1/batches/{self.id}"))["status"] != "cancelled":
            time.sleep(0.05)


def computed(server):
    return sum(value for name, value in server.metrics().items() if name.startswith("moe_step_tokens_total"))


def module_batches(server):
    return server.metrics().get("moe_module_batches_total", 0)


def phase(server, seed, requests, batch, flags):
    """(streams, tokens a second of the batch, seconds, module batches) of one phase."""
    running = Batch(server, seed, flags) if batch else None
    time.sleep(0.5)
    batches_before = module_batches(server)
    tokens_before, begin, streams = computed(server), time.monotonic(), []
    while requests and len(streams) * flags.every < flags.seconds:
        time.sleep(max(0.0, begin + len(streams) * flags.every - time.monotonic()))
        streams.append(Stream(server, seed * 100 + len(streams), flags))
    time.sleep(max(0.0, begin + flags.seconds - time.monotonic()))
    for stream in streams:
        stream.join()
    took = time.monotonic() - begin
    # A prompt's last token and all but an answer's last one are computed.
    of_requests = len(streams) * (flags.prompt + flags.tokens - 1)
    rate = (computed(server) - tokens_before - of_requests) / took
    batches = module_batches(server) - batches_before
    if running:
        running.end()
    return streams, rate, took, batches


class Side:
    """A server, and what was seen of it."""

    def __init__(self, name, binary, more, flags):
        self.name, self.flags = name, flags
        self.directory = tempfile.TemporaryDirectory()
        self.server = ExperimentServer(binary, flags.model, "--batch-dir", self.directory.name, "--expert-memory", flags.expert_memory,
                                       "--no-prefix-cache", *flags.serve, *more)
        self.alone, self.beside, self.rates, self.rates_beside, self.busy = [], [], [], [], []
        self.batch_s, self.batches = 0.0, 0.0
        phase(self.server, 1, True, False, flags)  # to warm up

    def round(self, number):
        streams, _, took, _ = phase(self.server, 10 + number, True, False, self.flags)
        self.alone += streams
        self.busy.append(min(1.0, sum(stream.times[-1] - stream.begin for stream in streams) / took))
        _, rate, took, batches = phase(self.server, 30 + number, False, True, self.flags)
        self.rates.append(rate)
        self.batch_s, self.batches = self.batch_s + took, self.batches + batches
        streams, rate, _, _ = phase(self.server, 50 + number, True, True, self.flags)
        self.beside += streams
        self.rates_beside.append(rate)

    def report(self, layers):
        metrics = self.server.metrics()
        print(f"\n{self.name}\n" if self.name else "")
        rows = {}
        print("| requests | first token, median | p99 | gap, median | p99 |\n|---|---|---|---|---|")
        for name, streams in (("alone", self.alone), ("beside a batch", self.beside)):
            first = [(stream.times[0] - stream.begin) * 1e3 for stream in streams]
            gaps = [gap for stream in streams for gap in stream.gaps()]
            rows[name] = [statistics.median(first), percentile(first, .99), statistics.median(gaps), percentile(gaps, .99)]
            print(f"| {name} ({len(streams)}) | " + " | ".join(f"{value:.1f}" for value in rows[name]) + " |")
        ratios = [after / before for before, after in zip(rows["alone"], rows["beside a batch"])]
        print("| ratio | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |\n")
        if all(stream.experts for stream in self.alone + self.beside):
            print_experts({"alone": self.alone, "beside a batch": self.beside})
        if self.batches:
            layer = self.batch_s / self.batches / layers * 1e3
            later = [after - before for before, after in zip(rows["alone"], rows["beside a batch"])]
            print(f"a layer of a module batch takes {layer:.1f} ms; first tokens come {later[0]:.1f} ms later (median, {later[0] / layer:.2f} "
                  f"layers), {later[1]:.1f} ms (p99, {later[1] / layer:.2f} layers)")
        idle = 1 - statistics.mean(self.busy)
        rate, beside_rate = statistics.median(self.rates), statistics.median(self.rates_beside)
        kept = beside_rate / (rate * idle) if rate * idle > 0 else float("nan")
        print(f"the batch alone {rate:.0f} tokens/s, beside requests {beside_rate:.0f}; idle share {idle:.2f}: "
              f"{kept:.2f} of rate x idle share; {metrics.get('moe_batch_steps_given_way_total', 0):.0f} steps gave way, "
              f"module batches waited {metrics.get('moe_module_batch_pauses_total', 0):.0f} times; {metrics['moe_preemptions_total']:.0f} preemptions")
        return [*rows["beside a batch"], rate, beside_rate, kept]

    def stop(self):
        self.server.stop()
        self.directory.cleanup()


def print_experts(rows):
    """What the steps of requests found in memory, and waited for."""
    for name, streams in rows.items():
        total = {key: sum(stream.experts[key] for stream in streams) for key in ("hits", "late_hits", "misses", "blocked_us")}
        uses = total["hits"] + total["late_hits"] + total["misses"]
        print(f"{name}: {total['hits'] / uses:.3f} of the experts of their steps were there, "
              f"{total['blocked_us'] / 1e3 / len(streams):.1f} ms a request waited for the others")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--binary", default="build/release/bin/moesaic")
    parser.add_argument("--expert-memory", default="25%")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--every", type=float, default=0.5)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--batch-prompt", type=int, default=200)
    parser.add_argument("--batch-tokens", type=int, default=100)
    parser.add_argument("--serve", action="append", default=[])
    parser.add_argument("--compare", action="append", default=[], metavar="NAME[@BINARY]=FLAGS")
    flags = parser.parse_args()
    layers = json.loads((pathlib.Path(flags.model) / "config.json").read_text())["num_hidden_layers"]
    sides = []
    for side in flags.compare or ["="]:
        name, _, more = side.partition("=")
        name, _, binary = name.partition("@")
        sides.append(Side(name, binary or flags.binary, shlex.split(more), flags))
    for number in range(flags.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            side.round(number)
    results = {side.name: side.report(layers) for side in sides}
    for side in sides:
        side.stop()
    if len(sides) > 1:
        print("\n| beside a batch | first token, median | p99 | gap, median | p99 | batch alone | beside | kept |\n|---|---|---|---|---|---|---|---|")
        for name, values in results.items():
            print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in values[:4]) +
                  f" | {values[4]:.0f} | {values[5]:.0f} | {values[6]:.2f} |")


if __name__ == "__main__":
    main()
