#include "serving/online/kv_store_plan.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "cache/kv_store.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "serving/model/model.h"

namespace moesaic {
namespace {

// To be raised with every change that moves a bit of keys or values or their place in a block:
// those that rewrite tests/data/logit_hashes.txt, and new layouts (KvLayout).
constexpr int kBitsVersion = 2;

constexpr uint64_t kMostConfigBytes = uint64_t{16} << 20;

}  // namespace

uint64_t ConfigHash(const EngineOptions& options) {
  const std::filesystem::path file = options.model_dir / "config.json";
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return 0;
  return Hash64(ReadTextFile(file, kMostConfigBytes));
}

bool KeepsPrefixes(const EngineOptions& options) {
  return !options.kv_store.empty() || options.kv_store_memory_bytes > 0;
}

uint64_t KvStoreMemoryBytes(const EngineOptions& options, const ModelConfig& config) {
  if (!KeepsPrefixes(options)) return 0;
  return KvStore::MemoryBytes(
      {.key = "",
       .block_tokens = kKvBlockTokens,
       .block_bytes = Model::KvBytesOfAllLayers(config, ChooseKvType(options))},
      !options.kv_store.empty(), options.kv_store_bytes, options.kv_store_memory_bytes);
}

KvStoreShape KvStoreShapeOf(const EngineOptions& options, const ModelFiles& files,
                            WeightType weight_type, int dense_devices) {
  const ModelConfig& config = files.config;
  const WeightType kv_type = ChooseKvType(options);
  // Where experts and the dense part are computed on GPUs they round otherwise.
  const bool on_gpus = options.devices.count > 0 && options.devices.kind == DeviceKind::kCuda;
  std::string key = fmt::format(
      "bits {}; {}; checkpoint {:016x}; config {:016x}; weights {}; cache {}; class {}; experts on "
      "{}; "
      "dense on {}; deferred {}",
      kBitsVersion, config.model_type, files.tensors->Fingerprint(), ConfigHash(options),
      WeightTypeName(SameBitsAs(weight_type)), WeightTypeName(kv_type),
      NumericsClassName(files.kernels->numerics), on_gpus ? "cuda" : "host",
      dense_devices > 0 ? "cuda" : "host", options.defer_experts);
  const auto* const latent = config.FindMixer<LatentSpec>();
  if (latent != nullptr && latent->top_k > 0) key += "; with the indexer's keys";
  if (const uint64_t bytes = Model::StateSlotBytes(config); bytes > 0) {
    key += fmt::format("; states of {} bytes", bytes);
  }
  if (config.rope().kind == RopeKind::kDynamicNtk) {
    key += fmt::format("; context {}", options.max_model_len);
  }
  return {.key = std::move(key),
          .block_tokens = kKvBlockTokens,
          .block_bytes = Model::KvBytesOfAllLayers(config, kv_type)};
}

}  // namespace moesaic
