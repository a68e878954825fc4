// The file of `moesaic serve --models`: YAML with one list, a mapping for each model.
//
//   models:
//     - id: qwen3-30b
//       path: Qwen/Qwen3-30B-A3B
//       aliases: [gpt-4o]
//       pin: true
//       min-experts: 4GiB
//     - path: allenai/OLMoE-1B-7B-0924
//       load: demand
//       idle-unload: 600
//       dtype: int8
//
// Functions of their arguments.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "serving/multi/model_entry.h"

namespace moesaic {

// `options` and `chat` are what all have that say nothing else; any setting of an engine or of
// chats may stand with a model, but for those of the whole process. `name` is the file in messages.
// Throws Error(kInvalidArgument) with file, line and key.
std::vector<ModelEntry> ParseModels(std::string_view yaml, const std::string& name,
                                    const EngineOptions& options, const ChatFormatOptions& chat);
// Throws also Error(kNotFound, kIo).
std::vector<ModelEntry> ReadModelsFile(const std::filesystem::path& file,
                                       const EngineOptions& options,
                                       const ChatFormatOptions& chat);

}  // namespace moesaic
