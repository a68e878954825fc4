// Where models are on this machine: the local Hugging Face cache (ResolveModelPath, which looks a
// model up in it, is in model_config.h). Functions of their arguments and of the environment.
#pragma once

#include <filesystem>
#include <string_view>

namespace moesaic {

// Where huggingface_hub keeps its downloads: HF_HUB_CACHE, HF_HOME/hub, ~/.cache/huggingface/hub.
std::filesystem::path HubCacheDirectory();
// Whether a text has the form of a hub id: "Qwen/Qwen3-30B-A3B" or "gpt2".
bool IsHubId(std::string_view text);

}  // namespace moesaic
