// What tests of engines with a model share: the sample model's settings and prompts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "serving/online/create_engine.h"
#include "tests/serving/engine/collector.h"

namespace moesaic {

inline EngineOptions SmallOptions() {
  EngineOptions options;
  options.model_dir = MOESAIC_SAMPLE_MODEL_DIR;
  options.expert_memory = "25%";
  options.kv_memory = "8MiB";
  options.max_model_len = 1024;
  options.threads = 2;
  options.max_num_batched_tokens = 128;
  options.max_num_seqs = 16;
  return options;
}

struct ReferencePrompt {
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy;
  std::vector<float> margins;
  std::string text;
};

inline std::vector<ReferencePrompt> ReferencePrompts(
    const std::filesystem::path& model_dir = MOESAIC_SAMPLE_MODEL_DIR) {
  std::ifstream file(model_dir / "reference/prompts.json");
  std::vector<ReferencePrompt> prompts;
  for (const auto& entry : nlohmann::json::parse(file)) {
    prompts.push_back({entry.at("prompt_ids").get<std::vector<int32_t>>(),
                       entry.at("greedy_ids").get<std::vector<int32_t>>(),
                       entry.at("greedy_margin").get<std::vector<float>>(),
                       entry.at("greedy_text").get<std::string>()});
  }
  return prompts;
}

}  // namespace moesaic
