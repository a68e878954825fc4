#!/usr/bin/env python3
"""What routing by prefix and by predicted experts gives over taking replicas in turn (docs/ray.md, "Who gets a request").

    PYTHONPATH=build/release/python build/venv/bin/python scripts/ray_serve_experiment.py [--rounds 3] [--out FILE]

Two replicas of the sample model on two nodes of a Ray cluster on this machine; for each policy in turn a new deployment and
the same requests: texts of four kinds behind one of two beginnings each, in a random order, from clients that each have one
request at a time. Hit rates are those of the servers' counters, latencies those of the clients, the first requests left out.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import socket
import statistics
import sys
import threading
import time

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray  # noqa: E402
from ray import serve  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from moesaic.ray.serve import application  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
POLICIES = {
    "in turn": {"policy": "round-robin"},
    "prefix": {"expert_weight": 0.0},
    "experts": {"prefix_weight": 0.0},
    "both": {},
}
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
OUTPUT_TOKENS = 48


def two_nodes():
    for _ in range(4):
        try:
            cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
            cluster.add_node(**NODE)
            return cluster
        except Exception as error:  # on a busy machine a node may not be there in time
            print(f"no cluster: {error}", file=sys.stderr)
    raise SystemExit("no cluster starts here")


def texts_of_kinds():
    """For each kind of text pieces of some 60 tokens."""
    reference = json.loads((ROOT / "models/sample/reference/prompts.json").read_text())
    code = "\n".join(path.read_text() for path in sorted((ROOT / "core/base").glob("*.cpp")))
    prose = "\n".join((ROOT / "docs" / name).read_text() for name in ("architecture.md", "batch.md", "prefetching.md"))
    foreign = " ".join(entry["prompt"] + entry["greedy_text"] for entry in reference if entry["domain"].startswith("languages")).split()
    rng = random.Random(11)
    names = "Natalia Stephanie James Betty Mark Alice".split()
    things = "clips boxes apples pages flowers letters".split()
    maths = [
        f"<|im_start|>user\n{rng.choice(names)} has {rng.randint(3, 90)} {rng.choice(things)} and buys {rng.randint(2, 9)} times as many in May. "
        f"How many {rng.choice(things)} are there altogether, when {rng.randint(2, 20)} are given away?"
        for _ in range(400)
    ]
    other = [" ".join(rng.choice(foreign) for _ in range(16)) for _ in range(400)]
    cut = lambda text, size: [text[at : at + size] for at in range(0, len(text) - size, size)]  # noqa: E731
    return {"code": cut(code, 160), "prose": cut(prose, 220), "maths": maths, "languages": other}


def requests_of(count, seed):
    rng = random.Random(seed)
    kinds = texts_of_kinds()
    beginnings = {kind: [" ".join(rng.sample(pieces, 3)) for _ in range(2)] for kind, pieces in kinds.items()}
    made = []
    for _ in range(count):
        kind = rng.choice(list(kinds))
        prompt = rng.choice(beginnings[kind]) + "\n" + rng.choice(kinds[kind])
        made.append({"prompt": prompt, "max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True})
    return made


class Clients:
    def __init__(self, port):
        self._port = port

    def call(self, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        connection.request("GET" if body is None else "POST", path, body and json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse()

    def counters(self):
        """Of all replicas together."""
        totals = {}
        for replica in json.loads(self.call("/v1/moesaic/replicas").read())["replicas"]:
            for name, value in replica["counters"].items():
                totals[name] = totals.get(name, 0.0) + value
        return totals

    def run(self, requests, threads):
        """Seconds to the first byte of the answer, and to its end."""
        times, waiting, lock = [], list(reversed(requests)), threading.Lock()

        def ask():
            while True:
                with lock:
                    if not waiting:
                        return
                    body = waiting.pop()
                began = time.monotonic()
                response = self.call("/v1/completions", body)
                response.read(1)
                first = time.monotonic() - began
                rest = response.read()
                if response.status != 200 or not rest.rstrip().endswith(b"[DONE]"):
                    raise SystemExit(f"{response.status} {rest[-300:]}")
                with lock:
                    times.append((first, time.monotonic() - began))

        workers = [threading.Thread(target=ask) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return times


def share(counters, before, part, *others):
    of = lambda name: counters.get(name, 0.0) - before.get(name, 0.0)  # noqa: E731
    whole = of(part) + sum(map(of, others))
    return of(part) / whole if whole else 0.0


def measure(policy, clients, options, seed):
    made = application(
        options.model, replicas=2, learn_every_s=0.5, expert_memory=options.expert_memory, memory="900MiB", kv_memory=options.kv_memory,
        max_num_seqs=4, preload=False, link_bandwidth=options.link_bandwidth, served_model_name="sample", log_level="warn", **POLICIES[policy],
    )
    serve.run(made, name="moesaic", route_prefix="/")
    requests = requests_of(options.requests + options.warm_up, seed)
    clients.run(requests[: options.warm_up], options.clients)
    before = clients.counters()
    began = time.monotonic()
    times = clients.run(requests[options.warm_up :], options.clients)
    seconds = time.monotonic() - began
    after = clients.counters()
    serve.delete("moesaic")
    experts = 'moe_expert_requests_total{result="%s"}'
    cached = 'moe_prefix_cache_tokens_total{tier="memory"}'
    read = 'moe_expert_read_bytes_total{from="disk",to="host"}'
    prompt = after["moe_prompt_tokens_total"] - before["moe_prompt_tokens_total"]
    return {
        "expert_hits": share(after, before, experts % "hit", experts % "miss", experts % "in_flight"),
        "prefix_hits": (after.get(cached, 0.0) - before.get(cached, 0.0)) / prompt,
        "mib_read": (after[read] - before[read]) / (1 << 20),
        "first_ms": statistics.mean(first for first, _ in times) * 1e3,
        "latency_ms": statistics.mean(whole for _, whole in times) * 1e3,
        "requests_per_s": len(times) / seconds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models/sample"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=160)
    parser.add_argument("--warm-up", type=int, default=64)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--expert-memory", default="25%")
    parser.add_argument("--kv-memory", default="6MiB")
    parser.add_argument("--link-bandwidth", default="150MiB")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    cluster = two_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port}, logging_config={"log_level": "ERROR"})
    results = {policy: [] for policy in options.policies.split(",")}
    try:
        for number in range(options.rounds):
            for policy in results:
                found = measure(policy, Clients(port), options, seed=number)
                results[policy].append(found)
                print(policy, {name: round(value, 3) for name, value in found.items()}, file=sys.stderr, flush=True)
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    names = list(next(iter(results.values()))[0])
    print("| policy | " + " | ".join(names) + " |\n|---" * 1 + "|" + "---|" * len(names))
    for policy, runs in results.items():
        cells = []
        for name in names:
            values = sorted(run[name] for run in runs)
            cells.append(f"{statistics.median(values):.3g} ({values[0]:.3g} to {values[-1]:.3g})")
        print(f"| {policy} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
