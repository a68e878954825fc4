#!/usr/bin/env python3
"""Several models in one server, whose memory moves, against as many servers with a part of the memory each.

    scripts/compare_multi_model.py --traces DIR --arrivals AzureLLMInferenceTrace_conv.csv [--models 2] [--load uneven]

The models are generated ones (`--load-format dummy`) of the shape of recorded traces, with their routing (`--route-from`): gpt-oss-20b and
DeepSeek-V2-Lite on three kinds of text. Experts are stores on disk that are read past the page cache (O_DIRECT), and each process gets its memory
by --memory, so that nothing of them is in memory beyond that. Requests come at the times of the arrival trace, stretched to --rate, and go to
models at random: with `even` load to all alike, with `uneven` --share of them to the first. Both kinds of server get the same requests at the
same times, in turn, --rounds times; the first --warm-up seconds of each are not counted. A request's latency is from when it was due to its last
token. Prints a Markdown table, and JSON with --json. Disk under --work: 0.6 GB for gpt-oss's shape, 1.3 GB for each other one.

--simulate has `moesaic simulate` answer the same requests besides: it measures first what a layer and an expert take on this machine and how fast
experts are read, a model at a time, and gives the simulator the memory for experts that the servers had.
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
from restart_experiment import model_config

TRACES = ["gpt_oss_20b/mmlu_test", "deepseek_v2_lite_esft/intent", "deepseek_v2_lite_esft/law",
          "deepseek_v2_lite_esft/summary"]


class Model:
    """A directory with a generated model, its store and its routing; made once."""

    def __init__(self, number, flags):
        self.name = f"model{number}"
        self.directory = pathlib.Path(flags.work) / f"{self.name}-{flags.hidden}-{flags.intermediate}"
        self.store, self.routing = self.directory / "store", self.directory / "routing.jsonl"
        with gzip.open(pathlib.Path(flags.traces) / f"{TRACES[number]}.jsonl.gz", "rt") as file:
            lines = [line for line in file if line.strip()]
        header = json.loads(lines[0])
        self.layers, self.experts, self.top_k = (header[key] for key in ("n_moe_layers", "n_experts", "top_k"))
        self.one_expert_bytes = 6 * flags.hidden * flags.intermediate
        self.expert_bytes = self.one_expert_bytes * self.layers * self.experts
        if self.store.exists():
            return
        self.directory.mkdir(parents=True)
        (self.directory / "config.json").write_text(json.dumps(model_config(header) | {
            "hidden_size": flags.hidden, "intermediate_size": flags.intermediate,
            "moe_intermediate_size": flags.intermediate}))
        self.routing.write_text("".join(lines))
        subprocess.run([flags.binary, "pack", "--load-format", "dummy", str(self.directory), "-o", str(self.store)],
                       check=True, stderr=subprocess.DEVNULL)


class Server(ExperimentServer):
    """A process that serves these models in so much memory."""

    def __init__(self, models, memory_bytes, flags, *arguments):
        entries = [{"id": model.name, "path": str(model.directory), "expert-store": str(model.store),
                    "route-from": str(model.routing)} for model in models]
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
    weights = [1] * len(models) if flags.load == "even" else [flags.share, *rest]
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
        threads.append(threading.Thread(target=ask, args=(due, model, prompt)))
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


def slots_of(models, servers, metrics):
    """Expert slots by model."""
    if len(servers) > 1:
        return {model.name: of["moe_expert_slots"] for model, of in zip(models, metrics)}
    return {model.name: next(value for series, value in metrics[0].items()
                             if series.startswith("moe_expert_slots") and (len(models) == 1 or f'"{model.name}"' in series))
            for model in models}


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
    """Microseconds of a layer and of an expert, and bytes read a second, with the machine to itself."""
    everything = model.expert_bytes + (600 << 20)
    server = Server([model], everything, flags)
    streams, tokens = 6, 33
    decode_seconds(server, streams, tokens)  # what they need is there
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
    return layer * 1e6, expert * 1e6, of["moe_expert_read_bytes_total"] / of["moe_expert_blocked_seconds_total"]


def simulate(models, requests, slots, measured, flags):
    """What `moesaic simulate` makes of the same requests, with so many slots of experts by model at first."""
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write("seconds,prompt_tokens,answer_tokens,model\n")
        first = requests[0][0]
        file.writelines(f"{due - first},{flags.prompt},{flags.tokens},{models.index(model)}\n" for due, model, _ in requests)
        file.flush()
        flags_of_traces = [argument for model in models for argument in ("--trace", str(model.routing))]
        output = subprocess.run(
            [flags.binary, "simulate", "--json", *flags_of_traces, "--arrivals", file.name, "--warm-up", str(flags.warm_up - first),
             "--memory", str(int(sum(slots[model.name] * model.one_expert_bytes for model in models))),
             "--expert-size", ",".join(str(model.one_expert_bytes) for model in models),
             "--layer-compute-us", ",".join(f"{layer:.3f}" for layer, _, _ in measured),
             "--expert-compute-us", ",".join(f"{expert:.3f}" for _, expert, _ in measured),
             "--link-rate", str(int(statistics.mean(rate for _, _, rate in measured)))],
            check=True, capture_output=True, text=True).stdout
    return json.loads(output)["sharing"]


def run(kind, models, memory_bytes, requests, flags):
    if kind == "one pool":
        servers = [Server(models, memory_bytes, flags)]
        server_of = {model.name: servers[0] for model in models}
    else:
        servers = [Server([model], memory_bytes // len(models), flags) for model in models]
        server_of = {model.name: server for model, server in zip(models, servers)}
    result = summary(play(server_of, requests, flags))
    metrics = [server.metrics() for server in servers]

    def total(name):
        return sum(value for of_server in metrics for series, value in of_server.items() if series.startswith(name))

    result.update(kind=kind, resident_bytes=sum(server.resident_bytes() for server in servers),
                  read_bytes=total("moe_expert_read_bytes_total"), slots=slots_of(models, servers, metrics), blocked_s=total("moe_expert_blocked_seconds_total"),
                  moved_bytes=sum(value for of_server in metrics for series, value in of_server.items()
                                  if "expert_memory_moved" in series and 'direction="given"' in series),
                  expert_bytes={series: value for of_server in metrics for series, value in of_server.items()
                                if series.startswith("moe_expert_memory_bytes")})
    for server in servers:
        server.stop()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", required=True, help="directory of expert traces")
    parser.add_argument("--arrivals", required=True, help="CSV with a column TIMESTAMP")
    parser.add_argument("--models", type=int, default=2, choices=[2, 3, 4])
    parser.add_argument("--load", choices=["even", "uneven"], default="uneven")
    parser.add_argument("--share", type=float, default=0.9, help="of the requests, that of the first model")
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
    parser.add_argument("--simulate", action="store_true", help="beside what `moesaic simulate` says of the same requests")
    parser.add_argument("--json")
    flags = parser.parse_args()
    models = [Model(number, flags) for number in range(flags.models)]
    # Beside experts a model takes about so much: process, keys and values, workspace, staging.
    memory_bytes = int(flags.memory * sum(model.expert_bytes for model in models)) + len(models) * (220 << 20)
    requests = arrivals(flags, models)
    results = []
    measured = [measure(model, flags) for model in models] if flags.simulate else None
    for number in range(flags.rounds):
        kinds = ["one pool", "a server each"]
        for kind in kinds if number % 2 == 0 else reversed(kinds):
            results.append(run(kind, models, memory_bytes, requests, flags))
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    if flags.json:
        pathlib.Path(flags.json).write_text(json.dumps({"flags": vars(flags), "memory_bytes": memory_bytes,
                                                        "measured": measured, "results": results}, indent=1))
    middle = {kind: {key: statistics.median(r[key] for r in results if r["kind"] == kind)
                     for key in ("mean", "p50", "p99", "read_bytes", "resident_bytes", "moved_bytes")}
              for kind in ("one pool", "a server each")}
    print(f"{flags.models} models, {flags.load} load, {flags.rate}/s, {memory_bytes >> 20} MiB, "
          f"{results[0]['requests']} requests a round, medians of {flags.rounds} rounds\n")
    print("| | mean s | p50 s | p99 s | read GB | resident MiB | moved MB |\n|---|---|---|---|---|---|---|")
    for kind, of in middle.items():
        print(f"| {kind} | {of['mean']:.2f} | {of['p50']:.2f} | {of['p99']:.2f} | {of['read_bytes'] / 1e9:.1f} | "
              f"{of['resident_bytes'] / 2**20:.0f} | {of['moved_bytes'] / 1e6:.0f} |")
    pool, each = middle["one pool"], middle["a server each"]
    print(f"\none pool is faster by {each['mean'] / pool['mean']:.2f} (mean), {each['p99'] / pool['p99']:.2f} (p99)")
    if measured:
        print_simulated(models, requests, results, measured, middle, flags)


def print_simulated(models, requests, results, measured, middle, flags):
    print("\nmeasured: " + "; ".join(f"{model.name} {layer:.0f} us a layer, {expert:.1f} us an expert, {rate / 1e9:.2f} GB/s"
                                     for model, (layer, expert, rate) in zip(models, measured)))
    print("\n| simulated | mean s | p99 s | of the measured mean | of p99 | read GB | moved MB |\n|---|---|---|---|---|---|---|")
    for kind, name in (("one pool", "pool"), ("a server each", "split"), (None, "swap")):
        slots = next(result["slots"] for result in results if result["kind"] == (kind or "one pool"))
        if kind == "a server each":  # equal parts of the memory: each has what it had
            slots = dict.fromkeys(slots, max(slots.values()))
        of = simulate(models, requests, slots, measured, flags)[name]
        ratios = [f"{of[key + '_s'] / middle[kind][key]:.2f}" if kind else "-" for key in ("mean", "p99")]
        print(f"| {name} | {of['mean_s']:.2f} | {of['p99_s']:.2f} | {ratios[0]} | {ratios[1]} | {of['read_bytes'] / 1e9:.1f} | "
              f"{of['moved_bytes'] / 1e6:.0f} |")


if __name__ == "__main__":
    main()