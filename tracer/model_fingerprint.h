// ModelFingerprint: what learned state must agree on with the model that uses it. Plain data.
#pragma once

#include <cstdint>
#include <string>

namespace moesaic {

struct ModelConfig;

// An empty text or 0: not known (a trace file does not say everything that config.json says).
struct ModelFingerprint {
  std::string family;       // "qwen3_moe"
  int64_t num_layers = 0;   // all of them
  int64_t moe_layers = 0;   // those with experts
  int64_t num_experts = 0;  // per layer
  int64_t top_k = 0;
  int64_t hidden_size = 0;
  int64_t moe_intermediate_size = 0;
  int64_t vocab_size = 0;
};

ModelFingerprint FingerprintOf(const ModelConfig& config);

// "" when they agree wherever both know; else the first difference: "experts per layer: 64 against
// 128".
std::string FingerprintDifference(const ModelFingerprint& a, const ModelFingerprint& b);
// "qwen3_moe, 12 layers of 32 experts, top 4"
std::string DescribeFingerprint(const ModelFingerprint& fingerprint);

}  // namespace moesaic
