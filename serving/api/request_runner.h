// RequestRunner: one request after another on an engine, streamed to the thread that asked. What
// `moesaic run` is made of.
//
// Owned and used by one thread; deltas come from the engine's thread through a mailbox.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/api/api_request.h"
#include "serving/api/chat_answer.h"
#include "serving/api/served_model.h"
#include "serving/engine/engine.h"
#include "serving/model/step_stats.h"

namespace moesaic {

// What a recorded trace calls the request.
struct RequestLabel {
  std::string id;
  std::string domain;
};

struct RunPrompt {
  std::vector<int32_t> tokens;
  std::shared_ptr<const AnswerParsing> parsing = nullptr;  // null: the answer is text as it comes
};

struct RunResult {
  std::string text;
  std::string reasoning;  // which is no part of the text
  FinishReason finish = FinishReason::kStop;
  Usage usage;
  double prompt_s = 0;  // until the first token, queueing included
  double output_s = 0;  // from the first token to the last
  StepStats steps;      // what the engine did meanwhile
  std::shared_ptr<const RequestTrace> trace;
};

class RequestRunner {
 public:
  // `model` outlives this.
  RequestRunner(const ServedModel& model, ApiRequest request)
      : model_(model), request_(std::move(request)) {}

  // The prompt as it is, or messages ([{role, content}, ...]) through the chat template.
  RunPrompt EncodeRaw(const std::string& prompt) const;
  RunPrompt EncodeMessages(const Json& messages) const;

  using OnText = std::function<void(std::string_view text, bool reasoning)>;
  // Runs one request; `on_text` gets the text as it comes, on this thread. `interrupted` is asked
  // ten times a second; true cancels. Throws Error; what on_text throws cancels the request first.
  RunResult Run(const RunPrompt& prompt, const OnText& on_text,
                const std::function<bool()>& interrupted, const RequestLabel& label = {}) const;

 private:
  const ServedModel& model_;
  const ApiRequest request_;
};

}  // namespace moesaic
