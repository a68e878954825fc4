#!/usr/bin/env python3
"""Writes docs/experiments/restart.md: the first 50 requests after a restart, with and without --state-file.

    scripts/restart_experiment.py TRACE.jsonl.gz [--binary build/release/bin/moesaic] [--work DIR] [--out FILE]

Serves a dummy model of the trace's shape with the trace's routing (--route-from), reading experts from disk.
A server learns from the sequences that are not measured; then 50 others are sent, one after another, to that
server and to restarted ones. Hit rate and blocked time of each request come from /metrics. Takes minutes and
300 MB of disk under --work.
"""

import argparse
import gzip
import json
import os
import pathlib
import random
import re
import subprocess
import tempfile
import time

from experiment_server import ExperimentServer
from line_plot import line_plot

MEASURED = 50
PROMPT_TOKENS = 8
OUTPUT_TOKENS = 24
GROUPS = [(0, 1), (1, 5), (5, 10), (10, 20), (20, 50), (0, 50)]


def write_trace(path, header, requests):
    """A server's request r (from 1) follows sequence r modulo their number."""
    lines = [requests[-1], *requests[:-1]]
    path.write_text("".join([header, *lines]))


def model_config(trace):
    return {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 256,
            "intermediate_size": 256, "moe_intermediate_size": 256, "num_hidden_layers": trace["n_moe_layers"],
            "num_experts": trace["n_experts"], "num_experts_per_tok": trace["top_k"], "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096, "max_position_embeddings": 1024,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "norm_topk_prob": True, "decoder_sparse_step": 1,
            "mlp_only_layers": [], "tie_word_embeddings": True, "torch_dtype": "bfloat16"}


class Server(ExperimentServer):
    def __init__(self, binary, work, trace, *arguments):
        super().__init__(binary, work / "model", "--load-format", "dummy", "--expert-store", str(work / "store"),
                         "--expert-memory", "25%", "--max-model-len", "1024", "--no-prefix-cache", "--route-from",
                         str(trace), *arguments)

    def serve(self, first, count):
        """Hit rate and blocked milliseconds per token of each request."""
        results = []
        before = self.metrics()
        for number in range(first, first + count):
            prompt = random.Random(number).choices(range(4096), k=PROMPT_TOKENS)
            self.complete(prompt, max_tokens=OUTPUT_TOKENS).read()
            after = self.metrics()
            delta = {name: after[name] - before.get(name, 0) for name in after}
            wanted = {r: delta[f'moe_expert_requests_total{{result="{r}"}}'] for r in ("hit", "in_flight", "miss")}
            results.append((wanted["hit"] / sum(wanted.values()),
                            1e3 * delta["moe_expert_blocked_seconds_total"] / (PROMPT_TOKENS + OUTPUT_TOKENS - 1)))
            before = after
        return results


def plot(path, series):
    """Hit rate by request, a moving average of five."""
    def mean(results, i):
        last = results[max(0, i - 4):i + 1]
        return sum(hits for hits, _ in last) / len(last)

    line_plot(path, [(name, [(i + 1, mean(results, i)) for i in range(MEASURED)]) for name, results in series],
              "request after the restart", percent=True)


def table(series, value, form):
    head = ["requests"] + [f"{a + 1}" if b == a + 1 else f"{a + 1} to {b}" for a, b in GROUPS]
    rows = [head, ["---"] * len(head)]
    for name, results in series:
        rows.append([name] + [form.format(sum(r[value] for r in results[a:b]) / (b - a)) for a, b in GROUPS])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--binary", default="build/release/bin/moesaic")
    parser.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "restart_experiment"))
    parser.add_argument("--out", default="docs/experiments/restart.md")
    flags = parser.parse_args()
    work = pathlib.Path(flags.work)
    (work / "model").mkdir(parents=True, exist_ok=True)
    with gzip.open(flags.trace, "rt") as file:
        header, *sequences = [line for line in file if line.strip()]
    (work / "model" / "config.json").write_text(json.dumps(model_config(json.loads(header))))
    subprocess.run([flags.binary, "pack", "--load-format", "dummy", str(work / "model"), "-o", str(work / "store")],
                   check=True)

    measured = [sequences[i * len(sequences) // MEASURED] for i in range(MEASURED)]
    learned = [s for s in sequences if s not in measured]
    random.Random(1).shuffle(measured)
    random.Random(2).shuffle(learned)
    write_trace(work / "all.jsonl", header, learned + measured)
    write_trace(work / "measured.jsonl", header, measured)
    state = work / "state"
    state.unlink(missing_ok=True)

    server = Server(flags.binary, work, work / "all.jsonl", "--state-file", str(state), "--state-interval", "1")
    server.serve(1, len(learned))
    learned_at = time.time()
    while server.metrics()["moe_state_saved_timestamp_seconds"] < learned_at:
        time.sleep(0.2)
    saved = state.read_bytes()
    series = [("never restarted", server.serve(len(learned) + 1, MEASURED))]
    copy_ms = 1e3 * server.metrics()["moe_state_copy_seconds"]
    server.stop()
    for name, arguments in (
            ("restarted with its state file", ["--state-file", str(state)]),
            ("the same, experts not loaded (a warm process whose cache was emptied)",
             ["--state-file", str(state), "--no-preload"]),
            ("restarted without", [])):
        state.write_bytes(saved)
        server = Server(flags.binary, work, work / "measured.jsonl", *arguments)
        series.append((name, server.serve(1, MEASURED)))
        server.stop()

    out = pathlib.Path(flags.out)
    plot(out.with_suffix(".svg"), series)
    out.write_text(f"""# The first {MEASURED} requests after a restart

Written by `scripts/restart_experiment.py` ({time.strftime("%Y-%m-%d")}, {os.cpu_count()} CPUs). A dummy model of
{json.loads(header)["n_moe_layers"]} layers of {json.loads(header)["n_experts"]} experts with the routing of
{json.loads(header)["model"]} (`--route-from`, {pathlib.Path(flags.trace).name}); a quarter of the experts in memory, the others
read from disk past the page cache; requests one after another, {PROMPT_TOKENS} + {OUTPUT_TOKENS} tokens each. The server learned from
{len(learned)} requests and was then restarted; the {MEASURED} that are measured are others. A restored predictor states the same
bits as the one that was saved (`tests/prefetch/predict/predictor_test.cpp`), so that restoring the state without loading experts is what a
warm process is whose cache was emptied.

Experts found in memory:

{table(series, 0, "{:.1%}")}

![hit rate by request, moving average of five](restart.svg)

Time that a token waited for experts, in milliseconds (the machine was not idle: compare, don't quote):

{table(series, 1, "{:.1f}")}

The state file has {len(saved) / 1e6:.1f} MB; copying what was learned held up a step for {copy_ms:.1f} ms (`moe_state_copy_seconds`).
""")


if __name__ == "__main__":
    main()
