"""Fp8 (E4M3) as checkpoints have it: matrices of float8_e4m3fn beside scales that are multiplied, of blocks of 128 x 128
(DeepSeek-V3, MiniMax-M2: NAME_scale_inv, float32) or of rows (compressed-tensors, GLM-4.7-FP8: NAME_scale, bfloat16)."""

from __future__ import annotations

import json
import pathlib
import shutil

import torch
from safetensors import safe_open
from safetensors.torch import save_file

BLOCK = 128
LARGEST = 448.0
BLOCKS = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [BLOCK, BLOCK],
}
CHANNELS = {
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "dynamic": False, "num_bits": 8, "strategy": "channel", "symmetric": True, "type": "float",
            },
        }
    },
    "format": "float-quantized",
    "ignore": ["lm_head", "re:.*mlp.gate$"],
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}


def _by_channel(directory: pathlib.Path) -> bool:
    return json.loads((directory / "config.json").read_text())["quantization_config"]["quant_method"] != "fp8"


def is_linear(name: str) -> bool:
    return name.endswith(("_proj.weight", "_proj_with_mqa.weight", ".w1.weight", ".w2.weight", ".w3.weight"))


def _spread(scales: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Scales of blocks to those of values; of rows they are [rows, 1] already."""
    if scales.shape[0] == shape[0]:
        return scales
    return scales.repeat_interleave(BLOCK, 0)[: shape[0]].repeat_interleave(BLOCK, 1)[:, : shape[1]]


def quantise(weights: torch.Tensor, by_channel: bool) -> tuple[torch.Tensor, torch.Tensor]:
    rows, cols = weights.shape
    if by_channel:
        scales = (weights.abs().amax(1, keepdim=True) / LARGEST).bfloat16()
    else:
        padded = torch.nn.functional.pad(weights, (0, -cols % BLOCK, 0, -rows % BLOCK))
        blocks = padded.unflatten(0, (-1, BLOCK)).unflatten(-1, (-1, BLOCK))
        scales = blocks.abs().amax((1, 3)) / LARGEST
    values = weights / _spread(scales.float(), weights.shape)
    return values.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scales


def quantise_checkpoint(directory: pathlib.Path) -> None:
    tensors, by_channel = _tensors(directory), _by_channel(directory)
    for name in [n for n in tensors if is_linear(n)]:
        tensors[name], scales = quantise(tensors[name].float(), by_channel)
        tensors[name + ("_scale" if by_channel else "_scale_inv")] = scales
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def scales_of(directory: pathlib.Path, expected: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the scales beside the expected tensors."""
    out = {}
    for name, (rows, *cols) in expected.items():
        if not is_linear(name):
            continue
        if _by_channel(directory):
            out[f"{name}_scale"] = (rows, 1)
        else:
            out[f"{name}_scale_inv"] = (-(-rows // BLOCK), -(-cols[0] // BLOCK))
    return out


def dequantise_checkpoint(directory: pathlib.Path, to: pathlib.Path) -> None:
    """Writes what the checkpoint stands for, in float32: the products of values and scales, each rounded once."""
    tensors = _tensors(directory)
    for name in [n for n in tensors if n.endswith(("_scale", "_scale_inv"))]:
        scales = tensors.pop(name).float()
        weight = name.removesuffix("_inv").removesuffix("_scale")
        tensors[weight] = tensors[weight].float() * _spread(scales, tensors[weight].shape)
    to.mkdir(parents=True)
    save_file(tensors, to / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    del config["quantization_config"]
    (to / "config.json").write_text(json.dumps(config))
    for path in directory.glob("token*"):
        shutil.copy(path, to)


def is_quantised(directory: pathlib.Path) -> bool:
    config = json.loads((directory / "config.json").read_text())
    return (config.get("quantization_config") or {}).get("quant_method") in ("fp8", "compressed-tensors")


def _tensors(directory: pathlib.Path) -> dict[str, torch.Tensor]:
    with safe_open(directory / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}
