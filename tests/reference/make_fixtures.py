"""Makes the tiny random-weight checkpoints under tests/data/models and their references, with transformers.

    python tests/reference/make_fixtures.py [--out tests/data/models] [--only NAME]

Every directory is what a hub checkpoint looks like: a config.json written by hand in the form that hub models have, and
safetensors with one tensor per expert matrix. The reference is computed from the files read back, not from the model in
memory. Each fixture also lists changes of its configuration that have to change the logits: a fixture that does not
notice that its sliding window is gone would prove nothing.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import shutil
import tempfile

import huggingface_hub
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

import fp8
import hf_reference
import mxfp4
import packed_int4
from fixture_families import changed, text_of
from fixture_list import FIXTURES, OWN_SEEDS

PROMPT_LENGTHS = (1, 7, 33, 70)
HIDDEN_FOR = (1, 3)  # prompts whose hidden states are recorded
STEPS = 16
MIN_MARGIN = 0.02  # between the best two logits at every greedy step
MIN_ROUTER_GAP = 2e-4  # probability, over all tokens of prompt and continuation
MIN_INDEX_GAP = 2e-5  # between the scores of the last position that an indexer chooses and the next one, likewise
MIN_DISTINCT = 6  # different ids in a greedy continuation
INDEXED_KINDS = ("deepseek_v32", "glm_moe_dsa")
LATENT_KINDS = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", *INDEXED_KINDS)
MIN_EFFECT = 0.05  # how much a listed configuration change must move some logit
# Tensors beside those of the text, which a reader has to leave alone.
NOT_TEXT = {"model.visual.patch_embed.proj.bias": (16,), "mtp.fc.weight": (8, 16)}


def dtype_of(config: dict) -> torch.dtype:
    config = text_of(config)
    return getattr(torch, config.get("torch_dtype") or config["dtype"])


def dtype_of_tensor(config: dict, name: str) -> torch.dtype:
    if name.endswith(("_blocks", "_scales")):
        return torch.uint8
    if (config.get("quantization_config") or {}).get("quant_method") in ("fp8", "compressed-tensors"):
        if name.endswith("_scale_inv"):
            return torch.float32
        if fp8.is_linear(name):
            return torch.float8_e4m3fn
    exact = ("e_score_correction_bias", "A_log")
    if config["model_type"] == "ernie4_5_moe":
        exact += ("mlp.gate.weight",)
    return torch.float32 if name.endswith(exact) else dtype_of(config)


def fill(model, generator: torch.Generator, sharpness: float) -> None:
    """Random weights at a scale where routing and logits are decisive, unlike initializer_range = 0.02.

    `sharpness` scales queries and keys: attention over a long context looks at few of its positions when it is large.
    """
    tied = model.config.tie_word_embeddings
    kind = model.config.model_type
    norms = ("norm_1.weight", "norm_2.weight", "norm_f.weight")  # DBRX has "norm" in the names of other parts too
    for name, weight in model.named_parameters():
        fan_in = weight.shape[-1]
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith("sinks"):
            # Of the size of the largest scores, so that a sink takes a fair share.
            weight.copy_(1.0 + noise)
        elif name.endswith("moe_statics.e_score_correction_bias"):
            weight.copy_(0.05 * noise)  # of the size of differences of probabilities
        elif name.endswith("bias"):
            weight.copy_(0.4 * noise)
        elif name.endswith("A_log"):
            # Some heads forget within a few tokens, others remember dozens.
            weight.copy_(torch.log(0.02 + torch.rand(weight.shape, generator=generator)))
        elif name.endswith(norms) if kind == "dbrx" else "norm" in name:
            weight.copy_(1.0 + 0.25 * noise)
            if tied and name == "model.norm.weight":
                # With random signs the logits do not favour the input token, which a tied embedding would repeat.
                weight.mul_(torch.where(torch.rand(weight.shape, generator=generator) < 0.5, -1.0, 1.0))
            if model.config.model_type in ("qwen3_next", "qwen3_5_moe_text") and "linear_attn" not in name:
                weight.sub_(1.0)  # what is stored is added to 1
        elif "embed_tokens" in name:
            weight.copy_(noise * (2.5 / fan_in**0.5 if tied else 1.0))
        elif "wte" in name:
            weight.copy_(0.5 + noise)  # with a mean, which a norm has to subtract
        else:
            gain = 1.0
            if "lm_head" in name:
                gain = 2.5
            elif name.endswith("shared_expert_gate.weight"):
                gain = 1.5
            elif name.endswith(("gate.weight", "router.weight", "router.layer.weight")):
                gain = 1.5
            elif "q_proj" in name or "k_proj" in name or "Wqkv" in name:
                gain = 1.3
            elif "q_b_proj" in name or "kv_a_proj" in name:
                gain = 1.5
            elif "down_proj" in name or name.endswith(("output_linear.weight", ".w2.weight", ".w2")):
                gain = 2.0
                if kind == "dbrx":
                    fan_in = model.config.ffn_config.ffn_hidden_size  # stored [experts * in, out]
            if model.config.model_type == "gpt_oss" and ".experts." in name:
                # Stored [in, out]; large enough that the activation is clamped now and then.
                fan_in = weight.shape[-2]
                gain = 2.5 if "gate_up" in name else 1.0
            weight.copy_(gain * noise / fan_in**0.5)
        if name.endswith(("q_norm.weight", "k_norm.weight", "q_proj.weight", "k_proj.weight")):
            weight.mul_(sharpness)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            # Of the size of the scores' differences, so that it decides many choices.
            buffer.copy_(0.25 * torch.randn(buffer.shape, generator=generator))


def dbrx_tensors(c) -> dict[str, tuple[int, ...]]:
    h, ffn, root = c.d_model, c.ffn_config, "transformer"
    out = {f"{root}.wte.weight": (c.vocab_size, h), f"{root}.norm_f.weight": (h,), "lm_head.weight": (c.vocab_size, h)}
    for i in range(c.n_layers):
        block = f"{root}.blocks.{i}"
        out[f"{block}.norm_attn_norm.norm_1.weight"] = out[f"{block}.norm_attn_norm.norm_2.weight"] = (h,)
        out[f"{block}.norm_attn_norm.attn.Wqkv.weight"] = (h + 2 * c.attn_config.kv_n_heads * (h // c.n_heads), h)
        out[f"{block}.norm_attn_norm.attn.out_proj.weight"] = (h, h)
        out[f"{block}.ffn.router.layer.weight"] = (ffn.moe_num_experts, h)
        for matrix in ("w1", "v1", "w2"):
            out[f"{block}.ffn.experts.mlp.{matrix}"] = (ffn.moe_num_experts * ffn.ffn_hidden_size, h)
    return out


def expected_tensors(config: dict, model) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the hub's layout, from the configuration alone (not from what transformers saved)."""
    c = model.config
    kind = config["model_type"]
    if kind == "dbrx":
        return dbrx_tensors(c)
    head_dim = text_of(config).get("head_dim") or c.hidden_size // c.num_attention_heads
    h, q, kv = c.hidden_size, c.num_attention_heads * head_dim, c.num_key_value_heads * head_dim
    root = "model.language_model" if kind == "qwen3_5_moe" else "model"
    out: dict[str, tuple[int, ...]] = {f"{root}.embed_tokens.weight": (c.vocab_size, h), f"{root}.norm.weight": (h,)}
    if kind == "qwen3_5_moe":
        out |= NOT_TEXT
    if not config.get("tie_word_embeddings", False):
        out["lm_head.weight"] = (c.vocab_size, h)

    def mlp(prefix: str, width: int) -> None:
        out[f"{prefix}.gate_proj.weight"] = out[f"{prefix}.up_proj.weight"] = (width, h)
        out[f"{prefix}.down_proj.weight"] = (h, width)

    for i in range(c.num_hidden_layers):
        layer = f"{root}.layers.{i}"
        out[f"{layer}.input_layernorm.weight"] = out[f"{layer}.post_attention_layernorm.weight"] = (h,)
        gated = kind in ("qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text")
        if gated and c.layer_types[i] == "linear_attention":
            keys, values = c.linear_num_key_heads * c.linear_key_head_dim, c.linear_num_value_heads * c.linear_value_head_dim
            heads, mixer = c.linear_num_value_heads, f"{layer}.linear_attn"
            if kind == "qwen3_next":
                projections = {"qkvz": 2 * keys + 2 * values, "ba": 2 * heads}
            else:
                projections = {"qkv": 2 * keys + values, "z": values, "b": heads, "a": heads}
            for name, rows in projections.items():
                out[f"{mixer}.in_proj_{name}.weight"] = (rows, h)
            out[f"{mixer}.conv1d.weight"] = (2 * keys + values, 1, c.linear_conv_kernel_dim)
            out[f"{mixer}.A_log"] = out[f"{mixer}.dt_bias"] = (heads,)
            out[f"{mixer}.norm.weight"] = (c.linear_value_head_dim,)
            out[f"{mixer}.out_proj.weight"] = (h, values)
        if kind in LATENT_KINDS:
            attention, heads = f"{layer}.self_attn", c.num_attention_heads
            queries = heads * (c.qk_nope_head_dim + c.qk_rope_head_dim)
            if c.q_lora_rank is None:
                out[f"{attention}.q_proj.weight"] = (queries, h)
            else:
                out[f"{attention}.q_a_proj.weight"] = (c.q_lora_rank, h)
                out[f"{attention}.q_a_layernorm.weight"] = (c.q_lora_rank,)
                out[f"{attention}.q_b_proj.weight"] = (queries, c.q_lora_rank)
            out[f"{attention}.kv_a_proj_with_mqa.weight"] = (c.kv_lora_rank + c.qk_rope_head_dim, h)
            out[f"{attention}.kv_a_layernorm.weight"] = (c.kv_lora_rank,)
            out[f"{attention}.kv_b_proj.weight"] = (heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank)
            out[f"{attention}.o_proj.weight"] = (h, heads * c.v_head_dim)
            if kind == "deepseek_v32" or (kind == "glm_moe_dsa" and c.indexer_types[i] == "full"):
                indexer, heads = f"{attention}.indexer", c.index_n_heads
                out[f"{indexer}.wq_b.weight"] = (heads * c.index_head_dim, c.q_lora_rank)
                out[f"{indexer}.wk.weight"] = (c.index_head_dim, h)
                out[f"{indexer}.k_norm.weight"] = out[f"{indexer}.k_norm.bias"] = (c.index_head_dim,)
                out[f"{indexer}.weights_proj.weight"] = (heads, h)
            types = config.get("mlp_layer_types")
            if types[i] == "dense" if types else i < getattr(c, "first_k_dense_replace", 1):
                mlp(f"{layer}.mlp", c.intermediate_size)
                continue
            out[f"{layer}.mlp.gate.weight"] = (c.n_routed_experts, h)
            if kind != "deepseek_v2":
                out[f"{layer}.mlp.gate.e_score_correction_bias"] = (c.n_routed_experts,)
            for e in range(c.n_routed_experts):
                mlp(f"{layer}.mlp.experts.{e}", c.moe_intermediate_size)
            mlp(f"{layer}.mlp.shared_experts", c.n_shared_experts * c.moe_intermediate_size)
            continue
        for name, shape in {"q": (q, h), "k": (kv, h), "v": (kv, h), "o": (h, q)}.items():
            if gated and c.layer_types[i] == "linear_attention":
                break
            if gated and name == "q":
                shape = (2 * q, h)
            out[f"{layer}.self_attn.{name}_proj.weight"] = shape
            with_bias = config.get("qkv_bias", True) if kind == "qwen2_moe" else config.get("attention_bias")
            if with_bias and (name != "o" or kind not in ("qwen2_moe", "glm4_moe")):
                out[f"{layer}.self_attn.{name}_proj.bias"] = shape[:1]
        if kind == "gpt_oss":
            out[f"{layer}.self_attn.sinks"] = (c.num_attention_heads,)
            out[f"{layer}.mlp.router.weight"] = (c.num_local_experts, h)
            out[f"{layer}.mlp.router.bias"] = (c.num_local_experts,)
            for matrix, rows, cols in (("gate_up", 2 * c.intermediate_size, h), ("down", h, c.intermediate_size)):
                name = f"{layer}.mlp.experts.{matrix}_proj"
                out[f"{name}_bias"] = (c.num_local_experts, rows)
                if "quantization_config" in config:
                    out[f"{name}_blocks"] = (c.num_local_experts, rows, cols // 32, 16)
                    out[f"{name}_scales"] = (c.num_local_experts, rows, cols // 32)
                else:
                    out[name] = (c.num_local_experts, cols, rows)
            continue
        full = gated and c.layer_types[i] == "full_attention"
        if kind == "qwen3_moe" or full or (kind == "glm4_moe" and config.get("use_qk_norm")):
            out[f"{layer}.self_attn.q_norm.weight"] = out[f"{layer}.self_attn.k_norm.weight"] = (head_dim,)
        if kind in ("olmoe", "minimax_m2"):
            out[f"{layer}.self_attn.q_norm.weight"] = (q,)
            out[f"{layer}.self_attn.k_norm.weight"] = (kv,)
        if kind in ("granitemoe", "granitemoeshared"):
            moe, width = f"{layer}.block_sparse_moe", c.intermediate_size
            out[f"{moe}.router.layer.weight"] = (c.num_local_experts, h)
            out[f"{moe}.input_linear.weight"] = (c.num_local_experts, 2 * width, h)
            out[f"{moe}.output_linear.weight"] = (c.num_local_experts, h, width)
            if kind == "granitemoeshared":
                out[f"{layer}.shared_mlp.input_linear.weight"] = (2 * c.shared_intermediate_size, h)
                out[f"{layer}.shared_mlp.output_linear.weight"] = (h, c.shared_intermediate_size)
            continue
        if kind == "arctic":
            moe, width = f"{layer}.block_sparse_moe", c.intermediate_size
            prefixes = {f"{moe}.mlp": width}
            if (i + 1) % c.moe_layer_frequency == 0:
                prefixes = {f"{moe}.experts.{e}": width for e in range(c.num_local_experts)} | {f"{layer}.residual_mlp": h}
                out[f"{moe}.gate.weight"] = (c.num_local_experts, h)
                out[f"{layer}.residual_layernorm.weight"] = (h,)
            for prefix, rows in prefixes.items():
                out[f"{prefix}.w1.weight"] = out[f"{prefix}.w3.weight"] = (rows, h)
                out[f"{prefix}.w2.weight"] = (h, rows)
            continue
        if kind in ("mixtral", "minimax_m2"):
            out[f"{layer}.block_sparse_moe.gate.weight"] = (c.num_local_experts, h)
            if kind == "minimax_m2":
                out[f"{layer}.block_sparse_moe.e_score_correction_bias"] = (c.num_local_experts,)
            for e in range(c.num_local_experts):
                expert = f"{layer}.block_sparse_moe.experts.{e}"
                out[f"{expert}.w1.weight"] = out[f"{expert}.w3.weight"] = (c.intermediate_size, h)
                out[f"{expert}.w2.weight"] = (h, c.intermediate_size)
            continue
        if kind == "glm4_moe":
            if i < c.first_k_dense_replace:
                mlp(f"{layer}.mlp", c.intermediate_size)
                continue
            out[f"{layer}.mlp.gate.weight"] = (c.n_routed_experts, h)
            out[f"{layer}.mlp.gate.e_score_correction_bias"] = (c.n_routed_experts,)
            for e in range(c.n_routed_experts):
                mlp(f"{layer}.mlp.experts.{e}", c.moe_intermediate_size)
            mlp(f"{layer}.mlp.shared_experts", c.n_shared_experts * c.moe_intermediate_size)
            continue
        if kind == "ernie4_5_moe":
            end = c.moe_layer_end_index if c.moe_layer_end_index >= 0 else c.num_hidden_layers - 1
            if not (c.moe_layer_start_index <= i <= end and (i + 1) % c.moe_layer_interval == 0):
                mlp(f"{layer}.mlp", c.intermediate_size)
                continue
            out[f"{layer}.mlp.gate.weight"] = (c.moe_num_experts, h)
            out[f"{layer}.mlp.moe_statics.e_score_correction_bias"] = (1, c.moe_num_experts)
            for e in range(c.moe_num_experts):
                mlp(f"{layer}.mlp.experts.{e}", c.moe_intermediate_size)
            if c.moe_num_shared_experts > 0:
                mlp(f"{layer}.mlp.shared_experts", c.moe_num_shared_experts * c.moe_intermediate_size)
            continue
        if kind == "qwen3_5_moe":
            width = c.moe_intermediate_size
            out[f"{layer}.mlp.gate.weight"] = (c.num_experts, h)
            out[f"{layer}.mlp.experts.gate_up_proj"] = (c.num_experts, 2 * width, h)
            out[f"{layer}.mlp.experts.down_proj"] = (c.num_experts, h, width)
            mlp(f"{layer}.mlp.shared_expert", c.shared_expert_intermediate_size)
            out[f"{layer}.mlp.shared_expert_gate.weight"] = (1, h)
            continue
        step = config.get("decoder_sparse_step", 1)
        if i in config.get("mlp_only_layers", []) or (i + 1) % step:
            mlp(f"{layer}.mlp", c.intermediate_size)
            continue
        out[f"{layer}.mlp.gate.weight"] = (c.num_experts, h)
        for e in range(c.num_experts):
            mlp(f"{layer}.mlp.experts.{e}", config.get("moe_intermediate_size") or c.intermediate_size)
        if kind in ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text"):
            mlp(f"{layer}.mlp.shared_expert", c.shared_expert_intermediate_size)
            out[f"{layer}.mlp.shared_expert_gate.weight"] = (1, h)
    return out


def write_checkpoint(directory: pathlib.Path, config: dict, shard_bytes: int | None, seed: int, sharpness: float = 1.0) -> None:
    directory.mkdir(parents=True)
    if packed_int4.is_packed(config):
        with tempfile.TemporaryDirectory() as scratch:
            plain = pathlib.Path(scratch) / "model"
            write_checkpoint(plain, packed_int4.plain_config(config), None, seed, sharpness)
            packed_int4.pack_checkpoint(plain, directory, config, shard_bytes)
        return
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    hf_config = transformers.AutoConfig.from_pretrained(str(directory))
    if "quantization_config" in config:
        del hf_config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(hf_config, dtype=torch.float32)
    fill(model, torch.Generator().manual_seed(seed), sharpness)
    with tempfile.TemporaryDirectory() as scratch:
        # The default of save_pretrained writes the hub's layout; config.json stays ours.
        kept = {n: b.clone() for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")}
        decays = {n: p.detach().clone() for n, p in model.named_parameters() if n.endswith("A_log")}
        ernie = config["model_type"] == "ernie4_5_moe"
        exact = {
            n: p.detach().clone() for n, p in model.named_parameters()
            if ernie and n.endswith(("mlp.gate.weight", "e_score_correction_bias"))
        }
        model.to(dtype_of(config))
        for name, value in exact.items():
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, torch.nn.Parameter(value, requires_grad=False))
        for name, decay in decays.items():
            model.get_submodule(name.rpartition(".")[0]).A_log = torch.nn.Parameter(decay)
        for name, buffer in kept.items():
            model.get_submodule(name.rpartition(".")[0]).e_score_correction_bias = torch.nn.Buffer(buffer)
        if config["model_type"] == "qwen3_5_moe":
            save_as_stacked(model, pathlib.Path(scratch), shard_bytes)
        else:
            model.save_pretrained(scratch, max_shard_size=shard_bytes or "1GB")
        for path in pathlib.Path(scratch).glob("model*"):
            shutil.copy(path, directory / path.name)
    if "quantization_config" in config:
        (mxfp4 if mxfp4.is_quantised(directory) else fp8).quantise_checkpoint(directory)
    verify_layout(directory, config, shard_bytes, model)


def save_as_stacked(model, directory: pathlib.Path, shard_bytes: int | None) -> None:
    """As the hub has it: the names of the model that also sees, experts as they are in memory; transformers would
    write a tensor for each expert."""
    tensors = {n: torch.full(shape, 0.5, dtype=next(model.parameters()).dtype) for n, shape in NOT_TEXT.items()}
    for name, parameter in model.named_parameters():
        tensors[re.sub(r"^model\.", "model.language_model.", name)] = parameter.detach().contiguous()
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    split = huggingface_hub.split_torch_state_dict_into_shards(tensors, max_shard_size=shard_bytes or "1GB")
    for file, names in split.filename_to_tensors.items():
        save_file({n: tensors[n] for n in names}, directory / file, {"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def verify_layout(directory: pathlib.Path, config: dict, shard_bytes: int | None, model) -> None:
    found, files = {}, sorted(directory.glob("*.safetensors"))
    for path in files:
        with safe_open(path, "pt") as file:
            for name in file.keys():
                tensor = file.get_tensor(name)
                assert tensor.dtype == dtype_of_tensor(config, name), (name, tensor.dtype)
                found[name] = (tuple(tensor.shape), path.name)
    expected = expected_tensors(config, model)
    if fp8.is_quantised(directory):
        expected |= fp8.scales_of(directory, expected)
    assert {n: s for n, (s, _) in found.items()} == expected, (
        sorted(set(found) ^ set(expected)), [n for n in set(found) & set(expected) if found[n][0] != expected[n]]
    )
    index = directory / "model.safetensors.index.json"
    assert index.exists() == (shard_bytes is not None) == (len(files) > 1)
    if index.exists():
        assert json.loads(index.read_text())["weight_map"] == {n: f for n, (_, f) in found.items()}
    stacked = ("gpt_oss", "qwen3_5_moe", "granitemoe", "granitemoeshared", "dbrx", "arctic")
    if config["model_type"] in stacked or fp8.is_quantised(directory):
        return  # in the file as in memory, or rounded after it was written
    # The fused tensor in memory is [gate; up]: check one expert against the file, bit for bit.
    layer = hf_reference.sparse_layers(model)[0]
    gate, up = ("w1", "w3") if config["model_type"] in ("mixtral", "minimax_m2") else ("gate_proj", "up_proj")
    fused = model.model.layers[layer].mlp.experts.gate_up_proj[1]
    parts = []
    for part in (gate, up):
        name = next(n for n in found if re.search(rf"layers\.{layer}\..*experts\.1\.{part}\.weight", n))
        with safe_open(directory / found[name][1], "pt") as file:
            parts.append(file.get_tensor(name))
    assert torch.equal(fused, torch.cat(parts)), "gate and up are not where they should be"


def choose_prompt(model, length: int, vocab: int, seed: int, dynamic: bool):
    """Random ids whose routing and continuation have no near-ties, so that a test needs no exceptions for float32.

    Returns the ids, their trace, the continuation, and the ids of the continuation made without a KV cache.
    """
    for attempt in range(5000):
        generator = torch.Generator().manual_seed(seed * 10007 + attempt)
        ids = torch.randint(0, vocab, (length,), generator=generator).tolist()
        hf_reference.reset_dynamic_rope(model)
        trace = hf_reference.run(model, ids)
        if trace.router_gap.min() < MIN_ROUTER_GAP or trace.index_gap < MIN_INDEX_GAP:
            continue
        continuation = hf_reference.greedy(model, ids, STEPS)
        if min(continuation.margins) < MIN_MARGIN or continuation.min_router_gap < MIN_ROUTER_GAP:
            continue
        if continuation.min_index_gap < MIN_INDEX_GAP:
            continue
        if len(set(continuation.ids)) < MIN_DISTINCT:
            continue
        recomputed = hf_reference.greedy(model, ids, STEPS, cached=False).ids
        # With dynamic rope the cached keys keep the rotation of the step that made them: take a prompt where that shows.
        if (recomputed == continuation.ids) == (dynamic and length > model.config.max_position_embeddings):
            continue
        return ids, trace, continuation, recomputed
    raise RuntimeError(f"no prompt of {length} tokens without near-ties")


def stepwise_logits(model, ids: list[int]) -> torch.Tensor:
    """[tokens, vocab] of tokens that come one by one, each with the dynamic rope of the length until then."""
    hf_reference.reset_dynamic_rope(model)
    rows, cache = [], None
    for token in ids:
        trace = hf_reference.run(model, [token], cache=cache, use_cache=True)
        rows.append(trace.logits[-1])
        cache = trace.cache
    return torch.stack(rows)


def write_reference(directory: pathlib.Path, seed: int) -> list[list[int]]:
    model = hf_reference.load_model(directory)
    dynamic = "dynamic" in getattr(hf_reference.body_of(model).rotary_emb, "rope_type", "")
    tensors: dict[str, torch.Tensor] = {
        "sparse_layers": torch.tensor(hf_reference.sparse_layers(model), dtype=torch.int32)
    }
    prompts = []
    for number, length in enumerate(PROMPT_LENGTHS):
        ids, trace, continuation, recomputed = choose_prompt(
            model, length, model.config.vocab_size, seed * 16 + number, dynamic
        )
        name = f"{number:02d}"
        tensors[f"{name}.logits"] = trace.logits
        tensors[f"{name}.argmax"] = trace.logits.argmax(-1).to(torch.int32)
        tensors[f"{name}.logsumexp"] = trace.logits.logsumexp(-1)
        tensors[f"{name}.experts"] = trace.experts
        tensors[f"{name}.expert_weights"] = trace.expert_weights
        tensors[f"{name}.router_gap"] = trace.router_gap
        tensors[f"{name}.greedy_logits"] = continuation.logits
        if dynamic and length > model.config.max_position_embeddings:
            tensors[f"{name}.stepwise_logits"] = stepwise_logits(model, ids)
        if number in HIDDEN_FOR:
            tensors[f"{name}.hidden"] = trace.hidden
        entry = {
            "id": number,
            "domain": "random_ids",
            "prompt_ids": ids,
            "greedy_ids": continuation.ids,
            "greedy_margin": [round(m, 4) for m in continuation.margins],
        }
        if dynamic:
            entry["greedy_ids_without_kv_cache"] = recomputed
        prompts.append(entry)
    reference = directory / "reference"
    reference.mkdir()
    lines = ",\n".join(" " + json.dumps(p) for p in prompts)
    (reference / "prompts.json").write_text(f"[\n{lines}\n]\n")
    about = (
        "per prompt NN: NN.logits [tokens, vocab] f32, NN.argmax [tokens] i32, NN.logsumexp [tokens] f32, "
        "NN.experts [sparse layers, tokens, top_k] i32 sorted by router probability, NN.expert_weights (as applied) "
        "f32, NN.router_gap [sparse layers, tokens] f32 (k-th minus (k+1)-th probability), NN.greedy_logits "
        "[steps, vocab] f32 (row s chose greedy_ids[s]), NN.hidden [layers + 1, tokens, hidden] f32 (embedding, then "
        "after each layer, before the final norm); sparse_layers i32: the layer numbers of those rows; computed in "
        f"float32 from the rounded weights by transformers {transformers.__version__}"
    )
    save_file({k: v.contiguous() for k, v in tensors.items()}, reference / "logits.safetensors", {"about": about})
    return [p["prompt_ids"] for p in prompts]


def report(directory: pathlib.Path, config: dict, effects: list[dict], prompts: list[list[int]]) -> None:
    model = hf_reference.load_model(directory)
    hf_reference.reset_dynamic_rope(model)
    trace = hf_reference.run(model, prompts[-1])
    usage = torch.bincount(trace.experts.flatten(), minlength=1)
    # float64 weights and activations (RMSNorm and softmax stay float32 inside): how much float32 rounding matters.
    double = hf_reference.load_model(directory, torch.float64)
    noise = float((hf_reference.run(double, prompts[-1]).logits - trace.logits).abs().max())
    print(
        f"{directory.name}: logits std {trace.logits.std():.2f}, top expert weight median "
        f"{trace.expert_weights[..., 0].median():.2f}, experts used {int((usage > 0).sum())}, "
        f"float32 noise {noise:.1e}, "
        f"{sum(f.stat().st_size for f in directory.rglob('*') if f.is_file()) / 1e3:.0f} kB"
    )
    for change in effects:
        with tempfile.TemporaryDirectory() as scratch:
            copy = pathlib.Path(scratch) / "model"
            shutil.copytree(directory, copy)
            (copy / "config.json").write_text(json.dumps(changed(config, change)))
            other = hf_reference.run(hf_reference.load_model(copy), prompts[-1])
            effect = float((other.logits - trace.logits).abs().max())
            print(f"    {json.dumps(change)}: logits move by {effect:.2f}")
            assert effect > MIN_EFFECT, f"{directory.name} does not notice {change}"


def main() -> None:
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/data/models")
    parser.add_argument("--only", choices=sorted(FIXTURES), nargs="+")
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    for seed, (name, (config, shard_bytes, effects)) in enumerate(FIXTURES.items(), start=1):
        if arguments.only and name not in arguments.only:
            continue
        seed = OWN_SEEDS.get(name, seed)
        directory = arguments.out / name
        if directory.exists():
            shutil.rmtree(directory)
        write_checkpoint(directory, config, shard_bytes, seed)
        prompts = write_reference(directory, seed)
        report(directory, config, effects, prompts)


if __name__ == "__main__":
    main()
