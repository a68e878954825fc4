"""Makes tests/data/gguf: files that the `gguf` package of llama.cpp has written.

    pip install gguf==0.19.0 && python tests/reference/make_gguf_fixtures.py [--out tests/data/gguf]

`types.gguf` has a tensor of each type that is read, random blocks whose scales are finite, and beside each TYPE a
`TYPE.values` with what `gguf.quants` says that they stand for; its metadata has a value of every kind.
`split-0000N-of-00003.gguf` is one small model in three files. `mixed.gguf` is a Qwen3-MoE whose matrices are of different
types, those of one expert and of different layers too, as in a Q4_K_M file; `fused.gguf` is one whose experts have gate and up in one tensor. The seed is fixed: two runs write the same
bytes.

`models/NAME.gguf` are tests/data/models/NAME as llama.cpp's own converter writes them (convert_hf_to_gguf.py of
llama-cpp-python 0.3.36's sources, --outtype f32, or bf16 for those of that type), its set_vocab replaced by nothing,
because the fixtures have no tokenizer.
"""

from __future__ import annotations

import argparse
import pathlib

import gguf
import numpy as np

# Where the f16 scales of a block are (ggml, src/ggml-common.h).
SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "MXFP4": [],
}
ROWS, BLOCKS = 3, 4


def random_matrix(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> np.ndarray:
    """The bytes of a matrix of this type, whose values are about as large as a trained model's."""
    kind = gguf.GGMLQuantizationType[name]
    if name in ("F16", "BF16"):
        return gguf.quants.quantize(rng.normal(0, 0.05, shape).astype(np.float32), kind)
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // values, size), dtype=np.uint8)
    for at in SCALES[name]:
        scales = rng.normal(0, 0.003 / (16 if values == 256 else 1), blocks.shape[:-1]).astype(np.float16)
        blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def random_blocks(rng: np.random.Generator, name: str) -> np.ndarray:
    kind = gguf.GGMLQuantizationType[name]
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (ROWS, BLOCKS, size), dtype=np.uint8)
    for at in SCALES[name]:
        scales = rng.normal(0, 0.02, (ROWS, BLOCKS)).astype(np.float16)
        scales[0, 0] = np.float16(6e-8)  # a subnormal
        blocks[:, :, at : at + 2] = scales[..., None].view(np.uint8)
    if name == "MXFP4":
        blocks[:, :, 0] = rng.integers(110, 140, (ROWS, BLOCKS))
        blocks[0, :3, 0] = [0, 1, 252]  # both subnormal scales, and the largest whose values are finite
    return blocks.reshape(ROWS, BLOCKS * size)


def write_types(path: pathlib.Path) -> None:
    rng = np.random.default_rng(20261125)
    writer = gguf.GGUFWriter(path, "fixture")
    writer.add_uint8("kind.u8", 200)
    writer.add_int8("kind.i8", -100)
    writer.add_uint16("kind.u16", 60000)
    writer.add_int16("kind.i16", -30000)
    writer.add_uint32("kind.u32", 4_000_000_000)
    writer.add_int32("kind.i32", -2_000_000_000)
    writer.add_uint64("kind.u64", 2**64 - 1)
    writer.add_int64("kind.i64", -(2**63))
    writer.add_float32("kind.f32", 1e-6)
    writer.add_float64("kind.f64", 0.1)
    writer.add_bool("kind.bool", True)
    writer.add_string("kind.string", "Straße")
    writer.add_array("kind.strings", ["a", "", "Ġb"])
    writer.add_array("kind.ints", [1, -2, 3])
    writer.add_array("kind.floats", [0.5, -1.5])
    for name in SCALES:
        kind = gguf.GGMLQuantizationType[name]
        blocks = random_blocks(rng, name)
        writer.add_tensor(name, blocks, raw_dtype=kind)
        with np.errstate(over="ignore"):
            values = gguf.quants.dequantize(blocks, kind)
        assert np.isfinite(values).all(), name
        writer.add_tensor(f"{name}.values", values.astype(np.float32))
    plain = rng.normal(size=(2, 3, 5)).astype(np.float32)
    writer.add_tensor("F32", plain)
    writer.add_tensor("F16", plain.astype(np.float16))
    writer.add_tensor("F16.values", plain.astype(np.float16).astype(np.float32))
    kind = gguf.GGMLQuantizationType.BF16
    raw = gguf.quants.quantize(plain, kind)
    writer.add_tensor("BF16", raw, raw_dtype=kind)
    writer.add_tensor("BF16.values", gguf.quants.dequantize(raw, kind))
    write(writer)


def write_split(folder: pathlib.Path) -> None:
    rng = np.random.default_rng(3)
    writer = gguf.GGUFWriter(folder / "split.gguf", "fixture", split_max_tensors=2)
    writer.add_string("general.name", "three files")
    for i in range(5):
        writer.add_tensor(f"blk.{i}.weight", rng.normal(size=(2, 4)).astype(np.float32))
    write(writer)


# Matrices of a layer, and their types in the first and in the second one.
MIXED = {
    "attn_q": (64, 256, "Q5_K", "Q6_K"),
    "attn_k": (32, 256, "Q4_K", "Q2_K"),
    "attn_v": (32, 256, "Q6_K", "Q5_1"),
    "attn_output": (256, 64, "Q8_0", "BF16"),
    "ffn_gate_exps": (32, 256, "Q4_K", "IQ4_XS"),
    "ffn_up_exps": (32, 256, "Q3_K", "Q4_K"),
    "ffn_down_exps": (256, 32, "Q5_0", "Q4_1"),
}
MIXED_EXPERTS = 4


def write_mixed(path: pathlib.Path, fused: bool = False) -> None:
    rng = np.random.default_rng(17)
    arch = "qwen3moe"
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(256)
    writer.add_feed_forward_length(64)
    writer.add_expert_feed_forward_length(32)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_expert_count(MIXED_EXPERTS)
    writer.add_expert_used_count(2)

    def matrix(name: str, shape: tuple[int, ...], kind: str) -> None:
        writer.add_tensor(name, random_matrix(rng, shape, kind), raw_dtype=gguf.GGMLQuantizationType[kind])

    def norm(name: str, size: int) -> None:
        writer.add_tensor(name, rng.normal(1, 0.1, size).astype(np.float32))

    matrix("token_embd.weight", (96, 256), "Q4_0")
    matrix("output.weight", (96, 256), "IQ4_NL")
    norm("output_norm.weight", 256)
    for layer in range(2):
        prefix = f"blk.{layer}."
        for name in ("attn_norm", "ffn_norm"):
            norm(f"{prefix}{name}.weight", 256)
        for name in ("attn_q_norm", "attn_k_norm"):
            norm(f"{prefix}{name}.weight", 16)
        writer.add_tensor(f"{prefix}ffn_gate_inp.weight", rng.normal(0, 0.1, (MIXED_EXPERTS, 256)).astype(np.float32))
        for name, (rows, cols, *kinds) in MIXED.items():
            if fused and name == "ffn_up_exps":
                continue
            if fused and name == "ffn_gate_exps":
                name, rows = "ffn_gate_up_exps", 2 * rows
            shape = (MIXED_EXPERTS, rows, cols) if name.endswith("_exps") else (rows, cols)
            matrix(f"{prefix}{name}.weight", shape, kinds[layer])
    write(writer)


def write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/data/gguf"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    write_types(out / "types.gguf")
    write_split(out)
    write_mixed(out / "mixed.gguf")
    write_mixed(out / "fused.gguf", fused=True)


if __name__ == "__main__":
    main()
