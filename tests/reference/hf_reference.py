"""Runs a checkpoint through Hugging Face transformers and records what our forward pass must reproduce.

Weights keep the values of the checkpoint's type, everything is computed in float32 on the CPU with eager attention.
Works with transformers 4.5x (one module per expert) and 5.x (fused experts): two code bases for the same models.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile

import torch
import transformers

import arctic  # noqa: F401  (transformers learns of it)
import fp8
import mxfp4
import packed_int4

torch.set_num_threads(1)  # one summation order, so that regenerating gives the same bits on the same machine
torch.set_grad_enabled(False)


@dataclasses.dataclass
class Trace:
    """What one forward pass over `tokens` ids did. Layers of the router tensors: the sparse ones only, in order."""

    logits: torch.Tensor  # [tokens, vocab] f32
    hidden: torch.Tensor  # [layers + 1, tokens, hidden] f32: embedding, then the residual stream after each layer
    experts: torch.Tensor  # [sparse_layers, tokens, top_k] i32, by falling probability or corrected score
    expert_weights: torch.Tensor  # [sparse_layers, tokens, top_k] f32, as multiplied into the expert outputs
    router_gap: torch.Tensor  # [sparse_layers, tokens] f32: k-th minus (k+1)-th of these
    index_gap: float = 1.0  # the least of the same of positions that indexers choose; 1: all are
    cache: object | None = None


def load_model(directory: pathlib.Path, dtype: torch.dtype = torch.float32):
    """Loads a checkpoint and fails when transformers did not find every tensor, or found one too many.

    Of an mxfp4, packed int4 or fp8 checkpoint the dequantised values: transformers' own kernels want a GPU."""
    for form in (mxfp4, packed_int4, fp8):
        if not form.is_quantised(directory):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            plain = pathlib.Path(scratch) / "model"
            form.dequantise_checkpoint(directory, plain)
            return load_model(plain, dtype)
    kwargs = {"attn_implementation": "eager", "output_loading_info": True, "torch_dtype": dtype}
    if int(transformers.__version__.split(".")[0]) >= 5:
        kwargs["dtype"] = kwargs.pop("torch_dtype")
        kwargs["experts_implementation"] = "eager"
    model, info = transformers.AutoModelForCausalLM.from_pretrained(str(directory), **kwargs)
    problems = {k: v for k, v in info.items() if k != "error_msgs" and v}
    if problems or info.get("error_msgs"):
        raise RuntimeError(f"{directory}: loading was not clean: {info}")
    return model.eval()


def body_of(model):
    return model.transformer if model.config.model_type == "dbrx" else model.model


def layers_of(model):
    return body_of(model).blocks if model.config.model_type == "dbrx" else body_of(model).layers


def embedding_of(model):
    return body_of(model).wte if model.config.model_type == "dbrx" else body_of(model).embed_tokens


def mlp_of(layer):
    return next(getattr(layer, name) for name in ("mlp", "ffn", "block_sparse_moe") if hasattr(layer, name))


def sparse_layers(model) -> list[int]:
    """Layer numbers whose MLP is a mixture of experts."""
    return [i for i, layer in enumerate(layers_of(model)) if hasattr(mlp_of(layer), "experts")]


def correction_of(mlp):
    """The bias of the choice, which is the router's or the MLP's; None without one."""
    gate = getattr(mlp, "gate", None)
    for owner in (gate, mlp, getattr(gate, "moe_statics", None)):
        if hasattr(owner, "e_score_correction_bias"):
            return owner.e_score_correction_bias
    return None


def _normalises(config) -> bool:
    if config.model_type == "dbrx":
        return config.ffn_config.moe_normalize_expert_weights is not None
    return config.model_type in ("mixtral", "minimax_m2", "qwen3_5_moe_text", "arctic") or bool(config.norm_topk_prob)


def _softmax_routing(logits: torch.Tensor, config) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Experts of a layer by falling probability, their weights, and the gap to the next expert, and to the next group
    where the best groups are chosen by their best experts (deepseek_v2)."""
    k = config.ffn_config.moe_top_k if config.model_type == "dbrx" else config.num_experts_per_tok
    probabilities = logits.softmax(-1)
    group_gap = torch.ones_like(probabilities[..., 0])
    if getattr(config, "topk_method", None) == "group_limited_greedy":
        groups, kept = config.n_group, config.topk_group
        worth = probabilities.unflatten(-1, (groups, -1)).amax(-1)
        best = worth.topk(kept + 1, dim=-1)
        group_gap = best.values[..., kept - 1] - best.values[..., kept]
        outside = torch.ones_like(worth, dtype=torch.bool).scatter(-1, best.indices[..., :kept], False)
        probabilities = probabilities.unflatten(-1, (groups, -1)).masked_fill(outside.unsqueeze(-1), 0.0).flatten(-2)
    top = probabilities.topk(k + 1 if k < probabilities.shape[-1] else k, dim=-1)
    weights, experts = top.values[..., :k], top.indices[..., :k]
    if _normalises(config):
        weights = weights / weights.sum(-1, keepdim=True)
    gap = (
        top.values[..., k - 1] - top.values[..., k]
        if top.values.shape[-1] > k
        else torch.ones_like(top.values[..., 0])
    )
    scale = config.routed_scaling_factor if config.model_type == "deepseek_v2" else 1.0
    return experts, weights * scale, torch.minimum(gap, group_gap)


def _sigmoid_routing(logits: torch.Tensor, bias: torch.Tensor, config) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same for sigmoid scores with a correction of the choice and groups (glm4_moe, minimax_m2): experts by falling
    corrected score, which transformers leaves in any order; the gap is the least of those between groups, too."""
    k, groups, kept = config.num_experts_per_tok, getattr(config, "n_group", 1), getattr(config, "topk_group", 1)
    scores = logits.sigmoid()
    choice = scores + bias
    worth = choice.unflatten(-1, (groups, -1)).topk(2, dim=-1).values.sum(-1)
    best = worth.topk(min(kept + 1, groups), dim=-1)
    outside = torch.ones_like(worth, dtype=torch.bool).scatter(-1, best.indices[..., :kept], False)
    choice = choice.unflatten(-1, (groups, -1)).masked_fill(outside.unsqueeze(-1), float("-inf")).flatten(-2)
    top = choice.topk(k + 1, dim=-1)
    experts = top.indices[..., :k]
    weights = scores.gather(-1, experts)
    if _normalises(config):
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    gap = top.values[..., k - 1] - top.values[..., k]
    if kept < groups:
        gap = torch.minimum(gap, best.values[..., kept - 1] - best.values[..., kept])
    return experts, weights * getattr(config, "routed_scaling_factor", 1.0), gap


def _corrected_softmax_routing(logits: torch.Tensor, bias: torch.Tensor, config) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same for probabilities with a correction of the choice (ernie4_5_moe), by falling corrected probability."""
    k = config.moe_k
    scores = logits.softmax(-1)
    top = (scores + bias.flatten()).topk(k + 1, dim=-1)
    experts = top.indices[..., :k]
    weights = scores.gather(-1, experts)
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=config.moe_norm_min)
    return experts, weights, top.values[..., k - 1] - top.values[..., k]


def _logit_routing(logits: torch.Tensor, config) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same for experts chosen by their logits, with the softmax of those chosen as weights (gpt_oss, granitemoe)."""
    k = config.num_experts_per_tok
    top = logits.topk(k + 1, dim=-1)
    return top.indices[..., :k], top.values[..., :k].softmax(-1), top.values[..., k - 1] - top.values[..., k]


def chooses_with_scores(model) -> bool:
    """Families whose gate returns what it chose, in any order, and whose models do not pass on its logits, or which are
    not asked for them."""
    return model.config.model_type in (
        "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "deepseek_v2", "deepseek_v3", "deepseek_v32", "granitemoe",
        "granitemoeshared", "dbrx", "arctic")


class IndexGaps(torch.overrides.TorchFunctionMode):
    """While an indexer chooses positions: how far the last chosen score is above the best that is not."""

    def __init__(self, gaps: list[float]):
        super().__init__()
        self.gaps = gaps

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.topk and args[1] < args[0].shape[-1]:
            top = torch.topk(args[0], args[1] + 1, dim=-1).values[..., -2:]
            top = top[top[..., 1] > -1e30]  # of tokens that see more positions than are chosen
            self.gaps += (top[:, 0] - top[:, 1]).tolist()
        return function(*args, **(kwargs or {}))


def run(model, ids: list[int], cache=None, use_cache: bool = False) -> Trace:
    """One forward pass. With `cache` it continues the sequence that the cache holds."""
    hidden, chosen, handles, index_gaps = [], [], [], []

    def watch(indexer):
        choose = indexer.forward

        def forward(*args, **kwargs):
            with IndexGaps(index_gaps):
                return choose(*args, **kwargs)

        indexer.forward = forward
        return choose

    def keep(_module, _inputs, output):
        hidden.append((output[0] if isinstance(output, tuple) else output)[0].clone())

    def keep_choice(_module, _inputs, output):
        if isinstance(output, tuple):  # 5.x: (logits, weights, indices); in 4.x the gate is a plain Linear
            chosen.append(output)
        elif model.config.model_type == "dbrx":  # logits; weights and indices follow
            chosen.append((output,))

    def keep_given(_module, inputs):
        _, indices, weights = inputs
        chosen[-1] += (weights, indices)

    handles.append(embedding_of(model).register_forward_hook(keep))
    for layer in layers_of(model):
        handles.append(layer.register_forward_hook(keep))
        mlp = mlp_of(layer)
        if hasattr(mlp, "experts"):
            router = mlp.gate if hasattr(mlp, "gate") else mlp.router
            handles.append(router.register_forward_hook(keep_choice))
            if model.config.model_type == "dbrx":
                handles.append(mlp.experts.register_forward_pre_hook(keep_given))
    indexers = [
        getattr(layer.self_attn, "indexer", None) for layer in layers_of(model) if hasattr(layer, "self_attn")
    ]
    watched = [(indexer, watch(indexer)) for indexer in indexers if indexer is not None]
    try:
        out = model(
            input_ids=torch.tensor([ids]),
            past_key_values=cache,
            use_cache=use_cache,
            **({"output_router_logits": True} if not chooses_with_scores(model) else {}),
        )
    finally:
        for handle in handles:
            handle.remove()
        for indexer, _ in watched:
            del indexer.forward  # the class's again

    hidden[0] = hidden[0] * getattr(model.config, "embedding_multiplier", 1.0)
    corrected = [correction_of(mlp_of(layer)) for layer in layers_of(model)]
    corrected = [bias for bias in corrected if bias is not None]
    if model.config.model_type == "ernie4_5_moe":
        routing = [
            _corrected_softmax_routing(c[0].reshape(len(ids), -1).float(), bias, model.config)
            for c, bias in zip(chosen, corrected, strict=True)
        ]
    elif model.config.model_type in ("gpt_oss", "granitemoe", "granitemoeshared"):
        routing = [_logit_routing(c[0].reshape(len(ids), -1).float(), model.config) for c in chosen]
    elif corrected:
        routing = [
            _sigmoid_routing(c[0].reshape(len(ids), -1).float(), bias, model.config)
            for c, bias in zip(chosen, corrected, strict=True)
        ]
    elif chooses_with_scores(model):
        routing = [_softmax_routing(c[0].reshape(len(ids), -1).float(), model.config) for c in chosen]
    else:
        routing = [_softmax_routing(r.reshape(len(ids), -1).float(), model.config) for r in out.router_logits]
    experts, weights, gap = (torch.stack(parts) for parts in zip(*routing))
    if chosen:  # what the model really used, not what we derived from its router logits
        used, shares = (torch.stack([c[i] for c in chosen]) for i in (2, 1))
        if corrected or chooses_with_scores(model):  # in any order
            used, order = used.sort(-1)
            derived, derived_order = experts.sort(-1)
            shares = shares.gather(-1, order)
            derived_shares = weights.gather(-1, derived_order)
        else:
            derived, derived_shares = experts, weights
        assert torch.equal(derived, used), "derived routing differs"
        torch.testing.assert_close(derived_shares, shares.float(), rtol=1e-6, atol=1e-7)
    return Trace(
        logits=out.logits[0],
        hidden=torch.stack(hidden),
        experts=experts.to(torch.int32),
        expert_weights=weights * getattr(model.config, "residual_multiplier", 1.0),
        router_gap=gap,
        index_gap=min(index_gaps, default=1.0),
        cache=out.past_key_values if use_cache else None,
    )


@dataclasses.dataclass
class Continuation:
    ids: list[int]
    margins: list[float]  # best minus second best logit
    logits: torch.Tensor  # [steps, vocab]: row s chose ids[s]
    min_router_gap: float
    min_index_gap: float


def reset_dynamic_rope(model) -> None:
    """Forgets the longest sequence seen, which transformers' dynamic NTK rope otherwise keeps between calls."""
    rope = body_of(model).rotary_emb
    if "dynamic" in getattr(rope, "rope_type", ""):
        rope.register_buffer("inv_freq", rope.original_inv_freq.clone(), persistent=False)
        rope.max_seq_len_cached = rope.original_max_seq_len


def greedy(model, prompt: list[int], steps: int, cached: bool = True, stop: tuple[int, ...] = ()) -> Continuation:
    """Greedy continuation: with the KV cache (what generate() does), or running the whole sequence every step."""
    reset_dynamic_rope(model)
    result = Continuation([], [], torch.empty(0), 1.0, 1.0)
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
        result.min_index_gap = min(result.min_index_gap, trace.index_gap)
        if token in stop or step + 1 == steps:
            break
        if cached:
            trace = run(model, [token], cache=trace.cache, use_cache=True)
        else:
            trace = run(model, prompt + result.ids)
    result.logits = torch.stack(rows)
    return result
