#include "serving/plan/pass_meter.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/config/kv_groups.h"
#include "serving/model/experts_of_model.h"
#include "serving/model/numa_slices.h"
#include "serving/model/sampler.h"
#include "serving/model/sampling_params.h"
#include "serving/model/weights.h"
#include "serving/plan/measuring.h"

namespace moesaic {
namespace {

constexpr int64_t kLogitRows = 64;

// Up to and with so many layers with experts, and one with attention.
int64_t LayersToRun(const ModelConfig& config, int64_t sparse_layers) {
  int64_t sparse = 0;
  bool attends = false;
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    sparse += config.is_sparse(layer);
    attends = attends || config.layer(layer).has_attention();
    if (sparse >= sparse_layers && attends) return layer + 1;
  }
  return config.num_layers();
}

ModelConfig FirstLayers(ModelConfig config, int64_t layers) {
  config.layers.resize(static_cast<size_t>(layers));
  return config;
}

std::vector<int32_t> ContextBlocks(int64_t context) {
  std::vector<int32_t> blocks(static_cast<size_t>(PassMeter::kLongContext / kKvBlockTokens));
  std::iota(blocks.begin(), blocks.end(),
            static_cast<int32_t>(context * (PassMeter::kLongContext / kKvBlockTokens)));
  return blocks;
}

// A sequence's slot of recurrent state has its number.
void SetState(SequenceSlice& slice) {
  slice.state = {.slot = slice.request, .from = slice.request};
}

}  // namespace

PassMeter::PassMeter(const ModuleProfilerInputs& inputs, const PassMeterSizes& most)
    : inputs_(inputs),
      most_(most),
      config_(FirstLayers(inputs.config, LayersToRun(inputs.config, most.sparse_layers))),
      slot_bytes_(inputs.experts.layout().slot_bytes),
      routing_(config_.num_experts()) {
  for (const std::vector<int32_t>& prompt : inputs.sample_prompts) {
    sample_tokens_.insert(sample_tokens_.end(), prompt.begin(), prompt.end());
  }
  ChooseSizes();
  pool_ = std::make_unique<ThreadPool>(inputs.threads, inputs.thread_layout);
  const std::vector<NodeStretch> stretches =
      SlotStretches(inputs.experts.layout(), pool_->node_ids());
  StreamingOptions streaming = streaming_;
  streaming.slot_stretches = stretches;
  experts_ =
      std::make_unique<StreamingExperts>(inputs.experts, static_cast<int>(config_.num_layers()),
                                         static_cast<int>(config_.num_experts()), streaming);
  auto dense = std::make_unique<HostDense>(
      config_,
      ModelWeights::Load(config_, inputs.weight_type, inputs.tensors, inputs.kernels, *pool_),
      inputs.kernels, *pool_, limits_);
  dense_ = dense.get();
  model_ = std::make_unique<Model>(config_, std::move(dense), inputs.experts.layout(), *experts_,
                                   inputs.kernels, *pool_, limits_);
  StreamingExperts* const streams = experts_.get();
  runner_ = std::make_unique<PassRunner>(*model_, *pool_, std::span(&streams, 1), nullptr,
                                         ScheduleKind::kModuleBatching, &timeline_);
}

StreamingOptions PassMeter::StreamingFor(int64_t resident_experts, int64_t buffers) const {
  StreamingOptions streaming = inputs_.streaming;
  streaming.slots = std::min(resident_experts * config_.num_sparse_layers() + buffers,
                             config_.num_sparse_layers() * config_.num_experts());
  streaming.buffers = buffers;
  streaming.timeline = nullptr;
  return streaming;
}

uint64_t PassMeter::BytesWith(int64_t rows, int64_t resident_experts, int64_t buffers) const {
  const ModelLimits limits = LimitsFor(rows);
  const StreamingOptions streaming = StreamingFor(resident_experts, buffers);
  return ModelWeights::Bytes(config_, inputs_.weight_type) +
         static_cast<uint64_t>(streaming.slots) * slot_bytes_ +
         StreamingExperts::StagingBytes(inputs_.experts, GridOf(config_), streaming.slots,
                                        streaming) +
         static_cast<uint64_t>(limits.num_kv_blocks) *
             Model::KvBlockBytes(config_, inputs_.kv_type) +
         static_cast<uint64_t>(limits.num_state_slots) * Model::StateSlotBytes(config_) +
         Model::WorkspaceBytes(config_, inputs_.kernels, limits, inputs_.threads) +
         static_cast<uint64_t>(kLogitRows * config_.vocab_size) * sizeof(float);
}

ModelLimits PassMeter::LimitsFor(int64_t rows) const {
  ModelLimits limits;
  limits.max_batch_tokens = rows;
  limits.max_context_tokens = kLongContext + kKvBlockTokens;
  // The contexts, and a block for each decoding row's own token; text has its own.
  limits.num_kv_blocks =
      kContexts * (kLongContext / kKvBlockTokens) + std::min(rows, most_.decode_rows);
  if (most_.text_sequences > 0) {
    limits.num_kv_blocks = 0;
    for (const auto& prompt : TextPrompts(rows)) limits.num_kv_blocks += TextBlocks(prompt);
  }
  limits.num_kv_blocks *= static_cast<int64_t>(KvGroupsOf(config_).count());  // each has as many
  if (config_.FindMixer<DeltaNetSpec>() != nullptr) {
    limits.num_state_slots =
        std::min(rows, std::max({most_.decode_rows, most_.text_sequences, kContexts}));
  }
  limits.max_logit_rows = std::min(kLogitRows, rows);
  limits.kv_type = inputs_.kv_type;
  return limits;
}

// As many rows as fit, then half of the experts, then a quarter, ...
void PassMeter::ChooseSizes() {
  const int64_t group = GroupOfExperts(slot_bytes_);
  const int64_t buffers =
      std::clamp<int64_t>(2 * group, 4, std::max<int64_t>(4, config_.num_experts()));
  for (int64_t resident = most_.residents;; resident /= 2) {
    for (int64_t rows = most_.rows; rows >= 16; rows /= 2) {
      if (BytesWith(rows, resident, buffers) > inputs_.memory_bytes) continue;
      resident_experts_ = resident;
      limits_ = LimitsFor(rows);
      streaming_ = StreamingFor(resident, buffers);
      streaming_.timeline = &timeline_;
      return;
    }
    if (resident <= config_.top_k()) break;
  }
  Fail(ErrorKind::kResourceExhausted,
       "measuring the model's modules needs {} at least, {} may be used",
       FormatBytes(BytesWith(16, std::min(most_.residents, config_.top_k()), buffers)),
       FormatBytes(inputs_.memory_bytes));
}

int32_t PassMeter::NextToken() {
  if (sample_tokens_.empty()) {
    return static_cast<int32_t>(random_() % static_cast<uint64_t>(config_.vocab_size));
  }
  return sample_tokens_[next_token_++ % sample_tokens_.size()];
}

PassPoint PassMeter::Run(std::span<const SequenceSlice> slices, int64_t active) {
  PassPoint point;
  for (const SequenceSlice& slice : slices) {
    point.rows += slice.num_tokens;
    const auto first = static_cast<double>(slice.start_position + 1);
    const auto last = static_cast<double>(slice.start_position + slice.num_tokens);
    (slice.prefill ? point.prefill_positions : point.decode_positions) +=
        (first + last) / 2 * static_cast<double>(slice.num_tokens);
  }
  tokens_.resize(static_cast<size_t>(point.rows));
  for (int32_t& token : tokens_) token = NextToken();
  // What is in a state does not matter for how long a step takes.
  std::vector<SequenceSlice> with_state(slices.begin(), slices.end());
  for (SequenceSlice& slice : with_state) SetState(slice);
  if (active > 0) routing_.Spread(active, spreadable());
  point.active_experts = static_cast<double>(active * config_.num_sparse_layers());
  point.pairs = static_cast<double>(point.rows * config_.top_k() * config_.num_sparse_layers());

  const double routed_experts = routing_.touched();
  const double routed_pairs = routing_.pairs();
  const Timeline::Snapshot before = timeline_.Take();
  const SliceRange all = {0, std::ssize(slices)};
  const Stopwatch watch;
  const StepStats stats = runner_->Run({tokens_, with_state}, {&all, 1}, &routing_);
  point.wall_s = watch.seconds();
  const Timeline::Snapshot after = timeline_.Take();
  const auto spent_s = [&](Activity activity) {
    return static_cast<double>(after.sum(activity).ns - before.sum(activity).ns) * 1e-9;
  };
  point.attention_s = static_cast<double>(stats.attention_us) * 1e-6;
  point.dense_s = spent_s(Activity::kDense) + spent_s(Activity::kAttention);
  point.experts_s = spent_s(Activity::kExperts);
  point.link_idle_s = std::min(point.wall_s, spent_s(Activity::kLinkIdle));
  point.bytes_read = after.sum(Activity::kRead).bytes - before.sum(Activity::kRead).bytes;
  point.routed_experts = routing_.touched() - routed_experts;
  point.routed_pairs = routing_.pairs() - routed_pairs;
  return point;
}

// Of a long prompt the beginning, which it may share with others, and the end, which its answer
// follows.
std::vector<int32_t> PassMeter::ShortPrompt(const std::vector<int32_t>& prompt, int64_t most) {
  if (std::ssize(prompt) <= most) return prompt;
  std::vector<int32_t> parts(prompt.begin(), prompt.begin() + most / 2);
  parts.insert(parts.end(), prompt.end() - (most - most / 2), prompt.end());
  return parts;
}

// As many as fit into kTextPasses passes of so many rows.
std::vector<std::vector<int32_t>> PassMeter::TextPrompts(int64_t rows) const {
  std::vector<std::vector<int32_t>> prompts;
  const int64_t sequences = std::min(most_.text_sequences, rows);
  const int64_t most = std::min(kTextTokens, rows);
  int64_t room = kTextPasses * rows - (kTextPasses - 1) * most;  // a prompt is not cut in two
  for (int64_t i = 0; i < sequences; ++i) {
    std::vector<int32_t> prompt;
    if (inputs_.sample_prompts.empty()) {
      for (int64_t token = 0; token < most; ++token) {
        prompt.push_back(static_cast<int32_t>(
            (static_cast<uint64_t>(i * most + token) * 0x9E3779B97F4A7C15ull >> 32) %
            static_cast<uint64_t>(config_.vocab_size)));
      }
    } else if (i < std::ssize(inputs_.sample_prompts)) {
      prompt = ShortPrompt(inputs_.sample_prompts[static_cast<size_t>(i)], most);
    }
    room -= std::ssize(prompt);
    if (room < 0) break;
    if (!prompt.empty()) prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// Of a sequence: its prompt's and its answer's.
int64_t PassMeter::TextBlocks(const std::vector<int32_t>& prompt) {
  return std::ssize(prompt) / kKvBlockTokens + 2;
}

void PassMeter::RunText(RoutingHook& hook, int answer_tokens) {
  const std::vector<std::vector<int32_t>> prompts = TextPrompts(limits_.max_batch_tokens);
  Sampler sampler(inputs_.kernels, config_.vocab_size);
  SamplingParams sampling;
  sampling.temperature = 1;
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  std::vector<float> logits(static_cast<size_t>(limits_.max_logit_rows) * vocab);
  std::vector<SequenceSlice> slices;  // of a pass
  const auto run = [&] {
    const SliceRange all = {0, std::ssize(slices)};
    runner_->Run({tokens_, slices}, {&all, 1}, &hook);
  };
  std::vector<int32_t> next;  // tokens, of all sequences
  const auto sample = [&](int answered) {
    std::vector<int32_t> rows;
    for (size_t i = 0; i < slices.size(); ++i) {
      rows.push_back(static_cast<int32_t>(slices[i].first_row + slices[i].num_tokens - 1));
      if (std::ssize(rows) < limits_.max_logit_rows && i + 1 < slices.size()) continue;
      model_->Logits(rows, logits.data());
      for (size_t row = 0; row < rows.size(); ++row) {
        const auto request = static_cast<uint64_t>(slices[i + 1 - rows.size() + row].request);
        next.push_back(sampler.Sample(sampling, request, answered, {},
                                      std::span(logits).subspan(row * vocab, vocab)));
      }
      rows.clear();
    }
  };
  blocks_.clear();
  int32_t next_block = 0;
  for (const std::vector<int32_t>& prompt : prompts) {
    std::vector<int32_t>& blocks = blocks_.emplace_back(static_cast<size_t>(TextBlocks(prompt)));
    std::iota(blocks.begin(), blocks.end(), next_block);
    next_block += static_cast<int32_t>(blocks.size());
  }
  std::vector<SequenceSlice> answers;
  for (size_t begin = 0; begin < prompts.size();) {
    slices.clear();
    tokens_.clear();
    size_t end = begin;
    for (; end < prompts.size(); ++end) {
      const std::vector<int32_t>& prompt = prompts[end];
      if (std::ssize(tokens_) + std::ssize(prompt) > limits_.max_batch_tokens) break;
      SequenceSlice slice;
      slice.first_row = std::ssize(tokens_);
      slice.num_tokens = std::ssize(prompt);
      slice.request = static_cast<int32_t>(end);
      slice.prefill = true;
      slice.blocks = blocks_[end];
      SetState(slice);
      tokens_.insert(tokens_.end(), prompt.begin(), prompt.end());
      slices.push_back(slice);
    }
    run();
    sample(0);
    for (SequenceSlice slice : slices) {
      slice.start_position = slice.num_tokens;
      slice.first_row = std::ssize(answers);
      slice.num_tokens = 1;
      slice.prefill = false;
      answers.push_back(slice);
    }
    begin = end;
  }
  slices = std::move(answers);
  for (int answered = 1; answered <= answer_tokens; ++answered) {
    tokens_ = std::exchange(next, {});
    run();
    sample(answered);
    for (SequenceSlice& slice : slices) ++slice.start_position;
  }
}

std::vector<SequenceSlice> PassMeter::PromptSlices(int64_t first_context, int64_t sequences,
                                                   int64_t start, int64_t count) {
  blocks_.clear();
  std::vector<SequenceSlice> slices;
  for (int64_t i = 0; i < sequences; ++i) {
    blocks_.push_back(ContextBlocks((first_context + i) % kContexts));
    SequenceSlice slice;
    slice.first_row = i * count;
    slice.num_tokens = count;
    slice.start_position = start;
    slice.request = static_cast<int32_t>(i);
    slice.prefill = true;
    slices.push_back(slice);
  }
  for (size_t i = 0; i < slices.size(); ++i) slices[i].blocks = blocks_[i];
  return slices;
}

std::vector<SequenceSlice> PassMeter::DecodeSlices(int64_t sequences, int64_t context) {
  blocks_.clear();
  std::vector<SequenceSlice> slices;
  for (int64_t i = 0; i < sequences; ++i) {
    std::vector<int32_t> blocks = ContextBlocks((next_context_ + i) % contexts_);
    blocks.resize(static_cast<size_t>(context / kKvBlockTokens));
    blocks.push_back(static_cast<int32_t>(kContexts * (kLongContext / kKvBlockTokens) + i));
    blocks_.push_back(std::move(blocks));
    SequenceSlice slice;
    slice.first_row = i;
    slice.num_tokens = 1;
    slice.start_position = context;
    slice.request = static_cast<int32_t>(i);
    slices.push_back(slice);
  }
  next_context_ = (next_context_ + sequences) % contexts_;
  for (size_t i = 0; i < slices.size(); ++i) slices[i].blocks = blocks_[i];
  return slices;
}

}  // namespace moesaic
