"""Configurations of the families in the form that hub models have: what a fixture of tests/data/models is made of.

A family's function takes the keys that a fixture sets. What nearly all families have with one value is in COMMON, what
those with a loss for their router have in ROUTER_LOSS; a family names what it has in another way, or not at all.
"""

from __future__ import annotations

LEFT_OUT = object()  # of COMMON, by a family whose configurations have no such key
COMMON = {
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": None,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
ROUTER_LOSS = {"output_router_logits": False, "router_aux_loss_coef": 0.001}

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
# Shorter than the longest prompt, with the factors of attention that DeepSeek's own models have.
YARN_OF_DEEPSEEK = {
    "type": "yarn", "factor": 40, "original_max_position_embeddings": 48, "beta_fast": 32, "beta_slow": 1,
    "mscale": 0.707, "mscale_all_dim": 0.707,
}


def family(architecture: str, model_type: str, *groups: dict, **keys) -> dict:
    """COMMON, then `groups`, then `keys`, in alphabetical order behind the two that name the family."""
    values = dict(COMMON)
    for group in (*groups, keys):
        values |= group
    kept = {key: value for key, value in sorted(values.items()) if value is not LEFT_OUT}
    return {"architectures": [architecture], "model_type": model_type} | kept


def without(config: dict, *keys: str) -> dict:
    return {key: value for key, value in config.items() if key not in keys}


def text_of(config: dict) -> dict:
    return config.get("text_config", config)


def changed(config: dict, change: dict) -> dict:
    """The configuration with other values, which are of the part for text where there is one."""
    if "text_config" not in config:
        return config | change
    return config | {"text_config": config["text_config"] | change}


def qwen3_moe(**changes) -> dict:
    return family(
        "Qwen3MoeForCausalLM", "qwen3_moe", ROUTER_LOSS, attention_bias=False, decoder_sparse_step=1,
        max_window_layers=3, mlp_only_layers=[], norm_topk_prob=True, rms_norm_eps=1e-06, rope_scaling=None,
        rope_theta=1000000.0, sliding_window=None, use_sliding_window=False,
    ) | changes


def mixtral(**changes) -> dict:
    return family(
        "MixtralForCausalLM", "mixtral", ROUTER_LOSS, bos_token_id=1, eos_token_id=2, rms_norm_eps=1e-05,
        rope_theta=1000000.0, router_aux_loss_coef=0.02, sliding_window=None,
    ) | changes


def qwen2_moe(**changes) -> dict:
    return family(
        "Qwen2MoeForCausalLM", "qwen2_moe", ROUTER_LOSS, decoder_sparse_step=1, max_window_layers=3,
        norm_topk_prob=False, rms_norm_eps=1e-06, rope_theta=1000000.0, sliding_window=32, use_sliding_window=False,
    ) | changes


def olmoe(**changes) -> dict:
    return family(
        "OlmoeForCausalLM", "olmoe", ROUTER_LOSS, attention_bias=False, bos_token_id=LEFT_OUT, clip_qkv=None,
        norm_topk_prob=False, pad_token_id=1, rms_norm_eps=1e-05, rope_scaling=None, rope_theta=10000.0,
        router_aux_loss_coef=0.01,
    ) | changes


def glm4_moe(**changes) -> dict:
    return family(
        "Glm4MoeForCausalLM", "glm4_moe", attention_bias=True, bos_token_id=LEFT_OUT, first_k_dense_replace=1,
        n_group=1, n_shared_experts=1, norm_topk_prob=True, num_nextn_predict_layers=1, partial_rotary_factor=0.5,
        rms_norm_eps=1e-05, rope_scaling=None, rope_theta=1000000.0, routed_scaling_factor=1.0, topk_group=1,
        use_qk_norm=False,
    ) | changes


def minimax_m2(**changes) -> dict:
    return family(
        "MiniMaxM2ForCausalLM", "minimax_m2", ROUTER_LOSS, num_mtp_modules=3, qk_norm_type="per_layer",
        rms_norm_eps=1e-06, rope_theta=5000000.0, router_jitter_noise=0.0, scoring_func="sigmoid",
        shared_intermediate_size=0, use_mtp=True, use_qk_norm=True, use_routing_bias=True,
    ) | changes


def deepseek(version: str, **changes) -> dict:
    v3 = version == "3"
    return family(
        f"DeepseekV{version}ForCausalLM", f"deepseek_v{version}", attention_bias=False, aux_loss_alpha=0.001, ep_size=1,
        first_k_dense_replace=1, moe_layer_freq=1, norm_topk_prob=v3, pretraining_tp=1, rms_norm_eps=1e-06,
        rope_theta=10000, scoring_func="sigmoid" if v3 else "softmax", seq_aux=True,
    ) | ({"topk_method": "noaux_tc", "num_nextn_predict_layers": 1} if v3 else {}) | changes


def kimi(**changes) -> dict:
    config = deepseek(
        "3", model_type="kimi_k2", rope_theta=50000.0, n_group=1, topk_group=1, n_shared_experts=1,
        routed_scaling_factor=2.827,
        rope_scaling=YARN_OF_DEEPSEEK
        | {"factor": 32, "beta_fast": 1, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    )
    return config | changes


def kimi_k25(text: dict, **changes) -> dict:
    """The part for text of a model that also sees."""
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "tie_word_embeddings": False,
        "text_config": text,
    } | changes


def glm4_moe_lite(**changes) -> dict:
    return family(
        "Glm4MoeLiteForCausalLM", "glm4_moe_lite", attention_bias=False, bos_token_id=LEFT_OUT,
        initializer_range=LEFT_OUT, n_group=1, n_shared_experts=1, norm_topk_prob=True, num_nextn_predict_layers=1,
        pad_token_id=None, rms_norm_eps=1e-05, rope_scaling=None, rope_theta=1000000, routed_scaling_factor=1.8,
        topk_group=1, topk_method="noaux_tc", use_cache=LEFT_OUT,
    ) | changes


def indexed(kind: str, **changes) -> dict:
    """DeepSeek-V3.2 and GLM-5, whose indexers choose index_topk positions: of the longer prompts a part."""
    deepseek_v32 = kind == "deepseek_v32"
    return family(
        "DeepseekV32ForCausalLM" if deepseek_v32 else "GlmMoeDsaForCausalLM", kind, attention_bias=False,
        index_head_dim=16, index_n_heads=8, index_topk=16, n_shared_experts=1, norm_topk_prob=True,
        num_nextn_predict_layers=1, rms_norm_eps=1e-06 if deepseek_v32 else 1e-05,
        rope_theta=10000 if deepseek_v32 else 1000000, routed_scaling_factor=2.5, scoring_func="sigmoid",
        topk_method="noaux_tc",
    ) | changes


def gpt_oss(**changes) -> dict:
    yarn = {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 32,
        "rope_type": "yarn", "truncate": False,
    }
    return family(
        "GptOssForCausalLM", "gpt_oss", ROUTER_LOSS, attention_bias=True, bos_token_id=LEFT_OUT,
        initial_context_length=4096, pad_token_id=None, rms_norm_eps=1e-05, rope_scaling=yarn, rope_theta=150000.0,
        router_aux_loss_coef=0.9, sliding_window=16, swiglu_limit=7.0,
    ) | changes


def qwen3_next(**changes) -> dict:
    return family(
        "Qwen3NextForCausalLM", "qwen3_next", ROUTER_LOSS, attention_bias=False, decoder_sparse_step=1,
        full_attention_interval=4, linear_conv_kernel_dim=4, mlp_only_layers=[], norm_topk_prob=True,
        partial_rotary_factor=0.25, rms_norm_eps=1e-06, rope_scaling=None, rope_theta=10000000,
    ) | changes


def qwen3_5_moe_text(tied: bool = False, **changes) -> dict:
    rope = {
        "mrope_interleaved": True, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.25, "rope_theta": 10000000,
        "rope_type": "default",
    }
    return family(
        "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", ROUTER_LOSS, attention_bias=False, attn_output_gate=True,
        bos_token_id=LEFT_OUT, dtype="bfloat16", full_attention_interval=4, linear_conv_kernel_dim=4,
        mlp_only_layers=[], mtp_num_hidden_layers=1, rms_norm_eps=1e-06, rope_parameters=rope,
        tie_word_embeddings=tied, torch_dtype=LEFT_OUT,
    ) | changes


def qwen3_5_moe(tied: bool = False, **changes) -> dict:
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "image_token_id": 3,
        "model_type": "qwen3_5_moe",
        "text_config": without(qwen3_5_moe_text(tied, **changes), "architectures"),
        "tie_word_embeddings": tied,
        "video_token_id": 4,
        "vision_config": {"depth": 1, "hidden_size": 16, "model_type": "qwen3_5_moe", "num_heads": 2},
    }


def ernie4_5_moe(**changes) -> dict:
    return family(
        "Ernie4_5_MoeForCausalLM", "ernie4_5_moe", attention_dropout=LEFT_OUT, initializer_range=LEFT_OUT,
        moe_capacity=[64, 64, 64], moe_layer_end_index=-1, moe_layer_interval=1, moe_layer_start_index=1,
        moe_num_shared_experts=2, moe_use_aux_free=True, pad_token_id=0, rms_norm_eps=1e-05, rope_scaling=None,
        rope_theta=500000.0, tie_word_embeddings=True, use_bias=False, use_cache=LEFT_OUT,
    ) | changes


def granitemoe(shared: bool = False, **changes) -> dict:
    kind = "Shared" if shared else ""
    return family(
        f"GraniteMoe{kind}ForCausalLM", f"granitemoe{kind.lower()}", ROUTER_LOSS, attention_bias=False,
        pad_token_id=None, rms_norm_eps=1e-06, rope_scaling=None, rope_theta=10000.0, router_aux_loss_coef=0.0,
        tie_word_embeddings=True,
    ) | changes


def dbrx(attention: dict, ffn: dict, **changes) -> dict:
    """`rope_theta` is where releases have it, and at the top too: transformers 5.23 reads that one."""
    theta = attention.get("rope_theta", 10000.0)
    return family(
        "DbrxForCausalLM", "dbrx", attention_dropout=LEFT_OUT, attn_config={"rope_theta": theta} | attention,
        emb_pdrop=0.0, ffn_config={"moe_jitter_eps": 0, "moe_loss_weight": 0.05} | ffn, hidden_act=LEFT_OUT,
        max_position_embeddings=LEFT_OUT, max_seq_len=1024, output_router_logits=False, resid_pdrop=0.0,
        rope_theta=theta,
    ) | changes


def arctic(**changes) -> dict:
    return family(
        "ArcticForCausalLM", "arctic", enable_expert_tensor_parallelism=False, moe_eval_capacity_factor=1,
        moe_layer_frequency=1, moe_min_capacity=0, moe_token_dropping=False, moe_train_capacity_factor=1,
        parallel_attn_mlp_res=True, quantization=None, rms_norm_eps=1e-05, rope_scaling=None, rope_theta=10000.0,
        router_aux_loss_coef=0.001, sliding_window=None, use_residual=True,
    ) | changes
