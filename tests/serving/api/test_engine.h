// TestEngine: an Engine without a model, for tests of the protocol. By default it answers every
// request at once with the words "w0 w1 w2 ..."; in manual mode the test sends each delta itself.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "serving/engine/engine.h"
#include "serving/engine/live_view.h"
#include "serving/text/tokenizer.h"

namespace moesaic {

class TestEngine : public Engine {
 public:
  struct Options {
    bool manual = false;
    int64_t max_queue = 1'000'000;  // requests are refused when so many sequences run
    int64_t max_context_tokens = 1024;
    // Only these many words of "w0 w1 ..." have their own ids; tokens of the output are 0, 1, 2,
    // ...
    int64_t vocab_size = 4096;
    std::vector<LayerSpec> layers = {};  // of the config
    bool live = false;                   // there is a live view, whose samples the test makes
  };
  // `tokenizer` must outlive the engine.
  TestEngine(const Tokenizer& tokenizer, Options options);
  ~TestEngine() override;

  const ModelConfig& config() const override { return config_; }
  const GenerationDefaults& generation_defaults() const override { return defaults_; }
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  int64_t max_context_tokens() const override { return options_.max_context_tokens; }
  std::vector<RequestId> Submit(std::vector<EngineRequest> requests,
                                std::vector<std::shared_ptr<OutputSink>> sinks) override;
  void Cancel(RequestId id) override;
  // At once, on the caller's thread; in manual mode when RunUses says so.
  void WithCollection(std::function<void(EamCollection*)> use) override;
  // There are none.
  void WithResidents(std::function<void(std::span<const ResidentExpert>)> use) override { use({}); }
  void BeginDrain() override;
  EngineStatus Status() const override;
  StepStats Stats() const override { return {}; }
  LiveView* live() override { return options_.live ? &live_ : nullptr; }

  // The word of output token i, with the space before it.
  static std::string Word(int64_t i);

  // For tests. The waits block until the state is reached (a test's time limit is the way out).
  void WaitForSubmitted(size_t count) const;  // so many sequences in all
  void WaitForCancelled(size_t count) const;  // so many cancelled sequences
  void WaitForIdle() const;                   // no sequence is running
  std::vector<RequestId> Running() const;
  EngineRequest Request(RequestId id) const;  // of any time
  size_t submitted() const;                   // sequences in all
  size_t cancelled() const;
  bool draining() const;
  // Manual mode: the next `words` words; the last of them with `finish`.
  void Emit(RequestId id, int64_t words, std::optional<FinishReason> finish = std::nullopt);
  // Manual mode, several deltas of any size at once, from the calling thread.
  void EmitText(RequestId id, const std::string& text);
  void FailRequest(RequestId id, const Error& error);
  void SetCollection(EamCollection* collection);  // borrowed
  size_t waiting_uses() const;
  void RunUses();
  void SetNotReady(const std::string& why, const std::string& code);

 private:
  struct Active {
    EngineRequest request;
    std::shared_ptr<OutputSink> sink;
    int64_t emitted = 0;
    size_t text_bytes = 0;
  };
  void Main();
  OutputDelta MakeDelta(Active& running, int64_t words, std::optional<FinishReason> finish);

  const Tokenizer& tokenizer_;
  const Options options_;
  LiveView live_{{{"host", 1000, {{"experts", 600}, {"KV cache", 200}}}}, [] {}};
  ModelConfig config_;
  GenerationDefaults defaults_;

  mutable Mutex mutex_;
  EamCollection* collection_ GUARDED_BY(mutex_) = nullptr;
  std::vector<std::function<void(EamCollection*)>> uses_ GUARDED_BY(mutex_);
  std::string not_ready_ GUARDED_BY(mutex_);
  std::string not_ready_code_ GUARDED_BY(mutex_);
  mutable CondVar changed_;
  bool stop_ GUARDED_BY(mutex_) = false;
  bool draining_ GUARDED_BY(mutex_) = false;
  RequestId last_id_ GUARDED_BY(mutex_) = 0;
  size_t cancelled_ GUARDED_BY(mutex_) = 0;
  std::map<RequestId, Active> running_ GUARDED_BY(mutex_);
  std::map<RequestId, EngineRequest> seen_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace moesaic
