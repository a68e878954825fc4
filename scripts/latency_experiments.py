#!/usr/bin/env python3
"""Writes docs/experiments/latency.md: what latency mode's decisions are worth on recorded routing.

Runs `moesaic simulate` (the production cache, transfer queue, predictors and miss planner on a
virtual clock) over a grid of settings. Usage:

    scripts/latency_experiments.py TRACE.jsonl.gz [--binary build/release/bin/moesaic] [--out FILE]

Every fourth sequence is served; the predictor learns from the others first, and goes on learning
while it serves. Times are in units of one expert's copy (f); c is a layer's computation.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys

COPY_US = 1000
PREDICTORS = ["blend", "transition", "eamc", "request-eam", "recency", "frequency"]


class Runner:
    def __init__(self, binary, trace, jobs):
        self.binary, self.trace = binary, trace
        self.pool = concurrent.futures.ThreadPoolExecutor(jobs)
        self.runs = {}

    def start(self, **settings):
        key = tuple(sorted(settings.items()))
        if key not in self.runs:
            self.runs[key] = self.pool.submit(self._run, settings)
        return self.runs[key]

    def _run(self, settings):
        command = [self.binary, "simulate", "--json", "--trace", self.trace, "--hold-out", "4",
                   "--expert-copy-us", str(COPY_US)]
        for name, value in settings.items():
            flag = "--" + name.replace("_", "-")
            command += [flag] if value is True else [flag, str(value)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stderr}")
        return json.loads(done.stdout)


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def report(run, trace_name):
    lru = dict(predictor="none", policy="lru")
    base = run.start(**lru)
    ratios = [0.5, 1, 2, 4]
    by_ratio = {r: run.start(layer_compute_us=r * COPY_US) for r in ratios}
    oracle = {r: run.start(layer_compute_us=r * COPY_US, predictor="oracle", policy="belady",
                           min_gain=0) for r in ratios}
    host = {h: run.start(host_expert_us=h * COPY_US, miss="auto") for h in (0.5, 2)}
    host_lru = {h: run.start(host_expert_us=h * COPY_US, miss="auto", **lru) for h in (0.5, 2)}
    alone = {p: run.start(predictor=p) for p in PREDICTORS}
    plain = dict(no_cache=True, policy="lru", min_gain=0.05)
    uncached = run.start(no_cache=True, **lru)
    uncached_by = {p: run.start(predictor=p, **plain)
                   for p in ("dependency", "frequency", "eamc", "blend")}
    policies = {p: run.start(predictor="none", policy=p)
                for p in ("lru", "lfu", "model-frequency", "request-eam", "belady")}
    paper = run.start(predictor="eamc", policy="request-eam")
    sweep = ["10%", "25%", "50%", "75%"]
    sweep_lru = {s: run.start(slots=s, **lru) for s in sweep}
    sweep_ours = {s: run.start(slots=s) for s in sweep}
    devices = {d: (run.start(devices=d, **lru), run.start(devices=d)) for d in (1, 2, 4)}

    def get(future):
        return future.result()

    def relative(future, to):
        result, reference = get(future), get(to)
        return [f"{result['blocked_us'] / reference['blocked_us']:.3f}",
                f"{result['bytes_copied'] / max(1, reference['bytes_copied']):.3f}",
                f"{result['hit_rate']:.3f}"]

    out = [f"# Latency mode on recorded routing\n\nTrace: {trace_name}. Written by "
           "`scripts/latency_experiments.py` (the command is in its head): every fourth sequence is\n"
           "served, the others are learned from first; nothing is ever learned from a sequence before it "
           "is served. Unless a table says otherwise a\nquarter of the experts fit (LRU hits "
           f"{get(base)['hit_rate']:.3f}), one link copies an expert in f, a layer computes for "
           "c = f, and blocked time and bytes\nare relative to loading on demand with LRU on the same "
           "machine. *Blocked* is the time that layers waited for experts.\n"]
    out.append("## Computation against copy\n\nThe oracle knows the next use of every expert "
               "(Belady's eviction) and prefetches the next eight layers.\n")
    out.append(table(["c/f", "blocked", "bytes", "hits", "oracle: blocked", "bytes", "hits"],
                     [[str(r)] + relative(by_ratio[r], base) + relative(oracle[r], base)
                      for r in ratios]))
    out.append("## Fetch or compute on the host\n\nOne expert takes h on the host, one after the other, "
               "while the link copies (`--miss auto`).\n")
    out.append(table(["h/f", "blocked", "bytes", "hits", "LRU on demand with the host: blocked"],
                     [[str(h)] + relative(host[h], base) + relative(host_lru[h], base)[:1]
                      for h in host]))
    out.append("## Predictors, each alone (policy next-use)\n\nRecall: how many of the experts used "
               "are among the k (1.5 k, 2 k) that were most probable so many layers before;\n"
               "calibration error: mean |stated - happened| over 20 bins.\n")
    rows = []
    for p, future in alone.items():
        result = get(future)
        rows.append([f"`{p}`"] + relative(future, base) +
                    [f"{result['recall_at_k'][d]:.3f}" for d in "1234"] +
                    [f"{result['recall_at_1.5k']['1']:.3f}", f"{result['recall_at_2k']['1']:.3f}",
                     f"{result['calibration_error']['1']:.4f}", f"{result['calibration_error']['4']:.4f}"])
    out.append(table(["predictor", "blocked", "bytes", "hits", "recall@k, distance 1", "2", "3", "4",
                      "@1.5k, 1", "@2k, 1", "calibration error, 1", "4"], rows))
    out.append("## Without a cache (MoE-Infinity, tables 2 and 3)\n\nAn expert leaves when its layer is done; "
               "relative to on demand without a cache.\n")
    out.append(table(["prefetch by", "blocked", "bytes"],
                     [[f"`{p}`"] + relative(f, uncached)[:2] for p, f in uncached_by.items()]))
    out.append("## Eviction alone, no prefetching (MoE-Infinity, table 5)\n")
    rows = [[f"`{p}`", f"{get(f)['hit_rate']:.3f}"] for p, f in policies.items()]
    out.append(table(["policy", "hits"], rows))
    result = relative(paper, base)
    out.append(f"EAMC prefetching with request-EAM eviction, as in the paper: blocked {result[0]}, bytes "
               f"{result[1]}, hits {result[2]}.\n")
    out.append("## Capacity (MoE-Infinity, figure 13)\n\nRelative to LRU on demand with as many slots.\n")
    out.append(table(["slots", "LRU hits", "blocked", "bytes", "hits"],
                     [[s, f"{get(sweep_lru[s])['hit_rate']:.3f}"] + relative(sweep_ours[s], sweep_lru[s])
                      for s in sweep]))
    out.append("## Devices\n\nExperts spread over devices, each with a link of its own and its share of the "
               "slots; relative to LRU on as many.\n")
    out.append(table(["devices", "blocked", "bytes", "hits"],
                     [[str(d)] + relative(ours, lru_run) for d, (lru_run, ours) in devices.items()]))
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("trace")
    parser.add_argument("--binary", default="build/release/bin/moesaic")
    parser.add_argument("--out", default="docs/experiments/latency.md")
    parser.add_argument("--name", help="of the trace, in the report")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    runner = Runner(arguments.binary, arguments.trace, arguments.jobs)
    text = report(runner, arguments.name or os.path.basename(arguments.trace))
    os.makedirs(os.path.dirname(arguments.out) or ".", exist_ok=True)
    with open(arguments.out, "w", encoding="utf-8") as file:
        file.write(text)
    print(arguments.out)


if __name__ == "__main__":
    main()
