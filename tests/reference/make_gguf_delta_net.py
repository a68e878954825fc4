"""Makes tests/data/gguf/models/qwen3_next_bf16.gguf and qwen3_5_moe_bf16.gguf of the checkpoints of these names.

    pip install gguf==0.19.0 safetensors torch && python tests/reference/make_gguf_delta_net.py

The converter of llama.cpp that wrote the other files there does not know these architectures; this writes what its later
versions do (conversion/qwen.py): norms as 1 + w, -exp(A_log), rows of the projections in plain order, and of qwen35moe
value heads in the order in which a key head comes by turns. Matrices are BF16, all else is F32.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib

import gguf
import numpy as np
import torch
from safetensors import safe_open

from make_gguf_fixtures import write


def tensors_of(directory: pathlib.Path) -> dict[str, np.ndarray]:
    out = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            out |= {name: file.get_tensor(name).to(torch.float32).numpy() for name in file.keys()}
    return out


class Converted:
    def __init__(self, directory: pathlib.Path, out: pathlib.Path):
        outer = json.loads((directory / "config.json").read_text())
        self.next = outer["model_type"] == "qwen3_next"
        self.config = outer.get("text_config", outer)
        self.prefix = "model." if self.next else "model.language_model."
        self.tensors = tensors_of(directory)
        self.writer = gguf.GGUFWriter(out, "qwen3next" if self.next else "qwen35moe")

    def add(self, name: str, values: np.ndarray) -> None:
        if values.ndim >= 2 and not name.endswith(("ssm_conv1d.weight", "ffn_gate_inp.weight")):
            kind = gguf.GGMLQuantizationType.BF16
            self.writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            self.writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))

    def metadata(self) -> None:
        c, w = self.config, self.writer
        rope = c.get("rope_parameters", c)
        w.add_block_count(c["num_hidden_layers"])
        w.add_context_length(c["max_position_embeddings"])
        w.add_embedding_length(c["hidden_size"])
        if "intermediate_size" in c:
            w.add_feed_forward_length(c["intermediate_size"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
        w.add_head_count(c["num_attention_heads"])
        w.add_head_count_kv(c["num_key_value_heads"])
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
        w.add_rope_freq_base(float(rope["rope_theta"]))
        w.add_rope_dimension_count(int(c["head_dim"] * rope["partial_rotary_factor"]))
        w.add_expert_count(c["num_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
        w.add_ssm_state_size(c["linear_key_head_dim"])
        w.add_ssm_group_count(c["linear_num_key_heads"])
        w.add_ssm_time_step_rank(c["linear_num_value_heads"])
        w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
        w.add_uint32(f"{w.arch}.full_attention_interval", c["full_attention_interval"])

    def tiled(self, values: np.ndarray, rows_of_head: int) -> np.ndarray:
        """Value heads k r + j become j Hk + k (qwen35moe)."""
        if self.next:
            return values
        keys = self.config["linear_num_key_heads"]
        group = self.config["linear_num_value_heads"] // keys
        by_head = values.reshape(keys, group, rows_of_head, *values.shape[1:])
        return np.ascontiguousarray(by_head.swapaxes(0, 1)).reshape(values.shape)

    def linear_layer(self, blk: str, of: str) -> None:
        c = self.config
        dk, dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
        keys = c["linear_num_key_heads"] * dk
        group = c["linear_num_value_heads"] // c["linear_num_key_heads"]
        t = {name.removeprefix(of): v for name, v in self.tensors.items() if name.startswith(of)}
        if self.next:
            heads = t["in_proj_qkvz.weight"].reshape(c["linear_num_key_heads"], -1, c["hidden_size"])
            parts = np.split(heads, np.cumsum([dk, dk, group * dv]), axis=1)
            q, k, v, z = (part.reshape(-1, c["hidden_size"]) for part in parts)
            self.add(f"{blk}ssm_ba.weight", t["in_proj_ba.weight"])
        else:
            q, k, v = np.split(t["in_proj_qkv.weight"], [keys, 2 * keys])
            z = self.tiled(t["in_proj_z.weight"], dv)
            v = self.tiled(v, dv)
            self.add(f"{blk}ssm_beta.weight", self.tiled(t["in_proj_b.weight"], 1))
            self.add(f"{blk}ssm_alpha.weight", self.tiled(t["in_proj_a.weight"], 1))
        self.add(f"{blk}attn_qkv.weight", np.concatenate([q, k, v]))
        self.add(f"{blk}attn_gate.weight", z)
        conv = t["conv1d.weight"][:, 0, :]
        self.add(f"{blk}ssm_conv1d.weight", np.concatenate([conv[: 2 * keys], self.tiled(conv[2 * keys :], dv)]))
        rates = np.array([-math.exp(a) for a in t["A_log"].astype(np.float64)], dtype=np.float32)
        self.add(f"{blk}ssm_a", self.tiled(rates, 1))
        self.add(f"{blk}ssm_dt.bias", self.tiled(t["dt_bias"], 1))
        self.add(f"{blk}ssm_norm.weight", t["norm.weight"])
        self.add(f"{blk}ssm_out.weight", np.ascontiguousarray(self.tiled(np.ascontiguousarray(t["out_proj.weight"].T), dv).T))

    def experts(self, blk: str, mlp: str) -> None:
        c, t = self.config, self.tensors
        if self.next:
            stack = {
                name: np.stack([t[f"{mlp}experts.{e}.{name}_proj.weight"] for e in range(c["num_experts"])])
                for name in ("gate", "up", "down")
            }
        else:
            both = t[f"{mlp}experts.gate_up_proj"]
            width = c["moe_intermediate_size"]
            stack = {"gate": both[:, :width], "up": both[:, width:], "down": t[f"{mlp}experts.down_proj"]}
        for name, values in stack.items():
            self.add(f"{blk}ffn_{name}_exps.weight", np.ascontiguousarray(values))
            self.add(f"{blk}ffn_{name}_shexp.weight", t[f"{mlp}shared_expert.{name}_proj.weight"])
        self.add(f"{blk}ffn_gate_inp.weight", t[f"{mlp}gate.weight"])
        self.add(f"{blk}ffn_gate_inp_shexp.weight", t[f"{mlp}shared_expert_gate.weight"][0])

    def write(self) -> None:
        self.metadata()
        t = self.tensors
        self.add("token_embd.weight", t[f"{self.prefix}embed_tokens.weight"])
        self.add("output.weight", t["lm_head.weight"])
        self.add("output_norm.weight", 1 + t[f"{self.prefix}norm.weight"])
        for i in range(self.config["num_hidden_layers"]):
            blk, layer = f"blk.{i}.", f"{self.prefix}layers.{i}."
            self.add(f"{blk}attn_norm.weight", 1 + t[f"{layer}input_layernorm.weight"])
            self.add(f"{blk}post_attention_norm.weight", 1 + t[f"{layer}post_attention_layernorm.weight"])
            if f"{layer}linear_attn.A_log" in t:
                self.linear_layer(blk, f"{layer}linear_attn.")
            else:
                for ours, theirs in {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj"}.items():
                    self.add(f"{blk}{ours}.weight", t[f"{layer}self_attn.{theirs}.weight"])
                for name in ("q", "k"):
                    self.add(f"{blk}attn_{name}_norm.weight", 1 + t[f"{layer}self_attn.{name}_norm.weight"])
            self.experts(blk, f"{layer}mlp.")
        write(self.writer)


def convert(converted: type, names: tuple[str, ...], description: str) -> None:
    """The command line of such a script: converted(directory, file).write() for each of the fixtures."""
    data = pathlib.Path(__file__).resolve().parents[1] / "data"
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=data / "gguf/models")
    out = parser.parse_args().out
    for name in names:
        converted(data / "models" / name, out / f"{name}.gguf").write()


if __name__ == "__main__":
    convert(Converted, ("qwen3_next_bf16", "qwen3_5_moe_bf16"), __doc__)
