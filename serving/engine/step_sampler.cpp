#include "serving/engine/step_sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "core/base/error.h"

namespace moesaic {
namespace {

bool AllFinite(std::span<const float> values) {
  // Of integers the loop vectorises; a branch per value would not, nor would a sum of floats.
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t others = 0;
  for (const float value : values) {
    others |= (std::bit_cast<uint32_t>(value) & kExponent) == kExponent ? 1 : 0;
  }
  return others == 0;
}

// Whether the next token is the one of the largest logit, and nothing else of the logits is asked.
bool IsGreedy(const Sequence& sequence) {
  return TakesLargestLogit(sequence.request.sampling) && sequence.request.logprobs < 0 &&
         sequence.output->ForbiddenTokens().empty() &&
         (!sequence.constraint || sequence.constraint->free());
}

// What comes next whatever the logits say.
std::optional<int32_t> ForcedToken(const Sequence& sequence) {
  return sequence.thinking ? sequence.thinking->Forced() : std::nullopt;
}

// Returns why the sequence ends, if it does. Throws Error for a token that the constraint has no
// place for.
std::optional<FinishReason> AppendToken(Sequence& sequence, GeneratedToken token) {
  sequence.tokens.push_back(token.token);
  const SamplingParams& sampling = sequence.request.sampling;
  if (sampling.repetition_penalty != 1.0) sequence.penalties.seen.insert(token.token);
  if (sampling.presence_penalty != 0 || sampling.frequency_penalty != 0) {
    ++sequence.penalties.output_counts[token.token];
  }
  const std::string_view bytes = sequence.output->TokenBytes(token.token);
  const bool forced = ForcedToken(sequence).has_value();
  if (sequence.thinking) sequence.thinking->Append(bytes);
  if (sequence.constraint) sequence.constraint->Append(token.token, bytes, forced);
  const std::optional<FinishReason> finish = sequence.output->Append(std::move(token));
  // Also where ends of text are ignored: nothing can come behind a grammar's end.
  if (!finish && sequence.constraint && sequence.constraint->ended()) return FinishReason::kStop;
  return finish;
}

}  // namespace

void CheckRequest(const EngineRequest& request, const SequenceContext& context) {
  const int64_t vocab = context.config.vocab_size;
  if (request.prompt.empty()) {
    Fail(ErrorKind::kInvalidArgument, "prompt: it has no tokens; give at least one");
  }
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= vocab) {
      Fail(ErrorKind::kInvalidArgument, "prompt: token id {} is outside the vocabulary of {}",
           token, vocab);
    }
  }
  for (const auto& [token, bias] : request.sampling.logit_bias) {
    if (token < 0 || token >= vocab || !std::isfinite(bias)) {
      Fail(ErrorKind::kInvalidArgument,
           "logit_bias: token id {} is outside the vocabulary of {} or its bias is not a number",
           token, vocab);
    }
  }
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t longest = context.max_context_tokens;
  if (prompt > longest || (request.max_tokens > 0 && prompt == longest)) {
    Fail(ErrorKind::kInvalidArgument,
         "prompt: this model's maximum context length is {} tokens and the prompt has {}; shorten "
         "the prompt",
         longest, prompt);
  }
}

std::unique_ptr<Sequence> MakeSequence(EngineRequest request, std::shared_ptr<OutputSink> sink,
                                       const SequenceContext& context) {
  auto sequence = std::make_unique<Sequence>();
  sequence->request = std::move(request);
  sequence->sink = std::move(sink);
  sequence->arrival = std::chrono::steady_clock::now();
  sequence->tokens = sequence->request.prompt;
  sequence->prompt_tokens = static_cast<int64_t>(sequence->tokens.size());
  const SamplingParams& sampling = sequence->request.sampling;
  sequence->seed = sampling.seed ? *sampling.seed : std::random_device{}();
  if (sampling.repetition_penalty != 1.0) {
    sequence->penalties.seen.insert(sequence->tokens.begin(), sequence->tokens.end());
  }
  if (sequence->request.thinking) sequence->thinking.emplace(sequence->request.thinking);
  if (sequence->request.constraint) sequence->constraint.emplace(sequence->request.constraint);
  const int64_t room = context.max_context_tokens - sequence->prompt_tokens;
  sequence->output =
      std::make_unique<OutputProcessor>(context.tokenizer, sequence->request, context.eos_token_ids,
                                        std::min<int64_t>(sequence->request.max_tokens, room));
  return sequence;
}

OutputDelta TakeDelta(Sequence& sequence) {
  OutputDelta delta = sequence.output->Take();
  delta.prompt_tokens = std::exchange(sequence.prompt_logprobs, {});
  delta.usage = {sequence.prompt_tokens, sequence.output_tokens(), sequence.cached_tokens};
  delta.queue_us = std::exchange(sequence.queue_us, -1);
  return delta;
}

void StepRows::Clear() {
  tokens.clear();
  slices.clear();
}

const SequenceSlice& StepRows::Add(const ScheduledSlice& scheduled) {
  const Sequence& sequence = *scheduled.sequence;
  SequenceSlice slice;
  slice.first_row = static_cast<int64_t>(tokens.size());
  slice.num_tokens = scheduled.num_tokens;
  slice.start_position = sequence.computed_tokens;
  if (!sequence.blocks.empty()) {
    slice.blocks = sequence.blocks.tables.front().blocks;
    slice.tables = &sequence.blocks;
  }
  slice.state = sequence.state;
  slice.request = static_cast<int32_t>(slices.size());
  slice.prefill = sequence.computed_tokens < sequence.prompt_tokens;
  slice.decode_from = sequence.decode_from();
  const auto first = sequence.tokens.begin() + sequence.computed_tokens;
  tokens.insert(tokens.end(), first, first + scheduled.num_tokens);
  return slices.emplace_back(slice);
}

void BeginSequence(Sequence& sequence, std::chrono::steady_clock::time_point now) {
  if (sequence.started) return;
  sequence.started = true;
  sequence.started_at = now;
  sequence.queue_us =
      std::chrono::duration_cast<std::chrono::microseconds>(now - sequence.arrival).count();
}

StepSampler::StepSampler(StepHead& head, const CpuKernels& kernels, ThreadPool& pool)
    : head_(head), pool_(pool), vocab_(head.vocab_size()) {
  for (int worker = 0; worker < pool.threads(); ++worker) {
    samplers_.emplace_back(kernels, vocab_);
    raw_logits_.emplace_back(static_cast<size_t>(vocab_));
  }
  const int64_t rows = head.max_rows();
  logits_.resize(static_cast<size_t>(rows * vocab_));
  sampled_.resize(static_cast<size_t>(rows));
  failed_.resize(static_cast<size_t>(rows));
  greedy_.resize(static_cast<size_t>(rows));
}

void StepSampler::CollectPromptLogprobs(Sequence& sequence, const SequenceSlice& slice) {
  if (!sequence.wants_prompt_logprobs()) return;
  const int64_t block = head_.max_rows();
  // A preempted sequence computes its prompt again: what it has is not collected twice.
  const int64_t begin = std::max(slice.start_position, sequence.prompt_logprobs_done);
  const int64_t end = std::min(slice.start_position + slice.num_tokens, sequence.prompt_tokens - 1);
  for (int64_t first = begin; first < end; first += block) {
    const int64_t count = std::min(block, end - first);
    std::vector<int32_t> rows;
    for (int64_t j = 0; j < count; ++j) {
      rows.push_back(static_cast<int32_t>(slice.first_row + first - slice.start_position + j));
    }
    head_.Logits(rows, logits_.data());
    pool_.ParallelFor(count, [&](int64_t j, int worker) {
      const int32_t next = sequence.tokens[static_cast<size_t>(first + j + 1)];
      sampled_[static_cast<size_t>(j)] = samplers_[static_cast<size_t>(worker)].Logprobs(
          Row(j), next, sequence.request.prompt_logprobs);
    });
    for (int64_t j = 0; j < count; ++j) {
      sequence.prompt_logprobs.push_back(std::move(*sampled_[static_cast<size_t>(j)]));
    }
    sequence.prompt_logprobs_done = first + count;
  }
}

void StepSampler::NextTokens(std::span<const ScheduledSlice> plan, const StepRows& rows,
                             FunctionRef<void(Sequence& sequence, FinishReason reason)> end,
                             FunctionRef<void(Sequence& sequence, const Error& error)> fail) {
  sampling_.clear();
  sampling_rows_.clear();
  for (size_t i = 0; i < plan.size(); ++i) {
    Sequence& sequence = *plan[i].sequence;
    if (sequence.computed_tokens < static_cast<int64_t>(sequence.tokens.size())) continue;
    if (sequence.request.max_tokens <= 0) {
      end(sequence, FinishReason::kLength);
      continue;
    }
    const SequenceSlice& slice = rows.slices[i];
    sampling_.push_back(&sequence);
    sampling_rows_.push_back(static_cast<int32_t>(slice.first_row + slice.num_tokens - 1));
  }
  const auto block = static_cast<size_t>(head_.max_rows());
  for (size_t first = 0; first < sampling_.size(); first += block) {
    const size_t count = std::min(block, sampling_.size() - first);
    try {
      SampleBlock(std::span(sampling_).subspan(first, count),
                  std::span(sampling_rows_).subspan(first, count));
    } catch (
        const Error& error) {  // of the device that has the head; others may have ended already
      for (size_t i = 0; i < count; ++i) fail(*sampling_[first + i], error);
      continue;
    }
    for (size_t i = 0; i < count; ++i) {
      Sequence& sequence = *sampling_[first + i];
      std::optional<FinishReason> finish;
      if (sampled_[i]) {
        try {
          finish = AppendToken(sequence, std::move(*sampled_[i]));
        } catch (const Error& error) {
          failed_[i] = error;
        }
      } else if (!failed_[i]) {
        failed_[i].emplace(ErrorKind::kInternal,
                           "the model's logits are not finite; the checkpoint may be damaged");
      }
      if (failed_[i]) {
        fail(sequence, *std::exchange(failed_[i], std::nullopt));
      } else if (finish) {
        end(sequence, *finish);
      } else {
        if (sequence.constraint) QueueMask(*sequence.constraint);
        sequence.sink->OnDelta(TakeDelta(sequence));
      }
    }
  }
}

// What may come next is found out while the next step runs.
void StepSampler::QueueMask(const ConstraintState& constraint) {
  if (auto match = constraint.NextMask()) masks_.Queue(std::move(match));
}

void StepSampler::SampleBlock(std::span<Sequence* const> sequences, std::span<const int32_t> rows) {
  if (head_.has_greedy_tokens() && std::all_of(sequences.begin(), sequences.end(),
                                               [](const Sequence* s) { return IsGreedy(*s); })) {
    head_.GreedyTokens(rows, greedy_.data());
    for (size_t i = 0; i < rows.size(); ++i) {
      sampled_[i].reset();
      if (greedy_[i] >= 0) {
        sampled_[i].emplace().token = ForcedToken(*sequences[i]).value_or(greedy_[i]);
      }
    }
    return;
  }
  head_.Logits(rows, logits_.data());
  pool_.ParallelFor(static_cast<int64_t>(rows.size()), [&](int64_t i, int worker) {
    const auto at = static_cast<size_t>(i);
    Sequence& sequence = *sequences[at];
    const std::span<float> logits = Row(i);
    sampled_[at].reset();
    if (!AllFinite(logits)) return;
    Sampler& sampler = samplers_[static_cast<size_t>(worker)];
    std::vector<float>& raw = raw_logits_[static_cast<size_t>(worker)];
    const bool logprobs = sequence.request.logprobs >= 0;
    if (logprobs) std::copy(logits.begin(), logits.end(), raw.begin());
    if (!sequence.constraint) {
      for (const int32_t forbidden : sequence.output->ForbiddenTokens()) {
        if (forbidden >= 0 && forbidden < vocab_) {
          logits[static_cast<size_t>(forbidden)] = -std::numeric_limits<float>::infinity();
        }
      }
    } else if (!ForcedToken(sequence)) {
      try {
        sequence.constraint->Mask(sequence.output->ForbiddenTokens(), logits);
      } catch (const Error& error) {
        failed_[at] = error;
        return;
      }
    }
    GeneratedToken token;
    token.token = sampler.Sample(sequence.request.sampling, sequence.seed, sequence.output_tokens(),
                                 sequence.penalties, logits);
    token.token = ForcedToken(sequence).value_or(token.token);
    if (logprobs) token = sampler.Logprobs(raw, token.token, sequence.request.logprobs);
    sampled_[at] = std::move(token);
  });
}

}  // namespace moesaic
