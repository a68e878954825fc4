#!/usr/bin/env python3
"""Several models in one server, whose memory moves, against as many servers with a part of the memory each.

    scripts/compare_multi_model.py --traces DIR --arrivals AzureLLMInferenceTrace_conv.csv [--models 2] [--load uneven]

The models are generated ones (`--load-format dummy`) of the shape of recorded traces, with their routing (`--route-from`): gpt-oss-20b and
DeepSeek-V2-Lite on three kinds of text. Experts are stores on disk that are read past the page cache (O_DIRECT), and each process gets its memory
by --memory, so that nothing of them is in memory beyond that. Requests come at the times of the arrival trace, stretched to --rate, and go to
models at random: with `even` load to all alike, with `uneven` --share of them to the first. Both kinds of server get the same requests at the
same times, in turn, --rounds times; the first --warm-up seconds of each are not counted. A request's latency is from when it was due to its last
token. Prints a Markdown table, and JSON with --json. Disk under --work: 0.6 GB for gpt-oss's shape, 1.3 GB for each other one.
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
        self.expert_bytes = 6 * flags.hidden * flags.intermediate * header["n_moe_layers"] * header["n_experts"]
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

    def __init__(self, models, memory_bytes, flags):
        entries = [{"id": model.name, "path": str(model.directory), "expert-store": str(model.store),
                    "route-from": str(model.routing)} for model in models]
        self.file = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        self.file.write(json.dumps({"models": entries}))  # JSON is YAML
        self.file.flush()
        super().__init__(flags.binary, "--models", self.file.name, "--memory", str(memory_bytes), "--load-format", "dummy",
                         "--max-model-len", "512", "--kv-memory", "16MiB", "--no-prefix-cache", "--threads",
                         str(flags.threads))

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
                  read_bytes=total("moe_expert_read_bytes_total"), blocked_s=total("moe_expert_blocked_seconds_total"),
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
    parser.add_argument("--json")
    flags = parser.parse_args()
    models = [Model(number, flags) for number in range(flags.models)]
    # Beside experts a model takes about so much: process, keys and values, workspace, staging.
    memory_bytes = int(flags.memory * sum(model.expert_bytes for model in models)) + len(models) * (220 << 20)
    requests = arrivals(flags, models)
    results = []
    for number in range(flags.rounds):
        kinds = ["one pool", "a server each"]
        for kind in kinds if number % 2 == 0 else reversed(kinds):
            results.append(run(kind, models, memory_bytes, requests, flags))
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    if flags.json:
        pathlib.Path(flags.json).write_text(json.dumps({"flags": vars(flags), "memory_bytes": memory_bytes,
                                                        "results": results}, indent=1))
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


if __name__ == "__main__":
    main()
