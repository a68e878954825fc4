#!/usr/bin/env python3
"""GGUF files that llama.cpp's own tools made, beside transformers and llama.cpp.

    python tests/reference/compare_gguf.py models/sample /tmp/sample-Q4_K_M.gguf ... --moesaic build/release/bin/moesaic
        --llama /src/llama.cpp/build/bin --text stories.txt

MODEL is the qwen3_moe checkpoint that convert_hf_to_gguf.py converted and llama-quantize quantised (pip: those of
requirements.txt, `gguf`). For each file it prints:

- the largest difference of log-probabilities between moesaic (--dtype gguf-float32; float32 where the file has no
  blocks) and transformers in float32 on the
  weights that gguf.quants makes of the file's blocks, over the 20 likeliest tokens of each position, by the largest
  logit;
- how many of the first greedy tokens moesaic (--dtype gguf) and llama-completion have in common, and where they part
  the difference of log-probabilities between the two tokens there: a small one is a near-tie;
- the perplexity of --text by moesaic with both types and by llama-perplexity, in windows of 512.

Exits with 1 when log-probabilities differ by more than 1e-4 or perplexities (gguf beside llama.cpp) by more than .3%.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import gguf
import torch
import transformers
from safetensors.torch import save_file

import hf_reference

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from experiment_server import ExperimentServer  # noqa: E402

LOG_PROBABILITY_TOLERANCE = 1e-4
PERPLEXITY_TOLERANCE = 3e-3
TOP = 20

LAYER_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate",
}
EXPERT_NAMES = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
OTHER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def checkpoint_tensors(file: pathlib.Path) -> tuple[dict[str, torch.Tensor], collections.Counter]:
    """The file's values in float32 under a checkpoint's names, and how many tensors there are of each type."""
    tensors, types = {}, collections.Counter()
    for tensor in gguf.GGUFReader(file).tensors:
        types[tensor.tensor_type.name] += 1
        values = torch.tensor(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=torch.float32)
        name = tensor.name.removesuffix(".weight")
        if name in OTHER_NAMES:
            tensors[OTHER_NAMES[name] + ".weight"] = values
            continue
        layer, part = re.fullmatch(r"blk\.(\d+)\.(\w+)", name).groups()
        prefix = f"model.layers.{layer}."
        if part in EXPERT_NAMES:
            for expert, matrix in enumerate(values):
                tensors[f"{prefix}mlp.experts.{expert}.{EXPERT_NAMES[part]}.weight"] = matrix.contiguous()
        else:
            tensors[f"{prefix}{LAYER_NAMES[part]}.weight"] = values
    return tensors, types


def load_dequantised(model: pathlib.Path, tensors: dict[str, torch.Tensor]):
    with tempfile.TemporaryDirectory() as scratch:
        directory = pathlib.Path(scratch)
        config = json.loads((model / "config.json").read_text())
        config["torch_dtype"] = "float32"
        (directory / "config.json").write_text(json.dumps(config))
        if (model / "generation_config.json").exists():
            shutil.copy(model / "generation_config.json", directory)
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        return hf_reference.load_model(directory)


def largest_difference(server: ExperimentServer, model, prompts: list[list[int]]) -> float:
    worst = 0.0
    for ids in prompts:
        logits = model(torch.tensor([ids])).logits[0]
        expected = logits.log_softmax(-1)
        body = json.loads(server.complete(ids, max_tokens=1, prompt_logprobs=TOP).read())
        for position, tokens in enumerate(body["choices"][0]["prompt_logprobs"]):
            for token, entry in (tokens or {}).items():
                difference = abs(entry["logprob"] - float(expected[position - 1, int(token)]))
                worst = max(worst, difference / float(logits[position - 1].abs().max()))
    return worst


def greedy_agreement(server, options, file, prompts) -> tuple[list[int], list[float]]:
    """Of each prompt how many characters' tokens agree, and the difference of log-probabilities where they part."""
    agree, margins = [], []
    for prompt in prompts:
        body = json.loads(server.open("POST", "/v1/completions", {
            "model": server.model, "prompt": prompt, "temperature": 0, "max_tokens": options.tokens,
            "logprobs": TOP}).read())["choices"][0]
        theirs = subprocess.run(
            [options.llama / "llama-completion", "-m", file, "-p", prompt, "-n", str(options.tokens), "--temp", "0",
             "-no-cnv", "--no-display-prompt"], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
        text = re.sub(r"\s*\[end of text\]\s*$", "", theirs.stdout)
        pieces, at = body["logprobs"], 0
        for number, token in enumerate(pieces["tokens"]):
            if not text.startswith(token, at):
                chosen = pieces["token_logprobs"][number]
                others = [value for other, value in pieces["top_logprobs"][number].items()
                          if other != token and text.startswith(other, at)]
                if at >= len(text.rstrip("\n")):
                    break  # llama-completion drops the blanks at the end
                agree.append(number)
                margins.append(chosen - max(others) if others else float("inf"))
                break
            at += len(token)
        else:
            agree.append(len(pieces["tokens"]))
            continue
    return agree, margins


def our_perplexity(options, file, dtype) -> float:
    done = subprocess.run([options.moesaic, "perplexity", file, options.text, "--windows", str(options.windows), "--dtype",
                           dtype, "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["perplexity"]


def llama_perplexity(options, file) -> float:
    done = subprocess.run([options.llama / "llama-perplexity", "-m", file, "-f", options.text, "-c", "512", "--chunks",
                           str(options.windows)], capture_output=True, text=True, check=True)
    return float(re.search(r"Final estimate: PPL = ([\d.]+)", done.stdout + done.stderr)[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("files", type=pathlib.Path, nargs="+")
    parser.add_argument("--moesaic", type=pathlib.Path, required=True)
    parser.add_argument("--llama", type=pathlib.Path, required=True, help="llama-completion and llama-perplexity")
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--windows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()

    tokenizer = transformers.AutoTokenizer.from_pretrained(str(options.model))
    text = options.text.read_text()
    prompts = [text[begin:begin + 400] for begin in range(0, 8 * 5000, 5000)]
    ids = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
    right = True
    for file in options.files:
        tensors, types = checkpoint_tensors(file)
        model = load_dequantised(options.model, tensors)
        blocks = types.keys() - {"F32", "F16", "BF16"}
        dtype, exact = ("gguf", "gguf-float32") if blocks else ("auto", "float32")
        server = ExperimentServer(options.moesaic, file, "--dtype", exact, "--kv-cache-dtype", "float32")
        difference = largest_difference(server, model, ids)
        server.stop()
        server = ExperimentServer(options.moesaic, file, "--dtype", dtype)
        agree, margins = greedy_agreement(server, options, file, prompts)
        server.stop()
        rounded, unrounded = (our_perplexity(options, file, given) for given in (dtype, exact))
        theirs = llama_perplexity(options, file)
        print(f"{file.name} ({', '.join(f'{count} {name}' for name, count in sorted(types.items()))}): log-probabilities within {difference:.1e} of the largest logit; of "
              f"{options.tokens} greedy tokens the first {agree} agree, margins {[round(m, 4) for m in margins]}; "
              f"perplexity {rounded:.4f}, unrounded {unrounded:.4f}, llama.cpp {theirs:.4f} "
              f"({100 * (rounded / theirs - 1):+.2f}%)", flush=True)
        right &= difference <= LOG_PROBABILITY_TOLERANCE and abs(rounded / theirs - 1) <= PERPLEXITY_TOLERANCE
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
