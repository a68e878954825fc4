"""Makes the checkpoints under tests/data/long_models, whose prompts are longer than three chunks of attention.

    python tests/reference/make_long_fixtures.py [--out tests/data/long_models] [--only NAME]

Moesaic cuts attention into chunks of 256 positions. The references of make_fixtures.py are shorter than one, so they
cannot tell whether the borders are right; these can. Each fixture proves that it does: attention is computed again with
a defect at the borders, and the recorded logits have to move.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file

import hf_reference
from fixture_families import mixtral, olmoe, qwen2_moe, qwen3_moe
from make_fixtures import write_checkpoint

CHUNK = 256  # kAttentionChunkTokens
TOKENS = 830
MIN_EFFECT = 0.01  # of a defect on some logit; float32 noise is a thousandth of it
MIN_ROUTER_GAP = 2e-5  # probability, over all tokens; float32 noise is a tenth of it
SHARPNESS = 1.4  # so that one key of hundreds matters
HIDDEN_KEY = torch.finfo(torch.float32).min

SIZES = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_experts_per_tok": 2}
QWEN3 = qwen3_moe(
    **SIZES, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=32,
    moe_intermediate_size=16, num_experts=4, rope_theta=10000.0,
)
MIXTRAL = mixtral(
    **SIZES, num_attention_heads=3, num_key_value_heads=1, head_dim=32, intermediate_size=16, num_local_experts=4,
)
QWEN2 = qwen2_moe(
    **SIZES, num_attention_heads=4, num_key_value_heads=4, intermediate_size=32, moe_intermediate_size=16,
    shared_expert_intermediate_size=16, num_experts=4, sliding_window=None,
)
OLMOE = olmoe(**SIZES, num_attention_heads=4, num_key_value_heads=2, intermediate_size=16, num_experts=4)

# name: (config, window or 0). Windows are longer than a chunk: across one border, exactly two chunks, one more than a
# chunk. OLMoE has no window.
FIXTURES: dict[str, tuple[dict, int]] = {
    "qwen3_moe": (QWEN3, 0),
    "qwen3_moe_window": (QWEN3 | {"use_sliding_window": True, "sliding_window": 300}, 300),
    "mixtral": (MIXTRAL, 0),
    "mixtral_window": (MIXTRAL | {"sliding_window": 512}, 512),
    "qwen2_moe": (QWEN2, 0),
    # Slides in layer 0 only (see layer_types in transformers).
    "qwen2_moe_window": (QWEN2 | {"use_sliding_window": True, "sliding_window": 257, "max_window_layers": 2}, 257),
    "olmoe": (OLMOE, 0),
}


def recorded_positions(window: int) -> list[int]:
    """Around every border of a chunk, the first position that a window cuts, and those where it begins at a border."""
    centres = [0, 16, *range(CHUNK, TOKENS, CHUNK), TOKENS - 1]
    if window:
        centres += [window, *range(window - 1 + CHUNK, TOKENS, CHUNK)]
    near = {c + d for c in centres for d in (-1, 0, 1)}
    return sorted(p for p in near if 0 <= p < TOKENS)


def without_own_key(mask: torch.Tensor) -> None:
    """The chunk range ends a chunk early where a position begins a chunk."""
    for position in range(CHUNK, TOKENS, CHUNK):
        mask[..., position, position] = HIDDEN_KEY


def window_a_chunk_late(mask: torch.Tensor) -> None:
    """The chunk range begins a chunk late where a window cuts the context."""
    visible = mask[0, 0] == 0
    for position, first in enumerate(visible.int().argmax(-1).tolist()):
        if first > 0:
            mask[..., position, first:min(position, (first // CHUNK + 1) * CHUNK)] = HIDDEN_KEY


@contextlib.contextmanager
def defect(model, change):
    """Within it the model's attention has the defect that `change` makes in an additive mask [1, 1, query, key]."""
    module = sys.modules[type(model).__module__]
    right = module.eager_attention_forward

    def wrong(layer, query, key, value, attention_mask, *arguments, **keywords):
        mask = attention_mask.clone()
        change(mask)
        return right(layer, query, key, value, mask, *arguments, **keywords)

    module.eager_attention_forward = wrong
    try:
        yield
    finally:
        module.eager_attention_forward = right


def least_effects(model, ids: list[int], logits: torch.Tensor, window: int) -> list[float]:
    """How much each defect moves some logit, at the position where it moves least of those that it touches."""

    def least(change, positions) -> float:
        with defect(model, change):
            moved = (hf_reference.run(model, ids).logits - logits).abs().amax(-1)
        return float(moved[positions].min())

    recorded = recorded_positions(window)
    effects = [least(without_own_key, [p for p in recorded if p and p % CHUNK == 0])]
    if window:  # where the rest of the first chunk is not next to nothing
        effects.append(
            least(window_a_chunk_late, [p for p in recorded if p >= window and (p + 1 - window) % CHUNK < CHUNK / 2])
        )
    return effects


def choose_prompt(model, seed: int, window: int):
    """Random ids whose routing has no near-ties and whose recorded logits show each defect."""
    for attempt in range(1000):
        generator = torch.Generator().manual_seed(seed * 10007 + attempt)
        ids = torch.randint(0, model.config.vocab_size, (TOKENS,), generator=generator).tolist()
        trace = hf_reference.run(model, ids)
        if trace.router_gap.min() < MIN_ROUTER_GAP:
            continue
        effects = least_effects(model, ids, trace.logits, window)
        if min(effects) > MIN_EFFECT:
            return ids, trace, effects
    raise RuntimeError(f"no prompt of {TOKENS} tokens shows the defects")


def write_reference(directory: pathlib.Path, seed: int, window: int) -> None:
    model = hf_reference.load_model(directory)
    ids, trace, effects = choose_prompt(model, seed, window)
    positions = recorded_positions(window)
    logits = trace.logits[positions]
    tensors = {
        "sparse_layers": torch.tensor(hf_reference.sparse_layers(model), dtype=torch.int32),
        "00.positions": torch.tensor(positions, dtype=torch.int32),
        "00.logits": logits,
        "00.argmax": logits.argmax(-1).to(torch.int32),
        "00.logsumexp": logits.logsumexp(-1),
        "00.experts": trace.experts,
        "00.expert_weights": trace.expert_weights,
    }
    reference = directory / "reference"
    reference.mkdir()
    prompt = {"id": 0, "domain": "random_ids", "prompt_ids": ids, "greedy_ids": [], "greedy_margin": []}
    (reference / "prompts.json").write_text(f"[\n {json.dumps(prompt)}\n]\n")
    about = (
        "00.positions [rows] i32: the positions of the prompt whose logits are recorded: 00.logits [rows, vocab] f32, "
        "00.argmax i32, 00.logsumexp f32; of all tokens 00.experts [sparse layers, tokens, top_k] i32 and "
        "00.expert_weights f32; sparse_layers i32: the layer numbers of those; computed in float32 from the rounded "
        f"weights by transformers {transformers.__version__}"
    )
    save_file({k: v.contiguous() for k, v in tensors.items()}, reference / "logits.safetensors", {"about": about})
    double = hf_reference.load_model(directory, torch.float64)
    noise = float((hf_reference.run(double, ids).logits[positions] - logits).abs().max())
    print(
        f"{directory.name}: {len(positions)} positions, logits std {logits.std():.2f}, float32 noise {noise:.1e}, "
        f"defects move logits by {', '.join(f'{e:.2f}' for e in effects)} at least, "
        f"{sum(f.stat().st_size for f in directory.rglob('*') if f.is_file()) / 1e3:.0f} kB"
    )


def main() -> None:
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/data/long_models")
    parser.add_argument("--only", choices=sorted(FIXTURES))
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    for seed, (name, (config, window)) in enumerate(FIXTURES.items(), start=101):
        if arguments.only and name != arguments.only:
            continue
        directory = arguments.out / name
        if directory.exists():
            shutil.rmtree(directory)
        write_checkpoint(directory, config, None, seed, SHARPNESS)
        write_reference(directory, seed, window)


if __name__ == "__main__":
    main()
