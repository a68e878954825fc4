"""Recomputes recorded references with transformers and compares them.

    python tests/reference/check_sample.py                      # models/sample
    python tests/reference/check_sample.py tests/data/models/* tests/data/long_models/*  # the fixtures

Exits with 1 when a figure is outside its tolerance. Run it under another version of transformers to check the recorded
figures against a second implementation.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file

import hf_reference

LOGIT_TOLERANCE = 2e-3  # absolute; both sides are float32 sums in different orders
NEAR_TIE = 1e-4  # router gap (probability) or logit margin below which an ordering may differ


def largest(so_far: float, difference: torch.Tensor) -> float:
    """The larger of the two; a NaN counts as infinite, because max() would drop it."""
    return max(so_far, float(difference.abs().nan_to_num(nan=float("inf")).max()))


def check(directory: pathlib.Path) -> bool:
    model = hf_reference.load_model(directory)
    prompts = json.loads((directory / "reference/prompts.json").read_text())
    recorded = load_file(directory / "reference/logits.safetensors")
    eos = model.generation_config.eos_token_id
    stop = tuple(eos) if isinstance(eos, list) else ()
    worst = {"logits": 0.0, "logsumexp": 0.0, "expert_weights": 0.0, "margin": 0.0}
    argmax_wrong = experts_wrong = near_ties = tokens = routed = ids_wrong = ids_total = 0
    text_wrong = 0

    tokenizer = None
    if (directory / "tokenizer.json").exists():
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(directory))

    for prompt in prompts:
        name = f"{prompt['id']:02d}"
        ids = prompt["prompt_ids"]
        if tokenizer is not None:
            text_wrong += tokenizer.encode(prompt["prompt"], add_special_tokens=False) != ids
        hf_reference.reset_dynamic_rope(model)
        trace = hf_reference.run(model, ids)
        logits = recorded[f"{name}.logits"]
        if f"{name}.positions" in recorded:  # long prompts record some
            rows = trace.logits[recorded[f"{name}.positions"].long()]
            lasts = rows
        else:
            rows = trace.logits
            lasts = rows[-len(logits):]
        worst["logits"] = largest(worst["logits"], lasts - logits)
        lse = rows.logsumexp(-1) - recorded[f"{name}.logsumexp"]
        worst["logsumexp"] = largest(worst["logsumexp"], lse)
        best = rows.topk(2).values
        wrong = (rows.argmax(-1) != recorded[f"{name}.argmax"]) & (best[:, 0] - best[:, 1] > NEAR_TIE)
        argmax_wrong += int(wrong.sum())
        # The order inside the top k may differ at near-ties too, so compare sets, then weights by expert.
        ours, order = trace.experts.sort(-1)
        theirs, their_order = recorded[f"{name}.experts"].sort(-1)
        same = (ours == theirs).all(-1)
        near_ties += int((trace.router_gap < NEAR_TIE).sum())
        experts_wrong += int((~same & (trace.router_gap > NEAR_TIE)).sum())
        difference = (
            trace.expert_weights.gather(-1, order) - recorded[f"{name}.expert_weights"].gather(-1, their_order)
        )
        worst["expert_weights"] = largest(worst["expert_weights"], difference[same])
        tokens += len(ids)
        routed += same.numel()
        if f"{name}.hidden" in recorded:
            worst["hidden"] = largest(worst.get("hidden", 0.0), trace.hidden - recorded[f"{name}.hidden"])

        if not prompt["greedy_ids"]:
            continue
        continuation = hf_reference.greedy(model, ids, len(prompt["greedy_ids"]), stop=stop)
        for step, (ours_id, theirs_id) in enumerate(zip(continuation.ids, prompt["greedy_ids"])):
            ids_total += 1
            if ours_id != theirs_id:
                ids_wrong += prompt["greedy_margin"][step] > NEAR_TIE
                break  # the sequences differ from here on
            worst["margin"] = max(worst["margin"], abs(continuation.margins[step] - prompt["greedy_margin"][step]))
        if f"{name}.greedy_logits" in recorded:
            rows = recorded[f"{name}.greedy_logits"]
            rows_checked = min(len(rows), len(continuation.logits)) if continuation.ids == prompt["greedy_ids"] else 1
            worst["greedy_logits"] = largest(
                worst.get("greedy_logits", 0.0), continuation.logits[:rows_checked] - rows[:rows_checked]
            )

    good = (
        max(worst[k] for k in worst if k != "hidden") < LOGIT_TOLERANCE
        and not (argmax_wrong or experts_wrong or ids_wrong or text_wrong)
    )
    figures = ", ".join(f"{key} {value:.2g}" for key, value in worst.items())
    print(
        f"{'ok  ' if good else 'FAIL'} {directory.name}: {tokens} prompt tokens, largest difference: {figures}; "
        f"argmax wrong {argmax_wrong}; expert sets wrong {experts_wrong} of {routed} ({near_ties} near-ties); "
        f"greedy ids wrong {ids_wrong} of {ids_total}"
        + (f"; prompts tokenized differently {text_wrong} of {len(prompts)}" if tokenizer is not None else "")
    )
    return good


def main() -> int:
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=pathlib.Path, default=[root / "models/sample"])
    arguments = parser.parse_args()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    results = [check(directory) for directory in arguments.models if (directory / "config.json").exists()]
    if not results:
        print("no model found")
        return 1
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
