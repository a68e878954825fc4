#include "tracer/model_fingerprint.h"

#include <fmt/format.h>

#include "core/config/model_config.h"

namespace moesaic {

ModelFingerprint FingerprintOf(const ModelConfig& config) {
  ModelFingerprint f;
  f.family = config.model_type;
  f.num_layers = config.num_layers();
  f.moe_layers = config.num_sparse_layers();
  f.num_experts = config.num_experts();
  f.top_k = config.top_k();
  f.hidden_size = config.hidden_size;
  f.moe_intermediate_size = config.expert_width();
  f.vocab_size = config.vocab_size;
  return f;
}

std::string FingerprintDifference(const ModelFingerprint& a, const ModelFingerprint& b) {
  if (!a.family.empty() && !b.family.empty() && a.family != b.family) {
    return fmt::format("family: {} against {}", a.family, b.family);
  }
  struct Field {
    const char* name;
    int64_t ModelFingerprint::*value;
  };
  constexpr Field kFields[] = {{"layers", &ModelFingerprint::num_layers},
                               {"layers with experts", &ModelFingerprint::moe_layers},
                               {"experts per layer", &ModelFingerprint::num_experts},
                               {"experts per token", &ModelFingerprint::top_k},
                               {"hidden size", &ModelFingerprint::hidden_size},
                               {"expert size", &ModelFingerprint::moe_intermediate_size},
                               {"vocabulary", &ModelFingerprint::vocab_size}};
  for (const Field& field : kFields) {
    const int64_t x = a.*field.value;
    const int64_t y = b.*field.value;
    if (x != 0 && y != 0 && x != y) return fmt::format("{}: {} against {}", field.name, x, y);
  }
  return "";
}

std::string DescribeFingerprint(const ModelFingerprint& fingerprint) {
  return fmt::format("{}, {} layers of {} experts, top {}",
                     fingerprint.family.empty() ? "unknown family" : fingerprint.family,
                     fingerprint.moe_layers, fingerprint.num_experts, fingerprint.top_k);
}

}  // namespace moesaic
