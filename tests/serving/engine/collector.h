// What tests of engines share: a sink that collects, and requests.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "serving/engine/engine.h"
#include "tracer/request_tracer.h"

namespace moesaic {

// Collects one request's output; Wait returns when it has ended.
class Collector : public OutputSink {
 public:
  void OnDelta(OutputDelta delta) override {
    std::lock_guard lock(mutex_);
    text += delta.text;
    for (auto& token : delta.tokens) tokens.push_back(std::move(token));
    for (auto& token : delta.prompt_tokens) prompt_tokens.push_back(std::move(token));
    usage = delta.usage;
    if (delta.queue_us >= 0) queue_us = delta.queue_us;
    if (!delta.stop_text.empty()) stop_text = delta.stop_text;
    if (delta.trace) trace = delta.trace;
    if (delta.progress) {
      EXPECT_TRUE(tokens.empty() && delta.tokens.empty());
      progress.push_back(*delta.progress);
    }
    ++deltas;
    if (delta.finish) {
      finish = delta.finish;
      done_ = true;
    }
    changed_.notify_all();
  }
  void OnError(const Error& failed) override {
    std::lock_guard lock(mutex_);
    error = failed.what();
    done_ = true;
    changed_.notify_all();
  }
  Collector& Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
    return *this;
  }
  void WaitForDeltas(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ || deltas >= count; });
  }
  std::vector<int32_t> Ids() const {
    std::vector<int32_t> ids;
    for (const GeneratedToken& token : tokens) ids.push_back(token.token);
    return ids;
  }

  std::string text;
  std::string error;
  std::string stop_text;
  std::vector<GeneratedToken> tokens;
  std::vector<GeneratedToken> prompt_tokens;
  std::optional<FinishReason> finish;
  std::shared_ptr<const RequestTrace> trace;
  Usage usage;
  std::vector<PromptProgress> progress;
  int64_t queue_us = -1;
  int deltas = 0;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

inline EngineRequest Greedy(std::vector<int32_t> prompt, int32_t max_tokens) {
  EngineRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.max_tokens = max_tokens;
  return request;
}

inline std::shared_ptr<Collector> SubmitOne(Engine& engine, EngineRequest request,
                                            RequestId* id = nullptr) {
  auto collector = std::make_shared<Collector>();
  std::vector<EngineRequest> requests;
  requests.push_back(std::move(request));
  const auto ids = engine.Submit(std::move(requests), {collector});
  if (id != nullptr) *id = ids[0];
  return collector;
}

}  // namespace moesaic
