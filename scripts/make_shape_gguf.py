#!/usr/bin/env python3
"""Writes a GGUF file of the shape of a published model with random weights, to compare speeds on: gpt-oss,
DeepSeek-V2 and -V3, GLM-4.7-Flash.

    scripts/make_shape_gguf.py tests/data/published/gpt-oss-20b /data/gpt-oss-20b.gguf
    scripts/make_shape_gguf.py tests/data/published/glm-4.7-flash /data/flash.gguf --layers 12

CONFIG is a directory with the model's config.json. Types are those of the files that people have: gpt-oss has experts
in MXFP4 and all else in Q8_0; the others are Q4_K_M by llama.cpp's rules, rows that are not whole blocks of 256 in
Q5_0 and Q8_0 as llama-quantize makes them. Blocks are random bytes with scales that keep activations about as large as
they were. Needs numpy and gguf; a few hundred MB of memory whatever the model's size.
"""

import argparse
import json
import pathlib
import zlib

import gguf
import numpy

from make_bench_model import add_gguf_tokenizer, vocabulary_of

MORE_CHARACTERS = range(0x10000, 0x110000)  # of published vocabularies
CHUNK_BLOCKS = 1 << 19
Type = gguf.GGMLQuantizationType


def half_floats(value, count):
    return numpy.full(count, value, numpy.float16).view(numpy.uint8).reshape(count, 2)


def random_blocks(kind, inputs, count, generator):
    """`count` blocks of a type, whose values have about the standard deviation 1 / sqrt(inputs)."""
    deviation = inputs ** -0.5
    blocks = generator.integers(0, 256, (count, gguf.GGML_QUANT_SIZES[kind][1]), numpy.uint8)
    if kind == Type.MXFP4:  # 2^(e - 128) times numbers of E2M1, doubled
        blocks[:, 0] = round(numpy.log2(deviation / 5)) + 128
    elif kind == Type.Q8_0:
        blocks[:, :2] = half_floats(deviation / 74, count)
    elif kind == Type.Q5_0:
        blocks[:, :2] = half_floats(deviation / 9, count)
    elif kind == Type.Q4_K:  # scales and minimums of 6 bits, weights of 4
        blocks[:, 0:2] = half_floats(deviation / 170, count)
        blocks[:, 2:4] = half_floats(deviation / 170 * 7.5, count)
    elif kind == Type.Q6_K:  # signed scales of 8 bits, weights of 6
        blocks[:, 208:210] = half_floats(deviation / 74 / 18, count)
    else:
        raise SystemExit(f"no blocks of {kind.name}")
    return blocks


def type_of_q4_k_m(name, inputs, layers):
    """What llama.cpp's llama_tensor_get_type gives a matrix."""
    layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    six = name == "output.weight" or ("ffn_down" in name and more)
    if inputs % 256:
        return Type.Q8_0 if six else Type.Q5_0
    return Type.Q6_K if six else Type.Q4_K


class Shape:
    """Metadata and tensors of a family: (name, shape as numpy has it, whether it stays float32)."""

    def __init__(self, config, layers):
        self.config, self.layers = config, layers

    def common(self, writer):
        c = self.config
        writer.add_block_count(self.layers)
        writer.add_context_length(c["max_position_embeddings"])
        writer.add_embedding_length(c["hidden_size"])
        writer.add_feed_forward_length(c["intermediate_size"])
        writer.add_head_count(c["num_attention_heads"])
        writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
        writer.add_rope_freq_base(c["rope_theta"])
        writer.add_expert_used_count(c["num_experts_per_tok"])
        scaling = c["rope_scaling"]
        if scaling:
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(scaling["factor"])
            writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
            writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])

    def ends(self):
        vocabulary, hidden = self.config["vocab_size"], self.config["hidden_size"]
        yield "token_embd.weight", (vocabulary, hidden), False
        yield "output_norm.weight", (hidden,), True
        yield "output.weight", (vocabulary, hidden), False


class GptOss(Shape):
    architecture = "gpt-oss"

    def metadata(self, writer):
        c = self.config
        self.common(writer)
        writer.add_head_count_kv(c["num_key_value_heads"])
        writer.add_key_length(c["head_dim"])
        writer.add_value_length(c["head_dim"])
        writer.add_expert_count(c["num_local_experts"])
        writer.add_expert_feed_forward_length(c["intermediate_size"])
        writer.add_sliding_window(c["sliding_window"])
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_MXFP4_MOE)

    def tensors(self):
        c = self.config
        hidden, intermediate, experts = c["hidden_size"], c["intermediate_size"], c["num_local_experts"]
        queries, keys = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
        for layer in range(self.layers):
            prefix = f"blk.{layer}."
            for name in ("attn_norm", "post_attention_norm"):
                yield f"{prefix}{name}.weight", (hidden,), True
            for name, outputs, inputs in (("attn_q", queries, hidden), ("attn_k", keys, hidden),
                                          ("attn_v", keys, hidden), ("attn_output", hidden, queries)):
                yield f"{prefix}{name}.weight", (outputs, inputs), False
                yield f"{prefix}{name}.bias", (outputs,), True
            yield prefix + "attn_sinks.weight", (c["num_attention_heads"],), True
            yield prefix + "ffn_gate_inp.weight", (experts, hidden), True
            yield prefix + "ffn_gate_inp.bias", (experts,), True
            for name, outputs, inputs in (("gate", intermediate, hidden), ("up", intermediate, hidden),
                                          ("down", hidden, intermediate)):
                yield f"{prefix}ffn_{name}_exps.weight", (experts, outputs, inputs), False
                yield f"{prefix}ffn_{name}_exps.bias", (experts, outputs), True
        yield from self.ends()

    def type_of(self, name, inputs):
        return Type.MXFP4 if "_exps" in name else Type.Q8_0


class Mla(Shape):
    architecture = "deepseek2"

    def metadata(self, writer):
        c = self.config
        rope, latent = c["qk_rope_head_dim"], c["kv_lora_rank"]
        self.common(writer)
        writer.add_head_count_kv(1)
        writer.add_key_length(latent + rope)
        writer.add_value_length(latent)
        writer.add_key_length_mla(c["qk_nope_head_dim"] + rope)
        writer.add_value_length_mla(c["v_head_dim"])
        writer.add_rope_dimension_count(rope)
        writer.add_kv_lora_rank(latent)
        if c["q_lora_rank"]:
            writer.add_q_lora_rank(c["q_lora_rank"])
        writer.add_vocab_size(c["vocab_size"])
        writer.add_leading_dense_block_count(c["first_k_dense_replace"])
        writer.add_expert_count(c["n_routed_experts"])
        writer.add_expert_shared_count(c["n_shared_experts"])
        writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
        writer.add_expert_weights_scale(c["routed_scaling_factor"])
        writer.add_expert_weights_norm(c["norm_topk_prob"])
        sigmoid = c.get("topk_method") == "noaux_tc"
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if sigmoid
                                      else gguf.ExpertGatingFuncType.SOFTMAX)
        if c["rope_scaling"]:
            writer.add_rope_scaling_yarn_log_mul(0.1 * c["rope_scaling"]["mscale_all_dim"])
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)

    def tensors(self):
        c = self.config
        hidden, heads = c["hidden_size"], c["num_attention_heads"]
        no_rope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        latent, query_rank, experts = c["kv_lora_rank"], c["q_lora_rank"], c["n_routed_experts"]
        for layer in range(self.layers):
            prefix = f"blk.{layer}."
            yield prefix + "attn_norm.weight", (hidden,), True
            yield prefix + "ffn_norm.weight", (hidden,), True
            yield prefix + "attn_kv_a_norm.weight", (latent,), True
            yield prefix + "attn_kv_a_mqa.weight", (latent + rope, hidden), False
            yield prefix + "attn_k_b.weight", (heads, latent, no_rope), False
            yield prefix + "attn_v_b.weight", (heads, value, latent), False
            yield prefix + "attn_output.weight", (hidden, heads * value), False
            queries = heads * (no_rope + rope)
            if query_rank:
                yield prefix + "attn_q_a_norm.weight", (query_rank,), True
                yield prefix + "attn_q_a.weight", (query_rank, hidden), False
                yield prefix + "attn_q_b.weight", (queries, query_rank), False
            else:
                yield prefix + "attn_q.weight", (queries, hidden), False
            wide = c["intermediate_size"]
            suffix, stack = "", ()
            if layer >= c["first_k_dense_replace"]:
                yield prefix + "ffn_gate_inp.weight", (experts, hidden), True
                if c.get("topk_method") == "noaux_tc":
                    yield prefix + "exp_probs_b.bias", (experts,), True
                wide = c["moe_intermediate_size"]
                shared = wide * c["n_shared_experts"]
                for name, outputs, inputs in (("gate", shared, hidden), ("up", shared, hidden),
                                              ("down", hidden, shared)):
                    yield f"{prefix}ffn_{name}_shexp.weight", (outputs, inputs), False
                suffix, stack = "_exps", (experts,)
            for name, outputs, inputs in (("gate", wide, hidden), ("up", wide, hidden), ("down", hidden, wide)):
                yield f"{prefix}ffn_{name}{suffix}.weight", (*stack, outputs, inputs), False
        yield from self.ends()

    def type_of(self, name, inputs):
        return type_of_q4_k_m(name, inputs, self.layers)


FAMILIES = {"gpt_oss": GptOss, "deepseek_v2": Mla, "deepseek_v3": Mla, "glm4_moe_lite": Mla}


def row_bytes(kind, inputs):
    values, size = gguf.GGML_QUANT_SIZES[kind]
    return inputs // values * size


def write(path, shape, vocabulary, seed):
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_name(path.stem)
    shape.metadata(writer)
    add_gguf_tokenizer(writer, vocabulary_of(vocabulary, MORE_CHARACTERS))
    tensors = []
    for name, dims, plain in shape.tensors():
        kind = Type.F32 if plain else shape.type_of(name, dims[-1])
        size = int(numpy.prod(dims[:-1])) * row_bytes(kind, dims[-1])
        tensors.append((name, dims, kind, size))
        if plain:
            writer.add_tensor_info(name, dims, numpy.dtype(numpy.float32), size)
        else:
            stored = (*dims[:-1], row_bytes(kind, dims[-1]))
            writer.add_tensor_info(name, stored, numpy.dtype(numpy.uint8), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    file = writer.fout[0]
    alignment = writer.data_alignment
    file.write(b"\0" * (-file.tell() % alignment))
    for name, dims, kind, size in tensors:
        generator = numpy.random.default_rng([seed, zlib.crc32(name.encode())])
        if kind == Type.F32 and "norm" in name:
            numpy.ones(dims, numpy.float32).tofile(file)
        elif kind == Type.F32:
            (generator.standard_normal(dims, numpy.float32) * numpy.float32(dims[-1] ** -0.5)).tofile(file)
        else:
            blocks = size // gguf.GGML_QUANT_SIZES[kind][1]
            for begin in range(0, blocks, CHUNK_BLOCKS):
                random_blocks(kind, dims[-1], min(CHUNK_BLOCKS, blocks - begin), generator).tofile(file)
        file.write(b"\0" * (-size % alignment))
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("config", type=pathlib.Path, metavar="CONFIG", help="directory with a config.json")
    parser.add_argument("file", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--layers", type=int, metavar="N", help="the first N layers only")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    arguments = parser.parse_args()
    config = json.loads((arguments.config / "config.json").read_text())
    family = FAMILIES.get(config["model_type"])
    if family is None:
        raise SystemExit(f"{config['model_type']}: of the families {', '.join(FAMILIES)} only")
    shape = family(config, arguments.layers or config["num_hidden_layers"])
    write(arguments.file, shape, config["vocab_size"], arguments.seed)
    print(arguments.file)


if __name__ == "__main__":
    main()
