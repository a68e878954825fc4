// ModelSummary: what `moesaic show` says of a model itself, whatever the machine. Plain data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/config/model_config.h"
#include "serving/online/create_engine.h"

namespace moesaic {

struct ModelSummary {
  std::filesystem::path directory;
  ModelConfig config;
  std::string weight_type;  // "bf16" or "f32": in memory

  uint64_t total_parameters = 0;
  uint64_t active_parameters = 0;  // of one token: dense part and top_k experts

  uint64_t dense_bytes = 0;         // in memory, packed
  uint64_t expert_bytes = 0;        // of one expert, in memory
  uint64_t slot_bytes = 0;          // what it takes in the cache
  uint64_t kv_bytes_per_token = 0;  // all layers
  uint64_t kv_context_bytes = 0;    // of the longest sequence that is served
  uint64_t state_bytes = 0;         // recurrent, of a sequence; 0: the model has none

  bool has_weights = false;
  uint64_t checkpoint_bytes = 0;
  uint64_t checkpoint_files = 0;
  uint64_t checkpoint_tensors = 0;
  std::map<std::string, uint64_t> checkpoint_types;  // bytes by type as the files call it

  uint64_t num_experts() const {
    return static_cast<uint64_t>(config.num_sparse_layers() * config.num_experts());
  }
};

// Reads config.json and, where there are weights, their headers. Throws as LoadModelConfig and
// Checkpoint::Open.
ModelSummary SummariseModel(const EngineOptions& options);

std::string ModelSummaryText(const ModelSummary& model);
nlohmann::ordered_json ModelSummaryJson(const ModelSummary& model);

}  // namespace moesaic
