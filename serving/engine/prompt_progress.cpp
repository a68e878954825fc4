#include "serving/engine/prompt_progress.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/logging.h"

namespace moesaic {
namespace {

// Between two things that are told of blocks of layers, which are short.
constexpr std::chrono::milliseconds kBetweenTold{100};
constexpr std::chrono::seconds kBetweenLines{10};

}  // namespace

void TellPromptProgress(Sequence& sequence, int64_t processed, bool always,
                        std::chrono::steady_clock::time_point now) {
  if (!sequence.request.return_progress) return;
  processed = std::min(processed, sequence.prompt_tokens);
  if (processed <= sequence.told_tokens) return;
  const bool edge = sequence.told_tokens < 0 || processed == sequence.prompt_tokens;
  if (!edge && !always && now - sequence.told_at < kBetweenTold) return;
  sequence.told_tokens = processed;
  sequence.told_at = now;
  OutputDelta delta;
  delta.progress = {
      .total = sequence.prompt_tokens,
      .cached = sequence.cached_tokens,
      .processed = processed,
      .time_ms =
          std::chrono::duration_cast<std::chrono::milliseconds>(now - sequence.started_at).count()};
  delta.usage = {sequence.prompt_tokens, sequence.output_tokens(), sequence.cached_tokens};
  sequence.sink->OnDelta(std::move(delta));
}

void LogPromptProgress(Sequence& sequence, std::chrono::steady_clock::time_point now) {
  if (sequence.computed_tokens >= sequence.prompt_tokens) return;
  if (now - std::max(sequence.started_at, sequence.logged_at) < kBetweenLines) return;
  sequence.logged_at = now;
  LogInfo("request {}: {} of {} tokens of its prompt after {:.0f} s",
          sequence.request.id.empty() ? std::to_string(sequence.id) : sequence.request.id,
          sequence.computed_tokens, sequence.prompt_tokens,
          std::chrono::duration<double>(now - sequence.started_at).count());
}

}  // namespace moesaic
