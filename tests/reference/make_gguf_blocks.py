"""Makes tests/data/gguf/blocks: files of tests/data/gguf/models whose matrices are in blocks, one after the other of
another type.

    pip install gguf==0.19.0 && python tests/reference/make_gguf_blocks.py

Metadata are those of the file it is made of, but that the widths of MLPs are rounded up to whole blocks of 32: rows and
columns that are new are random. Matrices whose rows are whole blocks are quantised by `gguf.quants`, but for those of
routers and convolutions; all else is as it was.

`deepseek_v2_lite.gguf` is random: of a model whose queries have no rank, and whose heads' matrices have rows of whole
blocks (scripts/make_shape_gguf.py).
"""

from __future__ import annotations

import itertools
import pathlib
import re
import sys

import gguf
import numpy as np

from make_gguf_fixtures import write

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))
import make_shape_gguf  # noqa: E402

NAMES = (
    "arctic_bf16", "dbrx_bf16_clip", "deepseek_v3_bf16_groups", "ernie4_5_moe_bf16", "gpt_oss_mxfp4",
    "granitemoe_bf16", "mixtral_fp32_defaults", "olmoe_bf16_clip", "qwen3_5_moe_bf16", "qwen3_moe_bf16_sharded",
    "qwen3_next_bf16",
)
LITE = {
    "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "n_routed_experts": 8, "n_shared_experts": 2,
    "num_experts_per_tok": 3, "first_k_dense_replace": 1, "num_attention_heads": 4, "q_lora_rank": None, "kv_lora_rank": 64,
    "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "vocab_size": 320, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "rope_scaling": None, "routed_scaling_factor": 1.0, "norm_topk_prob": False,
}
BLOCK = 32
TYPES = ("Q8_0", "Q5_1", "Q4_0", "Q4_1", "Q5_0")
PLAIN = ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight")
MLP = re.compile(r"ffn_(gate|up|down)(_exps|_shexp)?\.(weight|bias)$")


def whole_blocks(width: int) -> int:
    return -(-width // BLOCK) * BLOCK


def widened(name: str, values: np.ndarray, widths: dict[int, int], rng: np.random.Generator) -> np.ndarray:
    """A matrix of an MLP, of whose widths some are others now."""
    found = MLP.search(name)
    if found is None or (found[1] == "down" and found[3] == "bias"):
        return values
    axis = values.ndim - (2 if found[1] != "down" and found[3] == "weight" else 1)
    more = list(values.shape)
    more[axis] = widths.get(more[axis], more[axis]) - more[axis]
    return np.concatenate([values, rng.normal(0, 0.1, more).astype(np.float32)], axis)


def convert(source: pathlib.Path, out: pathlib.Path) -> None:
    reader = gguf.GGUFReader(source)
    rng = np.random.default_rng(5)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(out, architecture)
    widths = {}
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value = field.contents()
        if field.name.endswith("feed_forward_length"):
            widths[value] = whole_blocks(value)
            value = widths[value]
        item = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, field.types[0], item)
    shared = reader.fields.get(f"{architecture}.expert_shared_count")
    if shared is not None:
        width = reader.fields[f"{architecture}.expert_feed_forward_length"].contents()
        widths[width * shared.contents()] = whole_blocks(width) * shared.contents()
    types = itertools.cycle(TYPES)
    for tensor in reader.tensors:
        if tensor.tensor_type == gguf.GGMLQuantizationType.MXFP4:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = widened(tensor.name, values, widths, rng)
        matrix = values.ndim >= 2 and tensor.name.endswith(".weight") and not tensor.name.endswith(PLAIN)
        if matrix and values.shape[-1] % BLOCK == 0:
            kind = gguf.GGMLQuantizationType[next(types)]
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, values)
    write(writer)


def main() -> None:
    data = ROOT / "tests" / "data" / "gguf"
    (data / "blocks").mkdir(exist_ok=True)
    for name in NAMES:
        convert(data / "models" / f"{name}.gguf", data / "blocks" / f"{name}.gguf")
    lite = make_shape_gguf.Mla(LITE, 3)
    make_shape_gguf.write(data / "blocks" / "deepseek_v2_lite.gguf", lite, LITE["vocab_size"], 7)


if __name__ == "__main__":
    main()
