#!/usr/bin/env python3
"""Long runs against a server of several models, which no test suite has the time for.

    stress_server.py orders [--count 1000]   loads and unloads models in random order while clients ask for all of them
    stress_server.py kills [--count 50]      kills the server (-9) while a batch runs, models load and state is written

The first shows that no request is lost, that the resident memory stays, and that the ledgers of all models bound it at
every moment (scripts/memory_watch.py looks every 10 ms); the second that each line of the batch is answered once,
whatever was killed when. Both exit with 1 when that does not hold. Run with
MOESAIC_E2E_BINARY=build/release/bin/moesaic MOESAIC_E2E_MODEL=models/sample; docs/testing.md has what was seen.
"""

import argparse
import json
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

from memory_watch import MemoryWatch
from harness import MODEL, PATIENCE_S, MoesaicServer

DTYPES = ("bfloat16", "int8", "int4")  # the same weights are three models
ROUNDS = 20


def write_models(directory, **fields):
    """A file for --models, all of them on demand."""
    lines = ["models:"]
    for dtype in DTYPES:
        lines += [f"  - id: {dtype}", f"    path: {MODEL}", f"    dtype: {dtype}", "    load: demand"]
        lines += [f"    {name}: {value}" for name, value in fields.items()]
    file = pathlib.Path(directory) / "models.yaml"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def resident_kib(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


class Clients:
    """Threads that ask random models, and know what the answers have to be."""

    def __init__(self, server, threads, seed, texts=None):
        self.server = server
        self.stop = threading.Event()
        self.answered = 0
        self.lost = []
        self.texts = {} if texts is None else texts  # (model, prompt): answer
        self.mutex = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(random.Random(seed + i),)) for i in range(threads)]

    def run(self, rng):
        while not self.stop.is_set():
            model, prompt = rng.choice(DTYPES), f"Chapter {rng.randrange(8)}. It was"
            body = {"model": model, "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
            try:
                status, _, text = self.server.call("/v1/completions", body)
            except OSError as error:
                status, text = 0, repr(error)
            with self.mutex:
                if status != 200:
                    self.lost.append(f"{model}: {status} {text[:300]}")
                    continue
                self.answered += 1
                answer = json.loads(text)["choices"][0]["text"]
                if self.texts.setdefault((model, prompt), answer) != answer:
                    self.lost.append(f"{model}, {prompt!r}: another answer than before: {answer!r}")

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(PATIENCE_S)


def orders(count, seed):
    """Random loads and unloads under traffic."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        models = write_models(directory)
        state = pathlib.Path(directory) / "state"
        state.mkdir()
        with MoesaicServer("--memory", "900MiB", "--state-file", str(state), models=models, wait_ready=False) as server:
            while server.call("/ready")[0] != 200:
                time.sleep(0.05)
            refused, lost, memory, texts, answered = [], [], [], {}, 0
            watch = MemoryWatch(server.process.pid, server.port)
            for part in range(ROUNDS):
                with Clients(server, 3, seed + 10 * part, texts) as clients:
                    for _ in range(count // ROUNDS):
                        order, model = rng.choice(("load", "unload")), rng.choice(DTYPES)
                        status, _, text = server.call(f"/models/{order}", {"model": model})
                        if status != 200:
                            refused.append(f"{order} {model}: {status} {text[:300]}")
                lost += clients.lost
                answered += clients.answered
                for model in DTYPES:
                    server.call("/models/unload", {"model": model})
                time.sleep(0.5)
                memory.append(resident_kib(server))
                print(f"{(part + 1) * (count // ROUNDS)} orders, {answered} answers, {len(lost)} lost, "
                      f"{memory[-1] / 1024:.1f} MiB without a model", flush=True)
            print(watch.stop().text())
            # The first fifth warms allocators up.
            before, after = (statistics.median(part) for part in (memory[4:8], memory[-4:]))
            print(f"resident memory without a model: {before / 1024:.1f} MiB at first, {after / 1024:.1f} MiB at last "
                  f"({100 * (after / before - 1):+.1f}%)")
            for problem in refused[:10] + lost[:10]:
                print(problem)
            return not refused and not lost and not watch.over and after <= 1.02 * before


def kills(count, seed):
    """kill -9 at random moments of a batch, of loading and of writing state."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        models = write_models(directory)
        (directory / "state").mkdir()
        flags = ("--memory", "900MiB", "--state-file", str(directory / "state"), "--state-interval", "1",
                 "--batch-dir", str(directory / "batches"), "--max-num-seqs", "4")
        lines = [json.dumps({"custom_id": f"request-{n}", "method": "POST", "url": "/v1/completions", "body": {
            "model": "bfloat16", "prompt": f"Chapter {n}. It was", "max_tokens": 30, "temperature": 0, "ignore_eos": True}})
            for n in range(40 * count)]
        begun, warnings, batch = False, [], None
        for number in range(count + 1):
            with MoesaicServer(*flags, models=models, wait_ready=False) as server:
                while server.call("/ready")[0] != 200:
                    time.sleep(0.01)
                if not begun:
                    batch = begin_batch(server, lines)
                    begun = True
                if number == count:
                    batch = wait_for_end(server, batch)
                else:
                    with Clients(server, 1, seed + number):
                        time.sleep(rng.uniform(0.05, 1.0))
                        server.process.kill()
                        server.process.wait()
                warnings += [line for line in server.log if "damaged" in line or "left out" in line or "cold" in line]
                if number == count:
                    found = [json.loads(text)["custom_id"]
                             for text in server.call(f"/v1/files/{batch['output_file_id']}/content")[2].splitlines()]
            if 0 < number and number % max(1, count // 10) == 0:
                print(f"{number} kills", flush=True)
        print(f"{len(lines)} lines, {len(found)} answers, {len(set(found))} different ones, "
              f"{batch['request_counts']['failed']} failed, {len(warnings)} warnings of damage")
        print("".join(warnings[:10]), end="")
        return sorted(found) == sorted(f"request-{n}" for n in range(len(lines))) and not warnings


def begin_batch(server, lines):
    mark = "moesaic-stress"
    parts = [f'--{mark}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n',
             f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n',
             "\n".join(lines) + "\n", f"\r\n--{mark}--\r\n"]
    request = urllib.request.Request(server.url + "/v1/files", "".join(parts).encode(),
                                     {"Content-Type": f"multipart/form-data; boundary={mark}"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        file = json.loads(response.read())["id"]
    status, _, text = server.call("/v1/batches", {"input_file_id": file, "endpoint": "/v1/completions",
                                                  "completion_window": "24h"})
    assert status == 200, text
    return json.loads(text)


def wait_for_end(server, batch):
    while True:
        batch = json.loads(server.call(f"/v1/batches/{batch['id']}")[2])
        if batch["status"] in ("completed", "failed", "cancelled", "expired"):
            return batch
        time.sleep(0.2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("orders", "kills"))
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.what == "orders":
        return 0 if orders(options.count or 1000, options.seed) else 1
    return 0 if kills(options.count or 50, options.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
