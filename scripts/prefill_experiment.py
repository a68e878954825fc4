#!/usr/bin/env python3
"""What prompts read and how long they take in both orders of prefill, with and without a neighbour that decodes.

    scripts/make_bench_model.py /data/moe --layers 24 --hidden 256 --intermediate 128 --top-k 4 --heads 4 \\
        --kv-heads 2 --head-dim 64 --vocabulary 2048 --context 32768
    scripts/prefill_experiment.py /data/moe [--binary build/release/bin/moesaic] [--prompts 1024,4096] [--rounds 3]

Prints rows of docs/experiments/prefill.md: memory, tokens, order, MiB read, seconds, whether the answer is the same. For
each share of the experts in memory and each order a server is started anew; prompts are random token ids, one after
another, with one token of output, whose log-probabilities must be the same in all of them. Bytes are those of /metrics.
Rows that begin with `beside` are of a prompt while another request decodes: seconds, gaps between the neighbour's tokens
meanwhile, their median and their 99th percentile in milliseconds.
"""

import argparse
import json
import random
import statistics
import threading
import time

from experiment_server import ExperimentServer


def bytes_read(server):
    return sum(value for name, value in server.metrics().items() if name.startswith("moe_expert_read_bytes_total"))


def tokens(seed, count, vocabulary=2000):
    generator = random.Random(seed)
    return [generator.randrange(300, vocabulary) for _ in range(count)]


class Neighbour(threading.Thread):
    """Decodes until it is told to stop; keeps the times of its tokens."""

    def __init__(self, server):
        super().__init__()
        self.times = []
        self.done = False
        self.response = server.complete(tokens(7, 16), max_tokens=8000, stream=True)
        self.start()

    def run(self):
        while not self.done and (line := self.response.readline()):
            if line.startswith(b"data: {"):
                self.times.append(time.monotonic())
        self.response.close()

    def gaps(self, begin, end):
        times = [at for at in self.times if begin <= at <= end]
        return [(after - before) * 1e3 for before, after in zip(times, times[1:])]


def measure(server, length, rounds):
    seconds, read, answers = [], [], []
    for number in range(rounds):
        before = bytes_read(server)
        begin = time.monotonic()
        answer = json.loads(server.complete(tokens(length + number, length), max_tokens=1, logprobs=5).read())
        seconds.append(time.monotonic() - begin)
        read.append(bytes_read(server) - before)
        answers.append(answer["choices"][0]["logprobs"])
    return statistics.median(seconds), statistics.median(read), answers


def measure_beside(server, length):
    neighbour = Neighbour(server)
    while len(neighbour.times) < 20:
        time.sleep(0.05)
    begin = time.monotonic()
    server.complete(tokens(length, length), max_tokens=1).read()
    end = time.monotonic()
    neighbour.done = True
    neighbour.join()
    gaps = sorted(neighbour.gaps(begin, end))
    p99 = gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))] if gaps else float("nan")
    return end - begin, len(gaps), statistics.median(gaps) if gaps else float("nan"), p99


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--binary", default="build/release/bin/moesaic")
    parser.add_argument("--memory", default="10%,25%,50%")
    parser.add_argument("--prompts", default="1024,4096,16384")
    parser.add_argument("--orders", default="chunks,layers")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--beside", type=int, default=4096, help="prompt beside a neighbour; 0: none")
    arguments = parser.parse_args()
    lengths = [int(length) for length in arguments.prompts.split(",")]
    answers = {}
    for memory in arguments.memory.split(","):
        for order in arguments.orders.split(","):
            server = ExperimentServer(arguments.binary, arguments.model, "--no-prefix-cache", "--expert-memory", memory,
                                      "--prefill-order", order, "--max-model-len", str(max(lengths) + 64))
            for length in lengths:
                seconds, read, answer = measure(server, length, arguments.rounds)
                same = answers.setdefault(length, answer) == answer
                print(f"| {memory} | {length} | {order} | {read / 2**20:.1f} | {seconds:.2f} | {same} |", flush=True)
            if arguments.beside > 0:
                seconds, count, median, p99 = measure_beside(server, arguments.beside)
                print(f"beside: | {memory} | {order} | {seconds:.2f} | {count} | {median:.0f} | {p99:.0f} |",
                      flush=True)
            server.stop()


if __name__ == "__main__":
    main()
