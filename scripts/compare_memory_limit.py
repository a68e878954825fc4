#!/usr/bin/env python3
"""Decode rate under a memory limit that a model's experts do not fit in: moesaic, which keeps some of the experts and
reads the others, against llama.cpp, which maps its file and lets the kernel choose. As a Markdown table.

    scripts/compare_memory_limit.py --moesaic build/release/bin/moesaic --llama /src/llama.cpp/build/bin
        --model /data/moe64 --gguf /data/moe64-bf16.gguf [--expert-memory 25% 50%]

The limit is what `moesaic show` says that the model needs with such a budget; both programs run in a memory control
group (version 1 or 2) with that limit, which takes root, and both begin with their files out of the page cache.
Model and GGUF come from scripts/make_bench_model.py; --model may be the same GGUF file.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

# The group pays for what a process holds before it looks how much is left.
START_BYTES = 16 << 20
ROOT = pathlib.Path("/sys/fs/cgroup")


class MemoryGroup:
    """A control group with a memory limit, for as long as the block lasts."""

    def __init__(self, limit_bytes):
        self.limit_bytes = limit_bytes

    def __enter__(self):
        unified = (ROOT / "cgroup.controllers").exists()
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="moesaic-", dir=ROOT if unified else ROOT / "memory"))
        name = "memory.max" if unified else "memory.limit_in_bytes"
        (self.path / name).write_text(str(self.limit_bytes))
        return self

    def run(self, command):
        command = [str(word) for word in command]
        done = subprocess.run(command, capture_output=True, text=True,
                              preexec_fn=lambda: (self.path / "cgroup.procs").write_text(str(os.getpid())))
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
        return done.stdout

    def __exit__(self, *_):
        self.path.rmdir()


def forget_cached(path):
    """Drops a file's pages, those of a directory's files, from the page cache."""
    for file in [path] if path.is_file() else path.iterdir():
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def rates_of_moesaic(arguments, group, budget):
    forget_cached(arguments.model)
    rows = json.loads(group.run(
        [arguments.moesaic, "bench", arguments.model, "--expert-memory", budget, "--threads", arguments.threads,
         "--prompt-tokens", 0, "--output-tokens", arguments.output, "--repetitions", arguments.repetitions, "--json"]))
    return rows[0]["samples"], rows[0]["expert_hit_rate"]


def rates_of_llama(arguments, group):
    forget_cached(arguments.gguf)
    text = group.run([arguments.llama / "llama-bench", "-m", arguments.gguf, "-t", arguments.threads, "-p", 0, "-n",
                      arguments.output, "-r", arguments.repetitions, "-o", "json", *arguments.llama_flags.split()])
    return json.loads(text[text.index("["):])[0]["samples_ts"]


def needed_bytes(arguments, budget):
    shown = subprocess.run([arguments.moesaic, "show", arguments.model, "--expert-memory", budget, "--max-model-len",
                            str(arguments.output + 16), "--max-num-seqs", "1", "--json"],
                           capture_output=True, text=True, check=True)
    return next(row for row in json.loads(shown.stdout)["expert_memory"] if row["expert_memory"] == budget)["total_bytes"]


def cell(samples):
    return f"{statistics.median(samples):.2f} ({min(samples):.2f}..{max(samples):.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for name in ("moesaic", "llama", "model", "gguf"):
        parser.add_argument("--" + name, required=True, type=lambda text: pathlib.Path(text).absolute())
    parser.add_argument("--expert-memory", nargs="+", default=["25%", "50%"], metavar="SHARE")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=int, default=32, help="tokens that a run generates")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--llama-flags", default="", metavar="FLAGS",
                        help="more flags of llama-bench; \"--repack 0\" where it copies weights (Q4_0, Q4_K) into memory "
                        "that the limit does not allow")
    arguments = parser.parse_args()

    print("| experts in memory | limit | moesaic, tokens/s | experts found there | llama.cpp, tokens/s | |\n|" + "---|" * 6)
    for budget in arguments.expert_memory:
        limit_bytes = needed_bytes(arguments, budget) + START_BYTES
        with MemoryGroup(limit_bytes) as group:
            ours, hits = rates_of_moesaic(arguments, group, budget)
            theirs = rates_of_llama(arguments, group)
        ratio = statistics.median(ours) / statistics.median(theirs)
        print(f"| {budget} | {limit_bytes / 1e9:.2f} GB | {cell(ours)} | {100 * hits:.0f}% | {cell(theirs)} | {ratio:.2f} |",
              flush=True)


if __name__ == "__main__":
    main()
