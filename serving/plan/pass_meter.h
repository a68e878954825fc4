// PassMeter: passes of the first layers of a model, made of the engine's own parts, and what each
// took: the instrument that the module profiler fits its costs from.
//
// Owned by the profiler; one thread. It takes the memory that its inputs allow, and has threads of
// its own.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "core/base/thread_pool.h"
#include "core/config/model_config.h"
#include "serving/batch/pass_runner.h"
#include "serving/batch/streaming_experts.h"
#include "serving/batch/timeline.h"
#include "serving/model/host_dense.h"
#include "serving/model/model.h"
#include "serving/plan/even_routing.h"
#include "serving/plan/module_profiler.h"

namespace moesaic {

// What one pass did, and how long it took. Counts are of all layers unless it says otherwise.
struct PassPoint {
  int64_t rows = 0;
  double decode_positions = 0;  // of one layer
  double prefill_positions = 0;
  double active_experts = 0;  // that rows were spread over
  double pairs = 0;
  double attention_s = 0;
  double dense_s = 0;  // with attention
  double experts_s = 0;
  double wall_s = 0;
  double link_idle_s = 0;  // nothing to read
  uint64_t bytes_read = 0;
  double routed_experts = 0;  // that the router chose, where nothing was spread
  double routed_pairs = 0;
};

// At most; rows and residents are fewer where memory is short.
struct PassMeterSizes {
  int64_t sparse_layers = 0;   // the first ones with experts
  int64_t rows = 0;            // of a pass; halved until they fit, not below 16
  int64_t decode_rows = 0;     // of a pass
  int64_t residents = 0;       // of each of the layers
  int64_t text_sequences = 0;  // of RunText
};

class PassMeter {
 public:
  static constexpr int64_t kLongContext = 256;  // positions that a sequence has at most
  // Sequences whose keys and values decode reads in turn, at most: of few they stay in a core's
  // cache, which those of a job do not.
  static constexpr int64_t kContexts = 64;
  static constexpr int64_t kTextPasses = 2;    // at most, of its prompts
  static constexpr int64_t kTextTokens = 128;  // of a sequence's prompt in RunText, at most

  // Throws Error(kResourceExhausted) when not even the smallest passes fit.
  PassMeter(const ModuleProfilerInputs& inputs, const PassMeterSizes& most);

  const ModelConfig& config() const { return config_; }  // of the first layers
  const ModelLimits& limits() const { return limits_; }
  Model& model() { return *model_; }
  const ModelWeights& weights() const { return dense_->weights(); }
  ThreadPool& pool() { return *pool_; }
  uint64_t slot_bytes() const { return slot_bytes_; }
  StreamingExperts& experts() { return *experts_; }
  EvenRouting& routing() { return routing_; }
  int64_t residents() const { return resident_experts_; }  // of each sparse layer
  // Experts that passes may spread their rows over without reading any.
  int64_t spreadable() const { return std::max(config_.top_k(), resident_experts_); }

  // Rows spread over `active` of the spreadable experts of each layer; 0: as the router says.
  PassPoint Run(std::span<const SequenceSlice> slices, int64_t active);
  // Runs sample prompts, in kTextPasses passes, then a decode step of all of them for
  // each of their answers' first tokens, as the router says.
  void RunText(RoutingHook& hook, int answer_tokens);

  // `count` tokens of each of `sequences` contexts from `start` on. Valid until the next call of
  // this or of DecodeSlices.
  std::vector<SequenceSlice> PromptSlices(int64_t first_context, int64_t sequences, int64_t start,
                                          int64_t count);
  // How many contexts were written; DecodeSlices takes these in turn, going on where it stopped.
  void UseContexts(int64_t contexts) { contexts_ = contexts; }
  int64_t contexts() const { return contexts_; }
  // One token each behind `context` (a multiple of a block) positions; each writes a block of its
  // own. More sequences than contexts read some of them again, from a cache.
  std::vector<SequenceSlice> DecodeSlices(int64_t sequences, int64_t context);

 private:
  StreamingOptions StreamingFor(int64_t resident_experts, int64_t buffers) const;
  uint64_t BytesWith(int64_t rows, int64_t resident_experts, int64_t buffers) const;
  ModelLimits LimitsFor(int64_t rows) const;
  void ChooseSizes();
  static std::vector<int32_t> ShortPrompt(const std::vector<int32_t>& prompt, int64_t most);
  static int64_t TextBlocks(const std::vector<int32_t>& prompt);
  std::vector<std::vector<int32_t>> TextPrompts(int64_t rows) const;
  int32_t NextToken();

  const ModuleProfilerInputs& inputs_;
  const PassMeterSizes most_;
  const ModelConfig config_;
  const uint64_t slot_bytes_;
  int64_t resident_experts_ = 0;
  int64_t contexts_ = kContexts;
  int64_t next_context_ = 0;
  ModelLimits limits_;
  StreamingOptions streaming_;
  Timeline timeline_{0};
  EvenRouting routing_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<StreamingExperts> experts_;
  const HostDense* dense_ = nullptr;  // of the model
  std::unique_ptr<Model> model_;
  std::unique_ptr<PassRunner> runner_;
  std::mt19937_64 random_{1};
  std::vector<int32_t> sample_tokens_;  // of all prompts
  size_t next_token_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<std::vector<int32_t>> blocks_;  // of the slices of the running pass
};

}  // namespace moesaic
