// config.json and generation_config.json: what is accepted is consistent enough to compute with.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/config/model_config.h"

namespace {

using moesaic::ErrorKind;

void CheckMixer(const moesaic::GroupedQuerySpec& attention) {
  CHECK_GT(attention.heads, 0);
  CHECK_GT(attention.kv_heads, 0);
  CHECK_EQ(attention.heads % attention.kv_heads, 0);
  CHECK_GT(attention.head_dim, 0);
  CHECK_GT(attention.rotary_dim, 0);
  CHECK_LE(attention.rotary_dim, attention.head_dim);
  CHECK_EQ(attention.rotary_dim % 2, 0);
  CHECK(std::isfinite(attention.scale) && attention.scale > 0);
}

void CheckMixer(const moesaic::LatentSpec& latent) {
  CHECK_GT(latent.heads, 0);
  CHECK_GE(latent.q_rank, 0);
  CHECK_GT(latent.kv_rank, 0);
  CHECK_GT(latent.nope_dim, 0);
  CHECK_GT(latent.rope_dim, 0);
  CHECK_EQ(latent.rope_dim % 2, 0);
  CHECK_GT(latent.value_dim, 0);
  CHECK(std::isfinite(latent.scale) && latent.scale > 0);
  CHECK_GE(latent.top_k, 0);
  if (latent.indexer.heads == 0) return;
  CHECK_GT(latent.top_k, 0);
  CHECK_GT(latent.q_rank, 0);
  CHECK_GE(latent.indexer.dim, latent.rope_dim);
}

void CheckMixer(const moesaic::DeltaNetSpec& delta) {
  CHECK_GT(delta.key_heads, 0);
  CHECK_GT(delta.value_heads, 0);
  CHECK_EQ(delta.value_heads % delta.key_heads, 0);
  CHECK_GT(delta.key_dim, 0);
  CHECK_GT(delta.value_dim, 0);
  CHECK_GT(delta.conv_width, 1);
}

void CheckConsistent(const moesaic::ModelConfig& config) {
  for (const moesaic::LayerSpec& layer : config.layers) {
    std::visit([](const auto& mixer) { CheckMixer(mixer); }, layer.mixer);
    if (const moesaic::RopeConfig* const rope = RopeOf(layer.mixer)) {
      CHECK(std::isfinite(rope->theta) && rope->theta >= 1);
      CHECK(std::isfinite(rope->factor) && rope->factor > 0);
      CHECK_GT(rope->original_max_position, 0);
    }
    if (!layer.sparse()) continue;
    const moesaic::RouterSpec& router = layer.experts().router;
    CHECK_GT(router.top_k, 0);
    CHECK_LE(router.top_k, router.experts);
    CHECK_EQ(router.experts % router.num_groups, 0);
    CHECK_LE(router.groups_kept, router.num_groups);
    CHECK_LE(router.top_k, router.groups_kept * (router.experts / router.num_groups));
  }
  CHECK_GT(config.num_sparse_layers(), 0);
  CHECK_GT(config.expert_parameters(), 0);
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
