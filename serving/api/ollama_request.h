// Requests of Ollama's API for generated text. Pure; reading them throws ApiError (400).
#pragma once

#include <atomic>
#include <string_view>
#include <variant>

#include "serving/api/api_request.h"

namespace moesaic {

ChatRequest ParseOllamaChatRequest(std::string_view body, const std::atomic<bool>* gone = nullptr);
// A prompt through the chat template or, with `raw`, as it is.
std::variant<CompletionRequest, ChatRequest> ParseOllamaGenerateRequest(
    std::string_view body, const std::atomic<bool>* gone = nullptr);

// Names there end in a tag, which models here do not have: ":latest" is taken away.
std::string WithoutLatestTag(std::string name);

}  // namespace moesaic
