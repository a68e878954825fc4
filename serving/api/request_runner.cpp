#include "serving/api/request_runner.h"

#include <chrono>

#include "core/base/error.h"
#include "serving/api/answer_parsing.h"
#include "serving/api/api_error.h"
#include "serving/api/chat_format.h"
#include "serving/api/delta_mailbox.h"
#include "serving/api/engine_requests.h"
#include "serving/api/prompt_builder.h"

namespace moesaic {
namespace {

constexpr auto kAskInterruptedEvery = std::chrono::milliseconds(100);

// The API's words for a bad request, as an error of the command line.
template <typename F>
auto Translated(F&& f) {
  try {
    return f();
  } catch (const ApiError& error) {
    throw Error(error.status() == 503 ? ErrorKind::kUnavailable : ErrorKind::kInvalidArgument,
                error.what());
  }
}

}  // namespace

RunPrompt RequestRunner::EncodeRaw(const std::string& prompt) const {
  return Translated([&] {
    return RunPrompt{
        EncodeText(model_.engine->tokenizer(), prompt, request_.add_special_tokens.value_or(true))};
  });
}

RunPrompt RequestRunner::EncodeMessages(const Json& messages) const {
  return Translated([&] {
    ChatInput input;
    input.messages = messages;
    const jinja::MarkedText prompt = RenderChat(model_, input);
    return RunPrompt{EncodeMarked(model_.engine->tokenizer(), prompt,
                                  request_.add_special_tokens.value_or(false)),
                     ParsingOf(model_, input, prompt)};
  });
}

RunResult RequestRunner::Run(const RunPrompt& prompt, const OnText& on_text,
                             const std::function<bool()>& interrupted,
                             const RequestLabel& label) const {
  using Clock = DeltaMailbox::Clock;
  Engine& engine = *model_.engine;
  std::vector<EngineRequest> requests =
      Translated([&] { return BuildEngineRequests(request_, {prompt.tokens}, LimitsOf(engine)); });
  for (EngineRequest& request : requests) {
    if (!label.id.empty()) request.id = label.id;
    request.domain = label.domain;
    if (prompt.parsing) request.shown_special_tokens = model_.chat_format->special_tokens;
  }

  RunResult result;
  const StepStats before = engine.Stats();
  const auto mailbox = std::make_shared<DeltaMailbox>(DeltaMailbox::kNoLimit, nullptr);
  const Clock::time_point begin = Clock::now();
  const auto seconds = [&](Clock::time_point at) {
    return std::chrono::duration<double>(at - begin).count();
  };
  const RequestId id = engine.Submit(std::move(requests), {mailbox->MakeSink(0)}).front();
  ChatAnswer answer(prompt.parsing);
  bool ended = false;
  try {
    while (!ended) {
      std::vector<DeltaMailbox::Mail> arrived = mailbox->Wait(kAskInterruptedEvery);
      if (interrupted()) engine.Cancel(id);
      for (DeltaMailbox::Mail& mail : arrived) {
        if (mail.error) throw *mail.error;
        if (!mail.token_times.empty()) {
          if (result.prompt_s == 0) result.prompt_s = seconds(mail.token_times.front());
          result.output_s = seconds(mail.token_times.back()) - result.prompt_s;
        }
        OutputDelta& delta = mail.delta;
        const std::vector<ChatEvent> events = answer.Add(delta);
        result.usage = delta.usage;
        ended = delta.finish.has_value();
        if (ended) {
          result.finish = *delta.finish;
          result.trace = std::move(delta.trace);
        }
        for (const ChatEvent& event : events) {
          const bool reasoning = event.kind == ChatEvent::Kind::kReasoning;
          (reasoning ? result.reasoning : result.text) += event.text;
          on_text(event.text, reasoning);
        }
      }
    }
  } catch (...) {
    engine.Cancel(id);
    throw;
  }
  result.steps = engine.Stats();
  result.steps -= before;
  return result;
}

}  // namespace moesaic
