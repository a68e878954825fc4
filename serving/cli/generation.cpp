#include "serving/cli/generation.h"

#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/mutex.h"
#include "serving/http/api_error.h"
#include "serving/http/generation_request.h"
#include "serving/http/prompt_builder.h"

namespace moesaic {
namespace {

struct Arrival {
  OutputDelta delta;
  std::optional<Error> error;
  double at_s = 0;
};

// Carries deltas from the engine's thread to the one that prints them.
class QueueSink : public OutputSink {
 public:
  void OnDelta(OutputDelta delta) override {
    Push({std::move(delta), std::nullopt, watch_.seconds()});
  }
  void OnError(const Error& error) override { Push({{}, error, watch_.seconds()}); }

  // Waits a tenth of a second at most.
  std::optional<Arrival> Pop() EXCLUDES(mutex_) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    const MutexLock lock(mutex_);
    while (arrivals_.empty()) {
      if (!changed_.WaitUntil(mutex_, deadline)) return std::nullopt;
    }
    Arrival arrival = std::move(arrivals_.front());
    arrivals_.pop_front();
    return arrival;
  }

 private:
  void Push(Arrival arrival) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    arrivals_.push_back(std::move(arrival));
    changed_.NotifyOne();
  }

  const Stopwatch watch_{};
  Mutex mutex_;
  CondVar changed_;
  std::deque<Arrival> arrivals_ GUARDED_BY(mutex_);
};

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

std::vector<int32_t> Generation::EncodeRaw(const std::string& prompt) const {
  return Translated([&] {
    return EncodeText(model_.engine->tokenizer(), prompt,
                      fields_.add_special_tokens.value_or(true));
  });
}

std::vector<int32_t> Generation::EncodeMessages(const Json& messages) const {
  return Translated([&] {
    ChatInput input;
    input.messages = messages;
    return EncodeChat(model_, input, fields_.add_special_tokens.value_or(false));
  });
}

GenerationResult Generation::Run(const std::vector<int32_t>& prompt,
                                 const std::function<void(std::string_view text)>& on_text,
                                 const std::function<bool()>& interrupted,
                                 const RequestLabel& label) const {
  Engine& engine = *model_.engine;
  std::vector<EngineRequest> requests = Translated([&] {
    GenerationContext context{engine.generation_defaults()};
    context.max_context_tokens = engine.max_context_tokens();
    context.vocab_size = engine.config().vocab_size;
    return BuildGenerationRequests(fields_, {prompt}, context);
  });

  for (EngineRequest& request : requests) {
    if (!label.id.empty()) request.id = label.id;
    request.domain = label.domain;
  }

  GenerationResult result;
  const StepStats before = engine.Stats();
  const auto sink = std::make_shared<QueueSink>();
  const RequestId id = engine.Submit(std::move(requests), {sink}).front();
  double last_s = 0;
  bool ended = false;
  try {
    while (!ended) {
      std::optional<Arrival> arrival = sink->Pop();
      if (interrupted()) engine.Cancel(id);
      if (!arrival) continue;
      if (arrival->error) throw *arrival->error;
      OutputDelta& delta = arrival->delta;
      if (!delta.tokens.empty() || !delta.text.empty()) {
        if (result.prompt_s == 0) result.prompt_s = arrival->at_s;
        last_s = arrival->at_s;
      }
      result.text += delta.text;
      result.usage = delta.usage;
      ended = delta.finish.has_value();
      if (ended) {
        result.finish = *delta.finish;
        result.trace = std::move(delta.trace);
      }
      if (!delta.text.empty()) on_text(delta.text);
    }
  } catch (...) {
    engine.Cancel(id);
    throw;
  }
  if (result.prompt_s > 0) result.output_s = last_s - result.prompt_s;
  result.steps = Difference(engine.Stats(), before);
  return result;
}

StepStats Difference(const StepStats& after, const StepStats& before) {
  StepStats d = after;
  d.steps -= before.steps;
  d.prefill_tokens -= before.prefill_tokens;
  d.decode_tokens -= before.decode_tokens;
  d.experts.hits -= before.experts.hits;
  d.experts.late_hits -= before.experts.late_hits;
  d.experts.misses -= before.experts.misses;
  d.experts.on_host -= before.experts.on_host;
  d.experts.failed_reads -= before.experts.failed_reads;
  d.experts.given_up -= before.experts.given_up;
  d.experts.host_us -= before.experts.host_us;
  d.experts.evictions -= before.experts.evictions;
  d.experts.bytes_read -= before.experts.bytes_read;
  d.experts.blocked_us -= before.experts.blocked_us;
  d.experts.prefetched -= before.experts.prefetched;
  d.experts.prefetched_used -= before.experts.prefetched_used;
  d.experts.prefetched_unused -= before.experts.prefetched_unused;
  d.experts.fetched_early -= before.experts.fetched_early;
  d.experts.deferred -= before.experts.deferred;
  d.recall -= before.recall;
  d.attention_us -= before.attention_us;
  d.moe_us -= before.moe_us;
  d.predict_us -= before.predict_us;
  d.head_us -= before.head_us;
  d.total_us -= before.total_us;
  return d;
}

}  // namespace moesaic
