"""Runs a checkpoint through Hugging Face transformers and records what our forward pass must reproduce.

Weights keep the values of the checkpoint's type, everything is computed in float32 on the CPU with eager attention.
Works with transformers 4.5x (one module per expert) and 5.x (fused experts): two code bases for the same models.
"""

from __future__ import annotations

import dataclasses
import pathlib

import torch
import transformers

torch.set_num_threads(1)  # one summation order, so that regenerating gives the same bits on the same machine
torch.set_grad_enabled(False)


@dataclasses.dataclass
class Trace:
    """What one forward pass over `tokens` ids did. Layers of the router tensors: the sparse ones only, in order."""

    logits: torch.Tensor  # [tokens, vocab] f32
    hidden: torch.Tensor  # [layers + 1, tokens, hidden] f32: embedding, then the residual stream after each layer
    experts: torch.Tensor  # [sparse_layers, tokens, top_k] i32, by falling router probability
    expert_weights: torch.Tensor  # [sparse_layers, tokens, top_k] f32, as multiplied into the expert outputs
    router_gap: torch.Tensor  # [sparse_layers, tokens] f32: k-th minus (k+1)-th probability
    cache: object | None = None


def load_model(directory: pathlib.Path, dtype: torch.dtype = torch.float32):
    """Loads a checkpoint and fails when transformers did not find every tensor, or found one too many."""
    kwargs = {"attn_implementation": "eager", "output_loading_info": True, "torch_dtype": dtype}
    if int(transformers.__version__.split(".")[0]) >= 5:
        kwargs["dtype"] = kwargs.pop("torch_dtype")
        kwargs["experts_implementation"] = "eager"
    model, info = transformers.AutoModelForCausalLM.from_pretrained(str(directory), **kwargs)
    problems = {k: v for k, v in info.items() if k != "error_msgs" and v}
    if problems or info.get("error_msgs"):
        raise RuntimeError(f"{directory}: loading was not clean: {info}")
    return model.eval()


def sparse_layers(model) -> list[int]:
    """Layer numbers whose MLP is a mixture of experts."""
    def mlp(layer):
        return layer.mlp if hasattr(layer, "mlp") else layer.block_sparse_moe
    return [i for i, layer in enumerate(model.model.layers) if hasattr(mlp(layer), "experts")]


def _normalises(config) -> bool:
    return config.model_type == "mixtral" or bool(config.norm_topk_prob)


def run(model, ids: list[int], cache=None, use_cache: bool = False) -> Trace:
    """One forward pass. With `cache` it continues the sequence that the cache holds."""
    hidden, chosen, handles = [], [], []

    def keep(_module, _inputs, output):
        hidden.append((output[0] if isinstance(output, tuple) else output)[0].clone())

    def keep_choice(_module, _inputs, output):
        if isinstance(output, tuple):  # 5.x: (logits, weights, indices); in 4.x the gate is a plain Linear
            chosen.append(output)

    handles.append(model.model.embed_tokens.register_forward_hook(keep))
    for layer in model.model.layers:
        handles.append(layer.register_forward_hook(keep))
        mlp = layer.mlp if hasattr(layer, "mlp") else layer.block_sparse_moe
        if hasattr(mlp, "experts"):
            handles.append(mlp.gate.register_forward_hook(keep_choice))
    try:
        out = model(
            input_ids=torch.tensor([ids]),
            past_key_values=cache,
            use_cache=use_cache,
            output_router_logits=True,
        )
    finally:
        for handle in handles:
            handle.remove()

    k = model.config.num_experts_per_tok
    probabilities = torch.stack([r.reshape(len(ids), -1) for r in out.router_logits]).float().softmax(-1)
    top = probabilities.topk(k + 1 if k < probabilities.shape[-1] else k, dim=-1)
    weights, experts = top.values[..., :k], top.indices[..., :k]
    if _normalises(model.config):
        weights = weights / weights.sum(-1, keepdim=True)
    if chosen:  # what the model really used, not what we derived from its router logits
        assert torch.equal(experts, torch.stack([c[2] for c in chosen])), "derived routing differs"
        torch.testing.assert_close(weights, torch.stack([c[1] for c in chosen]).float(), rtol=1e-6, atol=1e-7)
    gap = (
        top.values[..., k - 1] - top.values[..., k]
        if top.values.shape[-1] > k
        else torch.ones_like(top.values[..., 0])
    )
    return Trace(
        logits=out.logits[0],
        hidden=torch.stack(hidden),
        experts=experts.to(torch.int32),
        expert_weights=weights,
        router_gap=gap,
        cache=out.past_key_values if use_cache else None,
    )


@dataclasses.dataclass
class Continuation:
    ids: list[int]
    margins: list[float]  # best minus second best logit
    logits: torch.Tensor  # [steps, vocab]: row s chose ids[s]
    min_router_gap: float


def reset_dynamic_rope(model) -> None:
    """Forgets the longest sequence seen, which transformers' dynamic NTK rope otherwise keeps between calls."""
    rope = model.model.rotary_emb
    if "dynamic" in getattr(rope, "rope_type", ""):
        rope.register_buffer("inv_freq", rope.original_inv_freq.clone(), persistent=False)
        rope.max_seq_len_cached = rope.original_max_seq_len


def greedy(model, prompt: list[int], steps: int, cached: bool = True, stop: tuple[int, ...] = ()) -> Continuation:
    """Greedy continuation: with the KV cache (what generate() does), or running the whole sequence every step."""
    reset_dynamic_rope(model)
    result = Continuation([], [], torch.empty(0), 1.0)
    rows = []
    trace = run(model, prompt, use_cache=cached)
    for step in range(steps):
        row = trace.logits[-1]
        best = row.topk(2).values
        token = int(row.argmax())
        rows.append(row)
        result.ids.append(token)
        result.margins.append(float(best[0] - best[1]))
        result.min_router_gap = min(result.min_router_gap, float(trace.router_gap.min()))
        if token in stop or step + 1 == steps:
            break
        if cached:
            trace = run(model, [token], cache=trace.cache, use_cache=True)
        else:
            trace = run(model, prompt + result.ids)
    result.logits = torch.stack(rows)
    return result
