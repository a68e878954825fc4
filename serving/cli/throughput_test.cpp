#include "serving/cli/throughput_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/mutex.h"
#include "serving/api/request_runner.h"

namespace moesaic {
namespace {

// What the requests of a repetition have come to. The engine's thread writes, one thread waits.
class Progress {
 public:
  struct Moment {
    double s = 0;
    StepStats stats;              // with the step that brought the token
    std::vector<int64_t> tokens;  // [requests] generated
  };

  Progress(const Engine& engine, size_t requests) : engine_(engine), tokens_(requests) {}

  void OnTokens(size_t request, int64_t count, bool last) EXCLUDES(mutex_) {
    const double now_s = watch_.seconds();
    const MutexLock lock(mutex_);
    if (std::exchange(tokens_[request], tokens_[request] + count) == 0 &&
        ++begun_ == tokens_.size()) {
      all_begun_ = {now_s, engine_.Stats(), tokens_};
    }
    if (!last) return;
    if (++ended_ == 1) first_end_ = {now_s, engine_.Stats(), tokens_};
    if (ended_ == tokens_.size()) done_.NotifyOne();
  }

  void OnError(const Error& error) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    error_ = error;
    done_.NotifyOne();
  }

  // Throws the error of a request that failed.
  void Wait() EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    while (ended_ < tokens_.size() && !error_) done_.Wait(mutex_);
    if (error_) throw *error_;
  }

  Moment all_begun() const EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return all_begun_;
  }
  Moment first_end() const EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return first_end_;
  }

 private:
  const Engine& engine_;
  const Stopwatch watch_{};
  mutable Mutex mutex_;
  CondVar done_;
  std::vector<int64_t> tokens_ GUARDED_BY(mutex_);
  size_t begun_ GUARDED_BY(mutex_) = 0;
  size_t ended_ GUARDED_BY(mutex_) = 0;
  Moment all_begun_ GUARDED_BY(mutex_);
  Moment first_end_ GUARDED_BY(mutex_);
  std::optional<Error> error_ GUARDED_BY(mutex_);
};

class ProgressSink : public OutputSink {
 public:
  ProgressSink(std::shared_ptr<Progress> progress, size_t request)
      : progress_(std::move(progress)), request_(request) {}

  void OnDelta(OutputDelta delta) override {
    progress_->OnTokens(request_, static_cast<int64_t>(delta.tokens.size()),
                        delta.finish.has_value());
  }
  void OnError(const Error& error) override { progress_->OnError(error); }

 private:
  const std::shared_ptr<Progress> progress_;  // shared: the engine may outlive a failed repetition
  const size_t request_;
};

EngineRequest RandomRequest(const ThroughputTest& test, int64_t step_tokens, int64_t vocab_size,
                            std::mt19937_64& random) {
  EngineRequest request;
  std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(vocab_size - 1));
  for (int64_t i = 0; i < test.prompt_tokens; ++i) request.prompt.push_back(token(random));
  request.sampling.temperature = 0;
  request.max_tokens = static_cast<int32_t>(test.positions(step_tokens) - test.prompt_tokens);
  request.ignore_eos = true;
  return request;
}

StepWork PrefillWork(const StepCost& cost, const ThroughputTest& test, int64_t step_tokens) {
  StepWork work;
  work.tokens = test.prompt_tokens;
  work.head_steps = 1;
  work.logit_rows = 1;
  for (int64_t end = 1; end <= test.prompt_tokens; ++end) {
    work.positions_attended += cost.Positions(end);
    const bool step_ends = end % step_tokens == 0 || end == test.prompt_tokens;
    if (!step_ends) continue;
    work.positions_read += cost.Positions(end);
    ++work.sequence_steps;
  }
  return work;
}

StepWork DecodeWork(const StepCost& cost, const ThroughputTest& test,
                    const std::vector<int64_t>& generated, int64_t steps) {
  StepWork work;
  work.tokens = steps * test.batch;
  work.sequence_steps = work.tokens;
  work.head_steps = steps;
  work.logit_rows = work.tokens;
  for (const int64_t tokens : generated) {
    for (int64_t step = 0; step < steps; ++step) {
      work.positions_read += cost.Positions(test.prompt_tokens + tokens + step);
    }
  }
  work.positions_attended = work.positions_read;
  return work;
}

}  // namespace

std::string ThroughputTest::name() const {
  return decode ? fmt::format("tg{}", output_tokens) : fmt::format("pp{}", prompt_tokens);
}

int64_t ThroughputTest::early_tokens(int64_t step_tokens) const {
  const int64_t prompts = batch * prompt_tokens;
  if (batch == 1 || prompts <= step_tokens) return 0;
  // Of each step those that decode already take a token each.
  const int64_t rest = std::max<int64_t>(1, step_tokens - batch);
  return (prompts + rest - 1) / rest;
}

ThroughputSample RunThroughputTest(Engine& engine, const StepCost& cost, int64_t step_tokens,
                                   const ThroughputTest& test, uint64_t seed) {
  const auto requests = static_cast<size_t>(test.batch);
  std::mt19937_64 random(seed);
  std::vector<EngineRequest> prompts;
  for (size_t i = 0; i < requests; ++i) {
    prompts.push_back(RandomRequest(test, step_tokens, engine.config().vocab_size, random));
  }
  const StepStats before = engine.Stats();
  const auto progress = std::make_shared<Progress>(engine, requests);
  std::vector<std::shared_ptr<OutputSink>> sinks;
  for (size_t i = 0; i < requests; ++i) {
    sinks.push_back(std::make_shared<ProgressSink>(progress, i));
  }
  engine.Submit(std::move(prompts), std::move(sinks));
  progress->Wait();

  const Progress::Moment begin = progress->all_begun();
  const Progress::Moment end = progress->first_end();
  ThroughputSample sample;
  if (test.decode) {
    sample.seconds = end.s - begin.s;
    sample.stats = end.stats;
    sample.stats -= begin.stats;
    sample.work = DecodeWork(cost, test, begin.tokens, sample.stats.steps);
  } else {
    sample.seconds = begin.s;
    sample.stats = begin.stats;
    sample.stats -= before;
    sample.work = PrefillWork(cost, test, step_tokens);
  }
  sample.work.steps = sample.stats.steps;
  const ExpertStats& experts = sample.stats.experts;
  sample.work.experts = experts.hits + experts.late_hits + experts.misses;
  return sample;
}

}  // namespace moesaic
