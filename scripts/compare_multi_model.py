#!/usr/bin/env python3
"""Several models in one server, whose memory moves, against as many servers with a part of the memory each, and against one that loads and unloads
whole models.

    scripts/compare_multi_model.py --traces DIR --arrivals AzureLLMInferenceTrace_conv.csv [--models 2] [--load uneven]

The models are generated ones (`--load-format dummy`) of the shape of recorded traces, with their routing (`--route-from`): gpt-oss-20b and
DeepSeek-V2-Lite on three kinds of text, the fifth to the eighth again, beginning with another text. Experts are stores on disk that are read past the page cache (O_DIRECT), and each process gets its memory
by --memory, so that nothing of them is in memory beyond that. Requests come at the times of the arrival trace, stretched to --rate, and go to
models at random: with `even` load to all alike, with `uneven` --share of them to one (--busy). All kinds of server get the same requests at the
same times, in turn, --rounds times; the first --warm-up seconds of each are not counted. A request's latency is from when it was due to its last
token. Prints a Markdown table, and JSON with --json. Disk under --work: 0.6 GB for gpt-oss's shape, 1.3 GB for each other one.

The server that loads and unloads has its models on demand, and each keeps all its experts (or what the memory holds of them).

--simulate has `moesaic simulate` answer the same requests besides, and prints its latencies over the measured ones: it measures first what a layer
and an expert take on this machine, how fast experts are read and how long a model takes to load, a model of each shape at a time, and gives the
simulator the memory that the servers had. --watch-memory looks whether the ledgers bound what the process has, every 10 ms.
"""

import argparse
import csv
import datetime
import gzip
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from experiment_server import ExperimentServer
from memory_watch import MemoryWatch
from restart_experiment import model_config

TRACES = ["gpt_oss_20b/mmlu_test", "deepseek_v2_lite_esft/intent", "deepseek_v2_lite_esft/law",
          "deepseek_v2_lite_esft/summary"]
POOL, EACH, SWAP = "one pool", "a server each", "load and unload"
SIMULATED = {POOL: "pool", EACH: "split", SWAP: "swap"}
OTHER_BYTES = 220 << 20  # that a model takes beside experts: process, keys and values, workspace, staging
PROCESS_BYTES = 96 << 20  # of a server without a model (kProcessBytes)


class Model:
    """A directory with a generated model, its store and its routing; made once."""

    def __init__(self, number, flags):
        self.name = f"model{number}"
        self.directory = pathlib.Path(flags.work) / f"{self.name}-{flags.hidden}-{flags.intermediate}"
        self.store, self.routing, self.trace = (self.directory / name for name in ("store", "routing.jsonl", "trace.jsonl"))
        with gzip.open(pathlib.Path(flags.traces) / f"{TRACES[number % len(TRACES)]}.jsonl.gz", "rt") as file:
            first, *texts = [line for line in file if line.strip()]
        begin = number // len(TRACES) * len(texts) // 2
        texts = texts[begin:] + texts[:begin]
        header = json.loads(first)
        self.shape = (header["n_moe_layers"], header["n_experts"], header["top_k"])
        self.layers, self.experts, self.top_k = (header[key] for key in ("n_moe_layers", "n_experts", "top_k"))
        self.one_expert_bytes = 6 * flags.hidden * flags.intermediate
        self.expert_bytes = self.one_expert_bytes * self.layers * self.experts
        self.directory.mkdir(parents=True, exist_ok=True)
        # A server's first request, number 1, follows the second sequence; the simulator's follows the first one.
        self.routing.write_text("".join([first, texts[-1], *texts[:-1]]))
        self.trace.write_text("".join([first, *texts]))
        if self.store.exists():
            return
        (self.directory / "config.json").write_text(json.dumps(model_config(header) | {
            "hidden_size": flags.hidden, "intermediate_size": flags.intermediate,
            "moe_intermediate_size": flags.intermediate}))
        subprocess.run([flags.binary, "pack", "--load-format", "dummy", str(self.directory), "-o", str(self.store)],
                       check=True, stderr=subprocess.DEVNULL)


class Server(ExperimentServer):
    """A process that serves these models in so much memory; `whole`: loads each as a whole when it is asked for."""

    def __init__(self, models, memory_bytes, flags, *arguments, whole=False):
        entries = [{"id": model.name, "path": str(model.directory), "expert-store": str(model.store),
                    "route-from": str(model.routing)} for model in models]
        if whole:
            for entry, model in zip(entries, models):
                entry["load"] = "demand"
                entry["min-experts"] = f"{min(100, 100 * (memory_bytes * 7 // 8 - OTHER_BYTES) // model.expert_bytes)}%"
        self.file = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        self.file.write(json.dumps({"models": entries}))  # JSON is YAML
        self.file.flush()
        super().__init__(flags.binary, "--models", self.file.name, "--memory", str(memory_bytes), "--load-format", "dummy",
                         "--max-model-len", "512", "--kv-memory", "16MiB", "--no-prefix-cache", "--threads",
                         str(flags.threads), *arguments)

    def resident_bytes(self):
        return int(re.search(r"VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{self.process.pid}/status").read_text())[1]) << 10


def arrivals(flags, models):
    """(second, model, prompt) of each request of a round; the same for all servers."""
    with open(flags.arrivals) as file:
        times = [datetime.datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in csv.DictReader(file)]
    seconds = flags.warm_up + flags.seconds
    count = int(seconds * flags.rate)
    times = times[flags.skip:flags.skip + count]
    stretch = seconds / (times[-1] - times[0])
    choice = random.Random(flags.seed)
    rest = [(1 - flags.share) / (len(models) - 1)] * (len(models) - 1)
    weights = [1] * len(models) if flags.load == "even" else [*rest[:flags.busy], flags.share, *rest[flags.busy:]]
    return [((at - times[0]) * stretch, choice.choices(models, weights)[0],
             [choice.randrange(4096) for _ in range(flags.prompt)]) for at in times]


def play(server_of, requests, flags):
    """Latencies by model, of the requests after the warm-up."""
    latencies, errors, threads = {}, [], []
    begin = time.monotonic()

    def ask(due, model, prompt):
        try:
            server_of[model.name].complete(prompt, model=model.name, max_tokens=flags.tokens).read()
        except (OSError, SystemExit) as error:
            errors.append(error)
            return
        if due >= flags.warm_up:
            latencies.setdefault(model.name, []).append(time.monotonic() - begin - due)

    for due, model, prompt in requests:
        time.sleep(max(0, begin + due - time.monotonic()))
        threads.append(threading.Thread(target=ask, args=(due, model, prompt), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()
    if errors:
        sys.exit(f"{len(errors)} requests failed: {errors[0]}")
    return latencies


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def summary(latencies):
    every = [latency for of_model in latencies.values() for latency in of_model]
    return {"requests": len(every), "mean": statistics.mean(every), "p50": quantile(every, 0.5),
            "p99": quantile(every, 0.99),
            "mean_by_model": {name: statistics.mean(of_model) for name, of_model in sorted(latencies.items())}}


def series_total(metrics, name, label=""):
    """The sum of a metric's series, those with the label."""
    return sum(value for series, value in metrics.items() if series.partition("{")[0] == name and label in series)


def of_models(models, servers, metrics, name):
    """A gauge by model; None of those that are not there."""
    found = {}
    for number, model in enumerate(models):
        of_server = metrics[number if len(servers) > 1 else 0]
        alone = len(servers) > 1 or len(models) == 1
        found[model.name] = next((value for series, value in of_server.items()
                                  if series.split("{")[0] == name and (alone or f'"{model.name}"' in series)), None)
    return found


def memory_of(listed):
    """Bytes by model; None of those that are not there."""
    return {entry["id"]: entry["status"].get("memory_bytes") for entry in listed}


def distinct(model, sequences, positions):
    """Experts of a layer that so many sequences choose together at a position, on average."""
    with open(model.routing) as file:
        traces = [json.loads(line)["experts"] for line in list(file)[1:sequences + 1]]
    counts = [len({expert for trace in traces for expert in trace[at % len(trace)][first:first + model.top_k]})
              for at in range(positions) for first in range(0, model.layers * model.top_k, model.top_k)]
    return statistics.mean(counts)


def decode_seconds(server, streams, tokens):
    """Of a step, while so many streams decode that begin together; what waited for experts is left out."""
    blocked = server.metrics()["moe_expert_blocked_seconds_total"]
    ends = []

    def ask(number):
        response = server.complete([number] * 4, max_tokens=tokens, stream=True)
        times = [time.monotonic() for line in iter(response.readline, b"") if line.startswith(b"data: {")]
        ends.append((times[0], times[-1]))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    blocked = server.metrics()["moe_expert_blocked_seconds_total"] - blocked
    return (max(end for _, end in ends) - min(begin for begin, _ in ends) - blocked) / (tokens - 1)


def measure(model, flags):
    """Of a model with the machine to itself: microseconds of a layer and of an expert, bytes read a second, milliseconds of loading beside reading."""
    everything = model.expert_bytes + (600 << 20)
    # With as much memory as there is of all: what predicts and reads takes its part of the processors. Waiting for experts is left out.
    server = Server([model], everything, flags, "--expert-memory", f"{flags.memory:.0%}")
    streams, tokens = 6, 33
    decode_seconds(server, streams, tokens)  # to warm up
    one = statistics.median(decode_seconds(server, 1, tokens) for _ in range(3))
    many = statistics.median(decode_seconds(server, streams, tokens) for _ in range(3))
    server.stop()
    more = distinct(model, streams, tokens) - model.top_k
    expert = max(0.0, (many - one) / model.layers / more)
    layer = max(0.0, one / model.layers - expert * model.top_k)
    server = Server([model], everything, flags, "--expert-memory", "10%", "--predictor", "none")
    for number in range(4):
        server.complete([number] * 8, max_tokens=16).read()
    of = server.metrics()
    server.stop()
    rate = series_total(of, "moe_expert_read_bytes_total") / of["moe_expert_blocked_seconds_total"]
    server = Server([model], everything, flags, whole=True)
    begin = time.monotonic()
    server.call("POST", "/models/load", {"model": model.name})
    load = time.monotonic() - begin
    server.stop()
    return {"layer_us": layer * 1e6, "expert_us": expert * 1e6, "read_bytes_per_s": rate,
            "load_ms": max(0.0, load - model.expert_bytes / rate) * 1e3, "load_s": load}


def simulate(kind, models, requests, results, measured, flags):
    """What `moesaic simulate` makes of the same requests, in the memory that such servers had for experts and for all else."""
    of_kind = [result for result in results if result["kind"] == kind]
    slots, memory = of_kind[0]["slots"], of_kind[0]["memory"]
    others = []
    for model in models:
        # What a model had beside its experts; one that is not there now takes as much as the others.
        known = [memory[other.name] - slots[other.name] * other.one_expert_bytes for other in models
                 if memory[other.name] and slots[other.name]]
        mine = memory[model.name] and slots[model.name] and memory[model.name] - slots[model.name] * model.one_expert_bytes
        others.append(int(mine if mine else statistics.mean(known)))
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write("seconds,prompt_tokens,answer_tokens,model\n")
        first = requests[0][0]
        file.writelines(f"{due - first},{flags.prompt},{flags.tokens},{models.index(model)}\n" for due, model, _ in requests)
        file.flush()
        flags_of_traces = [argument for model in models for argument in ("--trace", str(model.trace))]
        output = subprocess.run(
            [flags.binary, "simulate", "--json", *flags_of_traces, "--arrivals", file.name, "--warm-up", str(flags.warm_up - first),
             "--memory", str(of_kind[0]["memory_bytes"]), "--other-size", ",".join(map(str, others)),
             "--expert-size", ",".join(str(model.one_expert_bytes) for model in models),
             "--layer-compute-us", ",".join(f"{measured[model.shape]['layer_us']:.3f}" for model in models),
             "--expert-compute-us", ",".join(f"{measured[model.shape]['expert_us']:.3f}" for model in models),
             "--load-ms", ",".join(f"{measured[model.shape]['load_ms']:.3f}" for model in models),
             "--link-rate", str(int(statistics.mean(measured[model.shape]["read_bytes_per_s"] for model in models))),
             *flags.simulate_with],
            check=True, capture_output=True, text=True).stdout
    return json.loads(output)["sharing"][SIMULATED[kind]]


def run(kind, models, memory_bytes, requests, flags):
    if kind == EACH:
        servers = [Server([model], memory_bytes // len(models), flags) for model in models]
        server_of = {model.name: server for model, server in zip(models, servers)}
    else:
        servers = [Server(models, memory_bytes, flags, whole=kind == SWAP)]
        server_of = {model.name: servers[0] for model in models}
    listed = [entry for server in servers for entry in json.loads(server.call("GET", "/v1/models"))["data"]]
    first = [server.metrics() for server in servers]
    slots = of_models(models, servers, first, "moe_expert_slots")
    memory = memory_of(listed)
    # What is kept for requests that are read is no model's.
    for_models = sum((memory_bytes if kind != EACH else memory_bytes // len(models)) for _ in servers)
    if kind != EACH:
        for_models -= int(first[0]["moe_memory_ledger_bytes"]) - max(PROCESS_BYTES, sum(value or 0 for value in memory.values()))
    else:
        for_models = len(models) * max(memory.values())
    watch = MemoryWatch(servers[0].process.pid, servers[0].port) if flags.watch_memory and kind != EACH else None
    result = summary(play(server_of, requests, flags))
    if watch:
        print(f"{kind}: {watch.stop().text()}", flush=True)
    metrics = [server.metrics() for server in servers]

    def total(name, label=""):
        return sum(series_total(of_server, name, label) for of_server in metrics)

    def read_bytes(of_servers):  # by steps, and by loading models
        return sum(series_total(of_server, f"moe_expert_{what}_bytes_total") for of_server in of_servers for what in ("read", "preload"))

    if kind == SWAP:  # as they were loaded
        slots = of_models(models, servers, metrics, "moe_expert_slots")
        memory = memory_of(json.loads(servers[0].call("GET", "/v1/models"))["data"])
    uses = total("moe_expert_requests_total")
    result.update(kind=kind, memory_bytes=for_models, resident_bytes=sum(server.resident_bytes() for server in servers), slots=slots, memory=memory,
                  read_bytes=read_bytes(metrics) - read_bytes(first), blocked_s=total("moe_expert_blocked_seconds_total"),
                  steps=total("moe_steps_total"), hit_rate=total("moe_expert_requests_total", '"hit"') / max(1, uses),
                  moved_bytes=sum(value for of_server in metrics for series, value in of_server.items()
                                  if "expert_memory_moved" in series and 'direction="given"' in series),
                  loads=0)
    for server in servers:
        server.stop()
        result["loads"] += server.log.count(" is loaded, in ")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", required=True, help="directory of expert traces")
    parser.add_argument("--arrivals", required=True, help="CSV with a column TIMESTAMP")
    parser.add_argument("--models", type=int, default=2, choices=range(2, 9))
    parser.add_argument("--load", choices=["even", "uneven"], default="uneven")
    parser.add_argument("--share", type=float, default=0.9, help="of the requests, that of the busy model")
    parser.add_argument("--busy", type=int, default=0, help="its number; model 0 is the smallest")
    parser.add_argument("--memory", type=float, default=0.5, help="share of all experts that all memory holds, about")
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--warm-up", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--intermediate", type=int, default=512)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--skip", type=int, default=1000, help="arrivals that are left out at the beginning")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--binary", default="build/release/bin/moesaic")
    parser.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "compare_multi_model"))
    parser.add_argument("--kinds", default=f"{POOL},{EACH},{SWAP}", help="of servers, that are compared")
    parser.add_argument("--watch-memory", action="store_true")
    parser.add_argument("--simulate", action="store_true", help="beside what `moesaic simulate` says of the same requests")
    parser.add_argument("--simulate-with", action="append", default=[], help="more flags of `moesaic simulate`")
    parser.add_argument("--measured", help="a file of times that were measured before, or that is written")
    parser.add_argument("--json")
    flags = parser.parse_args()
    kinds = flags.kinds.split(",")
    models = [Model(number, flags) for number in range(flags.models)]
    memory_bytes = int(flags.memory * sum(model.expert_bytes for model in models)) + len(models) * OTHER_BYTES
    requests = arrivals(flags, models)
    results = []
    measured = measure_shapes(models, flags) if flags.simulate else None
    for number in range(flags.rounds):
        for kind in kinds if number % 2 == 0 else reversed(kinds):
            results.append(run(kind, models, memory_bytes, requests, flags))
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    if flags.json:
        pathlib.Path(flags.json).write_text(json.dumps({
            "flags": vars(flags), "memory_bytes": memory_bytes, "results": results,
            "measured": measured and {str(shape): times for shape, times in measured.items()}}, indent=1))
    middle = {kind: {key: statistics.median(r[key] for r in results if r["kind"] == kind)
                     for key in ("mean", "p50", "p99", "read_bytes", "resident_bytes", "moved_bytes", "blocked_s", "steps", "hit_rate", "loads")}
              for kind in kinds}
    print(f"\n{flags.models} models, {flags.load} load, {flags.rate}/s, {memory_bytes >> 20} MiB, "
          f"{results[0]['requests']} requests a round, medians of {flags.rounds} rounds\n")
    print("| | mean s | p50 s | p99 s | read GB | resident MiB | moved MB |\n|---|---|---|---|---|---|---|")
    for kind, of in middle.items():
        print(f"| {kind} | {of['mean']:.3f} | {of['p50']:.3f} | {of['p99']:.3f} | {of['read_bytes'] / 1e9:.1f} | "
              f"{of['resident_bytes'] / 2**20:.0f} | {of['moved_bytes'] / 1e6:.0f} |")
    print()
    for kind in kinds:
        if kind != POOL and POOL in middle:
            pool, other = middle[POOL], middle[kind]
            print(f"one pool is faster than {kind} by {other['mean'] / pool['mean']:.2f} (mean), {other['p99'] / pool['p99']:.2f} (p99)")
    if measured:
        print_simulated(models, requests, results, measured, middle, flags)


def measure_shapes(models, flags):
    """What was measured of each shape, by shape."""
    known = {}
    if flags.measured and os.path.exists(flags.measured):
        known = {tuple(shape): times for shape, times in json.loads(pathlib.Path(flags.measured).read_text())}
    for model in models:
        if model.shape not in known:
            known[model.shape] = measure(model, flags)
    if flags.measured:
        pathlib.Path(flags.measured).write_text(json.dumps(list(known.items())))
    return known


def print_simulated(models, requests, results, measured, middle, flags):
    print("\nmeasured: " + "; ".join(
        f"{layers} layers of {experts} experts, top {top_k}: {of['layer_us']:.0f} us a layer, {of['expert_us']:.1f} us an expert, "
        f"{of['read_bytes_per_s'] / 1e9:.2f} GB/s, {of['load_s']:.2f} s to load"
        for (layers, experts, top_k), of in measured.items()))
    print("\n| simulated over measured | mean | p50 | p99 | steps | hits | read GB | blocked s | loads |\n|---|---|---|---|---|---|---|---|---|")

    def ratio(simulated, seen):
        return f"{simulated / seen:.2f} ({simulated:.4g}/{seen:.4g})" if seen else f"- ({simulated:.4g}/0)"

    for kind in middle:
        of, seen = simulate(kind, models, requests, results, measured, flags), middle[kind]
        steps = sum(model["steps"] for model in of["models"])
        print(f"| {kind} | " + " | ".join([*(ratio(of[f"{key}_s"], seen[key]) for key in ("mean", "p50", "p99")),
                                            ratio(steps, seen["steps"]), ratio(of["hit_rate"], seen["hit_rate"]),
                                            ratio(of["read_bytes"] / 1e9, seen["read_bytes"] / 1e9),
                                            ratio(of["blocked_s"], seen["blocked_s"]), ratio(of["loads"], seen["loads"])]) + " |")


if __name__ == "__main__":
    main()
