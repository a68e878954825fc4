// Generation: one request after another on an engine, streamed to the thread that asked. What
// `moesaic run` is made of.
//
// Used by the main thread; deltas come from the engine's thread through a queue.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serving/engine/engine.h"
#include "serving/http/openai_request.h"
#include "serving/http/served_model.h"
#include "serving/model/step_stats.h"

namespace moesaic {

// What a recorded trace calls the request.
struct RequestLabel {
  std::string id;
  std::string domain;
};

struct GenerationResult {
  std::string text;
  FinishReason finish = FinishReason::kStop;
  Usage usage;
  double prompt_s = 0;  // until the first token, queueing included
  double output_s = 0;  // from the first token to the last
  StepStats steps;      // what the engine did meanwhile
  std::shared_ptr<const RequestTrace> trace;
};

class Generation {
 public:
  // `model` outlives this.
  Generation(const ServedModel& model, GenerationFields fields)
      : model_(model), fields_(std::move(fields)) {}

  // The prompt as it is, or messages ([{role, content}, ...]) through the chat template.
  std::vector<int32_t> EncodeRaw(const std::string& prompt) const;
  std::vector<int32_t> EncodeMessages(const Json& messages) const;

  // Runs one request; `on_text` gets the text as it comes, on this thread. `interrupted` is asked
  // ten times a second; true cancels. Throws Error; what on_text throws cancels the request first.
  GenerationResult Run(const std::vector<int32_t>& prompt,
                       const std::function<void(std::string_view text)>& on_text,
                       const std::function<bool()>& interrupted,
                       const RequestLabel& label = {}) const;

 private:
  const ServedModel& model_;
  GenerationFields fields_;
};

// after - before, field by field.
StepStats Difference(const StepStats& after, const StepStats& before);

}  // namespace moesaic
