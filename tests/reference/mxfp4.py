"""MXFP4 as gpt-oss's checkpoints have it (OCP Microscaling Formats 1.0): experts' matrices as NAME_blocks and NAME_scales."""

from __future__ import annotations

import json
import pathlib
import shutil

import torch
from safetensors import safe_open
from safetensors.torch import save_file

GROUP = 32
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def quantise(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., out, in] to blocks [..., out, in / 32, 16] and scales [..., out, in / 32]: to the nearest value, with the
    exponent of the largest magnitude, less the two of 4."""
    groups = weights.unflatten(-1, (-1, GROUP))
    exponents = groups.abs().amax(-1).log2().floor() - 2
    codes = (groups / exponents.exp2().unsqueeze(-1)).unsqueeze(-1).sub(E2M1).abs().argmin(-1)
    blocks = codes[..., 0::2] | codes[..., 1::2] << 4
    return blocks.to(torch.uint8), (exponents + 127).to(torch.uint8)


def dequantise(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[..., out, in] in float32, exact."""
    codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).long()
    return (E2M1[codes] * (scales.float() - 127).exp2().unsqueeze(-1)).flatten(-2)


def quantise_checkpoint(directory: pathlib.Path) -> None:
    """Rewrites model.safetensors of a gpt_oss checkpoint, whose experts are stacked and stored [in, out]."""
    tensors = _tensors(directory)
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        blocks, scales = quantise(tensors.pop(name).float().transpose(-1, -2).contiguous())
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
    save_file(tensors, directory / "model.safetensors")


def dequantise_checkpoint(directory: pathlib.Path, to: pathlib.Path) -> None:
    """Writes what the checkpoint stands for, as transformers saves a model that is not quantised."""
    tensors = _tensors(directory)
    for name in [n.removesuffix("_blocks") for n in tensors if n.endswith("_blocks")]:
        weights = dequantise(tensors.pop(f"{name}_blocks"), tensors.pop(f"{name}_scales"))
        tensors[name] = weights.transpose(-1, -2).contiguous()
    to.mkdir(parents=True)
    save_file(tensors, to / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    del config["quantization_config"]
    (to / "config.json").write_text(json.dumps(config))
    for path in directory.glob("token*"):
        shutil.copy(path, to)


def is_quantised(directory: pathlib.Path) -> bool:
    config = json.loads((directory / "config.json").read_text())
    return (config.get("quantization_config") or {}).get("quant_method") == "mxfp4"


def _tensors(directory: pathlib.Path) -> dict[str, torch.Tensor]:
    with safe_open(directory / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}
