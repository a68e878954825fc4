"""Makes tests/data/fp8: a tiny Qwen3-MoE checkpoint with block-scaled fp8 weights, and what it stands for.

    python tests/reference/make_fp8_fixture.py [--out tests/data/fp8]

`qwen3_moe` has float8_e4m3fn matrices with `weight_scale_inv` beside them, as Qwen3-30B-A3B-FP8 and DeepSeek-V3 have, in
blocks of 16 x 32 with unfinished ones at both edges; the scales of layer 1 are bf16, as Qwen's are. `qwen3_moe_dequantised`
has the products of values and scales in float32 and everything else the same: a reader of the first must compute the
second's logits to the bit. Standard library only; the code points come from the definition of the format and not from the
conversion that is tested. The seed is fixed: two runs write the same bytes.
"""

from __future__ import annotations

import argparse
import bisect
import json
import pathlib
import random
import struct

BLOCK = (16, 32)
VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, EXPERTS, TOP_K, INTERMEDIATE = 64, 48, 2, 4, 2, 12, 4, 2, 40

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "max_position_embeddings": 256,
    "mlp_only_layers": [],
    "moe_intermediate_size": INTERMEDIATE,
    "norm_topk_prob": True,
    "num_attention_heads": HEADS,
    "num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": VOCAB,
}
QUANTIZATION = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": list(BLOCK),
}


def e4m3(code: int) -> float:
    """OCP 8-bit floating point: 1 sign, 4 exponent (bias 7), 3 mantissa bits; 0x7f is NaN."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 0:
        return sign * mantissa / 8 * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


POSITIVE = [e4m3(code) for code in range(0x7F)]


def encode(value: float) -> int:
    magnitude = min(abs(value), POSITIVE[-1])
    above = min(bisect.bisect_left(POSITIVE, magnitude), len(POSITIVE) - 1)
    below = max(above - 1, 0)
    code = below if magnitude - POSITIVE[below] < POSITIVE[above] - magnitude else above
    return code | (0x80 if value < 0 else 0)


def f32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def bf16_bits(value: float) -> int:
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def bf16(value: float) -> float:
    return struct.unpack("<f", struct.pack("<I", bf16_bits(value) << 16))[0]


def pack(dtype: str, values: list) -> bytes:
    if dtype == "F32":
        return struct.pack(f"<{len(values)}f", *values)
    if dtype == "BF16":
        return struct.pack(f"<{len(values)}H", *(bf16_bits(v) for v in values))
    return bytes(values)


def save(path: pathlib.Path, tensors: dict) -> None:
    header, data = {}, b""
    for name, (dtype, shape, values) in sorted(tensors.items()):
        raw = pack(dtype, values)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def quantise(values: list, rows: int, cols: int, scale_dtype: str) -> tuple:
    """The codes, the scales and the products of both, row-major."""
    block_cols = -(-cols // BLOCK[1])
    scales = []
    for first in range(0, rows, BLOCK[0]):
        for left in range(0, cols, BLOCK[1]):
            block = [
                abs(values[r * cols + c])
                for r in range(first, min(first + BLOCK[0], rows))
                for c in range(left, min(left + BLOCK[1], cols))
            ]
            scale = max(block) / POSITIVE[-1]
            scales.append(bf16(scale) if scale_dtype == "BF16" else f32(scale))
    codes, products = [], []
    for r in range(rows):
        for c in range(cols):
            scale = scales[r // BLOCK[0] * block_cols + c // BLOCK[1]]
            code = encode(values[r * cols + c] / scale)
            codes.append(code)
            products.append(f32(e4m3(code) * scale))  # exact in a double, rounded once
    return codes, scales, products


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/data/fp8"))
    out = parser.parse_args().out
    draw = random.Random(20)
    fp8, dequantised = {}, {}

    def plain(name: str, shape: list, mean: float, deviation: float) -> None:
        count = 1
        for size in shape:
            count *= size
        values = [draw.gauss(mean, deviation) for _ in range(count)]
        fp8[name] = dequantised[name] = ("BF16", shape, values)

    def matrix(name: str, rows: int, cols: int, scale_dtype: str) -> None:
        values = [draw.gauss(0, 2 / cols**0.5) for _ in range(rows * cols)]
        codes, scales, products = quantise(values, rows, cols, scale_dtype)
        fp8[name] = ("F8_E4M3", [rows, cols], codes)
        fp8[name + "_scale_inv"] = (scale_dtype, [-(-rows // BLOCK[0]), -(-cols // BLOCK[1])], scales)
        dequantised[name] = ("F32", [rows, cols], products)

    plain("model.embed_tokens.weight", [VOCAB, HIDDEN], 0, 1)
    plain("lm_head.weight", [VOCAB, HIDDEN], 0, 0.3)
    plain("model.norm.weight", [HIDDEN], 1, 0.1)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        scale_dtype = "BF16" if layer == 1 else "F32"
        for norm, size in (
            ("input_layernorm", HIDDEN),
            ("post_attention_layernorm", HIDDEN),
            ("self_attn.q_norm", HEAD_DIM),
            ("self_attn.k_norm", HEAD_DIM),
        ):
            plain(f"{prefix}{norm}.weight", [size], 1, 0.1)
        plain(f"{prefix}mlp.gate.weight", [EXPERTS, HIDDEN], 0, 0.3)
        matrix(f"{prefix}self_attn.q_proj.weight", HEADS * HEAD_DIM, HIDDEN, scale_dtype)
        matrix(f"{prefix}self_attn.k_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN, scale_dtype)
        matrix(f"{prefix}self_attn.v_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN, scale_dtype)
        matrix(f"{prefix}self_attn.o_proj.weight", HIDDEN, HEADS * HEAD_DIM, scale_dtype)
        for expert in range(EXPERTS):
            matrix(f"{prefix}mlp.experts.{expert}.gate_proj.weight", INTERMEDIATE, HIDDEN, scale_dtype)
            matrix(f"{prefix}mlp.experts.{expert}.up_proj.weight", INTERMEDIATE, HIDDEN, scale_dtype)
            matrix(f"{prefix}mlp.experts.{expert}.down_proj.weight", HIDDEN, INTERMEDIATE, scale_dtype)

    for name, tensors, config in (
        ("qwen3_moe", fp8, {**CONFIG, "quantization_config": QUANTIZATION}),
        ("qwen3_moe_dequantised", dequantised, CONFIG),
    ):
        directory = out / name
        directory.mkdir(parents=True, exist_ok=True)
        save(directory / "model.safetensors", tensors)
        (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
