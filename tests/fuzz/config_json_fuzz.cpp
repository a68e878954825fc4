// config.json and generation_config.json: what is accepted is consistent enough to compute with.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/config/model_config.h"

namespace {

using moesaic::ErrorKind;

void CheckConsistent(const moesaic::ModelConfig& config) {
  CHECK_GT(config.num_heads, 0);
  CHECK_GT(config.num_kv_heads, 0);
  CHECK_EQ(config.num_heads % config.num_kv_heads, 0);
  CHECK_GT(config.head_dim, 0);
  CHECK_EQ(config.head_dim % 2, 0);
  CHECK_LE(config.top_k, config.num_experts);
  CHECK_EQ(config.layer_is_sparse.size(), static_cast<size_t>(config.num_layers));
  CHECK_EQ(config.layer_window.size(), static_cast<size_t>(config.num_layers));
  CHECK_GT(config.num_sparse_layers(), 0);
  CHECK_GT(config.expert_parameters(), 0);
  CHECK(std::isfinite(config.rope.theta) && config.rope.theta >= 1);
  CHECK(std::isfinite(config.rope.factor) && config.rope.factor > 0);
  CHECK_GT(config.rope.original_max_position, 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    CheckConsistent(moesaic::ParseModelConfig(text, "config.json"));
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == ErrorKind::kCorrupt || error.kind() == ErrorKind::kUnsupported);
  }
  try {
    moesaic::ParseGenerationConfig(text, "generation_config.json");
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == ErrorKind::kCorrupt);
  }
  return 0;
}
