#!/usr/bin/env python3
"""Writes docs/experiments/prefill.md: what prompts read and how long they take in both orders of prefill.

    scripts/prefill_experiment.py [--binary build/release/bin/moesaic] [--work DIR] [--out FILE] [--rounds 3]

Three servers of one dummy model run at the same time: one with all experts in memory, and for each share of them one
that runs prompts layer after layer and one that runs them in chunks. A prompt, random token ids with one token of
output, goes to one server after the other, and then as many bytes as it read are read from the store by themselves, so
that what is compared ran within seconds. Log-probabilities have to be the same in all of them. Bytes are those of
/metrics. Then a prompt runs beside a request that decodes, whose tokens' gaps are measured. Takes ten minutes.
"""

import argparse
import concurrent.futures
import json
import mmap
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import tempfile
import threading
import time

from experiment_server import ExperimentServer

CONFIG = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 512,
          "intermediate_size": 768, "moe_intermediate_size": 192, "num_hidden_layers": 24, "num_experts": 64,
          "num_experts_per_tok": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
          "vocab_size": 2048, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
          "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": True,
          "torch_dtype": "bfloat16"}
EXPERT_BYTES = 3 * 2 * CONFIG["hidden_size"] * CONFIG["moe_intermediate_size"]
ALL_BYTES = EXPERT_BYTES * CONFIG["num_hidden_layers"] * CONFIG["num_experts"]
BLOCK_BYTES = 512 << 10
MIB = 2 ** 20


def bytes_read(server):
    return sum(value for name, value in server.metrics().items() if name.startswith("moe_expert_read_bytes_total"))


def tokens(seed, count):
    return random.Random(seed).choices(range(CONFIG["vocab_size"]), k=count)


def answer_of(server, prompt):
    """Seconds to the first token, bytes read, and the answer with its log-probabilities."""
    before = bytes_read(server)
    begin = time.monotonic()
    answer = json.loads(server.complete(prompt, max_tokens=1, logprobs=5).read())
    seconds = time.monotonic() - begin
    return seconds, bytes_read(server) - before, answer["choices"][0]["logprobs"]


class Disk:
    """Reads blocks of a file past the system's cache, sixteen at a time."""

    def __init__(self, path):
        self.file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self.blocks = os.fstat(self.file).st_size // BLOCK_BYTES
        self.place = threading.local()
        self.threads = concurrent.futures.ThreadPoolExecutor(16)

    def read(self, block):
        if not hasattr(self.place, "memory"):
            self.place.memory = mmap.mmap(-1, BLOCK_BYTES)
        os.preadv(self.file, [self.place.memory], block % self.blocks * BLOCK_BYTES)

    def seconds(self, size):
        begin = time.monotonic()
        list(self.threads.map(self.read, range(round(size / BLOCK_BYTES))))
        return time.monotonic() - begin


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
        return sorted((after - before) * 1e3 for before, after in zip(times, times[1:]))


def share_of(gaps, share):
    return gaps[min(len(gaps) - 1, int(share * len(gaps)))] if gaps else float("nan")


def measure_beside(server, length):
    """Seconds, and the neighbour's sorted gaps before and meanwhile."""
    neighbour = Neighbour(server)
    while len(neighbour.times) < 100:
        time.sleep(0.05)
    begin = time.monotonic()
    server.complete(tokens(length, length), max_tokens=1).read()
    end = time.monotonic()
    neighbour.done = True
    neighbour.join()
    return end - begin, neighbour.gaps(0, begin), neighbour.gaps(begin, end)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/moesaic")
    parser.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "prefill_experiment"))
    parser.add_argument("--out", default="docs/experiments/prefill.md")
    parser.add_argument("--memory", default="10%,25%,50%")
    parser.add_argument("--prompts", default="1024,4096,16384")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=int, default=4096, help="prompt beside a neighbour; 0: none")
    flags = parser.parse_args()
    lengths = [int(length) for length in flags.prompts.split(",")]
    work = pathlib.Path(flags.work)
    shutil.rmtree(work, ignore_errors=True)
    (work / "model").mkdir(parents=True)
    (work / "model" / "config.json").write_text(json.dumps(CONFIG))
    subprocess.run([flags.binary, "pack", "--load-format", "dummy", str(work / "model"), "-o", str(work / "experts")],
                   check=True, capture_output=True)
    disk = Disk(max((file for file in (work / "experts").rglob("*") if file.is_file()), key=os.path.getsize))

    def serve(memory, *more):
        server = ExperimentServer(flags.binary, work / "model", "--load-format", "dummy", "--expert-store",
                                  str(work / "experts"), "--no-prefix-cache", "--max-model-len",
                                  str(max(*lengths, 8192) + 64), "--expert-memory", memory, *more)
        answer_of(server, tokens(1, 1024))
        return server

    rows, beside = [], []
    full = serve("100%")
    for memory in flags.memory.split(","):
        layers = serve(memory, "--prefill-order", "layers")
        chunks = serve(memory, "--prefill-order", "chunks")
        missing = ALL_BYTES * (1 - float(memory.rstrip("%")) / 100)
        for length in lengths:
            rounds = []
            for number in range(flags.rounds):
                prompt = tokens(length + number, length)
                computed, _, wanted = answer_of(full, prompt)
                by_layers, read, answer = answer_of(layers, prompt)
                reading = disk.seconds(read)
                in_chunks, read_in_chunks, other = answer_of(chunks, prompt)
                assert answer == wanted and other == wanted, (memory, length, number)
                rounds.append((computed, reading, by_layers, in_chunks, read, read_in_chunks,
                               by_layers / max(computed, reading)))
            print(memory, length, json.dumps(rounds), flush=True)
            computed, reading, by_layers, in_chunks, read, read_in_chunks, ratio = map(statistics.median, zip(*rounds))
            least, most = min(r[-1] for r in rounds), max(r[-1] for r in rounds)
            rows.append(f"| {memory} | {missing / MIB:.0f} | {length} | {read_in_chunks / MIB:.0f} | {read / MIB:.0f} | "
                        f"{read / missing:.2f} | {computed:.2f} | {reading:.2f} | {in_chunks:.2f} | {by_layers:.2f} | "
                        f"{ratio:.2f} ({least:.2f}..{most:.2f}) |")
        for name, server in (("layers", layers), ("chunks", chunks)) if flags.beside > 0 else ():
            seconds, before, gaps = measure_beside(server, flags.beside)
            print(memory, name, "beside", seconds, len(before), len(gaps), flush=True)
            beside.append(f"| {memory} | {name} | {seconds:.2f} | {share_of(before, .5):.0f} | {share_of(before, .99):.0f} | "
                          f"{len(gaps)} | {share_of(gaps, .5):.0f} | {share_of(gaps, .99):.0f} | {share_of(gaps, 1):.0f} |")
        layers.stop()
        chunks.stop()
    full.stop()
    shutil.rmtree(work, ignore_errors=True)
    table, gaps = "\n".join(rows), "\n".join(beside)
    pathlib.Path(flags.out).write_text(f"""# Prompts by layers

What a prompt reads in chunks, each through all layers, and layer after layer ([cli.md](../cli.md#long-prompts)), and how long it takes.

Written by `scripts/prefill_experiment.py` ({time.strftime("%Y-%m-%d")}, {os.cpu_count()} CPUs, load average {os.getloadavg()[1]:.0f}). A dummy Qwen3-MoE: {CONFIG["num_hidden_layers"]} layers of {CONFIG["num_experts"]} experts of {EXPERT_BYTES // 1024} KiB ({ALL_BYTES / MIB:.0f} MiB in all), top {CONFIG["num_experts_per_tok"]}, hidden {CONFIG["hidden_size"]}, bf16, from an expert store read past the system's cache.
Chunks of 512 tokens, no prefix cache; each server answers 1,024 tokens first. Medians of {flags.rounds} rounds with other prompts. *Computing* is the time to the first token with all experts in memory, *reading* that of reading alone as many bytes as the prompt read by layers. The last column, time by layers over the larger of these two, is the median of the
rounds' ratios, with the least and the most. The log-probabilities of the answers were the same in every order and with every memory, to the last digit that the API gives.

| experts in memory | not in memory, MiB | tokens | chunks, MiB read | layers, MiB read | layers: share of what was not in memory | computing, s | reading, s | chunks, s | layers, s | layers to the larger of computing and reading |
|---|---|---|---|---|---|---|---|---|---|---|
{table}

*Reading it:* chunks read what they miss again, every 512 tokens; layers read what the prompt uses and memory lacks, once.

A prompt of {flags.beside} tokens beside a request that decodes: milliseconds between the neighbour's tokens, before the prompt and while it runs. The bound by layers is `--prefill-turn` (100 ms), a chunk of a layer and a step.

| experts in memory | order | prompt, s | before: median | 99% | meanwhile: gaps | median | 99% | most |
|---|---|---|---|---|---|---|---|---|
{gaps}
""", encoding="utf-8")


if __name__ == "__main__":
    main()
