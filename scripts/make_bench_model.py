#!/usr/bin/env python3
"""Writes the generated model that throughput is compared on: Qwen3-MoE with random bf16 weights, as a Hugging Face
directory, and with --gguf (needs the package gguf) the same weights as a GGUF file for other engines.

    scripts/make_bench_model.py /data/moe64 --gguf /data/moe64-bf16.gguf
    scripts/make_bench_model.py /data/moe128 --experts 128 --gguf /data/moe128-bf16.gguf

With 64 experts it has 1.72 billion parameters, of which a token uses 277 million. Every token but the first 259 is
one character, and no two tokens merge: a text has the same tokens in every engine. Needs numpy; a few hundred MB of
memory whatever the model's size.
"""

import argparse
import json
import pathlib
import zlib

import numpy

SPECIAL_TOKENS = ["<unk>", "<s>", "</s>"]
CHUNK_ELEMENTS = 4 << 20


def config_of(arguments):
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16",
        "hidden_size": arguments.hidden, "num_hidden_layers": arguments.layers, "num_experts": arguments.experts,
        "num_experts_per_tok": arguments.top_k, "moe_intermediate_size": arguments.intermediate,
        "intermediate_size": arguments.intermediate * arguments.top_k, "num_attention_heads": arguments.heads,
        "num_key_value_heads": arguments.kv_heads, "head_dim": arguments.head_dim, "vocab_size": arguments.vocabulary,
        "max_position_embeddings": arguments.context, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "hidden_act": "silu", "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "tie_word_embeddings": False, "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2,
    }


def shapes_of(config):
    """Name and shape of every tensor, in the order of the file."""
    hidden, heads, kv_heads, dim = (config[key] for key in ("hidden_size", "num_attention_heads",
                                                            "num_key_value_heads", "head_dim"))
    intermediate, experts = config["moe_intermediate_size"], config["num_experts"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        yield prefix + "self_attn.q_proj.weight", (heads * dim, hidden)
        yield prefix + "self_attn.k_proj.weight", (kv_heads * dim, hidden)
        yield prefix + "self_attn.v_proj.weight", (kv_heads * dim, hidden)
        yield prefix + "self_attn.q_norm.weight", (dim,)
        yield prefix + "self_attn.k_norm.weight", (dim,)
        yield prefix + "self_attn.o_proj.weight", (hidden, heads * dim)
        yield prefix + "post_attention_layernorm.weight", (hidden,)
        yield prefix + "mlp.gate.weight", (experts, hidden)
        for expert in range(experts):
            yield f"{prefix}mlp.experts.{expert}.gate_proj.weight", (intermediate, hidden)
            yield f"{prefix}mlp.experts.{expert}.up_proj.weight", (intermediate, hidden)
            yield f"{prefix}mlp.experts.{expert}.down_proj.weight", (hidden, intermediate)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (config["vocab_size"], hidden)


def to_bf16(values):
    """float32 to bf16 bits, to nearest even."""
    bits = values.view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def random_chunks(name, shape, seed):
    """bf16 bits: norms are one, matrices uniform with the standard deviation 1 / sqrt(inputs)."""
    count = int(numpy.prod(shape))
    if len(shape) == 1:
        yield to_bf16(numpy.ones(count, numpy.float32))
        return
    generator = numpy.random.default_rng([seed, zlib.crc32(name.encode())])
    scale = numpy.float32((3 / shape[1]) ** 0.5 / 32768)
    for begin in range(0, count, CHUNK_ELEMENTS):
        draws = generator.integers(-32768, 32768, min(CHUNK_ELEMENTS, count - begin), numpy.int16)
        yield to_bf16(draws.astype(numpy.float32) * scale)


def write_safetensors(path, config, seed):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes_of(config):
        begin, end = end, end + 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes_of(config):
            for chunk in random_chunks(name, shape, seed):
                chunk.tofile(file)


def vocabulary_of(size, more=()):
    """Special tokens, all bytes, then characters of the CJK and Hangul blocks, and those of the codes `more`."""
    characters = [chr(code) for code in [*range(0x4E00, 0xA000), *range(0xAC00, 0xD7A4), *more]]
    tokens = SPECIAL_TOKENS + [f"<0x{byte:02X}>" for byte in range(256)] + characters
    if size > len(tokens):
        raise SystemExit(f"--vocabulary: at most {len(tokens)} tokens")
    return tokens[:size]


def write_tokenizer(directory, tokens):
    special = [{"id": i, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False} for i, token in enumerate(SPECIAL_TOKENS)]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                  "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
                "unk_token": "<unk>", "add_bos_token": False}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


class Safetensors:
    """Reads tensors of one file as bf16 bits."""

    def __init__(self, path):
        with open(path, "rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            self.header = json.loads(file.read(header_bytes))
        self.path, self.base = path, 8 + header_bytes

    def read(self, name):
        entry = self.header[name]
        begin, end = entry["data_offsets"]
        data = numpy.fromfile(self.path, numpy.uint16, (end - begin) // 2, offset=self.base + begin)
        return data.reshape(entry["shape"])


def gguf_tensors(config):
    """GGUF name, the checkpoint's tensors that are stacked in it, and whether llama.cpp wants it in float32."""
    yield "token_embd.weight", ["model.embed_tokens.weight"], False
    for layer in range(config["num_hidden_layers"]):
        source, target = f"model.layers.{layer}.", f"blk.{layer}."
        yield target + "attn_norm.weight", [source + "input_layernorm.weight"], True
        for part in ("q", "k", "v"):
            yield f"{target}attn_{part}.weight", [f"{source}self_attn.{part}_proj.weight"], False
        for part in ("q", "k"):
            yield f"{target}attn_{part}_norm.weight", [f"{source}self_attn.{part}_norm.weight"], True
        yield target + "attn_output.weight", [source + "self_attn.o_proj.weight"], False
        yield target + "ffn_norm.weight", [source + "post_attention_layernorm.weight"], True
        yield target + "ffn_gate_inp.weight", [source + "mlp.gate.weight"], True
        for part in ("gate", "up", "down"):
            experts = [f"{source}mlp.experts.{e}.{part}_proj.weight" for e in range(config["num_experts"])]
            yield f"{target}ffn_{part}_exps.weight", experts, False
    yield "output_norm.weight", ["model.norm.weight"], True
    yield "output.weight", ["lm_head.weight"], False


def add_gguf_tokenizer(writer, tokens):
    import gguf  # only GGUF files need it

    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.BYTE] * 256 +
                           [gguf.TokenType.NORMAL] * (len(tokens) - 259))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)


def write_gguf(path, config, tokens, checkpoint):
    import gguf

    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_name(path.stem)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    add_gguf_tokenizer(writer, tokens)
    for name, sources, float32 in gguf_tensors(config):
        shape = checkpoint.header[sources[0]]["shape"]
        shape = shape if len(sources) == 1 else [len(sources), *shape]
        elements = int(numpy.prod(shape))
        if float32:
            writer.add_tensor_info(name, shape, numpy.dtype(numpy.float32), 4 * elements)
        else:
            writer.add_tensor_info(name, shape, numpy.dtype(numpy.uint16), 2 * elements,
                                   raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, sources, float32 in gguf_tensors(config):
        bits = numpy.stack([checkpoint.read(source) for source in sources])
        writer.write_tensor_data((bits.astype(numpy.uint32) << 16).view(numpy.float32) if float32 else bits)
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--gguf", type=pathlib.Path, metavar="FILE", help="write the same weights as GGUF, too")
    for name, default in (("hidden", 1024), ("layers", 16), ("experts", 64), ("top-k", 8), ("intermediate", 512),
                          ("heads", 16), ("kv-heads", 4), ("head-dim", 64), ("vocabulary", 32000),
                          ("context", 8192), ("seed", 0)):
        parser.add_argument("--" + name, type=int, default=default, metavar="N", help=f"default {default}")
    arguments = parser.parse_args()

    config = config_of(arguments)
    tokens = vocabulary_of(arguments.vocabulary)
    arguments.directory.mkdir(parents=True, exist_ok=True)
    (arguments.directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_tokenizer(arguments.directory, tokens)
    weights = arguments.directory / "model.safetensors"
    write_safetensors(weights, config, arguments.seed)
    print(weights)
    if arguments.gguf:
        write_gguf(arguments.gguf, config, tokens, Safetensors(weights))
        print(arguments.gguf)


if __name__ == "__main__":
    main()
