// ScriptedStep: an EngineStep without a model. The token behind token t is t + 1 (modulo the
// vocabulary). A Script, which the test owns, says when steps may run and which of them fail, and
// keeps what they ran.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "serving/engine/engine_step.h"
#include "serving/engine/step_sampler.h"

namespace moesaic {

// Any thread.
class Script {
 public:
  struct Slice {
    int64_t start_position = 0;
    int64_t num_tokens = 0;
    friend bool operator==(const Slice&, const Slice&) = default;
  };
  struct Failure {
    Error error;
    EngineStep::AfterFailure after = EngineStep::AfterFailure::kEndRequests;
    std::string why_unreadable = {};
  };
  static constexpr int64_t kVocab = 64;

  // From now on a step waits when it begins, until it is allowed.
  void Hold() {
    Set([this] { allowed_ = 0; });
  }
  void Allow(int64_t steps) {
    Set([&] { allowed_ += steps; });
  }
  void AllowAll() {
    Set([this] { allowed_ = INT64_MAX / 2; });
  }
  void WaitUntilHeld() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return begun_ > passed_ && allowed_ == 0; });
  }
  // The next steps, in this order, fail when they may run.
  void FailNext(Failure failure) {
    Set([&] { failures_.push_back(std::move(failure)); });
  }
  // So many calls of the head succeed; the one behind them fails.
  void FailHeadAfter(int calls, Error error) {
    Set([&] {
      head_calls_left_ = calls;
      head_failure_ = std::move(error);
    });
  }
  void LoseDevice(Error error) {
    Set([&] { lost_ = std::move(error); });
  }
  // Experts can be read again; the next one who tries will see it.
  void Mend() {
    Set([this] { mended_ = true; });
  }

  std::vector<std::vector<Slice>> ran() const {
    std::lock_guard lock(mutex_);
    return ran_;
  }
  int idles() const {
    std::lock_guard lock(mutex_);
    return idles_;
  }
  // The last one.
  int64_t gave_back_from() const {
    std::lock_guard lock(mutex_);
    return gave_back_from_;
  }
  int heads() const {
    std::lock_guard lock(mutex_);
    return heads_;
  }

 private:
  friend class ScriptedStep;
  friend class ScriptedHead;

  template <typename Change>
  void Set(Change change) {
    std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int64_t allowed_ = INT64_MAX / 2;
  int64_t begun_ = 0;
  int64_t passed_ = 0;
  std::deque<Failure> failures_;
  int head_calls_left_ = 0;
  std::optional<Error> head_failure_;
  std::optional<Error> lost_;
  bool mended_ = false;
  std::vector<std::vector<Slice>> ran_;
  int64_t gave_back_from_ = -1;
  int idles_ = 0;
  int heads_ = 0;
};

class ScriptedStep final : public EngineStep {
 public:
  // reversed: slices run last one first.
  explicit ScriptedStep(Script& script, bool reversed = false)
      : script_(script), reversed_(reversed) {}

  void Arrange(std::vector<ScheduledSlice>& slices) override {
    if (reversed_) std::reverse(slices.begin(), slices.end());
  }
  void GiveBackKv(int64_t first_block) override {
    script_.Set([&] { script_.gave_back_from_ = first_block; });
  }
  StepStats Run(const ForwardBatch& batch, RoutingHook* hook) override {
    std::unique_lock lock(script_.mutex_);
    ++script_.begun_;
    script_.changed_.notify_all();
    script_.changed_.wait(lock, [&] { return script_.allowed_ > 0; });
    --script_.allowed_;
    ++script_.passed_;
    if (hook != nullptr) hook->OnRouting(0, batch, {}, {});
    tokens_.assign(batch.tokens.begin(), batch.tokens.end());
    std::vector<Script::Slice>& ran = script_.ran_.emplace_back();
    for (const SequenceSlice& slice : batch.slices) {
      ran.push_back({slice.start_position, slice.num_tokens});
    }
    if (!script_.failures_.empty()) {
      failure_ = std::move(script_.failures_.front());
      script_.failures_.pop_front();
      throw Error(failure_->error);
    }
    StepStats stats;
    stats.steps = 1;
    return stats;
  }
  StepStats Unfinished() override {
    StepStats stats;
    stats.experts.misses = 7;
    return stats;
  }
  void HeadRan(int64_t begin_ns, int64_t end_ns) override {
    CHECK_LE(begin_ns, end_ns);
    std::lock_guard lock(script_.mutex_);
    ++script_.heads_;
  }
  AfterFailure Failed(const Error& error) override {
    if (!failure_) return AfterFailure::kEndRequests;  // of the head
    CHECK_EQ(std::string(error.what()), failure_->error.what());
    unreadable_ = failure_->why_unreadable;
    const AfterFailure after = failure_->after;
    failure_.reset();
    return after;
  }
  void Idle() override {
    std::lock_guard lock(script_.mutex_);
    ++script_.idles_;
  }
  std::string WhyUnreadable() const override { return unreadable_; }
  void TryReading() override {
    std::lock_guard lock(script_.mutex_);
    if (script_.mended_) unreadable_.clear();
  }
  std::optional<Error> LostDevice() const override {
    std::lock_guard lock(script_.mutex_);
    return script_.lost_;
  }
  Experts experts() override { return {7, 5, {}}; }

 private:
  friend class ScriptedHead;

  Script& script_;
  const bool reversed_;
  std::vector<int32_t> tokens_;  // of the last step
  std::optional<Script::Failure> failure_;
  std::string unreadable_;
};

class ScriptedHead final : public StepHead {
 public:
  ScriptedHead(ScriptedStep& step, int64_t max_rows) : step_(step), max_rows_(max_rows) {}

  int64_t vocab_size() const override { return Script::kVocab; }
  int64_t max_rows() const override { return max_rows_; }
  void Logits(std::span<const int32_t> rows, float* out) override {
    {
      std::lock_guard lock(step_.script_.mutex_);
      if (step_.script_.head_failure_ && step_.script_.head_calls_left_-- == 0) {
        const Error error = *step_.script_.head_failure_;
        step_.script_.head_failure_.reset();
        throw Error(error);
      }
    }
    for (const int32_t row : rows) {
      std::fill_n(out, Script::kVocab, 0.0f);
      out[(step_.tokens_[static_cast<size_t>(row)] + 1) % Script::kVocab] = 1;
      out += Script::kVocab;
    }
  }
  void GreedyTokens(std::span<const int32_t> /*rows*/, int32_t* /*tokens*/) override {
    CHECK(false);  // it has none
  }

 private:
  ScriptedStep& step_;
  const int64_t max_rows_;
};

}  // namespace moesaic
