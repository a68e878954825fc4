#!/usr/bin/env python3
"""Writes docs/experiments/deferral.md: what --defer-experts N costs in quality.

    scripts/deferral_experiment.py TEXT [--model models/sample] [--binary build/release/bin/moesaic] [--out FILE]

TEXT is WikiText-2's test split. Perplexity counts the second half of each window as generated; greedy
continuations are those of the model's reference (transformers, float32). A few minutes.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import time

from experiment_server import ExperimentServer

NUMBERS = [0, 1, 2]


def perplexity(arguments, n):
    out = subprocess.run([arguments.binary, "perplexity", arguments.model, arguments.text, "--defer-experts", str(n),
                          "--json"], capture_output=True, check=True, text=True).stdout
    return json.loads(out)


def agreement(arguments, prompts, n):
    """Tokens until the first that differs from the reference's text, and continuations that never differ."""
    same, tokens, whole = 0, 0, 0
    server = ExperimentServer(arguments.binary, arguments.model, "--dtype", "float32", "--defer-experts", str(n))
    for prompt in prompts:
        answer = server.complete(prompt["prompt_ids"], max_tokens=len(prompt["greedy_ids"]), skip_special_tokens=False)
        got, want = json.loads(answer.read())["choices"][0]["text"], prompt["greedy_text"]
        share = len(os.path.commonprefix([got, want])) / max(1, len(want))
        same += share * len(prompt["greedy_ids"])
        tokens += len(prompt["greedy_ids"])
        whole += got == want
    server.stop()
    return same / tokens, whole


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--model", default="models/sample")
    parser.add_argument("--binary", default="build/release/bin/moesaic")
    parser.add_argument("--out", default="docs/experiments/deferral.md")
    arguments = parser.parse_args()
    prompts = json.loads((pathlib.Path(arguments.model) / "reference/prompts.json").read_text())
    rows = []
    for n in NUMBERS:
        quality = perplexity(arguments, n)
        same, whole = agreement(arguments, prompts, n)
        rows.append(f"| {n} | {quality['perplexity']:.2f} ± {quality['standard_error']:.2f} | {100 * same:.0f}% | "
                    f"{whole} of {len(prompts)} |")
        print(rows[-1], flush=True)
        counted, windows, context = quality["tokens"], quality["windows"], quality["context"]
    cpu = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())[1]
    pathlib.Path(arguments.out).write_text(f"""# Expert deferral on the sample model

Written by `scripts/deferral_experiment.py` ({time.strftime("%Y-%m-%d")}, {cpu}, {os.cpu_count()} CPUs shared with other work). The sample
model has 8 layers of 32 experts, 4 for each token, so that 1 and 2 are all that can be deferred. It was trained
without deferral and is small: what a large model loses must be measured there (KTransformers gives at most 0.5% of
accuracy for DeepSeek-V3 with 3 of 8 deferred).

| N | perplexity | greedy text that agrees | continuations that agree |
|---|---|---|---|
""" + "\n".join(rows) + f"""

- *Perplexity*: WikiText-2, test split, {windows} windows of {context} tokens, bfloat16. The first half of a window is prompt; the
  {counted} tokens of the second halves are counted, computed as decode steps are (`moesaic perplexity --defer-experts N`).
- *Greedy*: the {len(prompts)} prompts of `{arguments.model}/reference` with `--dtype float32`, against the texts that transformers continues them with: the
  share of them before the first character that differs, and how many never differ. After a difference a text goes its own way, which says nothing of quality.

What it saves is not in the table. It can be at most the time that the next layer attends, for each layer that waits: on this model 20 to 30 us beside reads of
some 100 us, which two shared CPUs do not show. It is worth more the longer attention takes: long contexts, large dense parts.
""")


if __name__ == "__main__":
    main()
