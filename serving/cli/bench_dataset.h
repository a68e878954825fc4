// The requests that `moesaic bench serve` sends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "serving/cli/load_client.h"

namespace moesaic {

struct BenchDatasetOptions {
  std::string model;
  bool chat = false;  // bodies for /v1/chat/completions
  bool ignore_eos = false;
  double temperature = 0;
  int64_t count = 0;
  uint64_t seed = 0;
  // random
  int64_t input_tokens = 1024;
  int64_t output_tokens = 128;
  double range_ratio = 0;     // lengths vary by this part up and down
  int64_t prefix_tokens = 0;  // the same beginning for all
  int64_t vocab_size = 1000;  // token ids are drawn from [kFirstRandomToken, vocab_size)
};

// Ids below are bytes and special tokens in most vocabularies.
constexpr int64_t kFirstRandomToken = 300;

// Prompts of random token ids; of random words for chat. Throws Error(kInvalidArgument).
std::vector<LoadRequest> MakeRandomRequests(const BenchDatasetOptions& options);

// JSON lines: {"prompt": text} or {"messages": [...]}, and optionally "max_tokens" (or
// "output_tokens"). Fewer lines than `count` are used again from the beginning. Throws Error
// (kNotFound, kIo, kCorrupt) naming file and line.
std::vector<LoadRequest> ReadJsonLinesRequests(const std::filesystem::path& file,
                                               const BenchDatasetOptions& options);
std::vector<LoadRequest> ParseJsonLinesRequests(std::string_view text, const std::string& name,
                                                const BenchDatasetOptions& options);

}  // namespace moesaic
