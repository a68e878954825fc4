"""Int4 as Kimi-K2-Thinking and K2.5 have it (compressed-tensors, format pack-quantized): matrices of routed experts as
NAME_packed, eight numbers in an int32, NAME_scale, bfloat16 for each group of inputs, and NAME_shape. transformers knows these
models as deepseek_v3."""

from __future__ import annotations

import json
import pathlib
import re
import shutil

import huggingface_hub
import torch
from safetensors import safe_open
from safetensors.torch import save_file

PREFIX = "language_model."
# Tensors beside those of the text, which a reader has to leave alone.
NOT_TEXT = {"vision_tower.patch_embed.proj.bias": (16,), "mm_projector.proj.0.weight": (8, 16)}


def quantization(group: int | None, **changes) -> dict:
    """With a scale for each `group` inputs; None: for each output."""
    return {
        "config_groups": {
            "group_0": {
                "input_activations": None,
                "output_activations": None,
                "targets": ["Linear"],
                "weights": {
                    "actorder": None, "block_structure": None, "dynamic": False, "group_size": group, "num_bits": 4,
                    "observer": "minmax", "strategy": "group" if group else "channel", "symmetric": True, "type": "int",
                },
            }
        },
        "format": "pack-quantized",
        "ignore": [
            "lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        ],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    } | changes


def _text(config: dict) -> dict:
    return config.get("text_config", config)


def is_packed(config: dict) -> bool:
    return (_text(config).get("quantization_config") or {}).get("format") == "pack-quantized"


def is_quantised(directory: pathlib.Path) -> bool:
    return is_packed(json.loads((directory / "config.json").read_text()))


def plain_config(config: dict) -> dict:
    """What transformers takes."""
    text = {k: v for k, v in _text(config).items() if k != "quantization_config"}
    return text | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}


def group_of(config: dict) -> int | None:
    return _text(config)["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"]


def quantise(weights: torch.Tensor, group: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """[out, in] to numbers of -8 to 7 [out, in] and scales [out, in / group]: symmetric, as compressed-tensors does."""
    groups = weights.unflatten(-1, (-1, group or weights.shape[-1]))
    scales = (groups.abs().amax(-1) / 7.5).bfloat16()
    numbers = (groups / scales.float().unsqueeze(-1)).round().clamp(-8, 7)
    return numbers.flatten(-2).to(torch.int32), scales


def pack(numbers: torch.Tensor) -> torch.Tensor:
    """Number j of eight, plus 8, in bits 4 j to 4 j + 3."""
    eights = (numbers + 8).to(torch.int64).unflatten(-1, (-1, 8))
    words = (eights << (4 * torch.arange(8))).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def unpack(words: torch.Tensor) -> torch.Tensor:
    return ((words.to(torch.int64).unsqueeze(-1) >> (4 * torch.arange(8))) & 15).flatten(-2) - 8


def is_expert(name: str) -> bool:
    return re.search(r"\.experts\.\d+\.(gate|up|down)_proj\.weight$", name) is not None


def pack_checkpoint(plain: pathlib.Path, directory: pathlib.Path, config: dict, shard_bytes: int | None) -> None:
    """Writes what is released of a checkpoint of transformers."""
    nested = "text_config" in config
    prefix = PREFIX if nested else ""
    tensors = {n: torch.full(shape, 0.5).bfloat16() for n, shape in NOT_TEXT.items()} if nested else {}
    for name, tensor in _tensors(plain).items():
        if not is_expert(name):
            tensors[prefix + name] = tensor
            continue
        numbers, scales = quantise(tensor.float(), group_of(config))
        tensors[f"{prefix}{name}_packed"], tensors[f"{prefix}{name}_scale"] = pack(numbers), scales
        tensors[f"{prefix}{name}_shape"] = torch.tensor(tensor.shape)
    split = huggingface_hub.split_torch_state_dict_into_shards(tensors, max_shard_size=shard_bytes or "1GB")
    for file, names in split.filename_to_tensors.items():
        save_file({n: tensors[n] for n in names}, directory / file, {"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def dequantise_checkpoint(directory: pathlib.Path, to: pathlib.Path) -> None:
    """Writes what the checkpoint stands for, in float32, as transformers' deepseek_v3; the products are exact."""
    config = json.loads((directory / "config.json").read_text())
    tensors = {n.removeprefix(PREFIX): t for n, t in _tensors(directory).items() if n not in NOT_TEXT}
    for name in [n.removesuffix("_packed") for n in tensors if n.endswith("_packed")]:
        numbers, scales = unpack(tensors.pop(f"{name}_packed")), tensors.pop(f"{name}_scale").float()
        assert list(numbers.shape) == tensors.pop(f"{name}_shape").tolist(), name
        tensors[name] = numbers.float() * scales.repeat_interleave(numbers.shape[-1] // scales.shape[-1], -1)
    to.mkdir(parents=True)
    save_file(tensors, to / "model.safetensors", {"format": "pt"})
    (to / "config.json").write_text(json.dumps(plain_config(config)))
    for path in directory.glob("token*"):
        shutil.copy(path, to)


def _tensors(directory: pathlib.Path) -> dict[str, torch.Tensor]:
    tensors = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}
    return tensors
