#!/usr/bin/env python3
"""Writes docs/experiments/latency.md: what latency mode's decisions are worth on recorded routing.

Runs `moesaic simulate` (the production cache, transfer queue, predictors and miss planner on a
virtual clock) over a grid of settings. Usage:

    scripts/latency_experiments.py TRACE.jsonl.gz [--change A.jsonl.gz B.jsonl.gz ...]
        [--binary build/release/bin/moesaic] [--out FILE]

--change: traces of one model on different tasks, for the change of workload and as other traces. Every fourth sequence is served; the predictor learns from the others first, and goes on learning
while it serves. Times are in units of one expert's copy (f); c is a layer's computation.
"""

import argparse
import concurrent.futures
import gzip
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile

from line_plot import line_plot

COPY_US = 1000
UNCACHED_RATIO = 5
PREDICTORS = ["blend", "transition", "eamc", "request-eam", "recency", "frequency"]


class Runner:
    def __init__(self, binary, trace, jobs):
        self.binary, self.trace, self.served = binary, trace, {"hold_out": 4}
        self.pool = concurrent.futures.ThreadPoolExecutor(jobs)
        self.runs = {}

    def start(self, **settings):
        key = tuple(sorted(settings.items()))
        if key not in self.runs:
            self.runs[key] = self.pool.submit(self._run, settings)
        return self.runs[key]

    def _run(self, settings):
        command = [self.binary, "simulate", "--json", "--expert-copy-us", str(COPY_US)]
        for name, value in ({"trace": self.trace} | self.served | settings).items():
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


def read_sequences(trace):
    with gzip.open(trace, "rt") as file:
        header, *sequences = [line for line in file if line.strip()]
    return header, sequences


def tokens(sequence):
    return len(json.loads(sequence)["experts"])


def recovery(runner, before, after, work):
    """Requests of the second workload until a token waits no more than a tenth longer than it does for good (the
    median of the last half of the requests), and how much longer the first one waits."""
    header, first = read_sequences(before)
    _, second = read_sequences(after)
    joined = os.path.join(work, f"{len(os.listdir(work))}.jsonl")
    with open(joined, "w", encoding="utf-8") as file:
        file.writelines([header, *first, *second])
    result = runner.start(trace=joined, hold_out=0).result()
    waits = [us / tokens(s) for us, s in zip(result["request_blocked_us"][len(first):], second)]
    settled = statistics.median(waits[len(waits) // 2:])
    return next(i for i, wait in enumerate(waits) if wait <= 1.1 * settled), waits[0] / settled


def workload_change(runner, traces):
    def name(trace):
        return os.path.basename(trace).split(".")[0]

    rows = []
    with tempfile.TemporaryDirectory() as work:
        for before, after in itertools.permutations(traces, 2):
            requests, first = recovery(runner, before, after, work)
            rows.append([name(before), name(after), str(requests), f"{first:.2f}"])
    return table(["from", "to", "requests until it has recovered", "the first request's wait, relative"], rows)


def report(run, trace_name, change, plots):
    lru = dict(predictor="none", policy="lru")
    base = run.start(**lru)
    ratios = [0.5, 1, 2, 4]
    by_ratio = {r: run.start(layer_compute_us=r * COPY_US) for r in ratios}
    oracle = {r: run.start(layer_compute_us=r * COPY_US, predictor="oracle", policy="belady",
                           min_gain=0) for r in ratios}
    host = {h: run.start(host_expert_us=h * COPY_US, miss="auto") for h in (0.5, 2)}
    host_lru = {h: run.start(host_expert_us=h * COPY_US, miss="auto", **lru) for h in (0.5, 2)}
    alone = {p: run.start(predictor=p) for p in PREDICTORS}
    # A link that can bring a layer's experts while a layer computes: else nothing could be shown.
    plain = dict(no_cache=True, policy="lru", min_gain=0.05, layer_compute_us=UNCACHED_RATIO * COPY_US)
    uncached = run.start(no_cache=True, layer_compute_us=UNCACHED_RATIO * COPY_US, **lru)
    uncached_by = {p: run.start(predictor=p, **plain)
                   for p in ("dependency", "frequency", "eamc", "blend")}
    steps = [("all experts of the next layer (`dependency`)", dict(plain, predictor="dependency", look_ahead=1)),
             ("by the request's trace (`eamc`), one layer ahead", dict(plain, predictor="eamc", look_ahead=1)),
             ("eight layers ahead", dict(plain, predictor="eamc")),
             ("by transitions, tokens and habits (`blend`)", dict(plain, predictor="blend")),
             ("with a cache, LRU", dict(policy="lru", layer_compute_us=UNCACHED_RATIO * COPY_US)),
             ("evicting by next use", dict(layer_compute_us=UNCACHED_RATIO * COPY_US))]
    ablation = [(name, run.start(**settings)) for name, settings in steps]
    policies = {p: run.start(predictor="none", policy=p)
                for p in ("lru", "lfu", "model-frequency", "request-eam", "belady")}
    paper = run.start(predictor="eamc", policy="request-eam")
    sweep = ["10%", "25%", "50%", "75%"]
    sweep_lru = {s: run.start(slots=s, **lru) for s in sweep}
    sweep_ours = {s: run.start(slots=s) for s in sweep}
    others = {t: {p: run.start(trace=t, predictor=p, policy="lru" if p == "none" else "next-use")
                  for p in ["none"] + PREDICTORS} for t in change}
    devices = {d: (run.start(devices=d, **lru), run.start(devices=d),
                   run.start(devices=d, predictor="oracle", policy="belady", min_gain=0)) for d in (1, 2, 4, 8)}

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
    line_plot(plots + "_ratio.svg",
              [(name, [(r, get(runs[r])["blocked_us"] / get(base)["blocked_us"]) for r in ratios])
               for name, runs in (("prefetching, next use", by_ratio), ("oracle", oracle))],
              "a layer's computation / an expert's copy", percent=True)
    out.append(f"![blocked time, relative to LRU on demand]({os.path.basename(plots)}_ratio.svg)\n")
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
    out.append("The default by distance:\n")
    blend = get(alone["blend"])
    out.append(table(["layers ahead", "recall@k", "@1.5k", "@2k", "calibration error"],
                     [[d] + [f"{blend[key][d]:.3f}" for key in ("recall_at_k", "recall_at_1.5k", "recall_at_2k")] +
                      [f"{blend['calibration_error'][d]:.4f}"] for d in "1234"]))
    if others:
        out.append("The default on other traces, beside the best of the other predictors at each distance:\n")
        rows = []
        for trace, runs in others.items():
            def recall(p, d):
                return get(runs[p])["recall_at_k"][str(d)]
            rows.append([os.path.basename(trace).split(".")[0]] + relative(runs["blend"], runs["none"]) +
                        [f"{recall('blend', d):.3f} ({max(recall(p, d) for p in PREDICTORS if p != 'blend'):.3f})"
                         for d in range(1, 5)])
        out.append(table(["trace", "blocked", "bytes", "hits", "recall@k, distance 1", "2", "3", "4"], rows))
    out.append("## Without a cache (MoE-Infinity, tables 2 and 3)\n\nAn expert leaves when its layer is done; "
               f"c = {UNCACHED_RATIO} f; relative to on demand without a cache. The paper's figures for its four models "
               "are:\ndependency 147 to 230% blocked and 143 to 239% bytes, model-level 51 to 91% and 101 to 204%, theirs 12 "
               "to 37% and 126 to 187%. A trace of\nsingle tokens shows less of it: with four experts per layer and token "
               "there is little to fetch in vain.\n")
    out.append(table(["prefetch by", "blocked", "bytes"],
                     [[f"`{p}`"] + relative(f, uncached)[:2] for p, f in uncached_by.items()]))
    out.append("## One thing after the other (as MoE-Infinity, table 4)\n\nFrom fetching a whole layer ahead to all that "
               f"there is; c = {UNCACHED_RATIO} f, relative to the first row. The paper's steps (request-level tracing,\nseveral "
               "layers, layer proximity) end at 68% of the bytes and 32% of the blocked time. Layer proximity has no row: a "
               "candidate's worth is\nweighed by how much of its copy will have arrived, which cannot be left out.\n")
    first = ablation[0][1]
    out.append(table(["prefetching", "blocked", "bytes"], [[name] + relative(f, first)[:2] for name, f in ablation]))
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
    line_plot(plots + "_capacity.svg",
              [(name, [(float(s[:-1]), get(runs[s])["hit_rate"]) for s in sweep])
               for name, runs in (("LRU on demand", sweep_lru), ("prefetching, next use", sweep_ours))],
              "slots, % of the experts", percent=True)
    out.append(f"![hits by slots]({os.path.basename(plots)}_capacity.svg)\n")
    out.append("## Devices\n\nExperts spread over devices, each with a link of its own and its share of the "
               "slots; relative to LRU on as many.\n*Of LRU on one*: blocked time relative to LRU on one device; more links "
               "never stop helping. With one and two of them the links are busy all\nthe time, and their rate is what limits. "
               "With four they are idle now and then, and what is left is experts that the predictor has not foreseen, each of "
               "which is\nwaited for almost as long as its copy takes (f), however many links there are: the oracle waits for "
               "nothing there.\n")

    def links(d, future):
        result = get(future)
        missed = result["expert_accesses"] - result["hits"]
        elapsed = result["blocked_us"] + result["compute_us"]
        return [f"{result['copies'] * COPY_US / d / elapsed:.2f}",
                f"{result['prefetched_unused'] / result['copies']:.2f}",
                f"{result['blocked_us'] / missed / COPY_US:.2f}"]

    out.append(table(["devices", "blocked", "of LRU on one", "bytes", "hits", "links busy", "copies in vain", "wait per miss, f",
                      "oracle: blocked"],
                     [[str(d)] + relative(ours, lru_run)[:1] + relative(ours, base)[:1] + relative(ours, lru_run)[1:] +
                      links(d, ours) + relative(oracle_run, lru_run)[:1]
                      for d, (lru_run, ours, oracle_run) in devices.items()]))
    if change:
        out.append("## A change of workload (MoE-Infinity, table 7)\n\nOne task's requests, then another's: how many requests "
                   "wait more than a tenth longer per token than they do for good\n(the median of the second half). The paper's "
                   "models need 0 to 49 requests, 6 to 45 on average. What the switch costs is in the last column.\n")
        out.append(workload_change(run, change))
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("trace")
    parser.add_argument("--binary", default="build/release/bin/moesaic")
    parser.add_argument("--out", default="docs/experiments/latency.md")
    parser.add_argument("--name", help="of the trace, in the report")
    parser.add_argument("--change", nargs="*", default=[], metavar="TRACE", help="traces for a change of workload")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    runner = Runner(arguments.binary, arguments.trace, arguments.jobs)
    os.makedirs(os.path.dirname(arguments.out) or ".", exist_ok=True)
    text = report(runner, arguments.name or os.path.basename(arguments.trace), arguments.change,
                  os.path.splitext(arguments.out)[0])
    with open(arguments.out, "w", encoding="utf-8") as file:
        file.write(text)
    print(arguments.out)


if __name__ == "__main__":
    main()
