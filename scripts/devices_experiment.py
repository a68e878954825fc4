#!/usr/bin/env python3
"""Writes docs/experiments/devices.md: several devices with a link each, live beside the simulator.

    scripts/devices_experiment.py TRACE.jsonl.gz [--binary build/release/bin/moesaic] [--rounds 3] [--work DIR] [--out FILE]

Serves a dummy model of the trace's shape with the trace's routing (--route-from) on 1, 2 and 4 emulated devices, each
with a link that copies an expert in the time that a layer computes, on demand with LRU and with all that there is; and
simulates the same sequences with the times that were measured. Then one of the devices is lost in the middle. Runs of
all kinds take turns. Takes minutes a round, on a machine that does nothing else.
"""

import argparse
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

from experiment_server import ExperimentServer
from restart_experiment import model_config

DEVICES = (1, 2, 4)
TOKENS = 24  # of a sequence
LEARNED = 24
MEASURED = 12
WARM = 6  # sequences that fill a cache that learns nothing
WAYS = {"LRU on demand": ["--predictor", "none", "--eviction-policy", "lru"], "default": []}
SIMULATED = {"LRU on demand": ["--predictor", "none", "--policy", "lru"], "default": []}


def write_sequences(path, header, sequences):
    path.write_text("".join([header, *sequences]))


def cut(sequence, header):
    """The first tokens of a sequence."""
    whole = json.loads(sequence)
    width = header["n_moe_layers"] * header["top_k"]
    kept = {"experts": [row[:width] for row in whole["experts"][:TOKENS]]}
    return json.dumps({**{name: value for name, value in whole.items() if name not in ("experts", "weights", "tokens")},
                       **kept}) + "\n"


class Experiment:
    def __init__(self, flags):
        self.binary, self.work = flags.binary, pathlib.Path(flags.work)
        (self.work / "model").mkdir(parents=True, exist_ok=True)
        with gzip.open(flags.trace, "rt") as file:
            first, *sequences = [line for line in file if line.strip()]
        self.header = json.loads(first)
        whole = [s for s in sequences if len(json.loads(s)["experts"]) >= TOKENS]
        measured = whole[::4][:MEASURED]
        learned = [s for i, s in enumerate(whole) if i % 4 != 0][:LEARNED]
        assert len(measured) == MEASURED and len(learned) == LEARNED, "the trace is too short"
        measured, learned = ([cut(s, self.header) for s in part] for part in (measured, learned))
        # What a way learns, or is warmed by, before what is measured.
        self.before = {"LRU on demand": learned[-WARM:], "default": learned}
        for way, before in self.before.items():
            # A server's request r (from 1) follows sequence r modulo their number.
            served = [*before, *measured]
            write_sequences(self.file(way, "served"), first, [served[-1], *served[:-1]])
            write_sequences(self.file(way, "before"), first, before)
            write_sequences(self.file(way, "all"), first, served)
        # Layers that compute for as long as a copy takes, of experts so small that copying costs the CPU little.
        config = model_config(self.header) | {"num_attention_heads": 64, "num_key_value_heads": 8,
                                              "moe_intermediate_size": 128}
        self.layers = config["num_hidden_layers"]
        self.expert_bytes = 3 * config["hidden_size"] * config["moe_intermediate_size"] * 2
        (self.work / "model" / "config.json").write_text(json.dumps(config))
        subprocess.run([self.binary, "pack", "--load-format", "dummy", str(self.work / "model"), "-o",
                        str(self.work / "store")], check=True, stdout=subprocess.DEVNULL)

    def file(self, way, part):
        return self.work / f"{way.split()[0].lower()}-{part}.jsonl"

    def start(self, way, *arguments):
        return ExperimentServer(self.binary, self.work / "model", "--load-format", "dummy", "--expert-store",
                                str(self.work / "store"), "--max-model-len", "256", "--no-prefix-cache",
                                "--gate-look-ahead", "0", "--miss", "fetch", "--emulated-link-latency-us", "0",
                                "--route-from", str(self.file(way, "served")), *WAYS[way], *arguments)

    @staticmethod
    def ask(server):
        """One sequence; its text."""
        body = server.complete([7], max_tokens=TOKENS).read()
        return json.loads(body)["choices"][0]["text"]

    def measure_layer_us(self):
        """What a layer computes for when nobody waits for a copy."""
        server = self.start("LRU on demand", "--devices", "1", "--device-memory", "100%", "--emulated-link-gbps", "0")
        for _ in range(WARM):
            self.ask(server)
        before = server.metrics()
        for _ in range(MEASURED):
            self.ask(server)
        spent = delta(before, server.metrics())
        server.stop()
        return 1e6 * one(spent, "moe_inter_token_latency_seconds_sum") / (
            one(spent, "moe_inter_token_latency_seconds_count") * self.layers)

    def serve(self, way, devices, link_gbps, *arguments):
        """What the measured sequences took, request by request."""
        server = self.start(way, "--devices", str(devices), "--device-memory", "25%", "--emulated-link-gbps",
                            f"{link_gbps:.6f}", *arguments)
        for _ in self.before[way]:
            self.ask(server)
        results = []
        before = server.metrics()
        for _ in range(MEASURED):
            text = self.ask(server)
            after = server.metrics()
            results.append({**delta(before, after), "text": text, "after": after})
            before = after
        server.stop()
        return results

    def simulate(self, way, devices, layer_us):
        def run(part):
            done = subprocess.run([self.binary, "simulate", "--json", "--trace", str(self.file(way, part)), "--devices",
                                   str(devices), "--slots", "25%", "--layer-compute-us", f"{layer_us:.3f}",
                                   "--expert-copy-us", f"{layer_us:.3f}", *SIMULATED[way]],
                                  check=True, capture_output=True, text=True)
            return json.loads(done.stdout)

        before, all_of_it = run("before"), run("all")
        spent = {name: all_of_it[name] - before[name] for name in
                 ("blocked_us", "copies", "expert_accesses", "hits", "tokens")}
        return {"blocked": spent["blocked_us"] / spent["tokens"] / layer_us / self.layers,
                "missed": 1 - spent["hits"] / spent["expert_accesses"],
                "copies": spent["copies"] / spent["tokens"]}


def delta(before, after):
    return {name: after[name] - before.get(name, 0) for name in after}


def copied_by(device):
    return f'moe_device_copied_bytes_total{{device="emulated:{device}"}}'


def one(metrics, name):
    """The sum of a metric over its labels."""
    return sum(value for key, value in metrics.items() if key.split("{")[0] == name)


def summary(results, experiment, layer_us):
    total = {name: sum(r.get(name, 0) for r in results) for name in results[0] if name.startswith("moe_")}
    wanted = {r: total[f'moe_expert_requests_total{{result="{r}"}}'] for r in ("hit", "in_flight", "miss")}
    copied = [v for k, v in sorted(total.items()) if k.startswith("moe_device_copied_bytes_total")]
    tokens = len(results) * TOKENS
    seconds = one(total, "moe_inter_token_latency_seconds_sum")
    return {"blocked": 1e6 * one(total, "moe_expert_blocked_seconds_total") / tokens / layer_us / experiment.layers,
            "missed": 1 - wanted["hit"] / sum(wanted.values()),
            "copies": sum(copied) / experiment.expert_bytes / tokens,
            "balance": max(copied) * len(copied) / max(1, sum(copied)),
            "token_ms": 1e3 * seconds / (tokens - len(results)),
            "on_host": one(total, "moe_experts_on_host_total") / tokens}


def median(runs, name):
    return statistics.median(run[name] for run in runs)


def table(rows):
    return "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]])


def report(flags, experiment, layers_us, live, losses, simulated):
    rows = [["devices", "way", "live: waited", "of LRU", "missed", "copies", "busiest link", "ms a token",
             "simulated: waited", "of LRU", "missed", "copies"]]
    for devices in DEVICES:
        for way in WAYS:
            runs, model = live[devices, way], simulated[devices, way]
            lru_runs, lru_model = live[devices, "LRU on demand"], simulated[devices, "LRU on demand"]
            ratios = [run["blocked"] / lru["blocked"] for run, lru in zip(runs, lru_runs)]
            rows.append([str(devices), way, f"{median(runs, 'blocked'):.2f}", f"{statistics.median(ratios):.2f}",
                         f"{median(runs, 'missed'):.3f}", f"{median(runs, 'copies'):.1f}",
                         f"{median(runs, 'balance'):.2f}", f"{median(runs, 'token_ms'):.1f}",
                         f"{model['blocked']:.2f}", f"{model['blocked'] / lru_model['blocked']:.2f}",
                         f"{model['missed']:.3f}", f"{model['copies']:.1f}"])
    lost = [["devices", "", "waited", "missed", "copies", "computed on the host, a token", "ms a token",
             "answers that differ from those without the loss"]]
    for devices, runs in losses.items():
        for name, part in (("before", "before"), ("after", "after")):
            of_part = [run[part] for run in runs]
            lost.append([str(devices), name, f"{median(of_part, 'blocked'):.2f}", f"{median(of_part, 'missed'):.3f}",
                         f"{median(of_part, 'copies'):.1f}", f"{median(of_part, 'on_host'):.1f}",
                         f"{median(of_part, 'token_ms'):.1f}",
                         str(sum(run["differ"] for run in runs)) if part == "after" else ""])
    header = experiment.header
    return f"""# Several devices, live and simulated

Written by `scripts/devices_experiment.py` ({time.strftime("%Y-%m-%d")}, {os.cpu_count()} CPUs that were busy with other work, a load of {os.getloadavg()[2]:.0f}, medians of {len(layers_us)} rounds in which all kinds of runs took
turns). A dummy model of {header["n_moe_layers"]} layers of {header["n_experts"]} experts ({experiment.expert_bytes / 1024:.0f} KiB each), {header["top_k"]} per token, with the routing of
{header["model"]} (`--route-from`, {pathlib.Path(flags.trace).name}), on emulated devices that together hold a quarter of the experts. Each has a link that copies an
expert in the time that a layer computes for when it waits for nothing ({statistics.median(layers_us):.0f} us, measured in each round: {min(layers_us):.0f} to {max(layers_us):.0f}). {MEASURED} sequences of
{TOKENS} tokens are measured, one after another; the default has seen {LEARNED} others before, LRU {WARM}. The simulator serves the same sequences with that one time for both; there and here
an expert is copied in up to eight packets.

*Waited*: the time that layers waited for experts, in units of a layer's computation, for each layer. *Missed*: accesses that found their expert not there, or on its way. *Copies*:
experts a token, over all links. *Busiest link*: its share of the copies, 1 being an even one.

{table(rows)}

Both agree on what LRU misses and copies, and on that every link more helps. What the default copies ahead depends on how long links are idle, and so on what else the machine does.
An urgent copy waits for the packets that are in flight, up to two of prefetches (a quarter of `kLinkDepth`; the simulator has one in flight). While these small experts were copied in one packet each,
the default waited for .98, .78 and .50 of LRU with one, two and four links (e40c1fe). Links and layers share CPUs that others use: compare, don't quote.

## One device lost in the middle

The last device is lost while half of the sequences are served (`--emulated-loss-at-copy`). Its experts are computed on the host from then on; no request fails.

{table(lost)}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--binary", default="build/release/bin/moesaic")
    parser.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "devices_experiment"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", default="docs/experiments/devices.md")
    flags = parser.parse_args()
    experiment = Experiment(flags)
    live, losses, layers_us = {}, {}, []
    for _ in range(flags.rounds):
        layer_us = experiment.measure_layer_us()
        layers_us.append(layer_us)
        gbps = experiment.expert_bytes / layer_us * 1e-3
        texts = {}
        for devices in DEVICES:
            for way in WAYS:
                results = experiment.serve(way, devices, gbps)
                texts[way] = [r["text"] for r in results]
                live.setdefault((devices, way), []).append(summary(results, experiment, layer_us))
            if devices == 1:
                continue
            # In the middle of what is measured. A packet takes 50 us, or an eighth of an expert
            # (prefetch/link/device_experts.cpp).
            packets = max(1, min(8, int(layer_us / 50)))

            def middle(of):
                return packets * of[MEASURED // 2]["after"][copied_by(devices - 1)] / experiment.expert_bytes

            copies = middle(results)
            for _ in range(4):
                results = experiment.serve("default", devices, gbps, "--emulated-loss-at-copy", str(int(copies)))
                lost = [one(r["after"], "moe_device_lost") > 0 for r in results]
                if any(lost[:-1]) and not lost[0]:
                    break
                # An idle link copied more, or less, than it did in the last run.
                copies = 1.1 * copies if lost[0] else middle(results)
            else:
                raise RuntimeError(f"not lost in the middle, at copy {copies:.0f}: {lost}")
            first = lost.index(True)
            losses.setdefault(devices, []).append(
                {"before": summary(results[:first], experiment, layer_us),
                 "after": summary(results[first + 1:], experiment, layer_us),
                 "differ": sum(r["text"] != text for r, text in zip(results, texts["default"]))})
        # After each round, so that one that is stopped leaves what there is.
        model_us = statistics.median(layers_us)
        simulated = {(d, way): experiment.simulate(way, d, model_us) for d in DEVICES for way in WAYS}
        pathlib.Path(flags.out).write_text(report(flags, experiment, layers_us, live, losses, simulated))


if __name__ == "__main__":
    main()
