#!/usr/bin/env python3
"""Prefill and decode rates of moesaic, llama.cpp and ik_llama.cpp on the same weights, as a Markdown table.

    scripts/compare_peers.py --model /data/moe64 --gguf bf16=/data/moe64-bf16.gguf int8=/data/moe64-q8_0.gguf
        --moesaic build/release/bin/moesaic --llama /src/llama.cpp/build/bin [--ik /src/ik_llama.cpp/build/bin]

The model comes from scripts/make_bench_model.py; llama-quantize makes the other types of its GGUF file. A TYPE that is
not bf16, int8 or int4 (q4_k_m=FILE) has all programs read that very file, moesaic with --dtype gguf. In every round
each program runs once with each type and number of threads, in an order that turns; the table has the median of the
rounds and their range. The machine's peaks are those that `moesaic bench` measures beside its tests. All decode rates
are of sequences with --context tokens each; prefill is one prompt.

A peer's llama-batched-bench has to feed different tokens to its sequences, or all of them use the same experts
(ik_llama.cpp's feeds token 0).

--samples FILE keeps what was measured, after each program; a later run with the same --context and --output adds to
it, and its tables have all.

--check compares greedy tokens instead: both programs continue the same texts.
"""

import argparse
import collections
import json
import pathlib
import random
import re
import shlex
import statistics
import subprocess
import sys

DTYPES = {"bf16": "bfloat16", "int8": "int8", "int4": "int4"}


def moesaic_model(arguments, weights):
    """What moesaic reads for a type, and the numbers it computes with."""
    if weights in DTYPES:
        return [arguments.model, "--dtype", DTYPES[weights]]
    return [arguments.gguf[weights], "--dtype", "gguf"]


def run(arguments, command):
    command = shlex.split(arguments.wrap) + [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done


def commas(values):
    return ",".join(str(value) for value in values)


class Samples(collections.defaultdict):
    """Numbers of all rounds, by (program, type, threads, test, n): tokens/s; of moesaic also "share", of the limit,
    and by (type, threads) "read" and "flop", the peaks beside it."""

    def __init__(self, path):
        super().__init__(list)
        self.path = path
        if path and path.exists():
            self.update((tuple(key), numbers) for key, numbers in json.loads(path.read_text()))

    def save(self):
        if self.path:
            # Never half a file.
            written = self.path.with_name(self.path.name + ".tmp")
            written.write_text(json.dumps(list(self.items())))
            written.replace(self.path)


class Moesaic:
    name = "moesaic"

    def __init__(self, arguments, samples):
        self.arguments, self.samples = arguments, samples

    def rates(self, weights, threads):
        a = self.arguments
        command = [a.moesaic, "bench", *moesaic_model(a, weights), "--threads", threads, "--repetitions", 1,
                   "--prompt-tokens", commas(a.prompt) or 0, "--output-tokens", a.output if a.batch else 0,
                   "--batch", commas(a.batch) or 1, "--context-tokens", a.context, "--json"]
        for row in json.loads(run(a, command).stdout):
            test = ("pp", int(row["test"][2:])) if row["test"].startswith("pp") else ("tg", row["batch"])
            self.samples["read", weights, threads].append(row["peak_bytes_per_s"])
            self.samples["flop", weights, threads].append(row["peak_flops_per_s"])
            self.samples["share", weights, threads, *test].append(row["peak_share"])
            yield test, row["tokens_per_s"]


class LlamaCpp:
    def __init__(self, arguments, name, directory, bench_flags=(), batched_flags=()):
        self.arguments, self.name, self.directory = arguments, name, pathlib.Path(directory)
        self.bench_flags, self.batched_flags = bench_flags, batched_flags

    def rates(self, weights, threads):
        a = self.arguments
        common = ["-m", a.gguf[weights], "-t", threads]
        if a.prompt:
            command = [self.directory / "llama-bench", *common, "-p", commas(a.prompt), "-n", 0, "-r", 1, "-o", "json"]
            # Progress may stand before the list.
            text = run(a, command + list(self.bench_flags)).stdout
            for row in json.loads(text[text.index("["):]):
                yield ("pp", row["n_prompt"]), row["avg_ts"]
        if a.batch:
            positions = max(a.batch) * (a.context + a.output)
            command = [self.directory / "llama-batched-bench", *common, "-c", max(512, positions), "-npp", a.context,
                       "-ntg", a.output, "-npl", commas(a.batch)]
            done = run(a, command + list(self.batched_flags))
            for line in (done.stdout + done.stderr).splitlines():
                cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
                if len(cells) == 10 and cells[0].isdigit():
                    yield ("tg", int(cells[2])), float(cells[7])


def programs_of(arguments, samples):
    programs = [Moesaic(arguments, samples), LlamaCpp(arguments, "llama.cpp", arguments.llama)]
    if arguments.ik:
        programs.append(LlamaCpp(arguments, "ik_llama.cpp", arguments.ik))
        programs.append(LlamaCpp(arguments, "ik_llama.cpp -rtr", arguments.ik, ("-rtr", 1), ("-rtr",)))
    return programs


def cell(samples):
    if not samples:
        return "-"
    digits = 0 if statistics.median(samples) >= 100 else 1
    text = f"{statistics.median(samples):.{digits}f}"
    return text if len(samples) == 1 else f"{text} ({min(samples):.{digits}f}..{max(samples):.{digits}f})"


def report(arguments, programs, samples):
    for weights in arguments.gguf:
        for threads in arguments.threads:
            read, flop = (sorted(n * 1e-9 for n in samples[key, weights, threads]) for key in ("read", "flop"))
            print(f"\n{weights}, {threads} thread{'s' if threads > 1 else ''}; peaks beside it: "
                  f"{statistics.median(read):.1f} GB/s ({read[0]:.1f}..{read[-1]:.1f}), "
                  f"{statistics.median(flop):.0f} GFLOP/s ({flop[0]:.0f}..{flop[-1]:.0f})\n")
            header = ["tokens/s", *(program.name for program in programs), "to the best peer", "of the limit"]
            print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
            for test in [("pp", n) for n in arguments.prompt] + [("tg", n) for n in arguments.batch]:
                rates = [samples[program.name, weights, threads, *test] for program in programs]
                peers = [statistics.median(s) for s in rates[1:] if s]
                ratio = statistics.median(rates[0]) / max(peers) if peers else float("nan")
                share = statistics.median(samples["share", weights, threads, *test])
                name = f"prefill {test[1]}" if test[0] == "pp" else f"decode, batch {test[1]}"
                print("| " + " | ".join([name, *map(cell, rates), f"{ratio:.2f}", f"{100 * share:.0f}%"]) + " |")


def measure(arguments):
    samples = Samples(arguments.samples)
    programs = programs_of(arguments, samples)
    first = ("pp", arguments.prompt[0]) if arguments.prompt else ("tg", arguments.batch[0])
    for number in range(arguments.rounds):
        for weights in arguments.gguf:
            for threads in arguments.threads:
                turn = len(samples[programs[0].name, weights, threads, *first]) % len(programs)
                for program in programs[turn:] + programs[:turn]:
                    print(f"round {number + 1}: {weights}, {threads}, {program.name}:", end="", file=sys.stderr)
                    for test, rate in program.rates(weights, threads):
                        samples[program.name, weights, threads, *test].append(rate)
                        print(f" {test[0]}{test[1]} {rate:.1f}", end="", file=sys.stderr, flush=True)
                    print(file=sys.stderr)
                    samples.save()
    report(arguments, programs, samples)


def check(arguments):
    """How many of the first greedy tokens agree. Each character is a token; both work with rounded numbers, so that
    one of two nearly equal tokens may win here and the other there, and the texts part from then on."""
    generator = random.Random(0)
    for weights, gguf in arguments.gguf.items():
        agree = []
        for _ in range(arguments.rounds):
            prompt = "".join(chr(generator.randrange(0x4E00, 0x9F00)) for _ in range(arguments.context))
            ours = run(arguments, [arguments.moesaic, "run", *moesaic_model(arguments, weights), "--raw", "--temperature",
                                   0, "--max-tokens", arguments.output, prompt]).stdout.strip("\n")
            theirs = run(arguments, [pathlib.Path(arguments.llama) / "llama-completion", "-m", gguf, "-p", prompt, "-n",
                                     arguments.output, "--temp", 0, "-no-cnv", "--no-display-prompt"]).stdout
            theirs = re.sub(r" ?\[end of text\]", "", theirs).strip("\n")
            agree.append(next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs))))
        print(f"{weights}: of {arguments.output} greedy tokens the first {agree} agree")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--moesaic", required=True)
    parser.add_argument("--llama", required=True, metavar="DIR", help="with llama-bench and llama-batched-bench")
    parser.add_argument("--ik", metavar="DIR")
    parser.add_argument("--model", metavar="DIR", help="wanted for bf16, int8 and int4")
    parser.add_argument("--gguf", required=True, nargs="+", metavar="TYPE=FILE", help="types: bf16, int8, int4 of --model; "
                        "any other name: moesaic reads FILE too")
    numbers = lambda text: [int(number) for number in text.split(",") if number]
    parser.add_argument("--threads", type=numbers, default=[1, 2], metavar="LIST")
    parser.add_argument("--prompt", type=numbers, default=[128, 512, 2048], metavar="LIST", help="prompt lengths")
    parser.add_argument("--batch", type=numbers, default=[1, 4, 16, 64], metavar="LIST", help="decoding sequences")
    parser.add_argument("--context", type=int, default=64, help="tokens of each sequence before decoding begins")
    parser.add_argument("--output", type=int, default=32, help="tokens that each sequence generates")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=pathlib.Path, metavar="FILE", help="JSON")
    parser.add_argument("--wrap", default="", metavar="COMMAND", help="put before every command: taskset, nice")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    arguments.gguf = dict(entry.split("=", 1) for entry in arguments.gguf)
    if not arguments.model and (of_model := set(arguments.gguf) & set(DTYPES)):
        parser.error(f"--gguf {', '.join(sorted(of_model))}: --model is wanted, too")
    (check if arguments.check else measure)(arguments)


if __name__ == "__main__":
    main()
