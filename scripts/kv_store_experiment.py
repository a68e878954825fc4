#!/usr/bin/env python3
"""Writes docs/experiments/kv-store.md: time to the first token behind a long prefix, by where it comes from.

    scripts/kv_store_experiment.py [--binary build/release/bin/moesaic] [--work DIR] [--out FILE] [--prompt 4096,16384]

Serves a dummy model with --kv-store. Each prompt is sent five times with one token of output: to a server that has
nothing (computed), again (from the pool), to a restarted server whose store is in the system's cache, to one whose
store is not (its pages are dropped), and to one with --kv-store-memory, whose pool another prompt has used meanwhile.
Beside them is how long it takes to read the blocks of the file alone, cached and cold. Several rounds; medians. Takes
minutes.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import tempfile
import time

from experiment_server import ExperimentServer

CONFIG = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 512,
          "intermediate_size": 1024, "moe_intermediate_size": 256, "num_hidden_layers": 8, "num_experts": 16,
          "num_experts_per_tok": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
          "vocab_size": 4096, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
          "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": True,
          "torch_dtype": "bfloat16"}
TOKEN_BYTES = 2 * 2 * CONFIG["num_hidden_layers"] * CONFIG["num_key_value_heads"] * CONFIG["head_dim"]


class Server(ExperimentServer):
    def __init__(self, binary, work, tokens, *more, kv_memory="400MiB"):
        super().__init__(binary, work / "model", "--load-format", "dummy", "--expert-store", str(work / "experts"),
                         "--max-model-len", str(tokens + 64), "--kv-memory", kv_memory, "--kv-store",
                         str(work / "store"), "--kv-store-size", "2GiB", *more)

    def first_token(self, prompt):
        """Seconds, the token, and how many tokens of the prompt were not computed."""
        begin = time.perf_counter()
        answer = json.loads(self.complete(prompt, max_tokens=1, logprobs=1).read())
        seconds = time.perf_counter() - begin
        return seconds, answer["choices"][0]["logprobs"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def blocks_file(work):
    return next((work / "store").glob("*.blocks"))


def drop(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_seconds(path, size):
    begin = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while size > 0 and (piece := file.read(min(size, 4 << 20))):
            size -= len(piece)
    return time.perf_counter() - begin


def measure(binary, work, tokens, seed):
    shutil.rmtree(work / "store", ignore_errors=True)
    prompt = random.Random(seed).choices(range(4096), k=tokens + 1)
    results = {}
    server = Server(binary, work, tokens)
    results["computed"], first, cached = server.first_token(prompt)
    assert cached == 0
    results["pool"], again, cached = server.first_token(prompt)
    assert again == first and cached == tokens
    server.stop()
    for name, cold in (("cached", False), ("cold", True)):
        size = tokens * TOKEN_BYTES
        if cold:
            drop(blocks_file(work))
        results["read " + name] = read_seconds(blocks_file(work), size)
        server = Server(binary, work, tokens)
        if cold:
            drop(blocks_file(work))
        results["disk " + name], again, cached = server.first_token(prompt)
        assert again == first and cached == tokens, cached
        server.stop()
    size = tokens * TOKEN_BYTES
    server = Server(binary, work, tokens, "--kv-store-memory", f"{4 * size}B", kv_memory=f"{size + (2 << 20)}B")
    assert server.first_token(prompt)[2] == tokens
    server.first_token(random.Random(seed + 1000).choices(range(4096), k=tokens + 1))
    drop(blocks_file(work))
    results["memory"], again, cached = server.first_token(prompt)
    assert again == first and cached == tokens, cached
    server.stop()
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/moesaic")
    parser.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "kv_store_experiment"))
    parser.add_argument("--out", default="docs/experiments/kv-store.md")
    parser.add_argument("--prompt", default="4096,16384")
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    work = pathlib.Path(flags.work)
    (work / "model").mkdir(parents=True, exist_ok=True)
    (work / "model" / "config.json").write_text(json.dumps(CONFIG))

    shutil.rmtree(work / "experts", ignore_errors=True)
    subprocess.run([flags.binary, "pack", "--load-format", "dummy", str(work / "model"), "-o", str(work / "experts")],
                   check=True, capture_output=True)

    rows = []
    for tokens in map(int, flags.prompt.split(",")):
        rounds = [measure(flags.binary, work, tokens, seed) for seed in range(flags.rounds)]
        print(tokens, json.dumps(rounds), flush=True)
        m = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
        ratio = {s: statistics.median(r[f"disk {s}"] / (r[f"read {s}"] + r["pool"]) for r in rounds)
                 for s in ("cached", "cold")}
        ms = {name: f"{1e3 * seconds:.0f}" for name, seconds in m.items()}
        share = statistics.median(r["computed"] / r["memory"] for r in rounds)
        rows.append(f"| {tokens} | {ms['computed']} | {ms['pool']} | {ms['memory']} | {ms['disk cached']} | "
                    f"{ms['disk cold']} | {ms['read cached']} | {ms['read cold']} | {share:.0f} | "
                    f"{ratio['cached']:.2f} | {ratio['cold']:.2f} |")
    shutil.rmtree(work, ignore_errors=True)
    table = "\n".join(rows)
    pathlib.Path(flags.out).write_text(f"""# The first token behind a stored prefix

Written by `scripts/kv_store_experiment.py` ({time.strftime("%Y-%m-%d")}, {os.cpu_count()} CPUs, load average {os.getloadavg()[1]:.0f}).
A dummy Qwen3-MoE of {CONFIG["num_hidden_layers"]} layers with {TOKEN_BYTES // 1024} KiB of keys and values a token; one request at a time, one token of output, medians of {flags.rounds} rounds with other
prompts, in milliseconds at the client. *From memory*: of `--kv-store-memory`, when another prompt had used the pool. *Cold*: the store's pages were dropped from the system's cache. *Reading alone* is a sequential read of the same bytes of the file. *Times faster* is
computing over memory; the last columns are the time from disk over that of reading alone plus that from the pool (which is one step); medians of the rounds' ratios. The token and its log-probability were the same each time.

| tokens of prefix | computed | from the pool | from memory | from disk, cached | from disk, cold | reading alone, cached | reading alone, cold | times faster from memory | ratio, cached | ratio, cold |
|---|---|---|---|---|---|---|---|---|---|---|
{table}
""", encoding="utf-8")


if __name__ == "__main__":
    main()
