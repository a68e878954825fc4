#!/usr/bin/env python3
"""How soon a set of prompts is answered by `moesaic batch` in throughput mode, in latency mode and by llama.cpp's server,
with the same weights, threads and memory, as a Markdown table.

    scripts/make_bench_model.py /data/moe64 --gguf /data/moe64-bf16.gguf
    scripts/compare_batch.py --model /data/moe64 --gguf /data/moe64-bf16.gguf --tokenizer models/sample/tokenizer.json \\
        --prompts gsm8k/test.jsonl --moesaic build/release/bin/moesaic --llama-server /src/llama.cpp/build/bin/llama-server

Prompts are texts of a JSON Lines file ("question" of each), as token ids. Each program runs by itself in a memory
cgroup (version 1, at /sys/fs/cgroup/memory; needs root) of --memory MiB that counts its weights, keys and values, buffers
and page cache; the system's page cache is dropped before. Time is from the first request to the last answer: loading
(printed beside) is not in it. Prompts are answered with --output sampled tokens each, the end of text ignored.
Needs the package tokenizers.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from experiment_server import ENDS_WITH_US

CGROUP = pathlib.Path("/sys/fs/cgroup/memory/moesaic-compare")
PORT = 18080


def prompts_of(arguments):
    import tokenizers  # only this needs it

    tokenizer = tokenizers.Tokenizer.from_file(arguments.tokenizer)
    with open(arguments.prompts, encoding="utf-8") as file:
        texts = [json.loads(line)["question"] for line in file]
    return [tokenizer.encode(texts[i % len(texts)]).ids for i in range(arguments.requests)]


def enter_cgroup():
    (CGROUP / "cgroup.procs").write_text(str(os.getpid()))


def fresh_cgroup(arguments):
    if CGROUP.exists():
        CGROUP.rmdir()
    CGROUP.mkdir()
    (CGROUP / "memory.limit_in_bytes").write_text(str(arguments.memory << 20))
    subprocess.run(["sync"], check=True)
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def run_moesaic(arguments, prompts, mode):
    with tempfile.TemporaryDirectory() as directory:
        source = pathlib.Path(directory) / "in.jsonl"
        with open(source, "w", encoding="utf-8") as file:
            for number, prompt in enumerate(prompts):
                body = {"prompt": prompt, "max_tokens": arguments.output, "temperature": 1, "ignore_eos": True}
                file.write(json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}))
                file.write("\n")
        command = [arguments.moesaic, "batch", arguments.model, "-i", source, "-o", f"{directory}/out.jsonl", "--json",
                   "--mode", mode, "--threads", str(arguments.threads), "--memory", f"{arguments.memory - 32}MiB",
                   "--no-prefix-cache"]
        environment = dict(os.environ, XDG_CACHE_HOME=f"{directory}/cache")
        begin = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, env=environment, preexec_fn=enter_cgroup)
        wall = time.monotonic() - begin
        if done.returncode != 0:
            sys.exit(f"moesaic --mode {mode} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        result = json.loads(done.stdout)
        if result["output_tokens"] != arguments.output * len(prompts):
            sys.exit(f"moesaic --mode {mode}: {result}")
        return result["seconds"], wall - result["seconds"]


def ask(number, prompt, output):
    body = {"prompt": prompt, "n_predict": output, "ignore_eos": True, "temperature": 1, "seed": number,
            "cache_prompt": False}
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=7200)
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer["tokens_predicted"]


def run_llama(arguments, prompts):
    context = max(len(prompt) for prompt in prompts) + arguments.output + 8
    command = [*ENDS_WITH_US, arguments.llama_server, "-m", arguments.gguf, "-c", str(arguments.parallel * context), "-np",
               str(arguments.parallel), "-t", str(arguments.threads), "-b", "2048", "-ub", "512", "--port", str(PORT),
               "--no-warmup"]
    begin = time.monotonic()
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=enter_cgroup)
        try:
            while True:
                time.sleep(0.2)
                try:
                    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=5)
                    connection.request("GET", "/health")
                    if connection.getresponse().status == 200:
                        break
                except OSError:
                    pass
                if server.poll() is not None:
                    log.seek(0)
                    sys.exit(f"llama-server ended with {server.returncode}:\n{log.read().decode()[-3000:]}")
            loading = time.monotonic() - begin
            begin = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(2 * arguments.parallel) as pool:
                tokens = sum(pool.map(lambda pair: ask(*pair, arguments.output), enumerate(prompts)))
            seconds = time.monotonic() - begin
        finally:
            server.kill()
            server.wait()
    if tokens != arguments.output * len(prompts):
        sys.exit(f"llama-server gave {tokens} tokens")
    return seconds, loading


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moesaic", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--llama-server")
    parser.add_argument("--gguf")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--output", type=int, default=16, metavar="TOKENS")
    parser.add_argument("--memory", type=int, default=1536, metavar="MiB")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parallel", type=int, default=64, help="sequences at once in llama-server (default: 64)")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=["throughput", "latency", "llama.cpp"],
                        default=["throughput", "latency", "llama.cpp"])
    arguments = parser.parse_args()
    arguments.moesaic = str(pathlib.Path(arguments.moesaic).resolve())
    prompts = prompts_of(arguments)
    programs = {"throughput": lambda: run_moesaic(arguments, prompts, "throughput"),
                "latency": lambda: run_moesaic(arguments, prompts, "latency"),
                "llama.cpp": lambda: run_llama(arguments, prompts)}
    taken = {name: [] for name in arguments.only}
    for _ in range(arguments.repeats):
        for name in arguments.only:
            fresh_cgroup(arguments)
            taken[name].append(programs[name]())
            print(f"{name}: {taken[name][-1][0]:.1f} s, loading {taken[name][-1][1]:.1f} s", file=sys.stderr)
    CGROUP.rmdir()
    tokens = sum(len(prompt) for prompt in prompts)
    print(f"{len(prompts)} prompts of {tokens / len(prompts):.0f} tokens on average, {arguments.output} output tokens each,"
          f" {arguments.threads} threads, {arguments.memory} MiB\n")
    print("| program | seconds | output tokens/s | all tokens/s | loading, s | times throughput mode's time |")
    print("|---|---|---|---|---|---|")
    first = statistics.median(run[0] for run in taken[arguments.only[0]])
    for name, runs in taken.items():
        seconds, loading = (statistics.median(run[i] for run in runs) for i in (0, 1))
        output = arguments.output * len(prompts)
        print(f"| {name} | {seconds:.1f} | {output / seconds:.1f} | {(output + tokens) / seconds:.1f} | {loading:.1f} |"
              f" {seconds / first:.2f} |")


if __name__ == "__main__":
    main()
