// From the body of a generation request to what the engine and the response need: parsing, the
// model's name, chat template, tokenising, limits. No I/O; runs on a worker thread.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serving/engine/request.h"
#include "serving/http/generation_output.h"
#include "serving/http/served_model.h"
#include "serving/http/server_options.h"

namespace moesaic {

struct PreparedGeneration {
  const ServedModel* model = nullptr;
  std::vector<EngineRequest> requests;  // one per choice
  OutputSpec spec;
  TokenSpeller spell;
  bool stream = false;
  std::vector<std::string> unknown_fields;
};

struct PrepareOptions {
  bool chat = false;
  std::string request_id;
  size_t max_sequences = 1024;
  std::optional<std::chrono::steady_clock::time_point> deadline;
  // Set while it runs when nobody wants the answer any more.
  const std::atomic<bool>& gone;
};

// Throws ApiError, and Error from the tokenizer or the template.
PreparedGeneration PrepareGeneration(const std::string& body, const ModelTable& models,
                                     const PrepareOptions& options);

}  // namespace moesaic
