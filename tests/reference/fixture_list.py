"""The fixtures of tests/data/models: configuration, size of shards, and the changes of the configuration that have to move
the logits. make_fixtures.py makes them.

Those since seed 46 have a context of 256 positions: tests that run a longer prompt where a model allows it skip them.
"""

from __future__ import annotations

import fp8
import packed_int4
from fixture_families import (
    LLAMA3,
    YARN,
    YARN_OF_DEEPSEEK,
    arctic,
    dbrx,
    deepseek,
    ernie4_5_moe,
    glm4_moe,
    glm4_moe_lite,
    gpt_oss,
    granitemoe,
    indexed,
    kimi,
    kimi_k25,
    minimax_m2,
    mixtral,
    olmoe,
    qwen2_moe,
    qwen3_5_moe,
    qwen3_5_moe_text,
    qwen3_moe,
    qwen3_next,
    without,
)

# Of fixtures that were made beside others with the same numbers.
OWN_SEEDS = {
    "deepseek_v2_bf16_lite": 19, "deepseek_v2_fp32_groups": 20, "deepseek_v3_bf16_groups": 21, "deepseek_v3_fp32_halves": 22,
    "glm4_moe_lite_bf16": 23, "deepseek_v3_fp8": 24, "minimax_m2_fp8": 25, "glm4_moe_fp8": 26,
    "kimi_k2_int4": 27, "kimi_k25_int4": 28, "kimi_k25_int4_wide": 29,
    "qwen3_5_moe_text_bf16": 30, "ernie4_5_moe_bf16": 31, "ernie4_5_moe_fp32_odd": 32, "ernie4_5_moe_bf16_every_other": 33,
    "deepseek_v32_bf16": 36, "glm_moe_dsa_bf16_shared": 35, "glm_moe_dsa_fp32_odd": 37,
    "granitemoe_bf16": 37, "granitemoe_fp32_odd": 38, "granitemoe_shared_bf16": 39, "dbrx_bf16_clip": 40, "dbrx_fp32_odd": 41,
    "dbrx_fp16_top1": 42, "arctic_bf16": 43, "arctic_fp32_odd": 44, "arctic_bf16_every_other": 45,
    "qwen3_5_moe_text_fp32_odd": 46, "qwen3_5_moe_text_fp16_tied": 65, "qwen2_moe_fp16_no_bias": 48, "olmoe_fp16_bias": 49,
    "qwen3_next_fp16": 50, "deepseek_v2_fp16_plain": 51, "glm4_moe_lite_fp32_odd": 52, "glm4_moe_lite_fp16_yarn": 53,
    "deepseek_v32_fp32_odd": 54, "deepseek_v32_fp16": 55, "glm_moe_dsa_fp16_groups": 57, "granitemoe_fp16_plain": 58,
    "granitemoe_shared_fp32_odd": 59, "granitemoe_shared_fp16": 60, "kimi_k2_int4_groups": 61, "kimi_k2_int4_channel": 62,
    "kimi_k25_int4_tied": 63, "qwen3_5_moe_fp16": 64,
}

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
        without(
            olmoe(
                vocab_size=128, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3,
                intermediate_size=20, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True, dtype="float32",
                rope_parameters={
                    "rope_theta": 2000.0, "rope_type": "yarn", "factor": 3.0, "beta_fast": 16.0, "beta_slow": 2.0,
                    "attention_factor": 1.3, "original_max_position_embeddings": 128, "truncate": False,
                },
            ),
            "rope_theta", "rope_scaling", "torch_dtype",
        ),
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
        without(
            gpt_oss(
                vocab_size=131, hidden_size=52, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
                head_dim=18, intermediate_size=22, num_local_experts=5, num_experts_per_tok=2, torch_dtype="float32",
                layer_types=["full_attention", "sliding_attention", "sliding_attention"], sliding_window=20,
                swiglu_limit=2.0, swiglu_alpha=1.2, tie_word_embeddings=True,
                rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
            ),
            "rope_scaling", "rope_theta",
        ),
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
        kimi_k25(
            kimi(
                vocab_size=160, hidden_size=64, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=5,
                q_lora_rank=24, kv_lora_rank=20, qk_nope_head_dim=18, qk_rope_head_dim=8, v_head_dim=24,
                intermediate_size=80, moe_intermediate_size=32, n_routed_experts=12, num_experts_per_tok=4,
                rms_norm_eps=1e-05, quantization_config=packed_int4.quantization(32),
            ),
            media_placeholder_token_id=159, vision_config={"hidden_size": 16},
        ),
        90_000,
        [{"routed_scaling_factor": 1.0}, {"rope_theta": 1000.0}, {"rope_scaling": None}],
    ),
    # What no release has: groups of 64 inputs, rotated halves, groups of experts, queries of one matrix.
    "kimi_k25_int4_wide": (
        kimi_k25(
            kimi(
                vocab_size=128, hidden_size=128, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
                q_lora_rank=None, kv_lora_rank=32, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=20,
                intermediate_size=56, moe_intermediate_size=64, n_routed_experts=8, num_experts_per_tok=2,
                n_group=2, topk_group=1, n_shared_experts=2, rope_interleave=False, norm_topk_prob=False,
                quantization_config=packed_int4.quantization(64),
            ),
        ),
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
    # The text of Qwen3.5 again: odd sizes, a convolution over 3 tokens, rope over 12 of 18 values, shards.
    "qwen3_5_moe_text_fp32_odd": (
        qwen3_5_moe_text(
            vocab_size=101, hidden_size=42, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3,
            head_dim=18, linear_num_key_heads=3, linear_num_value_heads=3, linear_key_head_dim=10,
            linear_value_head_dim=11, linear_conv_kernel_dim=3, max_position_embeddings=256, moe_intermediate_size=14,
            shared_expert_intermediate_size=18, num_experts=5, num_experts_per_tok=3, full_attention_interval=2,
            dtype="float32",
            rope_parameters={"partial_rotary_factor": 0.67, "rope_theta": 10000.0, "rope_type": "default"},
        ),
        60_000,
        [
            {"rms_norm_eps": 1e-1},
            {"rope_parameters": {"partial_rotary_factor": 1.0, "rope_theta": 10000.0, "rope_type": "default"}},
        ],
    ),
    # Two value heads a key head, a full layer between two linear ones by a list, tied.
    "qwen3_5_moe_text_fp16_tied": (
        qwen3_5_moe_text(
            tied=True, vocab_size=96, hidden_size=40, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
            linear_key_head_dim=12, linear_value_head_dim=8, max_position_embeddings=256, moe_intermediate_size=16,
            shared_expert_intermediate_size=20, num_experts=8, num_experts_per_tok=2, dtype="float16",
            layer_types=["linear_attention", "full_attention", "linear_attention"],
        ),
        None,
        [
            {"rms_norm_eps": 1e-1},
            {"rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10.0, "rope_type": "default"}},
        ],
    ),
    # Four value heads of one key head, a convolution over 2 tokens, the full layer first, half of each head rotated.
    "qwen3_5_moe_fp16": (
        qwen3_5_moe(
            vocab_size=96, hidden_size=36, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            head_dim=20, linear_num_key_heads=1, linear_num_value_heads=4, linear_key_head_dim=9,
            linear_value_head_dim=10, linear_conv_kernel_dim=2, max_position_embeddings=256, moe_intermediate_size=12,
            shared_expert_intermediate_size=16, num_experts=7, num_experts_per_tok=1, dtype="float16",
            layer_types=["full_attention", "linear_attention"],
            rope_parameters={"partial_rotary_factor": 0.5, "rope_theta": 1000.0, "rope_type": "default"},
        ),
        None,
        [
            {"rms_norm_eps": 1e-1},
            {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10.0, "rope_type": "default"}},
        ],
    ),
    # Without biases of queries, keys and values; a window of 20 in the first and third layer; weights normalised.
    "qwen2_moe_fp16_no_bias": (
        qwen2_moe(
            vocab_size=112, hidden_size=40, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1,
            intermediate_size=72, max_position_embeddings=256, moe_intermediate_size=20,
            shared_expert_intermediate_size=28, num_experts=9, num_experts_per_tok=3, qkv_bias=False,
            norm_topk_prob=True, sliding_window=20, use_sliding_window=True, max_window_layers=3,
            torch_dtype="float16",
        ),
        None,
        [{"norm_topk_prob": False}, {"rope_theta": 100.0}, {"sliding_window": 21}, {"max_window_layers": 2}],
    ),
    # Biases of attention, which no release has; one expert a token, not normalised.
    "olmoe_fp16_bias": (
        olmoe(
            vocab_size=104, hidden_size=40, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=5,
            intermediate_size=24, max_position_embeddings=256, num_experts=6, num_experts_per_tok=1,
            attention_bias=True, torch_dtype="float16", rope_scaling={"rope_type": "linear", "factor": 3.0},
        ),
        None,
        [{"norm_topk_prob": True}, {"rope_scaling": None}],
    ),
    # One value head a key head, two layers of attention in four, a convolution over 2 tokens, half of each head rotated.
    "qwen3_next_fp16": (
        qwen3_next(
            vocab_size=96, hidden_size=40, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, intermediate_size=40, linear_conv_kernel_dim=2, linear_num_key_heads=3,
            linear_num_value_heads=3, linear_key_head_dim=12, linear_value_head_dim=10, max_position_embeddings=256,
            moe_intermediate_size=12, shared_expert_intermediate_size=16, num_experts=6, num_experts_per_tok=2,
            full_attention_interval=2, partial_rotary_factor=0.5, torch_dtype="float16",
        ),
        None,
        [{"norm_topk_prob": False}, {"partial_rotary_factor": 0.25}],
    ),
    # Queries of a latent without groups, no yarn, no dense layer.
    "deepseek_v2_fp16_plain": (
        deepseek(
            "2", vocab_size=104, hidden_size=42, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
            q_lora_rank=20, kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=16,
            intermediate_size=56, max_position_embeddings=256, moe_intermediate_size=14, n_routed_experts=8,
            num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=0, topk_method="greedy", n_group=1,
            topk_group=1, routed_scaling_factor=2.0, torch_dtype="float16",
        ),
        None,
        [{"routed_scaling_factor": 1.0}, {"rope_theta": 100}],
    ),
    # Odd sizes, groups of experts, shards.
    "glm4_moe_lite_fp32_odd": (
        glm4_moe_lite(
            vocab_size=101, hidden_size=42, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
            q_lora_rank=22, kv_lora_rank=18, qk_nope_head_dim=14, qk_rope_head_dim=6, v_head_dim=22,
            intermediate_size=46, max_position_embeddings=256, moe_intermediate_size=14, n_routed_experts=8,
            num_experts_per_tok=2, n_group=2, topk_group=1, mlp_layer_types=["sparse", "sparse"],
            torch_dtype="float32",
        ),
        60_000,
        [{"n_group": 1}, {"routed_scaling_factor": 1.0}, {"rope_theta": 100.0}],
    ),
    # Yarn, two shared experts, no list of dense layers (the first is), tied.
    "glm4_moe_lite_fp16_yarn": (
        glm4_moe_lite(
            vocab_size=96, hidden_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
            q_lora_rank=16, kv_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12,
            intermediate_size=40, max_position_embeddings=256, moe_intermediate_size=12, n_routed_experts=6,
            num_experts_per_tok=2, n_shared_experts=2, tie_word_embeddings=True, torch_dtype="float16",
            rope_scaling=YARN_OF_DEEPSEEK | {"factor": 8, "mscale": 1.0, "mscale_all_dim": 1.0},
        ),
        None,
        [{"rope_scaling": None}, {"routed_scaling_factor": 1.0}],
    ),
    # Odd sizes, no groups, no yarn, no dense layer, shards.
    "deepseek_v32_fp32_odd": (
        indexed(
            "deepseek_v32", vocab_size=101, hidden_size=42, num_hidden_layers=2, num_attention_heads=3,
            num_key_value_heads=3, q_lora_rank=22, kv_lora_rank=18, qk_nope_head_dim=14, qk_rope_head_dim=6,
            v_head_dim=22, intermediate_size=40, max_position_embeddings=256, moe_intermediate_size=14,
            n_routed_experts=7, num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=0,
            index_topk=11, index_n_heads=9, index_head_dim=13, torch_dtype="float32",
        ),
        60_000,
        [{"norm_topk_prob": False}, {"rope_theta": 100}, {"index_topk": 512}, {"index_topk": 12}],
    ),
    # Two shared experts, weights that are not normalised, yarn with a factor of its own for cosines, the indexer's too.
    "deepseek_v32_fp16": (
        indexed(
            "deepseek_v32", vocab_size=96, hidden_size=40, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=32, qk_nope_head_dim=12, qk_rope_head_dim=8,
            v_head_dim=12, intermediate_size=40, max_position_embeddings=256, moe_intermediate_size=12,
            n_routed_experts=8, num_experts_per_tok=3, n_group=2, topk_group=1, n_shared_experts=2,
            norm_topk_prob=False, first_k_dense_replace=1, index_topk=20, index_head_dim=8,
            rope_scaling=YARN_OF_DEEPSEEK | {"factor": 8, "mscale": 1.0, "mscale_all_dim": 0.6}, torch_dtype="float16",
        ),
        None,
        [
            {"norm_topk_prob": True}, {"n_group": 1, "topk_group": 1}, {"index_topk": 21},
            {"rope_scaling": YARN_OF_DEEPSEEK | {"factor": 8, "mscale": 0.6, "mscale_all_dim": 0.6}},
        ],
    ),
    # Groups of experts, a dense layer by its number, the choice shared by a text of F and S, tied.
    "glm_moe_dsa_fp16_groups": (
        indexed(
            "glm_moe_dsa", vocab_size=96, hidden_size=40, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=32, qk_nope_head_dim=12, qk_rope_head_dim=8,
            v_head_dim=12, first_k_dense_replace=1, intermediate_size=40, max_position_embeddings=256,
            moe_intermediate_size=12, n_routed_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1,
            index_topk=14, index_topk_pattern="FSF", tie_word_embeddings=True, torch_dtype="float16",
        ),
        None,
        [{"n_group": 1, "topk_group": 1}, {"routed_scaling_factor": 1.0}, {"index_topk": 15}],
    ),
    # All multipliers left out: scores are not scaled. Logits of another matrix.
    "granitemoe_fp16_plain": (
        granitemoe(
            vocab_size=104, hidden_size=40, num_hidden_layers=2, num_attention_heads=4, intermediate_size=20,
            max_position_embeddings=256, num_local_experts=6, num_experts_per_tok=3, tie_word_embeddings=False,
            torch_dtype="float16",
        ),
        None,
        [{"attention_multiplier": 0.316}, {"embedding_multiplier": 2.0}, {"rope_theta": 100.0}],
    ),
    # The MLP that every token runs, with odd sizes, linear rope, one expert a token, shards.
    "granitemoe_shared_fp32_odd": (
        granitemoe(
            shared=True, vocab_size=101, hidden_size=42, num_hidden_layers=2, num_attention_heads=3,
            num_key_value_heads=1, head_dim=10, intermediate_size=14, shared_intermediate_size=22,
            max_position_embeddings=256, num_local_experts=7, num_experts_per_tok=1, embedding_multiplier=1.5,
            residual_multiplier=0.7, attention_multiplier=0.25, logits_scaling=0.5,
            rope_scaling={"type": "linear", "factor": 2.5}, torch_dtype="float32", rms_norm_eps=1e-05,
        ),
        60_000,
        [{"rope_scaling": None}, {"logits_scaling": 1.0}, {"residual_multiplier": 1.0}],
    ),
    # Likewise with biases of attention.
    "granitemoe_shared_fp16": (
        granitemoe(
            shared=True, vocab_size=96, hidden_size=40, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, intermediate_size=16, shared_intermediate_size=24, max_position_embeddings=256,
            num_local_experts=8, num_experts_per_tok=4, attention_bias=True, embedding_multiplier=3.0,
            residual_multiplier=0.9, attention_multiplier=0.2, logits_scaling=1.5, tie_word_embeddings=False,
            torch_dtype="float16",
        ),
        None,
        [{"num_experts_per_tok": 3}, {"attention_multiplier": 0.316}, {"logits_scaling": 1.0}],
    ),
    # Kimi-K2 with groups of experts, one group of numbers in an expert's rows, two dense layers.
    "kimi_k2_int4_groups": (
        kimi(
            vocab_size=104, hidden_size=64, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3,
            q_lora_rank=16, kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=12,
            first_k_dense_replace=2, intermediate_size=40, max_position_embeddings=256, moe_intermediate_size=32,
            n_routed_experts=6, num_experts_per_tok=2, n_group=2, topk_group=1, tie_word_embeddings=False,
            quantization_config=packed_int4.quantization(32),
        ),
        None,
        [{"n_group": 1}, {"routed_scaling_factor": 1.0}, {"rope_scaling": None}],
    ),
    # A scale for each output, the rest in fp32; odd sizes, queries of one matrix, the yarn of a shorter original, shards.
    "kimi_k2_int4_channel": (
        kimi(
            vocab_size=101, hidden_size=40, num_hidden_layers=2, num_attention_heads=5, num_key_value_heads=5,
            q_lora_rank=None, kv_lora_rank=21, qk_nope_head_dim=11, qk_rope_head_dim=6, v_head_dim=13,
            first_k_dense_replace=0, intermediate_size=40, max_position_embeddings=256, moe_intermediate_size=24,
            n_routed_experts=7, num_experts_per_tok=3, torch_dtype="float32",
            rope_scaling=kimi()["rope_scaling"] | {"factor": 4, "original_max_position_embeddings": 24, "beta_fast": 4},
            quantization_config=packed_int4.quantization(None),
        ),
        60_000,
        [{"rope_theta": 100.0}, {"norm_topk_prob": False}, {"rope_scaling": None}],
    ),
    # No yarn, one expert a token, two shared ones, tied.
    "kimi_k25_int4_tied": (
        kimi_k25(
            kimi(
                vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
                q_lora_rank=20, kv_lora_rank=16, qk_nope_head_dim=10, qk_rope_head_dim=4, v_head_dim=14,
                intermediate_size=40, max_position_embeddings=256, moe_intermediate_size=32, n_routed_experts=5,
                num_experts_per_tok=1, n_shared_experts=2, rope_scaling=None, rope_theta=1000.0,
                tie_word_embeddings=True, quantization_config=packed_int4.quantization(32),
            ),
            tie_word_embeddings=True, vision_config={"hidden_size": 16},
        ),
        None,
        [{"routed_scaling_factor": 1.0}, {"rope_theta": 10.0}],
    ),
}
