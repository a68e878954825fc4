// PreparedRequest: what the engine and the answer need of a request's body: parsed, its model
// found, through the chat template, tokenised, held to the limits. No I/O; any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serving/api/api_output.h"
#include "serving/api/keep_alive.h"
#include "serving/api/served_model.h"
#include "serving/engine/request.h"

namespace moesaic {

struct PreparedRequest {
  const ServedModel* model = nullptr;
  std::vector<EngineRequest> requests;  // one per choice
  ApiOutputSpec spec;
  TokenSpeller spell;
  bool stream = false;
  std::optional<KeepAlive> keep_alive;
  std::vector<std::string> unknown_fields;
};

// Whose request it is, and what his key says of it.
struct RequestOwner {
  std::string client = {};  // EngineRequest::client
  // Of requests that give none, and the lowest that they may give; nullopt: 0, and any.
  std::optional<int32_t> priority = {};
};

struct PrepareOptions {
  ApiDialect dialect = ApiDialect::kChat;
  std::string request_id;
  size_t max_sequences = 1024;
  std::optional<std::chrono::steady_clock::time_point> deadline;
  // Set while it runs when nobody wants the answer any more.
  const std::atomic<bool>& gone;
  RequestOwner owner = {};
};

// Throws ApiError (ModelNotLoaded says whether the answer is a stream), and Error from the
// tokenizer or the template.
PreparedRequest PrepareRequest(const std::string& body, const ModelTable& models,
                               const PrepareOptions& options);

}  // namespace moesaic
