"""Makes the files of tests/data/gguf/models whose architectures are granitemoe, dbrx and arctic, of the checkpoints of
these names.

    pip install gguf==0.19.0 safetensors torch && python tests/reference/make_gguf_families.py

Metadata and tensors are what llama.cpp's converter (conversion/granite.py, dbrx.py, arctic.py) writes: rows of queries and
keys of granitemoe and arctic turned from halves to pairs, DBRX's down matrices transposed. The fixtures have no tokenizer.
Matrices of bf16 checkpoints are BF16, all else is F32.
"""

from __future__ import annotations

import json
import pathlib

import gguf
import numpy as np

from make_gguf_delta_net import convert, tensors_of
from make_gguf_fixtures import write

NAMES = ("granitemoe_bf16", "granitemoe_shared_bf16", "dbrx_bf16_clip", "arctic_bf16")
COMMON = {
    "input_layernorm": "attn_norm", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "block_sparse_moe.gate": "ffn_gate_inp", "block_sparse_moe.router.layer": "ffn_gate_inp",
}


class Converted:
    def __init__(self, directory: pathlib.Path, out: pathlib.Path):
        self.config = json.loads((directory / "config.json").read_text())
        self.kind = self.config["model_type"].removesuffix("shared")
        self.tensors = tensors_of(directory)
        self.writer = gguf.GGUFWriter(out, self.kind)

    def add(self, name: str, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values, dtype=np.float32)
        if values.ndim >= 2 and "ffn_gate_inp" not in name:
            kind = gguf.GGMLQuantizationType.BF16
            self.writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            self.writer.add_tensor(name, values)

    def sizes(self, layers: int, hidden: int, context: int, heads: int, kv_heads: int, width: int) -> None:
        w = self.writer
        w.add_block_count(layers)
        w.add_context_length(context)
        w.add_embedding_length(hidden)
        w.add_feed_forward_length(width)
        w.add_head_count(heads)
        w.add_head_count_kv(kv_heads)

    def like_llama(self) -> None:
        """Metadata and tensors of granitemoe and arctic, all but those of their layers' MLPs."""
        c, w, t = self.config, self.writer, self.tensors
        self.sizes(
            c["num_hidden_layers"], c["hidden_size"], c["max_position_embeddings"], c["num_attention_heads"],
            c["num_key_value_heads"], c["intermediate_size"],
        )
        w.add_rope_freq_base(c["rope_theta"])
        w.add_rope_dimension_count(c["hidden_size"] // c["num_attention_heads"])
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
        w.add_vocab_size(c["vocab_size"])
        w.add_expert_count(c["num_local_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        self.add("token_embd.weight", t["model.embed_tokens.weight"])
        self.add("output_norm.weight", t["model.norm.weight"])
        if "lm_head.weight" in t:
            self.add("output.weight", t["lm_head.weight"])
        for i in range(c["num_hidden_layers"]):
            layer, blk = f"model.layers.{i}.", f"blk.{i}."
            for theirs, ours in COMMON.items():
                if f"{layer}{theirs}.weight" in t:
                    self.add(f"{blk}{ours}.weight", t[f"{layer}{theirs}.weight"])
            for name, heads in (("q", c["num_attention_heads"]), ("k", c["num_key_value_heads"])):
                rows = t[f"{layer}self_attn.{name}_proj.weight"]
                pairs = rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)
                self.add(f"{blk}attn_{name}.weight", pairs)

    def granitemoe(self) -> None:
        c, t = self.config, self.tensors
        self.like_llama()
        self.writer.add_attention_scale(c["attention_multiplier"])
        self.writer.add_embedding_scale(c["embedding_multiplier"])
        self.writer.add_residual_scale(c["residual_multiplier"])
        self.writer.add_logit_scale(c["logits_scaling"])
        shared = c.get("shared_intermediate_size", 0)
        if shared:
            self.writer.add_expert_shared_feed_forward_length(shared)
        for i in range(c["num_hidden_layers"]):
            layer, blk = f"model.layers.{i}.", f"blk.{i}."
            self.add(f"{blk}ffn_norm.weight", t[f"{layer}post_attention_layernorm.weight"])
            for prefix, suffix in ((f"{layer}block_sparse_moe.", "exps"), (f"{layer}shared_mlp.", "shexp")):
                if f"{prefix}input_linear.weight" not in t:
                    continue
                gate, up = np.split(t[f"{prefix}input_linear.weight"], 2, axis=-2)
                self.add(f"{blk}ffn_gate_{suffix}.weight", gate)
                self.add(f"{blk}ffn_up_{suffix}.weight", up)
                self.add(f"{blk}ffn_down_{suffix}.weight", t[f"{prefix}output_linear.weight"])

    def arctic(self) -> None:
        c, t = self.config, self.tensors
        self.like_llama()
        matrices = (("gate", "w1"), ("up", "w3"), ("down", "w2"))
        for i in range(c["num_hidden_layers"]):
            layer, blk = f"model.layers.{i}.", f"blk.{i}."
            self.add(f"{blk}ffn_norm.weight", t[f"{layer}residual_layernorm.weight"])
            self.add(f"{blk}ffn_norm_exps.weight", t[f"{layer}post_attention_layernorm.weight"])
            for ours, theirs in matrices:
                self.add(f"{blk}ffn_{ours}.weight", t[f"{layer}residual_mlp.{theirs}.weight"])
                experts = [
                    t[f"{layer}block_sparse_moe.experts.{e}.{theirs}.weight"] for e in range(c["num_local_experts"])
                ]
                self.add(f"{blk}ffn_{ours}_exps.weight", np.stack(experts))

    def dbrx(self) -> None:
        c, w, t = self.config, self.writer, self.tensors
        attention, ffn = c["attn_config"], c["ffn_config"]
        self.sizes(
            c["n_layers"], c["d_model"], c["max_seq_len"], c["n_heads"], attention["kv_n_heads"], ffn["ffn_hidden_size"]
        )
        w.add_rope_freq_base(attention["rope_theta"])
        w.add_clamp_kqv(attention["clip_qkv"])
        w.add_layer_norm_eps(1e-5)
        w.add_expert_count(ffn["moe_num_experts"])
        w.add_expert_used_count(ffn["moe_top_k"])
        self.add("token_embd.weight", t["transformer.wte.weight"])
        self.add("output_norm.weight", t["transformer.norm_f.weight"])
        self.add("output.weight", t["lm_head.weight"])
        for i in range(c["n_layers"]):
            block, blk = f"transformer.blocks.{i}.", f"blk.{i}."
            self.add(f"{blk}attn_norm.weight", t[f"{block}norm_attn_norm.norm_1.weight"])
            self.add(f"{blk}attn_output_norm.weight", t[f"{block}norm_attn_norm.norm_2.weight"])
            self.add(f"{blk}attn_qkv.weight", t[f"{block}norm_attn_norm.attn.Wqkv.weight"])
            self.add(f"{blk}attn_output.weight", t[f"{block}norm_attn_norm.attn.out_proj.weight"])
            self.add(f"{blk}ffn_gate_inp.weight", t[f"{block}ffn.router.layer.weight"])
            for ours, theirs in (("gate", "w1"), ("up", "v1"), ("down", "w2")):
                experts = t[f"{block}ffn.experts.mlp.{theirs}"].reshape(ffn["moe_num_experts"], -1, c["d_model"])
                self.add(f"{blk}ffn_{ours}_exps.weight", experts.swapaxes(1, 2) if ours == "down" else experts)

    def write(self) -> None:
        getattr(self, self.kind)()
        write(self.writer)


if __name__ == "__main__":
    convert(Converted, NAMES, __doc__)
