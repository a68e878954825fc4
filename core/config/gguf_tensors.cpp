#include "core/config/gguf_tensors.h"

#include <array>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/config/family_fields.h"

namespace moesaic {
namespace {

constexpr std::array<const char*, 3> kStackedExperts = {"ffn_gate_exps", "ffn_up_exps",
                                                        "ffn_down_exps"};
constexpr std::array<const char*, 3> kSingleExperts = {"ffn_gate.{expert}", "ffn_up.{expert}",
                                                       "ffn_down.{expert}"};

// The architectures whose rows of queries and keys lie in pairs that are rotated together, per
// head: llama.cpp's converter turns them from halves, or they have always been so (ERNIE-4.5).
bool HasRowsInPairs(std::string_view architecture) {
  return architecture == "llama" || architecture == "granitemoe" || architecture == "arctic" ||
         architecture == "ernie4_5-moe";
}

void SetLinearAttention(const ModelConfig& model, bool rates_of_key_heads, TensorPlan& plan) {
  const std::string layer = "blk.{layer}.";
  const int64_t d = model.attention().head_dim;
  const std::string q = layer + "attn_q.weight";
  plan.Set(TensorSlot::kQ, q, {EveryNthRow{.step = 2 * d, .first = 0, .count = d}});
  plan.Set(TensorSlot::kAttentionGate, q, {EveryNthRow{.step = 2 * d, .first = d, .count = d}});
  const DeltaNetSpec& delta = *model.FindMixer<DeltaNetSpec>();
  const auto rows = [&](TensorSlot slot, int64_t first, int64_t count) {
    plan.Set(slot, layer + "attn_qkv.weight",
             {EveryNthRow{.step = delta.channels(), .first = first, .count = count}});
  };
  rows(TensorSlot::kDeltaQ, 0, delta.key_width());
  rows(TensorSlot::kDeltaK, delta.key_width(), delta.key_width());
  rows(TensorSlot::kDeltaV, 2 * delta.key_width(), delta.value_width());
  plan.Set(TensorSlot::kDeltaGate, layer + "attn_gate.weight");
  if (rates_of_key_heads) {
    const int64_t group = delta.group();
    for (const auto& [slot, first] :
         {std::pair(TensorSlot::kDeltaBeta, int64_t{0}), {TensorSlot::kDeltaStep, group}}) {
      plan.Set(slot, layer + "ssm_ba.weight",
               {EveryNthRow{.step = 2 * group, .first = first, .count = group}});
    }
  } else {
    plan.Set(TensorSlot::kDeltaBeta, layer + "ssm_beta.weight");
    plan.Set(TensorSlot::kDeltaStep, layer + "ssm_alpha.weight");
  }
  plan.Set(TensorSlot::kDeltaConv, layer + "ssm_conv1d.weight");
  plan.Set(TensorSlot::kDeltaDecay, layer + "ssm_a", {NegativeRates{}});
  plan.Set(TensorSlot::kDeltaStepBias, layer + "ssm_dt.bias");
  plan.Set(TensorSlot::kDeltaNorm, layer + "ssm_norm.weight");
  plan.Set(TensorSlot::kDeltaOutput, layer + "ssm_out.weight");
}

// Names of latent attention and of its indexer. What makes keys and values of latents is one
// tensor, as in the original, or (files since 2025) two, of which the keys' is turned already.
void SetLatent(const LatentSpec& spec, bool one_tensor, TensorPlan& plan) {
  const std::string attention = "blk.{layer}.attn_";
  const auto rotated = [&](int64_t rows) {
    return RowsInPairs{.head_rows = rows, .passed = rows - spec.rope_dim};
  };
  if (spec.q_rank > 0) {
    plan.Set(TensorSlot::kQDown, attention + "q_a.weight");
    plan.Set(TensorSlot::kQDownNorm, attention + "q_a_norm.weight");
  }
  plan.Set(TensorSlot::kQ, attention + (spec.q_rank > 0 ? "q_b.weight" : "q.weight"),
           {rotated(spec.query_dim())});
  plan.Set(TensorSlot::kKvDown, attention + "kv_a_mqa.weight", {rotated(spec.row_width())});
  plan.Set(TensorSlot::kKvDownNorm, attention + "kv_a_norm.weight");
  if (one_tensor) {
    plan.Set(TensorSlot::kKvUp, attention + "kv_b.weight");
  } else {
    plan.Set(TensorSlot::kKeyUp, attention + "k_b.weight", {StackOf{spec.heads}});
    plan.Set(TensorSlot::kValueUp, attention + "v_b.weight", {StackOf{spec.heads}});
  }
  if (spec.top_k == 0) return;
  const std::string indexer = "blk.{layer}.indexer.";
  plan.Set(TensorSlot::kIndexQ, indexer + "attn_q_b.weight");
  plan.Set(TensorSlot::kIndexK, indexer + "attn_k.weight");
  plan.Set(TensorSlot::kIndexKNorm, indexer + "k_norm.weight");
  plan.Set(TensorSlot::kIndexKNormBias, indexer + "k_norm.bias");
  plan.Set(TensorSlot::kIndexHeads, indexer + "proj.weight");
}

}  // namespace

TensorPlan GgufTensors(const GgufHeader& header, const ModelConfig& model) {
  const auto has = [&](int64_t layer, std::string_view tensor) {
    return header.tensors.contains(fmt::format("blk.{}.{}", layer, tensor));
  };
  const std::string layer = "blk.{layer}.";
  TensorPlan plan;
  plan.Set(TensorSlot::kEmbedding, "token_embd.weight");
  plan.Set(TensorSlot::kFinalNorm, "output_norm.weight");
  plan.Set(TensorSlot::kHead, "output.weight");
  plan.Set(TensorSlot::kInputNorm, layer + "attn_norm.weight");
  const bool read_input = model.experts_read_input();
  for (const char* const norm : {"post_attention_norm.weight", "attn_output_norm.weight",
                                 read_input ? "ffn_norm_exps.weight" : "ffn_norm.weight"}) {
    if (has(0, norm) || !plan.Has(TensorSlot::kPostAttentionNorm)) {
      plan.Set(TensorSlot::kPostAttentionNorm, layer + norm);
    }
  }
  plan.Set(TensorSlot::kMlpNorm, layer + "ffn_norm.weight");

  const std::string architecture = header.metadata.value("general.architecture", "");
  std::vector<TensorTransform> rows_in_pairs;
  std::vector<TensorTransform> unchanged;
  if (HasRowsInPairs(architecture)) {
    const int64_t head_dim = model.attention().head_dim;
    rows_in_pairs = {RowsInPairs{head_dim}};
    // Values are not rotated, but rows of one matrix are read in one way.
    unchanged = {RowsInPairs{.head_rows = head_dim, .passed = head_dim}};
  }
  plan.Set(TensorSlot::kQ, layer + "attn_q.weight", rows_in_pairs);
  plan.Set(TensorSlot::kK, layer + "attn_k.weight", rows_in_pairs);
  plan.Set(TensorSlot::kV, layer + "attn_v.weight", unchanged);
  if (architecture == "dbrx") SetJoinedQkv(layer + "attn_qkv.weight", model.attention(), plan);
  plan.Set(TensorSlot::kQBias, layer + "attn_q.bias", rows_in_pairs);
  plan.Set(TensorSlot::kKBias, layer + "attn_k.bias", rows_in_pairs);
  plan.Set(TensorSlot::kVBias, layer + "attn_v.bias");
  plan.Set(TensorSlot::kQNorm, layer + "attn_q_norm.weight");
  plan.Set(TensorSlot::kKNorm, layer + "attn_k_norm.weight");
  plan.Set(TensorSlot::kOutput, layer + "attn_output.weight");
  plan.Set(TensorSlot::kOutputBias, layer + "attn_output.bias");

  if (const auto* const latent = model.FindMixer<LatentSpec>()) {
    SetLatent(*latent, has(0, "attn_kv_b.weight"), plan);
  }
  if (model.FindMixer<DeltaNetSpec>() != nullptr) {
    SetLinearAttention(model, architecture == "qwen3next", plan);
  }

  plan.Set(TensorSlot::kSinks, layer + "attn_sinks.weight");
  plan.Set(TensorSlot::kRouter, layer + "ffn_gate_inp.weight");
  plan.Set(TensorSlot::kRouterBias, layer + "ffn_gate_inp.bias");
  plan.SetMlp(kDenseMlpSlots, layer, {"ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"});
  if (read_input) {
    plan.SetMlp(kSharedMlpSlots, layer, {"ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"});
  } else {
    plan.SetMlp(kSharedMlpSlots, layer,
                {"ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight"});
  }
  plan.Set(TensorSlot::kSharedGate, layer + "ffn_gate_inp_shexp.weight", {RowAsVector{}});

  int64_t sparse = 0;
  while (sparse + 1 < model.num_layers() && !model.is_sparse(sparse)) ++sparse;
  const std::string correction =
      has(sparse, "exp_probs_b.bias") ? "exp_probs_b.bias" : "exp_probs_b";
  // ERNIE-4.5's is a row in checkpoints and stays one.
  const auto found = header.tensors.find(fmt::format("blk.{}.{}", sparse, correction));
  const bool is_row = found != header.tensors.end() && found->second.shape.size() == 2;
  plan.Set(TensorSlot::kRouterCorrection, layer + correction,
           is_row ? std::vector<TensorTransform>{VectorAsRow{}} : std::vector<TensorTransform>{});
  const StackOf stack = {.count = model.num_experts()};
  for (const auto& [slot, tensor] :
       {std::pair(TensorSlot::kExpertGateBias, "ffn_gate_exps.bias"),
        std::pair(TensorSlot::kExpertUpBias, "ffn_up_exps.bias"),
        std::pair(TensorSlot::kExpertDownBias, "ffn_down_exps.bias")}) {
    plan.Set(slot, layer + tensor, {stack});
  }
  const bool stacked = !has(sparse, "ffn_gate.0.weight");
  for (size_t i = 0; i < kExpertSlots.size(); ++i) {
    const std::string pattern =
        fmt::format("{}{}.weight", layer, stacked ? kStackedExperts[i] : kSingleExperts[i]);
    if (stacked) {
      plan.Set(kExpertSlots[i], pattern, {stack});
    } else {
      plan.Set(kExpertSlots[i], pattern);
    }
  }
  if (const std::string both = "ffn_gate_up_exps.weight"; has(sparse, both)) {
    SetJoinedGateUp(kExpertSlots, layer + both, model.expert_width(), stack, plan);
  }
  return plan;
}

}  // namespace moesaic
