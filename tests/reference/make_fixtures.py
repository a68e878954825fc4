"""Makes the tiny random-weight checkpoints under tests/data/models and their references, with transformers.

    python tests/reference/make_fixtures.py [--out tests/data/models] [--only NAME]

Every directory is what a hub checkpoint looks like: a config.json written by hand in the form that hub models have, and
safetensors with one tensor per expert matrix. The reference is computed from the files read back, not from the model in
memory. Each fixture also lists changes of its configuration that have to change the logits: a fixture that does not
notice that its sliding window is gone would prove nothing.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import shutil
import tempfile

import huggingface_hub
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

import fp8
import hf_reference
import mxfp4
import packed_int4

PROMPT_LENGTHS = (1, 7, 33, 70)
HIDDEN_FOR = (1, 3)  # prompts whose hidden states are recorded
STEPS = 16
MIN_MARGIN = 0.02  # between the best two logits at every greedy step
MIN_ROUTER_GAP = 2e-4  # probability, over all tokens of prompt and continuation
MIN_INDEX_GAP = 2e-5  # between the scores of the last position that an indexer chooses and the next one, likewise
MIN_DISTINCT = 6  # different ids in a greedy continuation
INDEXED_KINDS = ("deepseek_v32", "glm_moe_dsa")
LATENT_KINDS = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", *INDEXED_KINDS)
# Of fixtures that were made beside others with the same numbers.
OWN_SEEDS = {
    "deepseek_v2_bf16_lite": 19, "deepseek_v2_fp32_groups": 20, "deepseek_v3_bf16_groups": 21, "deepseek_v3_fp32_halves": 22,
    "glm4_moe_lite_bf16": 23, "deepseek_v3_fp8": 24, "minimax_m2_fp8": 25, "glm4_moe_fp8": 26,
    "kimi_k2_int4": 27, "kimi_k25_int4": 28, "kimi_k25_int4_wide": 29,
    "qwen3_5_moe_text_bf16": 30, "ernie4_5_moe_bf16": 31, "ernie4_5_moe_fp32_odd": 32, "ernie4_5_moe_bf16_every_other": 33,
    "deepseek_v32_bf16": 36, "glm_moe_dsa_bf16_shared": 35, "glm_moe_dsa_fp32_odd": 37,
    "granitemoe_bf16": 37, "granitemoe_fp32_odd": 38, "granitemoe_shared_bf16": 39, "dbrx_bf16_clip": 40, "dbrx_fp32_odd": 41,
    "dbrx_fp16_top1": 42, "arctic_bf16": 43, "arctic_fp32_odd": 44, "arctic_bf16_every_other": 45,
}
MIN_EFFECT = 0.05  # how much a listed configuration change must move some logit

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}


def qwen3_moe(**changes) -> dict:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "decoder_sparse_step": 1,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 1024,
        "max_window_layers": 3,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "output_router_logits": False,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
    } | changes


def mixtral(**changes) -> dict:
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 1024,
        "output_router_logits": False,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.02,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    } | changes


def qwen2_moe(**changes) -> dict:
    return {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "decoder_sparse_step": 1,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 1024,
        "max_window_layers": 3,
        "norm_topk_prob": False,
        "output_router_logits": False,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001,
        "sliding_window": 32,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
    } | changes


def olmoe(**changes) -> dict:
    return {
        "architectures": ["OlmoeForCausalLM"],
        "model_type": "olmoe",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "clip_qkv": None,
        "eos_token_id": None,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 1024,
        "norm_topk_prob": False,
        "output_router_logits": False,
        "pad_token_id": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "router_aux_loss_coef": 0.01,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    } | changes


def glm4_moe(**changes) -> dict:
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": None,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 1024,
        "n_group": 1,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_qk_norm": False,
    } | changes


def minimax_m2(**changes) -> dict:
    return {
        "architectures": ["MiniMaxM2ForCausalLM"],
        "model_type": "minimax_m2",
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 1024,
        "num_mtp_modules": 3,
        "output_router_logits": False,
        "qk_norm_type": "per_layer",
        "rms_norm_eps": 1e-06,
        "rope_theta": 5000000.0,
        "router_aux_loss_coef": 0.001,
        "router_jitter_noise": 0.0,
        "scoring_func": "sigmoid",
        "shared_intermediate_size": 0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_mtp": True,
        "use_qk_norm": True,
        "use_routing_bias": True,
    } | changes


def deepseek(version: str, **changes) -> dict:
    return {
        "architectures": [f"DeepseekV{version}ForCausalLM"],
        "model_type": f"deepseek_v{version}",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "aux_loss_alpha": 0.001,
        "bos_token_id": None,
        "eos_token_id": None,
        "ep_size": 1,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 1024,
        "moe_layer_freq": 1,
        "norm_topk_prob": version == "3",
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000,
        "scoring_func": "sigmoid" if version == "3" else "softmax",
        "seq_aux": True,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    } | ({"topk_method": "noaux_tc", "num_nextn_predict_layers": 1} if version == "3" else {}) | changes


# Shorter than the longest prompt, with the factors of attention that DeepSeek's own models have.
YARN_OF_DEEPSEEK = {
    "type": "yarn", "factor": 40, "original_max_position_embeddings": 48, "beta_fast": 32, "beta_slow": 1,
    "mscale": 0.707, "mscale_all_dim": 0.707,
}


def kimi(**changes) -> dict:
    config = deepseek(
        "3", model_type="kimi_k2", rope_theta=50000.0, n_group=1, topk_group=1, n_shared_experts=1,
        routed_scaling_factor=2.827,
        rope_scaling=YARN_OF_DEEPSEEK
        | {"factor": 32, "beta_fast": 1, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    )
    return config | changes


def glm4_moe_lite(**changes) -> dict:
    return {
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "model_type": "glm4_moe_lite",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "eos_token_id": None,
        "hidden_act": "silu",
        "max_position_embeddings": 1024,
        "n_group": 1,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 1,
        "pad_token_id": None,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "routed_scaling_factor": 1.8,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
    } | changes


def indexed(kind: str, **changes) -> dict:
    """DeepSeek-V3.2 and GLM-5, whose indexers choose index_topk positions: of the longer prompts a part."""
    return {
        "architectures": [{"deepseek_v32": "DeepseekV32ForCausalLM", "glm_moe_dsa": "GlmMoeDsaForCausalLM"}[kind]],
        "model_type": kind,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "hidden_act": "silu",
        "index_head_dim": 16,
        "index_n_heads": 8,
        "index_topk": 16,
        "initializer_range": 0.02,
        "max_position_embeddings": 1024,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 1,
        "rms_norm_eps": 1e-06 if kind == "deepseek_v32" else 1e-05,
        "rope_theta": 10000 if kind == "deepseek_v32" else 1000000,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "use_cache": True,
    } | changes


def gpt_oss(**changes) -> dict:
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": None,
        "hidden_act": "silu",
        "initial_context_length": 4096,
        "initializer_range": 0.02,
        "max_position_embeddings": 1024,
        "output_router_logits": False,
        "pad_token_id": None,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 32,
            "rope_type": "yarn", "truncate": False,
        },
        "rope_theta": 150000.0,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 16,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    } | changes


def qwen3_next(**changes) -> dict:
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "decoder_sparse_step": 1,
        "eos_token_id": None,
        "full_attention_interval": 4,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 1024,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "output_router_logits": False,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000000,
        "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    } | changes


def qwen3_5_moe(tied: bool = False, **changes) -> dict:
    text = {
        "model_type": "qwen3_5_moe_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "dtype": "bfloat16",
        "eos_token_id": None,
        "full_attention_interval": 4,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 1024,
        "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1,
        "output_router_logits": False,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "mrope_interleaved": True, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.25, "rope_theta": 10000000,
            "rope_type": "default",
        },
        "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": tied,
        "use_cache": True,
    } | changes
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "image_token_id": 3,
        "model_type": "qwen3_5_moe",
        "text_config": text,
        "tie_word_embeddings": tied,
        "video_token_id": 4,
        "vision_config": {"depth": 1, "hidden_size": 16, "model_type": "qwen3_5_moe", "num_heads": 2},
    }


def ernie4_5_moe(**changes) -> dict:
    return {
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        "model_type": "ernie4_5_moe",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
        "hidden_act": "silu",
        "max_position_embeddings": 1024,
        "moe_capacity": [64, 64, 64],
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
        "moe_layer_start_index": 1,
        "moe_num_shared_experts": 2,
        "moe_use_aux_free": True,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_bias": False,
    } | changes


def granitemoe(shared: bool = False, **changes) -> dict:
    kind = "Shared" if shared else ""
    return {
        "architectures": [f"GraniteMoe{kind}ForCausalLM"],
        "model_type": f"granitemoe{kind.lower()}",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 1024,
        "output_router_logits": False,
        "pad_token_id": None,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "router_aux_loss_coef": 0.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    } | changes


def dbrx(attention: dict, ffn: dict, **changes) -> dict:
    """`rope_theta` is where releases have it, and at the top too: transformers 5.23 reads that one."""
    theta = attention.get("rope_theta", 10000.0)
    return {
        "architectures": ["DbrxForCausalLM"],
        "model_type": "dbrx",
        "attn_config": {"rope_theta": theta} | attention,
        "bos_token_id": None,
        "emb_pdrop": 0.0,
        "eos_token_id": None,
        "ffn_config": {"moe_jitter_eps": 0, "moe_loss_weight": 0.05} | ffn,
        "initializer_range": 0.02,
        "max_seq_len": 1024,
        "output_router_logits": False,
        "resid_pdrop": 0.0,
        "rope_theta": theta,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    } | changes


def arctic(**changes) -> dict:
    return {
        "architectures": ["ArcticForCausalLM"],
        "model_type": "arctic",
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "enable_expert_tensor_parallelism": False,
        "eos_token_id": None,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 1024,
        "moe_eval_capacity_factor": 1,
        "moe_layer_frequency": 1,
        "moe_min_capacity": 0,
        "moe_token_dropping": False,
        "moe_train_capacity_factor": 1,
        "parallel_attn_mlp_res": True,
        "quantization": None,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_residual": True,
    } | changes


def qwen3_5_moe_text(**changes) -> dict:
    return {"architectures": ["Qwen3_5MoeForCausalLM"]} | qwen3_5_moe(**changes)["text_config"]


def text_of(config: dict) -> dict:
    return config.get("text_config", config)


def changed(config: dict, change: dict) -> dict:
    """The configuration with other values, which are of the part for text where there is one."""
    if "text_config" not in config:
        return config | change
    return config | {"text_config": config["text_config"] | change}


# name: (config, max bytes per shard, configuration changes that have to move the logits)
FIXTURES: dict[str, tuple[dict, int | None, list[dict]]] = {
    "qwen3_moe_bf16_sharded": (
        qwen3_moe(
            vocab_size=192, hidden_size=64, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2,
            head_dim=16, intermediate_size=128, moe_intermediate_size=32, num_experts=10, num_experts_per_tok=4,
        ),
        120_000,
        [{"norm_topk_prob": False}, {"rope_theta": 10000.0}, {"rms_norm_eps": 1e-2}],
    ),
    "qwen3_moe_fp16_dense_layers": (
        qwen3_moe(
            vocab_size=160, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4,
            head_dim=24, intermediate_size=72, moe_intermediate_size=16, num_experts=16, num_experts_per_tok=3,
            mlp_only_layers=[1], attention_bias=True, tie_word_embeddings=True, torch_dtype="float16",
            rope_theta=1000.0, rope_scaling=YARN,
        ),
        None,
        [
            {"rope_scaling": None},
            {"rope_scaling": YARN | {"attention_factor": 1.0}},
            {"rope_scaling": YARN | {"beta_fast": 8}},
            {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        ],
    ),
    "qwen3_moe_fp32_odd": (
        qwen3_moe(
            vocab_size=131, hidden_size=52, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
            head_dim=18, intermediate_size=52, moe_intermediate_size=22, num_experts=5, num_experts_per_tok=3,
            norm_topk_prob=False, torch_dtype="float32", rope_theta=10000.0,
            rope_scaling={"type": "linear", "factor": 2.5},
        ),
        None,
        [{"rope_scaling": None}, {"norm_topk_prob": True}],
    ),
    "qwen3_moe_bf16_window": (
        qwen3_moe(
            vocab_size=128, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, intermediate_size=64, moe_intermediate_size=16, num_experts=8, num_experts_per_tok=1,
            sliding_window=20, use_sliding_window=True, max_window_layers=1, norm_topk_prob=False,
        ),
        None,
        [{"use_sliding_window": False}, {"sliding_window": 21}, {"norm_topk_prob": True}],
    ),
    "mixtral_bf16_window": (
        mixtral(
            vocab_size=160, hidden_size=64, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=4,
            intermediate_size=48, num_local_experts=8, num_experts_per_tok=2, sliding_window=16,
        ),
        None,
        [{"sliding_window": None}, {"sliding_window": 17}, {"rope_theta": 10000.0}],
    ),
    "mixtral_fp16_llama3": (
        mixtral(
            vocab_size=144, hidden_size=72, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=1,
            head_dim=20, intermediate_size=56, num_local_experts=6, num_experts_per_tok=2, torch_dtype="float16",
            rope_theta=5000.0, rope_scaling=LLAMA3, tie_word_embeddings=True,
        ),
        110_000,
        [
            {"rope_scaling": None},
            {"rope_scaling": LLAMA3 | {"high_freq_factor": 2.0}},
            {"rope_scaling": LLAMA3 | {"low_freq_factor": 2.0}},
        ],
    ),
    # Only what has no default that a reader could use: the rest must come from the defaults of the family.
    "mixtral_fp32_defaults": (
        {
            "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 128, "hidden_size": 32,
            "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 24, "torch_dtype": "float32",
        },
        None,
        [{"rope_theta": 10000.0}, {"rms_norm_eps": 1e-2}, {"sliding_window": 16}],
    ),
    "qwen2_moe_bf16_sparse_step": (
        qwen2_moe(
            vocab_size=192, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4,
            intermediate_size=80, moe_intermediate_size=24, shared_expert_intermediate_size=56, num_experts=10,
            num_experts_per_tok=4, decoder_sparse_step=2,
        ),
        None,
        [{"norm_topk_prob": True}, {"rope_theta": 10000.0}],
    ),
    "qwen2_moe_fp32_dynamic": (
        qwen2_moe(
            vocab_size=128, hidden_size=48, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
            intermediate_size=40, moe_intermediate_size=20, shared_expert_intermediate_size=36, num_experts=6,
            num_experts_per_tok=2, norm_topk_prob=True, mlp_only_layers=[0], tie_word_embeddings=True,
            torch_dtype="float32", max_position_embeddings=64, rope_theta=10000.0,
            rope_scaling={"type": "dynamic", "factor": 4.0},
        ),
        120_000,
        [{"rope_scaling": None}, {"norm_topk_prob": False}, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}],
    ),
    "olmoe_bf16_clip": (
        olmoe(
            vocab_size=192, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
            intermediate_size=32, num_experts=10, num_experts_per_tok=5, clip_qkv=1.25,
        ),
        None,
        [{"clip_qkv": None}, {"norm_topk_prob": True}, {"rms_norm_eps": 1e-2}],
    ),
    # The form that transformers 5 writes: rope_parameters and dtype instead of rope_theta, rope_scaling and torch_dtype.
    "olmoe_fp32_rope_parameters": (
        {
            key: value
            for key, value in olmoe(
                vocab_size=128, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3,
                intermediate_size=20, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True, dtype="float32",
                rope_parameters={
                    "rope_theta": 2000.0, "rope_type": "yarn", "factor": 3.0, "beta_fast": 16.0, "beta_slow": 2.0,
                    "attention_factor": 1.3, "original_max_position_embeddings": 128, "truncate": False,
                },
            ).items()
            if key not in ("rope_theta", "rope_scaling", "torch_dtype")
        },
        None,
        [
            {"rope_parameters": {"rope_theta": 2000.0, "rope_type": "default"}},
            {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
            {"norm_topk_prob": False},
        ],
    ),
    # As GLM-4.5-Air, whose correction of the choice is float32 among bfloat16.
    "glm4_moe_bf16_air": (
        glm4_moe(
            vocab_size=160, hidden_size=64, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2,
            head_dim=16, intermediate_size=80, moe_intermediate_size=24, n_routed_experts=12, num_experts_per_tok=4,
        ),
        None,
        [
            {"norm_topk_prob": False}, {"partial_rotary_factor": 1.0}, {"partial_rotary_factor": 0.25},
            {"rope_theta": 10000.0}, {"routed_scaling_factor": 1.5},
        ],
    ),
    # As GLM-4.6 with QK-norm and a scale, and with what no release has: groups, two shared experts, two dense layers, yarn.
    "glm4_moe_fp32_groups": (
        glm4_moe(
            vocab_size=128, hidden_size=48, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=3,
            head_dim=24, intermediate_size=56, moe_intermediate_size=12, n_routed_experts=16, num_experts_per_tok=3,
            n_group=4, topk_group=2, n_shared_experts=2, first_k_dense_replace=2, use_qk_norm=True,
            attention_bias=False, routed_scaling_factor=2.5, torch_dtype="float32", rope_theta=10000.0,
            rope_scaling=YARN, tie_word_embeddings=True,
        ),
        None,
        [
            {"n_group": 1, "topk_group": 1}, {"topk_group": 1}, {"routed_scaling_factor": 1.0}, {"rope_scaling": None},
            {"partial_rotary_factor": 1.0},
        ],
    ),
    # As MiniMax-M2, whose correction of the choice is float32 among bfloat16.
    "minimax_m2_bf16_rotary_dim": (
        minimax_m2(
            vocab_size=160, hidden_size=48, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
            head_dim=16, rotary_dim=8, intermediate_size=24, num_local_experts=12, num_experts_per_tok=4,
        ),
        None,
        [{"rotary_dim": 16}, {"rotary_dim": 4}, {"rope_theta": 10000.0}, {"rms_norm_eps": 1e-2}],
    ),
    # Odd sizes, and what no release has: partial_rotary_factor, yarn over a part of the head, tied.
    "minimax_m2_fp32_odd": (
        minimax_m2(
            vocab_size=131, hidden_size=52, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
            head_dim=20, partial_rotary_factor=0.6, intermediate_size=22, num_local_experts=7, num_experts_per_tok=2,
            torch_dtype="float32", rope_theta=10000.0, rope_scaling=YARN, tie_word_embeddings=True,
        ),
        110_000,
        [{"partial_rotary_factor": 1.0}, {"rope_scaling": None}],
    ),
    # As gpt-oss, in bfloat16: sinks, biases, windows shorter than the prompts, stacked and transposed experts.
    "gpt_oss_bf16_window": (
        gpt_oss(
            vocab_size=160, hidden_size=64, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2,
            head_dim=16, intermediate_size=48, num_local_experts=8, num_experts_per_tok=4,
        ),
        None,
        [
            {"sliding_window": 17}, {"layer_types": ["full_attention"] * 4}, {"swiglu_limit": 6.0},
            {"rope_scaling": None}, {"rms_norm_eps": 1e-2},
            {"rope_scaling": gpt_oss()["rope_scaling"] | {"truncate": True}},
        ],
    ),
    # Odd sizes, layers in another order, another gain of the activation, and the newer form of the rope.
    "gpt_oss_fp32_odd": (
        {
            key: value
            for key, value in gpt_oss(
                vocab_size=131, hidden_size=52, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
                head_dim=18, intermediate_size=22, num_local_experts=5, num_experts_per_tok=2, torch_dtype="float32",
                layer_types=["full_attention", "sliding_attention", "sliding_attention"], sliding_window=20,
                swiglu_limit=2.0, swiglu_alpha=1.2, tie_word_embeddings=True,
                rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
            ).items()
            if key not in ("rope_scaling", "rope_theta")
        },
        60_000,
        [{"swiglu_alpha": 1.702}, {"swiglu_limit": 7.0}, {"sliding_window": 21}],
    ),
    # As gpt-oss is released: experts in MXFP4.
    "gpt_oss_mxfp4": (
        gpt_oss(
            vocab_size=144, hidden_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, intermediate_size=64, num_local_experts=6, num_experts_per_tok=2,
            quantization_config={
                "modules_to_not_convert": [
                    "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
                ],
                "quant_method": "mxfp4",
            },
        ),
        None,
        [{"swiglu_limit": 3.0}, {"sliding_window": 17}],
    ),
    # As Qwen3-Next: three layers of linear attention, then one with a gate of its output.
    "qwen3_next_bf16": (
        qwen3_next(
            vocab_size=160, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, intermediate_size=48, linear_num_key_heads=2, linear_num_value_heads=4,
            linear_key_head_dim=16, linear_value_head_dim=16, moe_intermediate_size=16,
            shared_expert_intermediate_size=24, num_experts=12, num_experts_per_tok=4,
        ),
        None,
        [
            {"norm_topk_prob": False}, {"partial_rotary_factor": 0.5}, {"rope_theta": 10000.0}, {"rms_norm_eps": 1e-2},
        ],
    ),
    # Odd sizes, three value heads for a key head, a shorter convolution, layers in another order, one of them dense, shards.
    "qwen3_next_fp32_odd": (
        qwen3_next(
            vocab_size=131, hidden_size=52, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
            head_dim=20, intermediate_size=36, linear_num_key_heads=2, linear_num_value_heads=6,
            linear_key_head_dim=14, linear_value_head_dim=21, linear_conv_kernel_dim=3, moe_intermediate_size=14,
            shared_expert_intermediate_size=18, num_experts=7, num_experts_per_tok=2, norm_topk_prob=False,
            layer_types=["linear_attention", "full_attention", "linear_attention"], mlp_only_layers=[0],
            partial_rotary_factor=0.4, rope_theta=10000.0, rope_scaling=YARN, tie_word_embeddings=True,
            torch_dtype="float32",
        ),
        90_000,
        [{"norm_topk_prob": True}, {"partial_rotary_factor": 0.8}, {"rope_scaling": None}],
    ),
    # As Qwen3.5-35B-A3B: experts stacked, names and configuration of a model that also sees.
    "qwen3_5_moe_bf16": (
        qwen3_5_moe(
            vocab_size=160, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
            linear_value_head_dim=16, moe_intermediate_size=16, shared_expert_intermediate_size=24, num_experts=12,
            num_experts_per_tok=4,
            layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        ),
        None,
        [
            {"rms_norm_eps": 1e-2},
            {"rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type": "default"}},
            {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10000000, "rope_type": "default"}},
        ],
    ),
    # Odd sizes, as many key as value heads, tied, shards.
    "qwen3_5_moe_fp32_odd": (
        qwen3_5_moe(
            tied=True, vocab_size=131, hidden_size=52, num_hidden_layers=4, num_attention_heads=3,
            num_key_value_heads=3, head_dim=18, linear_num_key_heads=3, linear_num_value_heads=3,
            linear_key_head_dim=18, linear_value_head_dim=11, moe_intermediate_size=14,
            shared_expert_intermediate_size=22, num_experts=5, num_experts_per_tok=3, full_attention_interval=2,
            dtype="float32",
            rope_parameters={"partial_rotary_factor": 0.67, "rope_theta": 10000.0, "rope_type": "default"},
        ),
        90_000,
        [{"rms_norm_eps": 1e-2}, {"rope_parameters": {"partial_rotary_factor": 1.0, "rope_theta": 10000.0, "rope_type": "default"}}],
    ),
    # As DeepSeek-V2-Lite: queries of one matrix, greedy choice without normalisation, yarn whose factor of attention is
    # in the softmax scale alone.
    "deepseek_v2_bf16_lite": (
        deepseek(
            "2", vocab_size=160, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
            q_lora_rank=None, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
            intermediate_size=80, moe_intermediate_size=16, n_routed_experts=12, num_experts_per_tok=3,
            n_shared_experts=2, topk_method="greedy", n_group=1, topk_group=1, routed_scaling_factor=1.0,
            rope_scaling=YARN_OF_DEEPSEEK,
        ),
        None,
        [
            {"rope_scaling": None}, {"routed_scaling_factor": 1.5},
            {"rope_scaling": YARN_OF_DEEPSEEK | {"mscale": 1.4, "mscale_all_dim": 1.4}},
            {"rope_scaling": YARN_OF_DEEPSEEK | {"mscale": 1.0}},
        ],
    ),
    # As DeepSeek-V2: queries of a latent, the best groups by their best expert, scaled; odd sizes, two dense layers, and
    # yarn with two factors of attention that differ.
    "deepseek_v2_fp32_groups": (
        deepseek(
            "2", vocab_size=131, hidden_size=54, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=3,
            q_lora_rank=20, kv_lora_rank=22, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=14,
            intermediate_size=56, moe_intermediate_size=12, n_routed_experts=16, num_experts_per_tok=3,
            n_shared_experts=1, first_k_dense_replace=2, topk_method="group_limited_greedy", n_group=4, topk_group=2,
            routed_scaling_factor=4.0, torch_dtype="float32",
            rope_scaling=YARN_OF_DEEPSEEK | {"factor": 8, "mscale": 1.0, "mscale_all_dim": 0.6},
        ),
        110_000,
        [
            {"topk_method": "greedy"}, {"topk_group": 1}, {"routed_scaling_factor": 1.0}, {"rope_scaling": None},
            {"rope_scaling": YARN_OF_DEEPSEEK | {"factor": 8, "mscale": 0.6, "mscale_all_dim": 0.6}},
        ],
    ),
    # As DeepSeek-V3: the best groups by their two best corrected scores, normalised and scaled. Rows of the cache fill
    # tiles.
    "deepseek_v3_bf16_groups": (
        deepseek(
            "3", vocab_size=160, hidden_size=64, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=6,
            q_lora_rank=40, kv_lora_rank=64, qk_nope_head_dim=24, qk_rope_head_dim=32, v_head_dim=16,
            intermediate_size=80, moe_intermediate_size=16, n_routed_experts=16, num_experts_per_tok=4,
            n_shared_experts=1, n_group=4, topk_group=2, routed_scaling_factor=2.5,
            rope_scaling=YARN_OF_DEEPSEEK | {"factor": 8, "mscale": 1.0, "mscale_all_dim": 1.0},
        ),
        None,
        [
            {"n_group": 1, "topk_group": 1}, {"topk_group": 1}, {"norm_topk_prob": False},
            {"routed_scaling_factor": 1.0}, {"rope_scaling": None}, {"rope_interleave": False},
            {"rope_scaling": YARN_OF_DEEPSEEK | {"factor": 8, "mscale": 0.0, "mscale_all_dim": 0.0}},
        ],
    ),
    # As Moonlight: no groups, queries of one matrix, no yarn; and what no release has: rotated halves, tied, shards.
    "deepseek_v3_fp32_halves": (
        deepseek(
            "3", vocab_size=128, hidden_size=48, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=5,
            q_lora_rank=None, kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=20,
            intermediate_size=56, moe_intermediate_size=12, n_routed_experts=10, num_experts_per_tok=2,
            n_shared_experts=2, n_group=1, topk_group=1, routed_scaling_factor=2.446, norm_topk_prob=False,
            rope_interleave=False, rope_theta=50000.0, tie_word_embeddings=True, torch_dtype="float32",
            rms_norm_eps=1e-05,
        ),
        60_000,
        [{"rope_interleave": True}, {"norm_topk_prob": True}, {"rope_theta": 1000.0}, {"rms_norm_eps": 1e-2}],
    ),
    # As DeepSeek-V3 and R1 are released: fp8 with scales of blocks, more than one of them in a row.
    "deepseek_v3_fp8": (
        deepseek(
            "3", vocab_size=160, hidden_size=160, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
            q_lora_rank=136, kv_lora_rank=144, qk_nope_head_dim=72, qk_rope_head_dim=16, v_head_dim=56,
            intermediate_size=144, moe_intermediate_size=132, n_routed_experts=8, num_experts_per_tok=3,
            n_shared_experts=1, n_group=2, topk_group=1, routed_scaling_factor=2.5,
            rope_scaling=YARN_OF_DEEPSEEK | {"factor": 8, "mscale": 1.0, "mscale_all_dim": 1.0},
            quantization_config=fp8.BLOCKS,
        ),
        None,
        [{"n_group": 1, "topk_group": 1}, {"routed_scaling_factor": 1.0}, {"rope_interleave": False}],
    ),
    # As MiniMax-M2 is released, likewise, with a list of what is not fp8.
    "minimax_m2_fp8": (
        minimax_m2(
            vocab_size=160, hidden_size=144, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
            head_dim=24, rotary_dim=12, intermediate_size=136, num_local_experts=6, num_experts_per_tok=2,
            quantization_config=fp8.BLOCKS
            | {"modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]},
        ),
        None,
        [{"rotary_dim": 24}, {"rope_theta": 10000.0}],
    ),
    # As GLM-4.7-FP8: compressed-tensors with a scale for each row.
    "glm4_moe_fp8": (
        glm4_moe(
            vocab_size=160, hidden_size=136, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
            head_dim=24, intermediate_size=80, moe_intermediate_size=130, n_routed_experts=6, num_experts_per_tok=2,
            use_qk_norm=True, routed_scaling_factor=2.5, quantization_config=fp8.CHANNELS,
        ),
        None,
        [{"norm_topk_prob": False}, {"partial_rotary_factor": 1.0}, {"routed_scaling_factor": 1.0}],
    ),
    # As Kimi-K2-Thinking is released: experts in packed int4, an odd number of groups of 32 in a row; no groups of experts.
    "kimi_k2_int4": (
        kimi(
            vocab_size=160, hidden_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
            q_lora_rank=32, kv_lora_rank=48, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16,
            intermediate_size=72, moe_intermediate_size=64, n_routed_experts=8, num_experts_per_tok=3,
            quantization_config=packed_int4.quantization(32),
        ),
        None,
        [{"routed_scaling_factor": 1.0}, {"norm_topk_prob": False}, {"rope_theta": 1000.0}, {"rope_scaling": None}],
    ),
    # As Kimi-K2.5: the part for text of a model that also sees, under names of its own, in shards.
    "kimi_k25_int4": (
        {
            "architectures": ["KimiK25ForConditionalGeneration"],
            "model_type": "kimi_k25",
            "media_placeholder_token_id": 159,
            "tie_word_embeddings": False,
            "text_config": kimi(
                vocab_size=160, hidden_size=64, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=5,
                q_lora_rank=24, kv_lora_rank=20, qk_nope_head_dim=18, qk_rope_head_dim=8, v_head_dim=24,
                intermediate_size=80, moe_intermediate_size=32, n_routed_experts=12, num_experts_per_tok=4,
                rms_norm_eps=1e-05, quantization_config=packed_int4.quantization(32),
            ),
            "vision_config": {"hidden_size": 16},
        },
        90_000,
        [{"routed_scaling_factor": 1.0}, {"rope_theta": 1000.0}, {"rope_scaling": None}],
    ),
    # What no release has: groups of 64 inputs, rotated halves, groups of experts, queries of one matrix.
    "kimi_k25_int4_wide": (
        {
            "architectures": ["KimiK25ForConditionalGeneration"],
            "model_type": "kimi_k25",
            "tie_word_embeddings": False,
            "text_config": kimi(
                vocab_size=128, hidden_size=128, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
                q_lora_rank=None, kv_lora_rank=32, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=20,
                intermediate_size=56, moe_intermediate_size=64, n_routed_experts=8, num_experts_per_tok=2,
                n_group=2, topk_group=1, n_shared_experts=2, rope_interleave=False, norm_topk_prob=False,
                quantization_config=packed_int4.quantization(64),
            ),
        },
        None,
        [{"rope_interleave": True}, {"norm_topk_prob": True}, {"n_group": 1}],
    ),
    # The text of Qwen3.5 alone, as transformers saves it: a tensor for each matrix of an expert, other names.
    "qwen3_5_moe_text_bf16": (
        qwen3_5_moe_text(
            vocab_size=128, hidden_size=48, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
            head_dim=16, linear_num_key_heads=1, linear_num_value_heads=3, linear_key_head_dim=12,
            linear_value_head_dim=14, moe_intermediate_size=12, shared_expert_intermediate_size=20, num_experts=6,
            num_experts_per_tok=2, full_attention_interval=3,
        ),
        None,
        [{"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.25}}],
    ),
    # As ERNIE-4.5-21B-A3B: a dense layer first, two shared experts, tied; router and correction are float32.
    "ernie4_5_moe_bf16": (
        ernie4_5_moe(
            vocab_size=160, hidden_size=64, num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=1,
            head_dim=16, intermediate_size=72, moe_intermediate_size=16, moe_num_experts=12, moe_k=4,
        ),
        None,
        [{"moe_k": 3}, {"rope_theta": 100.0}, {"rms_norm_eps": 1e-1}],
    ),
    # Odd sizes, shards; weights are divided by no less than moe_norm_min.
    "ernie4_5_moe_fp32_odd": (
        ernie4_5_moe(
            vocab_size=131, hidden_size=52, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
            head_dim=18, intermediate_size=40, moe_intermediate_size=14, moe_num_experts=7, moe_k=2,
            moe_num_shared_experts=1, moe_norm_min=0.5, tie_word_embeddings=False, torch_dtype="float32",
            rope_scaling={"type": "linear", "factor": 2.5},
        ),
        60_000,
        [{"moe_norm_min": 0.9}, {"rope_scaling": None}],
    ),
    # Every other layer up to the third, which is the second alone; no shared expert.
    "ernie4_5_moe_bf16_every_other": (
        ernie4_5_moe(
            vocab_size=128, hidden_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=40, moe_intermediate_size=20, moe_num_experts=6, moe_k=2, moe_num_shared_experts=0,
            moe_layer_start_index=1, moe_layer_end_index=2, moe_layer_interval=2, tie_word_embeddings=False,
        ),
        None,
        [{"rope_theta": 100.0}],
    ),
    # As DeepSeek-V3.2: yarn, groups, an indexer in each layer.
    "deepseek_v32_bf16": (
        indexed(
            "deepseek_v32", vocab_size=160, hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=48, qk_nope_head_dim=16, qk_rope_head_dim=8,
            v_head_dim=16, intermediate_size=80, moe_intermediate_size=16, n_routed_experts=16, num_experts_per_tok=4,
            n_group=4, topk_group=2, first_k_dense_replace=1,
            rope_scaling=YARN_OF_DEEPSEEK | {"factor": 8, "mscale": 1.0, "mscale_all_dim": 1.0},
        ),
        None,
        [{"n_group": 1, "topk_group": 1}, {"norm_topk_prob": False}, {"routed_scaling_factor": 1.0},
         {"rope_scaling": None}, {"index_topk": 512}, {"index_topk": 15}],
    ),
    # As GLM-5.2: two layers of three use the choice of the one before.
    "glm_moe_dsa_bf16_shared": (
        indexed(
            "glm_moe_dsa", vocab_size=160, hidden_size=64, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8,
            v_head_dim=20, intermediate_size=80, moe_intermediate_size=16, n_routed_experts=12, num_experts_per_tok=4,
            n_group=1, topk_group=1, indexer_types=["full", "shared", "shared", "full"], index_topk=8,
            mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
        ),
        None,
        [{"norm_topk_prob": False}, {"routed_scaling_factor": 1.0}, {"rope_theta": 10000.0}, {"index_topk": 512},
         {"index_topk": 9}],
    ),
    # Every other layer has an indexer, from the second on; odd sizes, yarn.
    "glm_moe_dsa_fp32_odd": (
        indexed(
            "glm_moe_dsa", vocab_size=131, hidden_size=52, num_hidden_layers=4, num_attention_heads=3,
            num_key_value_heads=3, q_lora_rank=22, kv_lora_rank=21, qk_nope_head_dim=11, qk_rope_head_dim=6,
            v_head_dim=13, intermediate_size=70, moe_intermediate_size=14, n_routed_experts=9, num_experts_per_tok=3,
            n_group=1, topk_group=1, index_topk=21, index_topk_freq=2, index_n_heads=11, index_head_dim=15,
            first_k_dense_replace=1, rope_scaling=YARN_OF_DEEPSEEK | {"factor": 8, "mscale": 1.0, "mscale_all_dim": 1.0},
            torch_dtype="float32",
        ),
        None,
        [{"rope_scaling": None}, {"index_topk": 512}, {"index_topk": 20}],
    ),
    # As GLM-4.7-Flash: values of heads wider than what is not rotated of a key, dense layers by a list.
    "glm4_moe_lite_bf16": (
        glm4_moe_lite(
            vocab_size=160, hidden_size=64, num_hidden_layers=4, num_attention_heads=5, num_key_value_heads=5,
            q_lora_rank=24, kv_lora_rank=20, qk_nope_head_dim=18, qk_rope_head_dim=8, v_head_dim=24,
            intermediate_size=80, moe_intermediate_size=24, n_routed_experts=12, num_experts_per_tok=4,
            mlp_layer_types=["dense", "sparse", "dense", "sparse"],
        ),
        None,
        [
            {"routed_scaling_factor": 1.0}, {"norm_topk_prob": False}, {"rope_theta": 10000.0},
            {"rope_interleave": False},
        ],
    ),
    # As Granite 3.1 1B-A400M and 3B-A800M, with multipliers that a small model notices.
    "granitemoe_bf16": (
        granitemoe(
            vocab_size=160, hidden_size=64, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2,
            intermediate_size=24, num_local_experts=12, num_experts_per_tok=4, embedding_multiplier=3.0,
            residual_multiplier=0.6, attention_multiplier=0.25, logits_scaling=1.5,
        ),
        None,
        [
            {"embedding_multiplier": 1.0}, {"residual_multiplier": 1.0}, {"attention_multiplier": 0.354},
            {"logits_scaling": 1.0}, {"num_experts_per_tok": 3}, {"rope_theta": 100.0},
        ],
    ),
    # Odd sizes, biases of attention, linear rope, shards, another matrix for logits.
    "granitemoe_fp32_odd": (
        granitemoe(
            vocab_size=131, hidden_size=52, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
            head_dim=18, intermediate_size=14, num_local_experts=7, num_experts_per_tok=2, attention_bias=True,
            embedding_multiplier=1.5, residual_multiplier=0.8, attention_multiplier=0.2, logits_scaling=2.0,
            rope_scaling={"type": "linear", "factor": 2.5}, tie_word_embeddings=False, torch_dtype="float32",
            rms_norm_eps=1e-05,
        ),
        60_000,
        [{"residual_multiplier": 1.0}, {"rope_scaling": None}, {"logits_scaling": 1.0}],
    ),
    # With an MLP that every token runs.
    "granitemoe_shared_bf16": (
        granitemoe(
            shared=True, vocab_size=144, hidden_size=48, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=4, intermediate_size=20, shared_intermediate_size=36, num_local_experts=8,
            num_experts_per_tok=3, embedding_multiplier=2.0, residual_multiplier=0.5, attention_multiplier=0.3,
            logits_scaling=1.25, tie_word_embeddings=False,
        ),
        None,
        [{"residual_multiplier": 1.0}, {"attention_multiplier": 0.4}, {"embedding_multiplier": 1.0}],
    ),
    # As DBRX: a clip that bites, weights divided by their sum.
    "dbrx_bf16_clip": (
        dbrx(
            {"clip_qkv": 1.5, "kv_n_heads": 2, "rope_theta": 500000.0},
            {"ffn_hidden_size": 24, "moe_num_experts": 8, "moe_top_k": 3},
            vocab_size=160, d_model=64, n_heads=8, n_layers=3,
        ),
        None,
        [
            {"attn_config": {"clip_qkv": 8, "kv_n_heads": 2, "rope_theta": 500000.0}}, {"rope_theta": 100.0},
            {"ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 8, "moe_top_k": 2}},
            {"ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 8, "moe_top_k": 3,
                            "moe_normalize_expert_weights": None}},
        ],
    ),
    # Odd sizes, a clip that nothing reaches (transformers 5.23 fails without one), weights that are not normalised, shards.
    "dbrx_fp32_odd": (
        dbrx(
            {"clip_qkv": 1000.0, "kv_n_heads": 1},
            {"ffn_hidden_size": 14, "moe_num_experts": 5, "moe_top_k": 2, "moe_normalize_expert_weights": None},
            vocab_size=131, d_model=54, n_heads=3, n_layers=2, torch_dtype="float32",
        ),
        60_000,
        [
            {"attn_config": {"clip_qkv": 1.0, "kv_n_heads": 1, "rope_theta": 10000.0}},
            {"ffn_config": {"ffn_hidden_size": 14, "moe_num_experts": 5, "moe_top_k": 2}},
        ],
    ),
    # One expert a token, as many heads of keys as of queries.
    "dbrx_fp16_top1": (
        dbrx(
            {"clip_qkv": 2.0, "kv_n_heads": 4, "rope_theta": 10000.0},
            {"ffn_hidden_size": 20, "moe_num_experts": 6, "moe_top_k": 1, "moe_normalize_expert_weights": 1.0},
            vocab_size=128, d_model=48, n_heads=4, n_layers=3, torch_dtype="float16",
        ),
        None,
        [{"rope_theta": 100.0}],
    ),
    # As Arctic: experts that read each layer's input, beside an MLP as wide as the model.
    "arctic_bf16": (
        arctic(
            vocab_size=160, hidden_size=64, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2,
            intermediate_size=24, num_local_experts=12, num_experts_per_tok=2,
        ),
        None,
        [{"rope_theta": 100.0}, {"num_experts_per_tok": 1}, {"rms_norm_eps": 1e-1}],
    ),
    # Odd sizes, three experts a token, a window, tied, shards.
    "arctic_fp32_odd": (
        arctic(
            vocab_size=131, hidden_size=54, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
            intermediate_size=14, num_local_experts=7, num_experts_per_tok=3, sliding_window=16,
            tie_word_embeddings=True, torch_dtype="float32", rope_theta=1000000.0,
        ),
        60_000,
        [{"sliding_window": None}, {"sliding_window": 17}],
    ),
    # What the configuration can say: every other layer dense.
    "arctic_bf16_every_other": (
        arctic(
            vocab_size=128, hidden_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4,
            intermediate_size=28, num_local_experts=6, num_experts_per_tok=2, moe_layer_frequency=2,
        ),
        None,
        [{"rope_theta": 100.0}],
    ),
}
# Tensors beside those of the text, which a reader has to leave alone.
NOT_TEXT = {"model.visual.patch_embed.proj.bias": (16,), "mtp.fc.weight": (8, 16)}


def dtype_of(config: dict) -> torch.dtype:
    config = text_of(config)
    return getattr(torch, config.get("torch_dtype") or config["dtype"])


def dtype_of_tensor(config: dict, name: str) -> torch.dtype:
    if name.endswith(("_blocks", "_scales")):
        return torch.uint8
    if (config.get("quantization_config") or {}).get("quant_method") in ("fp8", "compressed-tensors"):
        if name.endswith("_scale_inv"):
            return torch.float32
        if fp8.is_linear(name):
            return torch.float8_e4m3fn
    exact = ("e_score_correction_bias", "A_log")
    if config["model_type"] == "ernie4_5_moe":
        exact += ("mlp.gate.weight",)
    return torch.float32 if name.endswith(exact) else dtype_of(config)


def fill(model, generator: torch.Generator, sharpness: float) -> None:
    """Random weights at a scale where routing and logits are decisive, unlike initializer_range = 0.02.

    `sharpness` scales queries and keys: attention over a long context looks at few of its positions when it is large.
    """
    tied = model.config.tie_word_embeddings
    kind = model.config.model_type
    norms = ("norm_1.weight", "norm_2.weight", "norm_f.weight")  # DBRX has "norm" in the names of other parts too
    for name, weight in model.named_parameters():
        fan_in = weight.shape[-1]
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith("sinks"):
            # Of the size of the largest scores, so that a sink takes a fair share.
            weight.copy_(1.0 + noise)
        elif name.endswith("moe_statics.e_score_correction_bias"):
            weight.copy_(0.05 * noise)  # of the size of differences of probabilities
        elif name.endswith("bias"):
            weight.copy_(0.4 * noise)
        elif name.endswith("A_log"):
            # Some heads forget within a few tokens, others remember dozens.
            weight.copy_(torch.log(0.02 + torch.rand(weight.shape, generator=generator)))
        elif name.endswith(norms) if kind == "dbrx" else "norm" in name:
            weight.copy_(1.0 + 0.25 * noise)
            if tied and name == "model.norm.weight":
                # With random signs the logits do not favour the input token, which a tied embedding would repeat.
                weight.mul_(torch.where(torch.rand(weight.shape, generator=generator) < 0.5, -1.0, 1.0))
            if model.config.model_type in ("qwen3_next", "qwen3_5_moe_text") and "linear_attn" not in name:
                weight.sub_(1.0)  # what is stored is added to 1
        elif "embed_tokens" in name:
            weight.copy_(noise * (2.5 / fan_in**0.5 if tied else 1.0))
        elif "wte" in name:
            weight.copy_(0.5 + noise)  # with a mean, which a norm has to subtract
        else:
            gain = 1.0
            if "lm_head" in name:
                gain = 2.5
            elif name.endswith("shared_expert_gate.weight"):
                gain = 1.5
            elif name.endswith(("gate.weight", "router.weight", "router.layer.weight")):
                gain = 1.5
            elif "q_proj" in name or "k_proj" in name or "Wqkv" in name:
                gain = 1.3
            elif "q_b_proj" in name or "kv_a_proj" in name:
                gain = 1.5
            elif "down_proj" in name or name.endswith(("output_linear.weight", ".w2.weight", ".w2")):
                gain = 2.0
                if kind == "dbrx":
                    fan_in = model.config.ffn_config.ffn_hidden_size  # stored [experts * in, out]
            if model.config.model_type == "gpt_oss" and ".experts." in name:
                # Stored [in, out]; large enough that the activation is clamped now and then.
                fan_in = weight.shape[-2]
                gain = 2.5 if "gate_up" in name else 1.0
            weight.copy_(gain * noise / fan_in**0.5)
        if name.endswith(("q_norm.weight", "k_norm.weight", "q_proj.weight", "k_proj.weight")):
            weight.mul_(sharpness)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            # Of the size of the scores' differences, so that it decides many choices.
            buffer.copy_(0.25 * torch.randn(buffer.shape, generator=generator))


def dbrx_tensors(c) -> dict[str, tuple[int, ...]]:
    h, ffn, root = c.d_model, c.ffn_config, "transformer"
    out = {f"{root}.wte.weight": (c.vocab_size, h), f"{root}.norm_f.weight": (h,), "lm_head.weight": (c.vocab_size, h)}
    for i in range(c.n_layers):
        block = f"{root}.blocks.{i}"
        out[f"{block}.norm_attn_norm.norm_1.weight"] = out[f"{block}.norm_attn_norm.norm_2.weight"] = (h,)
        out[f"{block}.norm_attn_norm.attn.Wqkv.weight"] = (h + 2 * c.attn_config.kv_n_heads * (h // c.n_heads), h)
        out[f"{block}.norm_attn_norm.attn.out_proj.weight"] = (h, h)
        out[f"{block}.ffn.router.layer.weight"] = (ffn.moe_num_experts, h)
        for matrix in ("w1", "v1", "w2"):
            out[f"{block}.ffn.experts.mlp.{matrix}"] = (ffn.moe_num_experts * ffn.ffn_hidden_size, h)
    return out


def expected_tensors(config: dict, model) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the hub's layout, from the configuration alone (not from what transformers saved)."""
    c = model.config
    kind = config["model_type"]
    if kind == "dbrx":
        return dbrx_tensors(c)
    head_dim = text_of(config).get("head_dim") or c.hidden_size // c.num_attention_heads
    h, q, kv = c.hidden_size, c.num_attention_heads * head_dim, c.num_key_value_heads * head_dim
    root = "model.language_model" if kind == "qwen3_5_moe" else "model"
    out: dict[str, tuple[int, ...]] = {f"{root}.embed_tokens.weight": (c.vocab_size, h), f"{root}.norm.weight": (h,)}
    if kind == "qwen3_5_moe":
        out |= NOT_TEXT
    if not config.get("tie_word_embeddings", False):
        out["lm_head.weight"] = (c.vocab_size, h)

    def mlp(prefix: str, width: int) -> None:
        out[f"{prefix}.gate_proj.weight"] = out[f"{prefix}.up_proj.weight"] = (width, h)
        out[f"{prefix}.down_proj.weight"] = (h, width)

    for i in range(c.num_hidden_layers):
        layer = f"{root}.layers.{i}"
        out[f"{layer}.input_layernorm.weight"] = out[f"{layer}.post_attention_layernorm.weight"] = (h,)
        gated = kind in ("qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text")
        if gated and c.layer_types[i] == "linear_attention":
            keys, values = c.linear_num_key_heads * c.linear_key_head_dim, c.linear_num_value_heads * c.linear_value_head_dim
            heads, mixer = c.linear_num_value_heads, f"{layer}.linear_attn"
            if kind == "qwen3_next":
                projections = {"qkvz": 2 * keys + 2 * values, "ba": 2 * heads}
            else:
                projections = {"qkv": 2 * keys + values, "z": values, "b": heads, "a": heads}
            for name, rows in projections.items():
                out[f"{mixer}.in_proj_{name}.weight"] = (rows, h)
            out[f"{mixer}.conv1d.weight"] = (2 * keys + values, 1, c.linear_conv_kernel_dim)
            out[f"{mixer}.A_log"] = out[f"{mixer}.dt_bias"] = (heads,)
            out[f"{mixer}.norm.weight"] = (c.linear_value_head_dim,)
            out[f"{mixer}.out_proj.weight"] = (h, values)
        if kind in LATENT_KINDS:
            attention, heads = f"{layer}.self_attn", c.num_attention_heads
            queries = heads * (c.qk_nope_head_dim + c.qk_rope_head_dim)
            if c.q_lora_rank is None:
                out[f"{attention}.q_proj.weight"] = (queries, h)
            else:
                out[f"{attention}.q_a_proj.weight"] = (c.q_lora_rank, h)
                out[f"{attention}.q_a_layernorm.weight"] = (c.q_lora_rank,)
                out[f"{attention}.q_b_proj.weight"] = (queries, c.q_lora_rank)
            out[f"{attention}.kv_a_proj_with_mqa.weight"] = (c.kv_lora_rank + c.qk_rope_head_dim, h)
            out[f"{attention}.kv_a_layernorm.weight"] = (c.kv_lora_rank,)
            out[f"{attention}.kv_b_proj.weight"] = (heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank)
            out[f"{attention}.o_proj.weight"] = (h, heads * c.v_head_dim)
            if kind == "deepseek_v32" or (kind == "glm_moe_dsa" and c.indexer_types[i] == "full"):
                indexer, heads = f"{attention}.indexer", c.index_n_heads
                out[f"{indexer}.wq_b.weight"] = (heads * c.index_head_dim, c.q_lora_rank)
                out[f"{indexer}.wk.weight"] = (c.index_head_dim, h)
                out[f"{indexer}.k_norm.weight"] = out[f"{indexer}.k_norm.bias"] = (c.index_head_dim,)
                out[f"{indexer}.weights_proj.weight"] = (heads, h)
            types = config.get("mlp_layer_types")
            if types[i] == "dense" if types else i < c.first_k_dense_replace:
                mlp(f"{layer}.mlp", c.intermediate_size)
                continue
            out[f"{layer}.mlp.gate.weight"] = (c.n_routed_experts, h)
            if kind != "deepseek_v2":
                out[f"{layer}.mlp.gate.e_score_correction_bias"] = (c.n_routed_experts,)
            for e in range(c.n_routed_experts):
                mlp(f"{layer}.mlp.experts.{e}", c.moe_intermediate_size)
            mlp(f"{layer}.mlp.shared_experts", c.n_shared_experts * c.moe_intermediate_size)
            continue
        for name, shape in {"q": (q, h), "k": (kv, h), "v": (kv, h), "o": (h, q)}.items():
            if gated and c.layer_types[i] == "linear_attention":
                break
            if gated and name == "q":
                shape = (2 * q, h)
            out[f"{layer}.self_attn.{name}_proj.weight"] = shape
            with_bias = kind == "qwen2_moe" or config.get("attention_bias")
            if with_bias and (name != "o" or kind not in ("qwen2_moe", "glm4_moe")):
                out[f"{layer}.self_attn.{name}_proj.bias"] = shape[:1]
        if kind == "gpt_oss":
            out[f"{layer}.self_attn.sinks"] = (c.num_attention_heads,)
            out[f"{layer}.mlp.router.weight"] = (c.num_local_experts, h)
            out[f"{layer}.mlp.router.bias"] = (c.num_local_experts,)
            for matrix, rows, cols in (("gate_up", 2 * c.intermediate_size, h), ("down", h, c.intermediate_size)):
                name = f"{layer}.mlp.experts.{matrix}_proj"
                out[f"{name}_bias"] = (c.num_local_experts, rows)
                if "quantization_config" in config:
                    out[f"{name}_blocks"] = (c.num_local_experts, rows, cols // 32, 16)
                    out[f"{name}_scales"] = (c.num_local_experts, rows, cols // 32)
                else:
                    out[name] = (c.num_local_experts, cols, rows)
            continue
        full = gated and c.layer_types[i] == "full_attention"
        if kind == "qwen3_moe" or full or (kind == "glm4_moe" and config.get("use_qk_norm")):
            out[f"{layer}.self_attn.q_norm.weight"] = out[f"{layer}.self_attn.k_norm.weight"] = (head_dim,)
        if kind in ("olmoe", "minimax_m2"):
            out[f"{layer}.self_attn.q_norm.weight"] = (q,)
            out[f"{layer}.self_attn.k_norm.weight"] = (kv,)
        if kind in ("granitemoe", "granitemoeshared"):
            moe, width = f"{layer}.block_sparse_moe", c.intermediate_size
            out[f"{moe}.router.layer.weight"] = (c.num_local_experts, h)
            out[f"{moe}.input_linear.weight"] = (c.num_local_experts, 2 * width, h)
            out[f"{moe}.output_linear.weight"] = (c.num_local_experts, h, width)
            if kind == "granitemoeshared":
                out[f"{layer}.shared_mlp.input_linear.weight"] = (2 * c.shared_intermediate_size, h)
                out[f"{layer}.shared_mlp.output_linear.weight"] = (h, c.shared_intermediate_size)
            continue
        if kind == "arctic":
            moe, width = f"{layer}.block_sparse_moe", c.intermediate_size
            prefixes = {f"{moe}.mlp": width}
            if (i + 1) % c.moe_layer_frequency == 0:
                prefixes = {f"{moe}.experts.{e}": width for e in range(c.num_local_experts)} | {f"{layer}.residual_mlp": h}
                out[f"{moe}.gate.weight"] = (c.num_local_experts, h)
                out[f"{layer}.residual_layernorm.weight"] = (h,)
            for prefix, rows in prefixes.items():
                out[f"{prefix}.w1.weight"] = out[f"{prefix}.w3.weight"] = (rows, h)
                out[f"{prefix}.w2.weight"] = (h, rows)
            continue
        if kind in ("mixtral", "minimax_m2"):
            out[f"{layer}.block_sparse_moe.gate.weight"] = (c.num_local_experts, h)
            if kind == "minimax_m2":
                out[f"{layer}.block_sparse_moe.e_score_correction_bias"] = (c.num_local_experts,)
            for e in range(c.num_local_experts):
                expert = f"{layer}.block_sparse_moe.experts.{e}"
                out[f"{expert}.w1.weight"] = out[f"{expert}.w3.weight"] = (c.intermediate_size, h)
                out[f"{expert}.w2.weight"] = (h, c.intermediate_size)
            continue
        if kind == "glm4_moe":
            if i < c.first_k_dense_replace:
                mlp(f"{layer}.mlp", c.intermediate_size)
                continue
            out[f"{layer}.mlp.gate.weight"] = (c.n_routed_experts, h)
            out[f"{layer}.mlp.gate.e_score_correction_bias"] = (c.n_routed_experts,)
            for e in range(c.n_routed_experts):
                mlp(f"{layer}.mlp.experts.{e}", c.moe_intermediate_size)
            mlp(f"{layer}.mlp.shared_experts", c.n_shared_experts * c.moe_intermediate_size)
            continue
        if kind == "ernie4_5_moe":
            end = c.moe_layer_end_index if c.moe_layer_end_index >= 0 else c.num_hidden_layers - 1
            if not (c.moe_layer_start_index <= i <= end and (i + 1) % c.moe_layer_interval == 0):
                mlp(f"{layer}.mlp", c.intermediate_size)
                continue
            out[f"{layer}.mlp.gate.weight"] = (c.moe_num_experts, h)
            out[f"{layer}.mlp.moe_statics.e_score_correction_bias"] = (1, c.moe_num_experts)
            for e in range(c.moe_num_experts):
                mlp(f"{layer}.mlp.experts.{e}", c.moe_intermediate_size)
            if c.moe_num_shared_experts > 0:
                mlp(f"{layer}.mlp.shared_experts", c.moe_num_shared_experts * c.moe_intermediate_size)
            continue
        if kind == "qwen3_5_moe":
            width = c.moe_intermediate_size
            out[f"{layer}.mlp.gate.weight"] = (c.num_experts, h)
            out[f"{layer}.mlp.experts.gate_up_proj"] = (c.num_experts, 2 * width, h)
            out[f"{layer}.mlp.experts.down_proj"] = (c.num_experts, h, width)
            mlp(f"{layer}.mlp.shared_expert", c.shared_expert_intermediate_size)
            out[f"{layer}.mlp.shared_expert_gate.weight"] = (1, h)
            continue
        step = config.get("decoder_sparse_step", 1)
        if i in config.get("mlp_only_layers", []) or (i + 1) % step:
            mlp(f"{layer}.mlp", c.intermediate_size)
            continue
        out[f"{layer}.mlp.gate.weight"] = (c.num_experts, h)
        for e in range(c.num_experts):
            mlp(f"{layer}.mlp.experts.{e}", config.get("moe_intermediate_size") or c.intermediate_size)
        if kind in ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text"):
            mlp(f"{layer}.mlp.shared_expert", c.shared_expert_intermediate_size)
            out[f"{layer}.mlp.shared_expert_gate.weight"] = (1, h)
    return out


def write_checkpoint(directory: pathlib.Path, config: dict, shard_bytes: int | None, seed: int, sharpness: float = 1.0) -> None:
    directory.mkdir(parents=True)
    if packed_int4.is_packed(config):
        with tempfile.TemporaryDirectory() as scratch:
            plain = pathlib.Path(scratch) / "model"
            write_checkpoint(plain, packed_int4.plain_config(config), None, seed, sharpness)
            packed_int4.pack_checkpoint(plain, directory, config, shard_bytes)
        return
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    hf_config = transformers.AutoConfig.from_pretrained(str(directory))
    if "quantization_config" in config:
        del hf_config.quantization_config
    model = transformers.AutoModelForCausalLM.from_config(hf_config, dtype=torch.float32)
    fill(model, torch.Generator().manual_seed(seed), sharpness)
    with tempfile.TemporaryDirectory() as scratch:
        # The default of save_pretrained writes the hub's layout; config.json stays ours.
        kept = {n: b.clone() for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")}
        decays = {n: p.detach().clone() for n, p in model.named_parameters() if n.endswith("A_log")}
        ernie = config["model_type"] == "ernie4_5_moe"
        exact = {
            n: p.detach().clone() for n, p in model.named_parameters()
            if ernie and n.endswith(("mlp.gate.weight", "e_score_correction_bias"))
        }
        model.to(dtype_of(config))
        for name, value in exact.items():
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, torch.nn.Parameter(value, requires_grad=False))
        for name, decay in decays.items():
            model.get_submodule(name.rpartition(".")[0]).A_log = torch.nn.Parameter(decay)
        for name, buffer in kept.items():
            model.get_submodule(name.rpartition(".")[0]).e_score_correction_bias = torch.nn.Buffer(buffer)
        if config["model_type"] == "qwen3_5_moe":
            save_as_stacked(model, pathlib.Path(scratch), shard_bytes)
        else:
            model.save_pretrained(scratch, max_shard_size=shard_bytes or "1GB")
        for path in pathlib.Path(scratch).glob("model*"):
            shutil.copy(path, directory / path.name)
    if "quantization_config" in config:
        (mxfp4 if mxfp4.is_quantised(directory) else fp8).quantise_checkpoint(directory)
    verify_layout(directory, config, shard_bytes, model)


def save_as_stacked(model, directory: pathlib.Path, shard_bytes: int | None) -> None:
    """As the hub has it: the names of the model that also sees, experts as they are in memory; transformers would
    write a tensor for each expert."""
    tensors = {n: torch.full(shape, 0.5, dtype=next(model.parameters()).dtype) for n, shape in NOT_TEXT.items()}
    for name, parameter in model.named_parameters():
        tensors[re.sub(r"^model\.", "model.language_model.", name)] = parameter.detach().contiguous()
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    split = huggingface_hub.split_torch_state_dict_into_shards(tensors, max_shard_size=shard_bytes or "1GB")
    for file, names in split.filename_to_tensors.items():
        save_file({n: tensors[n] for n in names}, directory / file, {"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def verify_layout(directory: pathlib.Path, config: dict, shard_bytes: int | None, model) -> None:
    found, files = {}, sorted(directory.glob("*.safetensors"))
    for path in files:
        with safe_open(path, "pt") as file:
            for name in file.keys():
                tensor = file.get_tensor(name)
                assert tensor.dtype == dtype_of_tensor(config, name), (name, tensor.dtype)
                found[name] = (tuple(tensor.shape), path.name)
    expected = expected_tensors(config, model)
    if fp8.is_quantised(directory):
        expected |= fp8.scales_of(directory, expected)
    assert {n: s for n, (s, _) in found.items()} == expected, (
        sorted(set(found) ^ set(expected)), [n for n in set(found) & set(expected) if found[n][0] != expected[n]]
    )
    index = directory / "model.safetensors.index.json"
    assert index.exists() == (shard_bytes is not None) == (len(files) > 1)
    if index.exists():
        assert json.loads(index.read_text())["weight_map"] == {n: f for n, (_, f) in found.items()}
    stacked = ("gpt_oss", "qwen3_5_moe", "granitemoe", "granitemoeshared", "dbrx", "arctic")
    if config["model_type"] in stacked or fp8.is_quantised(directory):
        return  # in the file as in memory, or rounded after it was written
    # The fused tensor in memory is [gate; up]: check one expert against the file, bit for bit.
    layer = hf_reference.sparse_layers(model)[0]
    gate, up = ("w1", "w3") if config["model_type"] in ("mixtral", "minimax_m2") else ("gate_proj", "up_proj")
    fused = model.model.layers[layer].mlp.experts.gate_up_proj[1]
    parts = []
    for part in (gate, up):
        name = next(n for n in found if re.search(rf"layers\.{layer}\..*experts\.1\.{part}\.weight", n))
        with safe_open(directory / found[name][1], "pt") as file:
            parts.append(file.get_tensor(name))
    assert torch.equal(fused, torch.cat(parts)), "gate and up are not where they should be"


def choose_prompt(model, length: int, vocab: int, seed: int, dynamic: bool):
    """Random ids whose routing and continuation have no near-ties, so that a test needs no exceptions for float32.

    Returns the ids, their trace, the continuation, and the ids of the continuation made without a KV cache.
    """
    for attempt in range(5000):
        generator = torch.Generator().manual_seed(seed * 10007 + attempt)
        ids = torch.randint(0, vocab, (length,), generator=generator).tolist()
        hf_reference.reset_dynamic_rope(model)
        trace = hf_reference.run(model, ids)
        if trace.router_gap.min() < MIN_ROUTER_GAP or trace.index_gap < MIN_INDEX_GAP:
            continue
        continuation = hf_reference.greedy(model, ids, STEPS)
        if min(continuation.margins) < MIN_MARGIN or continuation.min_router_gap < MIN_ROUTER_GAP:
            continue
        if continuation.min_index_gap < MIN_INDEX_GAP:
            continue
        if len(set(continuation.ids)) < MIN_DISTINCT:
            continue
        recomputed = hf_reference.greedy(model, ids, STEPS, cached=False).ids
        # With dynamic rope the cached keys keep the rotation of the step that made them: take a prompt where that shows.
        if (recomputed == continuation.ids) == (dynamic and length > model.config.max_position_embeddings):
            continue
        return ids, trace, continuation, recomputed
    raise RuntimeError(f"no prompt of {length} tokens without near-ties")


def stepwise_logits(model, ids: list[int]) -> torch.Tensor:
    """[tokens, vocab] of tokens that come one by one, each with the dynamic rope of the length until then."""
    hf_reference.reset_dynamic_rope(model)
    rows, cache = [], None
    for token in ids:
        trace = hf_reference.run(model, [token], cache=cache, use_cache=True)
        rows.append(trace.logits[-1])
        cache = trace.cache
    return torch.stack(rows)


def write_reference(directory: pathlib.Path, seed: int) -> list[list[int]]:
    model = hf_reference.load_model(directory)
    dynamic = "dynamic" in getattr(hf_reference.body_of(model).rotary_emb, "rope_type", "")
    tensors: dict[str, torch.Tensor] = {
        "sparse_layers": torch.tensor(hf_reference.sparse_layers(model), dtype=torch.int32)
    }
    prompts = []
    for number, length in enumerate(PROMPT_LENGTHS):
        ids, trace, continuation, recomputed = choose_prompt(
            model, length, model.config.vocab_size, seed * 16 + number, dynamic
        )
        name = f"{number:02d}"
        tensors[f"{name}.logits"] = trace.logits
        tensors[f"{name}.argmax"] = trace.logits.argmax(-1).to(torch.int32)
        tensors[f"{name}.logsumexp"] = trace.logits.logsumexp(-1)
        tensors[f"{name}.experts"] = trace.experts
        tensors[f"{name}.expert_weights"] = trace.expert_weights
        tensors[f"{name}.router_gap"] = trace.router_gap
        tensors[f"{name}.greedy_logits"] = continuation.logits
        if dynamic and length > model.config.max_position_embeddings:
            tensors[f"{name}.stepwise_logits"] = stepwise_logits(model, ids)
        if number in HIDDEN_FOR:
            tensors[f"{name}.hidden"] = trace.hidden
        entry = {
            "id": number,
            "domain": "random_ids",
            "prompt_ids": ids,
            "greedy_ids": continuation.ids,
            "greedy_margin": [round(m, 4) for m in continuation.margins],
        }
        if dynamic:
            entry["greedy_ids_without_kv_cache"] = recomputed
        prompts.append(entry)
    reference = directory / "reference"
    reference.mkdir()
    lines = ",\n".join(" " + json.dumps(p) for p in prompts)
    (reference / "prompts.json").write_text(f"[\n{lines}\n]\n")
    about = (
        "per prompt NN: NN.logits [tokens, vocab] f32, NN.argmax [tokens] i32, NN.logsumexp [tokens] f32, "
        "NN.experts [sparse layers, tokens, top_k] i32 sorted by router probability, NN.expert_weights (as applied) "
        "f32, NN.router_gap [sparse layers, tokens] f32 (k-th minus (k+1)-th probability), NN.greedy_logits "
        "[steps, vocab] f32 (row s chose greedy_ids[s]), NN.hidden [layers + 1, tokens, hidden] f32 (embedding, then "
        "after each layer, before the final norm); sparse_layers i32: the layer numbers of those rows; computed in "
        f"float32 from the rounded weights by transformers {transformers.__version__}"
    )
    save_file({k: v.contiguous() for k, v in tensors.items()}, reference / "logits.safetensors", {"about": about})
    return [p["prompt_ids"] for p in prompts]


def report(directory: pathlib.Path, config: dict, effects: list[dict], prompts: list[list[int]]) -> None:
    model = hf_reference.load_model(directory)
    hf_reference.reset_dynamic_rope(model)
    trace = hf_reference.run(model, prompts[-1])
    usage = torch.bincount(trace.experts.flatten(), minlength=1)
    # float64 weights and activations (RMSNorm and softmax stay float32 inside): how much float32 rounding matters.
    double = hf_reference.load_model(directory, torch.float64)
    noise = float((hf_reference.run(double, prompts[-1]).logits - trace.logits).abs().max())
    print(
        f"{directory.name}: logits std {trace.logits.std():.2f}, top expert weight median "
        f"{trace.expert_weights[..., 0].median():.2f}, experts used {int((usage > 0).sum())}, "
        f"float32 noise {noise:.1e}, "
        f"{sum(f.stat().st_size for f in directory.rglob('*') if f.is_file()) / 1e3:.0f} kB"
    )
    for change in effects:
        with tempfile.TemporaryDirectory() as scratch:
            copy = pathlib.Path(scratch) / "model"
            shutil.copytree(directory, copy)
            (copy / "config.json").write_text(json.dumps(changed(config, change)))
            other = hf_reference.run(hf_reference.load_model(copy), prompts[-1])
            effect = float((other.logits - trace.logits).abs().max())
            print(f"    {json.dumps(change)}: logits move by {effect:.2f}")
            assert effect > MIN_EFFECT, f"{directory.name} does not notice {change}"


def main() -> None:
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/data/models")
    parser.add_argument("--only", choices=sorted(FIXTURES), nargs="+")
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    for seed, (name, (config, shard_bytes, effects)) in enumerate(FIXTURES.items(), start=1):
        if arguments.only and name not in arguments.only:
            continue
        seed = OWN_SEEDS.get(name, seed)
        directory = arguments.out / name
        if directory.exists():
            shutil.rmtree(directory)
        write_checkpoint(directory, config, shard_bytes, seed)
        prompts = write_reference(directory, seed)
        report(directory, config, effects, prompts)


if __name__ == "__main__":
    main()
