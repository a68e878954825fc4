#!/usr/bin/env python3
"""What `moesaic batch` plans against what it does: throughput, times by component and bytes, in settings that differ in
link rate, memory, weight type and workload, on an emulated device and without. As Markdown tables.

    scripts/make_bench_model.py /data/moe64 --layers 8 --hidden 512 --intermediate 256 --top-k 4 --vocabulary 4096
    scripts/plan_experiments.py --moesaic build/release/bin/moesaic --model /data/moe64 \\
        --gsm8k gsm8k/test.jsonl --mt-bench mt_bench/question.jsonl [--repeats 3] [--only NAME ...]

Each run measures the model's modules anew, so that plan and run see the same machine, and reads experts past the page
cache. Answers are sampled: greedy ones of a generated model soon repeat the same few tokens, and so the same experts. A
setting's numbers are those of the run with the median ratio of measured to predicted throughput. For text
tokens in a generated model, put the tokenizer of models/sample beside its weights (vocabulary 4096).
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

# Name: workload, requests, output tokens, and flags. Each takes 15 to 35 s, so that three rounds fit into a quarter of an
# hour.
SETTINGS = {
    "device, link 200 MB/s": ("gsm8k", 64, 16, ["--devices", "1", "--device-memory", "25%", "--emulated-link-gbps", "0.2"]),
    "device, link 400 MB/s": ("gsm8k", 96, 16, ["--devices", "1", "--device-memory", "25%", "--emulated-link-gbps", "0.4"]),
    "device, link 800 MB/s": ("gsm8k", 192, 24, ["--devices", "1", "--device-memory", "25%", "--emulated-link-gbps", "0.8"]),
    "2 devices, links 400 MB/s": ("gsm8k", 192, 16, ["--devices", "2", "--device-memory", "25%", "--emulated-link-gbps", "0.4"]),
    "MT-Bench, device, link 400 MB/s": ("mt-bench", 80, 24, ["--devices", "1", "--device-memory", "40%",
                                                            "--emulated-link-gbps", "0.4"]),
    "disk, at most 400 MB/s": ("gsm8k", 96, 20, ["--memory", "330MiB", "--link-bandwidth", "400MB"]),
    "disk": ("gsm8k", 384, 32, ["--memory", "330MiB"]),
    "disk, more memory": ("gsm8k", 448, 32, ["--memory", "450MiB"]),
    "disk, int8": ("gsm8k", 448, 32, ["--memory", "330MiB", "--dtype", "int8"]),
    "MT-Bench, all in memory": ("mt-bench", 512, 48, ["--memory", "1200MiB"]),
}
COMPONENTS = ["attention", "router and other dense parts", "experts", "logits and sampling", "waiting for experts",
              "link busy", "attention outputs to the device", "queries, keys and values to the host",
              "expert bytes read", "passes"]


def prompts_of(arguments, workload, count):
    if workload == "gsm8k":
        lines = [json.loads(line)["question"] for line in open(arguments.gsm8k, encoding="utf-8")]
    else:
        lines = [json.loads(line)["turns"][0] for line in open(arguments.mt_bench, encoding="utf-8")]
    return [lines[i % len(lines)] for i in range(count)]


def run_once(arguments, directory, setting):
    workload, requests, tokens, flags = setting
    source = directory / "in.jsonl"
    with open(source, "w", encoding="utf-8") as file:
        for prompt in prompts_of(arguments, workload, requests):
            body = {"prompt": prompt, "max_tokens": tokens, "temperature": 1, "ignore_eos": True}
            file.write(json.dumps(body) + "\n")
    command = [arguments.moesaic, "batch", arguments.model, "-i", str(source), "-o", str(directory / "out.jsonl"),
               "--overwrite", "--no-prefix-cache", "--report", str(directory / "report"), *flags]
    environment = dict(os.environ, XDG_CACHE_HOME=str(directory / "cache"))
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True)
    if outcome.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{outcome.stderr}")
    report = json.loads((directory / "report.json").read_text())
    if "plan_against_run" not in report:
        sys.exit(f"{' '.join(command)}\nthe sizes were not planned from measured costs:\n{outcome.stderr}")
    return report


def rows_of(report):
    return {row["name"]: row for row in report["plan_against_run"]}


def throughput(report):
    return rows_of(report)["generated tokens per second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moesaic", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--gsm8k", required=True)
    parser.add_argument("--mt-bench", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(SETTINGS), choices=list(SETTINGS), metavar="NAME")
    arguments = parser.parse_args()
    arguments.moesaic = str(pathlib.Path(arguments.moesaic).resolve())

    reports = {name: [] for name in arguments.only}
    for _ in range(arguments.repeats):
        for name in arguments.only:
            with tempfile.TemporaryDirectory(prefix="moesaic-plan-") as directory:
                reports[name].append(run_once(arguments, pathlib.Path(directory), SETTINGS[name]))
            row = throughput(reports[name][-1])
            print(f"{name}: {row['measured']:.1f} of {row['predicted']:.1f} tokens/s predicted", file=sys.stderr)

    print("| setting | schedule | sequences | tokens a pass | residents | predicted tokens/s | measured | measured / predicted |"
          " of all runs |")
    print("|---" * 9 + "|")
    errors, chosen = [], {}
    for name, runs in reports.items():
        ratios = sorted(throughput(run)["ratio"] for run in runs)
        middle = statistics.median_low(ratios)
        report = chosen[name] = next(run for run in runs if throughput(run)["ratio"] == middle)
        row, sizes = throughput(report), report["sizes"]
        errors.append(abs(middle - 1))
        print(f"| {name} | {report['schedule']}, {sizes['micro_batches']} | {sizes['sequences']} | {sizes['tokens_per_pass']} |"
              f" {sizes['expert_slots'] - sizes['buffers']} | {row['predicted']:.1f} | {row['measured']:.1f} |"
              f" {middle:.3f} | {', '.join(f'{ratio:.3f}' for ratio in ratios)} |")
    print(f"\nMean error {100 * statistics.mean(errors):.1f}%, worst {100 * max(errors):.1f}%.\n")

    print("| of the run | link busy | waited for experts while the link rested |\n|---|---|---|")
    for name, report in chosen.items():
        link = report["link"]
        print(f"| {name} | {100 * link['busy_share']:.1f}% |"
              f" {100 * link['waited_while_resting_s'] / report['seconds']:.2f}% |")
    print()

    print("| measured / predicted | " + " | ".join(COMPONENTS) + " |")
    print("|---" * (len(COMPONENTS) + 1) + "|")
    for name, report in chosen.items():
        rows = rows_of(report)
        cells = [f"{rows[c]['ratio']:.2f}" if rows[c]["ratio"] is not None else "-" for c in COMPONENTS]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
