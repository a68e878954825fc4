// StepSampler: from the hidden states of a step to its tokens: logits, prompt log-probabilities,
// sampling. With what else the engines do alike to a sequence at its beginning and at each token.
//
// Owned by an engine; used by its thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/base/function_ref.h"
#include "core/base/thread_pool.h"
#include "serving/engine/mask_ahead.h"
#include "serving/engine/scheduler.h"
#include "serving/engine/sequence.h"
#include "serving/model/model.h"
#include "serving/model/sampler.h"

namespace moesaic {

// What an engine knows of every request.
struct SequenceContext {
  const ModelConfig& config;
  const Tokenizer& tokenizer;
  std::span<const int32_t> eos_token_ids;
  int64_t max_context_tokens = 0;
};

// Throws Error(kInvalidArgument) for a request that can never run.
void CheckRequest(const EngineRequest& request, const SequenceContext& context);
// Its id is the caller's to set.
std::unique_ptr<Sequence> MakeSequence(EngineRequest request, std::shared_ptr<OutputSink> sink,
                                       const SequenceContext& context);
// What became ready of a sequence's output since the last call.
OutputDelta TakeDelta(Sequence& sequence);

// The rows of a step, made of the slices that were scheduled.
struct StepRows {
  std::vector<int32_t> tokens;
  std::vector<SequenceSlice> slices;  // of the same order as those that were scheduled

  void Clear();
  const SequenceSlice& Add(const ScheduledSlice& scheduled);
};

// A step runs the sequence: the first time its waiting time ends `now`.
void BeginSequence(Sequence& sequence, std::chrono::steady_clock::time_point now);

// The head of a model: the logits of rows of the step that it ran last.
class StepHead {
 public:
  virtual ~StepHead() = default;

  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_rows() const = 0;  // of one call of the next two
  // As Model::Logits, Model::has_greedy_tokens and Model::GreedyTokens.
  virtual void Logits(std::span<const int32_t> rows, float* out) = 0;
  virtual bool has_greedy_tokens() const { return false; }
  virtual void GreedyTokens(std::span<const int32_t> rows, int32_t* tokens) = 0;
};

class ModelHead final : public StepHead {
 public:
  // `model` outlives it.
  explicit ModelHead(Model& model) : model_(model) {}

  int64_t vocab_size() const override { return model_.config().vocab_size; }
  int64_t max_rows() const override { return model_.limits().max_logit_rows; }
  void Logits(std::span<const int32_t> rows, float* out) override { model_.Logits(rows, out); }
  bool has_greedy_tokens() const override { return model_.has_greedy_tokens(); }
  void GreedyTokens(std::span<const int32_t> rows, int32_t* tokens) override {
    model_.GreedyTokens(rows, tokens);
  }

 private:
  Model& model_;
};

class StepSampler {
 public:
  // All arguments outlive it.
  StepSampler(StepHead& head, const CpuKernels& kernels, ThreadPool& pool);

  // The logits at a prompt position say how likely the next prompt token was; `slice` is what the
  // last step ran of the sequence.
  void CollectPromptLogprobs(Sequence& sequence, const SequenceSlice& slice);

  // Gives the sequences whose last known token was computed (Scheduler::Advance) their next one,
  // and their sinks what became ready. `end` and `fail` are called in order, on this thread, for
  // those that end.
  void NextTokens(std::span<const ScheduledSlice> plan, const StepRows& rows,
                  FunctionRef<void(Sequence& sequence, FinishReason reason)> end,
                  FunctionRef<void(Sequence& sequence, const Error& error)> fail);

 private:
  void SampleBlock(std::span<Sequence* const> sequences, std::span<const int32_t> rows);
  void QueueMask(const ConstraintState& constraint);
  std::span<float> Row(int64_t row) {
    return {logits_.data() + row * vocab_, static_cast<size_t>(vocab_)};
  }

  StepHead& head_;
  ThreadPool& pool_;
  const int64_t vocab_;
  std::vector<Sampler> samplers_;                       // one per worker
  std::vector<float> logits_;                           // [max_rows, vocab]
  std::vector<std::vector<float>> raw_logits_;          // [worker][vocab]
  std::vector<std::optional<GeneratedToken>> sampled_;  // none: logits that are not finite
  std::vector<std::optional<Error>> failed_;            // why there is none, where it is told
  std::vector<int32_t> greedy_;                         // [max_rows]
  std::vector<Sequence*> sampling_;                     // of the running step, with the row of each
  std::vector<int32_t> sampling_rows_;
  MaskMaker masks_;
};

}  // namespace moesaic
