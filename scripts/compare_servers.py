#!/usr/bin/env python3
"""`bench serve` of two builds in turn, to see what a change costs a server.

    scripts/compare_servers.py --before OLD/moesaic --after NEW/moesaic [--rounds 20] [--model models/sample] [--tools]

Each round starts both servers in turn, the first one in every other round last, sends the same load and stops them. With N rounds:
medians of each, and the median of after / before of a round with its quartiles, for output tokens a second, TTFT and TPOT, and for the
server's CPU time a token, which other work on the machine moves least. --tools compares chats that have tools with the same chats
without, both of --after.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import threading
import time

from experiment_server import ExperimentServer

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
STREAMS = 8


class Server(ExperimentServer):
    def __init__(self, binary, model):
        super().__init__(binary, model, "--max-num-seqs", str(STREAMS))

    def cpu_s(self):
        # clock_getcpuclockid(3), which Python has of its own threads only.
        return time.clock_gettime((~self.process.pid << 3) | 2)


def bench(client, server, arguments):
    """The result of `bench serve`, from the newer program for both servers."""
    with tempfile.TemporaryDirectory() as directory:
        command = [
            client, "bench", "serve", "--base-url", f"http://127.0.0.1:{server.port}", "--backend", "openai-chat", "--random-input-len", "32", "--random-output-len",
            str(arguments.tokens), "--num-prompts", str(arguments.prompts), "--max-concurrency", str(STREAMS), "--ignore-eos",
            "--save-result", "--result-dir", directory, "--result-filename", "r.json",
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        result = json.loads((pathlib.Path(directory) / "r.json").read_text())
    if result["completed"] != arguments.prompts:
        raise SystemExit(f"{result['completed']} of {arguments.prompts} requests were answered")
    return {"tokens/s": result["output_throughput"], "ttft ms": result["mean_ttft_ms"], "tpot ms": result["mean_tpot_ms"]}, result["total_output_tokens"]


def chats(server, arguments, tools):
    """Streams at a time, so that only the server's CPU time is looked at."""
    def one(number):
        body = {"model": server.model, "messages": [{"role": "user", "content": f"Tell me story {number}."}], "max_tokens": arguments.tokens,
                "ignore_eos": True, "stream": True, "seed": number} | ({"tools": [TOOL]} if tools else {})  # fmt: skip
        server.call("POST", "/v1/chat/completions", body)

    for first in range(0, arguments.prompts, STREAMS):
        threads = [threading.Thread(target=one, args=(number,)) for number in range(first, min(first + STREAMS, arguments.prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {}, arguments.prompts * arguments.tokens


def round_of(binary, run, model):
    server = Server(binary, model)
    try:
        run(server)  # what is paid once: code, caches, the first pages
        before = server.cpu_s()
        numbers, tokens = run(server)
        return numbers | {"CPU ms/token": (server.cpu_s() - before) / tokens * 1e3}
    finally:
        server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before")
    parser.add_argument("--after", required=True)
    parser.add_argument("--model", default="models/sample")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--tools", action="store_true")
    arguments = parser.parse_args()
    if arguments.tools:
        kinds = [("without tools", arguments.after, lambda s: chats(s, arguments, False)), ("with tools", arguments.after, lambda s: chats(s, arguments, True))]
    elif arguments.before:
        kinds = [(name, binary, lambda s: bench(arguments.after, s, arguments)) for name, binary in (("before", arguments.before), ("after", arguments.after))]
    else:
        parser.error("--before or --tools")
    rounds = []
    for number in range(arguments.rounds):
        order = kinds if number % 2 == 0 else kinds[::-1]
        rounds.append({name: round_of(binary, run, arguments.model) for name, binary, run in order})
        print(f"round {number + 1}, load average {os.getloadavg()[0]:.1f}: {json.dumps(rounds[-1])}", flush=True)
    first, second = (name for name, _, _ in kinds)
    for metric in rounds[0][first]:
        ratios = [r[second][metric] / r[first][metric] for r in rounds]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        medians = [statistics.median(r[name][metric] for r in rounds) for name in (first, second)]
        print(f"{metric}: {first} {medians[0]:.3f}, {second} {medians[1]:.3f}, {second} / {first} {middle:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
