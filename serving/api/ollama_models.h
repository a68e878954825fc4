// What Ollama's API tells about models: /api/tags, /api/ps, /api/show. Pure but for the models.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "serving/api/served_model.h"

namespace moesaic {

// Ollama's API as this server has it is that of this version: clients ask whether it is new enough.
inline constexpr std::string_view kOllamaApiVersion = "0.9.0";

// {"models": [...]}: all names. `running`: of the models that are loaded, with what /api/ps says
// beside.
std::string OllamaModels(const ModelTable& models, bool running);

// The answer to a body of /api/show. Throws ApiError.
std::string OllamaShow(const ModelTable& models, std::string_view body,
                       const std::atomic<bool>& gone);

}  // namespace moesaic
