"""Snowflake Arctic for the fixtures: transformers has no such model.

Attention, rotation, norms, masks and the cache are transformers' own (Mixtral's). What is written here is what Arctic has
instead of Mixtral's layer, after the equations in the checkpoint's own modeling_arctic.py (ArcticDecoderLayer.forward),
which vLLM's arctic.py has too:

    a = x + attention(input_layernorm(x))
    y = a + residual_mlp(residual_layernorm(a)) + moe(post_attention_layernorm(x))

and without `parallel_attn_mlp_res`, or in a layer without experts, y = a + moe(post_attention_layernorm(a)). Names of
parameters are those of the checkpoint, an expert for itself.
"""

from __future__ import annotations

import torch
import transformers
from torch import nn
from transformers.models.mixtral import modeling_mixtral as mixtral


class ArcticConfig(transformers.MixtralConfig):
    model_type = "arctic"
    moe_layer_frequency: int = 2
    parallel_attn_mlp_res: bool = False


class ArcticMlp(nn.Module):
    def __init__(self, hidden: int, width: int):
        super().__init__()
        self.w1 = nn.Linear(hidden, width, bias=False)
        self.w2 = nn.Linear(width, hidden, bias=False)
        self.w3 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class ArcticRouter(nn.Module):
    """Gives (logits, weights, experts), as the routers of transformers do."""

    def __init__(self, config: ArcticConfig):
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.weight = nn.Parameter(torch.empty(config.num_local_experts, config.hidden_size))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = nn.functional.linear(x, self.weight)
        weights, experts = logits.float().softmax(-1).topk(self.top_k, dim=-1)
        return logits, weights / weights.sum(-1, keepdim=True), experts


class ArcticMoe(nn.Module):
    def __init__(self, config: ArcticConfig, sparse: bool):
        super().__init__()
        if not sparse:
            self.mlp = ArcticMlp(config.hidden_size, config.intermediate_size)
            return
        self.gate = ArcticRouter(config)
        self.experts = nn.ModuleList(
            ArcticMlp(config.hidden_size, config.intermediate_size) for _ in range(config.num_local_experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if hasattr(self, "mlp"):
            return self.mlp(x)
        rows = x.reshape(-1, x.shape[-1])
        _, weights, experts = self.gate(rows)
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            row, slot = torch.where(experts == number)
            out.index_add_(0, row, expert(rows[row]) * weights[row, slot, None])
        return out.reshape(x.shape)


class ArcticLayer(nn.Module):
    def __init__(self, config: ArcticConfig, number: int):
        super().__init__()
        sparse = (number + 1) % config.moe_layer_frequency == 0
        self.parallel = config.parallel_attn_mlp_res and sparse
        self.self_attn = mixtral.MixtralAttention(config, number)
        self.block_sparse_moe = ArcticMoe(config, sparse)
        norms = ["input_layernorm", "post_attention_layernorm"] + ["residual_layernorm"] * self.parallel
        for name in norms:
            setattr(self, name, mixtral.MixtralRMSNorm(config.hidden_size, eps=config.rms_norm_eps))
        if self.parallel:
            self.residual_mlp = ArcticMlp(config.hidden_size, config.hidden_size)

    def forward(self, x: torch.Tensor, **of_attention) -> torch.Tensor:
        attended, _ = self.self_attn(self.input_layernorm(x), **of_attention)
        a = x + attended
        if not self.parallel:
            return a + self.block_sparse_moe(self.post_attention_layernorm(a))
        dense = self.residual_mlp(self.residual_layernorm(a))
        return a + dense + self.block_sparse_moe(self.post_attention_layernorm(x))


class ArcticForCausalLM(mixtral.MixtralForCausalLM):
    config: ArcticConfig
    config_class = ArcticConfig

    def __init__(self, config: ArcticConfig):
        super().__init__(config)
        self.model.layers = nn.ModuleList(ArcticLayer(config, i) for i in range(config.num_hidden_layers))
        self.post_init()


transformers.AutoConfig.register("arctic", ArcticConfig)
transformers.AutoModelForCausalLM.register(ArcticConfig, ArcticForCausalLM)
