#include "tests/serving/api/test_engine.h"

#include <utility>

#include "core/base/check.h"

namespace moesaic {

TestEngine::TestEngine(const Tokenizer& tokenizer, Options options)
    : tokenizer_(tokenizer), options_(options) {
  config_.vocab_size = options_.vocab_size;
  config_.layers = options_.layers;
  if (!options_.manual) thread_ = std::thread([this] { Main(); });
}

TestEngine::~TestEngine() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

std::string TestEngine::Word(int64_t i) { return (i == 0 ? "w" : " w") + std::to_string(i); }

std::vector<RequestId> TestEngine::Submit(std::vector<EngineRequest> requests,
                                          std::vector<std::shared_ptr<OutputSink>> sinks) {
  MutexLock lock(mutex_);
  if (draining_) Fail(ErrorKind::kUnavailable, "the server is shutting down");
  if (static_cast<int64_t>(running_.size()) >= options_.max_queue) {
    Fail(ErrorKind::kUnavailable, "the request queue is full");
  }
  std::vector<RequestId> ids;
  for (size_t i = 0; i < requests.size(); ++i) {
    ids.push_back(++last_id_);
    seen_[last_id_] = requests[i];
    running_[last_id_] = Active{std::move(requests[i]), std::move(sinks[i])};
  }
  changed_.NotifyAll();
  return ids;
}

void TestEngine::Cancel(RequestId id) {
  MutexLock lock(mutex_);
  const auto found = running_.find(id);
  if (found == running_.end()) return;
  OutputDelta delta;
  delta.finish = FinishReason::kCancelled;
  found->second.sink->OnDelta(std::move(delta));
  running_.erase(found);
  ++cancelled_;
  changed_.NotifyAll();
}

void TestEngine::WithCollection(std::function<void(EamCollection*)> use) {
  MutexLock lock(mutex_);
  if (options_.manual) {
    uses_.push_back(std::move(use));
  } else {
    use(collection_);
  }
}

void TestEngine::WithRequest(RequestId id, bool nearest,
                             std::function<void(std::shared_ptr<const RequestExperts>)> use) {
  std::shared_ptr<const RequestExperts> experts;
  {
    MutexLock lock(mutex_);
    if (experts_.contains(id)) experts = experts_.at(id);
  }
  if (experts != nullptr && !nearest) {
    auto without = std::make_shared<RequestExperts>(*experts);
    without->nearest.reset();
    experts = without;
  }
  use(experts);
}

void TestEngine::SetExperts(RequestId id, std::shared_ptr<const RequestExperts> experts) {
  MutexLock lock(mutex_);
  experts_[id] = std::move(experts);
}

void TestEngine::SetCollection(EamCollection* collection) {
  MutexLock lock(mutex_);
  collection_ = collection;
}

size_t TestEngine::waiting_uses() const {
  MutexLock lock(mutex_);
  return uses_.size();
}

void TestEngine::RunUses() {
  MutexLock lock(mutex_);
  for (const auto& use : uses_) use(collection_);
  uses_.clear();
}

void TestEngine::BeginDrain() {
  MutexLock lock(mutex_);
  draining_ = true;
  changed_.NotifyAll();
}

EngineStatus TestEngine::Status() const {
  MutexLock lock(mutex_);
  EngineStatus status;
  status.running = static_cast<int64_t>(running_.size());
  status.kv_usage = 0.25;
  status.not_ready = not_ready_;
  status.not_ready_code = not_ready_code_;
  return status;
}

void TestEngine::SetNotReady(const std::string& why, const std::string& code) {
  MutexLock lock(mutex_);
  not_ready_ = why;
  not_ready_code_ = code;
}

OutputDelta TestEngine::MakeDelta(Active& running, int64_t words,
                                  std::optional<FinishReason> finish) {
  const EngineRequest& request = running.request;
  OutputDelta delta;
  if (running.emitted == 0) {
    delta.queue_us = 1000;
    if (request.prompt_logprobs >= 0) {
      for (size_t i = 1; i < request.prompt.size(); ++i) {
        delta.prompt_tokens.push_back(GeneratedToken{request.prompt[i], -1.0f, {}});
      }
    }
  }
  for (int64_t i = 0; i < words; ++i) {
    delta.text += Word(running.emitted);
    running.text_bytes += Word(running.emitted).size();
    delta.token_ends.push_back(running.text_bytes);
    GeneratedToken token{static_cast<int32_t>(running.emitted), -0.5f, {}};
    for (int32_t t = 0; t < request.logprobs; ++t) {
      token.top.push_back(TokenLogprob{t, -0.25f * static_cast<float>(t + 1)});
    }
    delta.tokens.push_back(std::move(token));
    ++running.emitted;
  }
  delta.finish = finish;
  delta.usage = {static_cast<int64_t>(request.prompt.size()), running.emitted, 0};
  return delta;
}

void TestEngine::Main() {
  MutexLock lock(mutex_);
  while (!stop_) {
    if (running_.empty()) {
      changed_.Wait(mutex_);
      continue;
    }
    std::vector<RequestId> finished;
    for (auto& [id, running] : running_) {
      const bool last = running.emitted + 1 >= running.request.max_tokens;
      const int64_t words = running.request.max_tokens > 0 ? 1 : 0;
      running.sink->OnDelta(
          MakeDelta(running, words, last ? std::optional(FinishReason::kLength) : std::nullopt));
      if (last) finished.push_back(id);
    }
    for (const RequestId id : finished) running_.erase(id);
    changed_.NotifyAll();
  }
}

void TestEngine::WaitForSubmitted(size_t count) const {
  MutexLock lock(mutex_);
  while (last_id_ < count) changed_.Wait(mutex_);
}

void TestEngine::WaitForCancelled(size_t count) const {
  MutexLock lock(mutex_);
  while (cancelled_ < count) changed_.Wait(mutex_);
}

void TestEngine::WaitForIdle() const {
  MutexLock lock(mutex_);
  while (!running_.empty()) changed_.Wait(mutex_);
}

std::vector<RequestId> TestEngine::Running() const {
  MutexLock lock(mutex_);
  std::vector<RequestId> ids;
  for (const auto& [id, running] : running_) ids.push_back(id);
  return ids;
}

EngineRequest TestEngine::Request(RequestId id) const {
  MutexLock lock(mutex_);
  return seen_.at(id);
}

size_t TestEngine::submitted() const {
  MutexLock lock(mutex_);
  return last_id_;
}

size_t TestEngine::cancelled() const {
  MutexLock lock(mutex_);
  return cancelled_;
}

bool TestEngine::draining() const {
  MutexLock lock(mutex_);
  return draining_;
}

void TestEngine::Emit(RequestId id, int64_t words, std::optional<FinishReason> finish) {
  MutexLock lock(mutex_);
  const auto found = running_.find(id);
  if (found == running_.end()) return;
  found->second.sink->OnDelta(MakeDelta(found->second, words, finish));
  if (!finish.has_value()) return;
  running_.erase(found);
  changed_.NotifyAll();
}

void TestEngine::EmitText(RequestId id, const std::string& text) {
  MutexLock lock(mutex_);
  const auto found = running_.find(id);
  if (found == running_.end()) return;
  OutputDelta delta = MakeDelta(found->second, 1, std::nullopt);
  delta.text = text;
  found->second.sink->OnDelta(std::move(delta));
}

void TestEngine::FailRequest(RequestId id, const Error& error) {
  MutexLock lock(mutex_);
  const auto found = running_.find(id);
  CHECK(found != running_.end());
  found->second.sink->OnError(error);
  running_.erase(found);
  changed_.NotifyAll();
}

}  // namespace moesaic
