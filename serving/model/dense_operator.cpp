#include "serving/model/dense_operator.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/logging.h"
#include "core/base/units.h"
#include "serving/model/dense_sizes.h"
#include "serving/model/device_operator.h"
#include "serving/model/device_rows.h"
#include "serving/model/rope.h"

namespace moesaic {

cuda::Weights GpuWeights(WeightType type) {
  switch (type) {
    case WeightType::kBf16:
      return cuda::Weights::kBf16;
    case WeightType::kInt8:
      return cuda::Weights::kInt8;
    case WeightType::kInt4:
      return cuda::Weights::kInt4;
    case WeightType::kF32:
      break;
  }
  Fail(ErrorKind::kUnsupported,
       "--gpu-dense: no kernel takes float32 weights; give --dtype bfloat16");
}

namespace {

[[noreturn]] void RefuseOnGpus(const char* what) {
  Fail(ErrorKind::kUnsupported,
       "--gpu-dense: {} are not computed on GPUs yet; the CPU does it with --gpu-dense auto or off",
       what);
}

// The kernel does more, of which nothing is passed on to it yet.
void CheckRouter(const RouterSpec& router) {
  if (router.experts > cuda::kMaxExperts) RefuseOnGpus("routers of so many experts");
  if (router.score != ScoreFunction::kSoftmax) RefuseOnGpus("routers other than softmax");
  if (router.logit_bias || router.correction_bias) RefuseOnGpus("biases of routers");
  if (router.groups_kept != router.num_groups) RefuseOnGpus("groups of experts");
  if (router.norm != RouterNorm::kNone && router.norm != RouterNorm::kSum) {
    RefuseOnGpus("expert weights normalised so");
  }
  if (router.scale != 1.0) RefuseOnGpus("scaled expert weights");
}

KvLayout KvLayoutFor(const ModelConfig& config) {
  return {config.attention().kv_heads, config.attention().head_dim, WeightType::kBf16};
}

}  // namespace

// Bytes of each buffer.
struct DenseOperator::Sizes {
  Sizes(const ModelConfig& c, const ModelLimits& limits) {
    const int64_t rows = limits.max_batch_tokens;
    const int64_t mlp = c.widest_dense_mlp();
    const GroupedQuerySpec& a = c.attention();
    rope = Floats(limits.max_context_tokens * (a.rotary_dim / 2));
    hidden = Floats(rows * c.hidden_size);
    x = SentRowBytes(rows, c.hidden_size);
    qkv = Floats(rows * a.qkv_width());
    attention = SentRowBytes(rows, a.q_width());
    middle = Floats(rows * mlp);
    h = SentRowBytes(rows, mlp);
    logits = Floats(limits.max_logit_rows * c.vocab_size);
    out = std::max(hidden, logits);
    scores = Floats(rows * std::max<int64_t>(1, c.num_experts()));
    pairs = static_cast<uint64_t>(rows * c.top_k()) * (sizeof(int32_t) + sizeof(float));
    chosen = static_cast<uint64_t>(limits.max_logit_rows) * sizeof(int32_t);
    if (limits.host_attention) {
      tables = 2 * (Device::kAlignment + static_cast<uint64_t>(rows) * sizeof(int32_t));
      host_hidden = partials = 0;
      host_qkv = qkv;
      host_attention = attention;
      return;
    }
    host_hidden = hidden;
    host_qkv = host_attention = 0;
    tables = 6 * Device::kAlignment +
             static_cast<uint64_t>(3 * rows + 1 + MostBlocks(limits)) * sizeof(int32_t) +
             static_cast<uint64_t>(limits.max_sequences) * sizeof(cuda::AttentionSequence);
    partials = AttentionPartialsBytes(a.heads, a.head_dim, limits);
  }
  uint64_t device() const {
    return SumOnDevice({rope, rope, hidden, hidden, x, qkv, attention, middle, middle, h, out,
                        scores, pairs, pairs, chosen, tables, partials});
  }
  uint64_t host() const {
    return SumPinned(
        {host_hidden, hidden, pairs, pairs, chosen, logits, tables, host_qkv, host_attention});
  }

  uint64_t rope, hidden, x, qkv, attention, middle, h, logits, out, scores, pairs, chosen, tables,
      partials, host_hidden, host_qkv, host_attention;
};

void DenseOperator::CheckSupported(const ModelConfig& c, WeightType type, WeightType kv_type) {
  GpuWeights(type);
  if (kv_type != WeightType::kBf16) {
    Fail(ErrorKind::kUnsupported,
         "--gpu-dense: no kernel takes keys and values in {}; give --kv-cache-dtype bfloat16, or "
         "--gpu-dense off",
         kv_type == WeightType::kF32 ? "float32" : WeightTypeName(kv_type));
  }
  for (const LayerSpec& layer : c.layers) {
    const GroupedQuerySpec& attention = layer.attention();
    if (attention.qkv_bias || attention.output_bias) RefuseOnGpus("biases of attention");
    if (attention.clip_qkv > 0) RefuseOnGpus("clipped queries, keys and values");
    if (attention.head_dim % 2 != 0 || attention.head_dim > cuda::kMaxHeadDim) {
      RefuseOnGpus("heads of this size");
    }
    if (attention.rotary_dim != attention.head_dim) RefuseOnGpus("rotations of a part of a head");
    if (layer.sparse()) CheckRouter(layer.experts().router);
  }
}

uint64_t DenseOperator::WorkspaceBytes(const ModelConfig& config, const ModelLimits& limits) {
  const uint64_t all = Sizes(config, limits).device();
  return limits.host_attention ? all : all + StepExperts::DeviceBytes(config, limits);
}
uint64_t DenseOperator::HostBytes(const ModelConfig& config, const ModelLimits& limits) {
  const uint64_t all = Sizes(config, limits).host();
  return limits.host_attention ? all : all + StepExperts::HostBytes(config, limits);
}

DenseOperator::DenseOperator(Device& device, const cuda::Kernels& kernels,
                             const ModelConfig& config, WeightType type,
                             const ModelWeights& weights, const ModelLimits& limits, bool capture)
    : device_(device),
      kernels_(kernels),
      config_(config),
      limits_(limits),
      qkv_width_(config.attention().qkv_width()),
      block_bytes_(KvLayoutFor(config).block_bytes()),
      step_tables_(limits),
      capture_(capture) {
  CheckSupported(config, type, limits.kv_type);
  const Sizes sizes(config, limits);
  const auto take = [&](uint64_t bytes, const char* what) {
    return AllocateOrThrow(device, bytes, what);
  };
  const std::span<const std::byte> host_weights = weights.memory();
  weights_memory_ = take(host_weights.size(), "the dense weights");
  weights_ = ModelWeights::At(config, type, weights_memory_.data());
  kv_ = take(static_cast<uint64_t>(block_bytes_ * limits.num_kv_blocks * config.num_layers()),
             "keys and values");
  cos_ = take(sizes.rope, "rotary positions");
  sin_ = take(sizes.rope, "rotary positions");
  for (const auto& [buffer, bytes] : {std::pair(&hidden_, sizes.hidden),
                                      {&normed_, sizes.hidden},
                                      {&x_, sizes.x},
                                      {&qkv_, sizes.qkv},
                                      {&attention_, sizes.attention},
                                      {&gate_, sizes.middle},
                                      {&up_, sizes.middle},
                                      {&h_, sizes.h},
                                      {&out_, sizes.out},
                                      {&scores_, sizes.scores},
                                      {&routing_, sizes.pairs},
                                      {&sum_, sizes.pairs},
                                      {&chosen_, sizes.chosen},
                                      {&tables_, sizes.tables},
                                      {&partials_, sizes.partials}}) {
    *buffer = take(bytes, "the workspace of the dense part");
  }
  there_ = x_.span();
  pool_ = std::make_unique<PinnedHostPool>(sizes.host(), device.numa_node(), device.host_pinner());
  if (limits.host_attention) {
    host_qkv_ = TakePinned(*pool_, sizes.host_qkv);
    host_attention_ = TakePinned(*pool_, sizes.host_attention);
  } else {
    host_hidden_ = TakePinned(*pool_, sizes.host_hidden);
  }
  host_normed_ = TakePinned(*pool_, sizes.hidden);
  host_routing_ = TakePinned(*pool_, sizes.pairs);
  host_sum_ = TakePinned(*pool_, sizes.pairs);
  host_chosen_ = TakePinned(*pool_, sizes.chosen);
  host_out_ = TakePinned(*pool_, sizes.logits);
  host_tables_ = TakePinned(*pool_, sizes.tables);
  routed_ = device.CreateEvent();
  stream_ = device.CreateStream();
  graphs_ = std::make_unique<DenseGraphs>(*stream_, 2 * config.num_layers() + 1);

  const RopeTable rope(config.attention(), config.max_position, limits.max_context_tokens);
  const auto bytes_of = [&](const float* table) {
    return std::span(reinterpret_cast<const std::byte*>(table), sizes.rope);
  };
  stream_->CopyToDevice(weights_memory_.span(), host_weights);
  stream_->CopyToDevice(cos_.span(), bytes_of(rope.cos(0)));
  stream_->CopyToDevice(sin_.span(), bytes_of(rope.sin(0)));
  ThrowIfFailed(stream_->Synchronize());
}

DenseOperator::~DenseOperator() = default;

void DenseOperator::CaptureSteps(const ExpertLayout& experts, SlotTable& table) {
  if (!capture_) return;
  step_ = std::make_unique<StepExperts>(device_, kernels_, config_, experts, limits_, table);
  if (!step_->usable()) step_.reset();
}

// The place of a table does not depend on how much is in it.
template <typename T>
const T* DenseOperator::Upload(const std::vector<T>& values, int64_t most, uint64_t& used) {
  const uint64_t bytes = values.size() * sizeof(T);
  CHECK_LE(std::ssize(values), most);
  CHECK_LE(used + bytes, host_tables_.bytes());
  if (bytes > 0) std::memcpy(host_tables_.data() + used, values.data(), bytes);
  const auto* const at = reinterpret_cast<const T*>(tables_.data() + used);
  used += RoundUp(static_cast<uint64_t>(most) * sizeof(T), Device::kAlignment);
  return at;
}

// A decode step becomes one of few kinds.
void DenseOperator::PadDecodeStep() {
  const int64_t most = std::min(limits_.max_batch_tokens, limits_.max_sequences);
  run_rows_ = std::min(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows_))), most);
  for (int64_t row = rows_; row < run_rows_; ++row) {
    step_tables_.tokens.push_back(0);
    step_tables_.positions.push_back(0);
    step_tables_.slots.push_back(-1);  // not stored
    step_tables_.sequences.push_back({.first_row = static_cast<int32_t>(row)});
  }
  const auto chunks_of = [](int64_t tokens) {
    return (tokens + cuda::kChunkTokens - 1) / cuda::kChunkTokens;
  };
  const auto chunks = static_cast<uint64_t>(chunks_of(attend_.max_context));
  attend_.max_context =
      std::min(static_cast<int64_t>(std::bit_ceil(chunks)), chunks_of(limits_.max_context_tokens)) *
      cuda::kChunkTokens;
}

void DenseOperator::BeginStep(const ForwardBatch& batch) {
  step_tables_.Fill(batch, limits_);
  attend_ = {};
  attend_.max_rows = step_tables_.max_rows;
  attend_.max_context = step_tables_.max_context;
  rows_ = std::ssize(batch.tokens);
  run_rows_ = rows_;
  runs_ = false;
  const bool decode = attend_.max_rows == 1;
  if (decode) PadDecodeStep();
  const int64_t most_rows = limits_.max_batch_tokens;
  uint64_t used = 0;
  device_positions_ = Upload(step_tables_.positions, most_rows, used);
  device_slots_ = Upload(step_tables_.slots, most_rows, used);
  const int32_t* const tokens = Upload(step_tables_.tokens, most_rows, used);
  attend_.sequences = Upload(step_tables_.sequences, limits_.max_sequences, used);
  count_.assign(1, static_cast<int32_t>(rows_));
  device_rows_ = Upload(count_, 1, used);
  const uint64_t fixed = used;
  attend_.blocks = Upload(step_tables_.blocks, MostBlocks(limits_), used);
  used = fixed + step_tables_.blocks.size() * sizeof(int32_t);  // the others take little
  stream_->CopyToDevice(tables_.Subspan(0, used), host_tables_.span().first(used));

  // What layers differ in is said with each layer.
  const GroupedQuerySpec& attention = config_.attention();
  attend_.cache = {.data = nullptr,
                   .block_stride_bytes = block_bytes_,
                   .kv_heads = attention.kv_heads,
                   .head_dim = attention.head_dim};
  attend_.q = FloatsOf(qkv_);
  attend_.q_row_stride = qkv_width_;
  attend_.heads = attention.heads;
  attend_.num_sequences = static_cast<int64_t>(step_tables_.sequences.size());
  attend_.out = Bf16Of(attention_);
  attend_.out_stride = cuda::ActivationStride(attention.q_width());
  attend_.workspace = FloatsOf(partials_);
  // The same bits either way.
  attend_.split = decode && attend_.max_context > cuda::kChunkTokens &&
                  Floats(kernels_.attention_workspace_floats(attend_)) <= partials_.bytes();

  Embed(tokens);

  if (decode && capture_) {
    graphs_->BeginKind({run_rows_, attend_.max_context});
  } else {
    graphs_->EndKind();
  }
}

void DenseOperator::Embed(const int32_t* tokens) {
  const PackedMatrix& embedding = weights_.embedding;
  const cuda::EmbeddingArgs args = {.matrix = embedding.data,
                                    .type = GpuWeights(embedding.type),
                                    .n = embedding.n,
                                    .k = embedding.k,
                                    .ids = tokens,
                                    .tokens = run_rows_,
                                    .out = FloatsOf(hidden_)};
  stream_->Launch(
      [run = kernels_.embedding, args](cuda::StreamHandle stream) { return run(args, stream); });
}

void DenseOperator::BeginPass(const ForwardBatch& batch) {
  CHECK(limits_.host_attention);
  AbandonStep();
  rows_ = std::ssize(batch.tokens);
  CHECK_LE(rows_, limits_.max_batch_tokens);
  first_row_ = 0;
  run_rows_ = rows_;
  graphs_->EndKind();
  step_tables_.tokens.assign(batch.tokens.begin(), batch.tokens.end());
  step_tables_.positions.clear();
  for (const SequenceSlice& slice : batch.slices) {
    for (int64_t i = 0; i < slice.num_tokens; ++i) {
      step_tables_.positions.push_back(static_cast<int32_t>(slice.start_position + i));
    }
  }
  uint64_t used = 0;
  device_positions_ = Upload(step_tables_.positions, limits_.max_batch_tokens, used);
  const int32_t* const tokens = Upload(step_tables_.tokens, limits_.max_batch_tokens, used);
  stream_->CopyToDevice(tables_.Subspan(0, used), host_tables_.span().first(used));
  Embed(tokens);
}

bool DenseOperator::RunStep(const DeviceOperator& experts) {
  if (step_ == nullptr || attend_.max_rows != 1 || run_rows_ > StepExperts::MostRows(limits_)) {
    return false;
  }
  step_->BeginStep();
  runs_ = graphs_->RunIfCaptured(2 * config_.num_layers(), [&] { QueueStep(experts); });
  if (!runs_) {
    LogWarn("device {}: decode steps cannot be captured as a whole, they are queued layer by layer",
            stream_->device().name());
    step_.reset();
    return false;
  }
  step_->Launched(*stream_);
  ++whole_steps_;
  return true;
}

void DenseOperator::QueueStep(const DeviceOperator& experts) {
  for (int64_t layer = 0; layer < config_.num_layers(); ++layer) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
    const bool sparse = config_.is_sparse(layer);
    const StepExperts::LayerRows rows = {
        .layer = layer,
        .rows = run_rows_,
        .real_rows = device_rows_,
        .routing = routing_.Subspan(0, Floats(2 * run_rows_ * config_.top_k())),
        .normed = normed_.Subspan(0, Floats(run_rows_ * config_.hidden_size)),
        .hidden = hidden_.Subspan(0, Floats(run_rows_ * config_.hidden_size)),
        .x = Bf16Of(x_)};
    QueueAttention(layer);
    if (sparse) step_->QueueLookUp(*stream_, rows);
    if (w.gate.n > 0) Mlp(w);
    if (!sparse) continue;
    step_->QueueProducts(*stream_, rows);
    step_->QueueSum(*stream_, rows, experts);
  }
}

// Attention and, in a sparse layer, the choice of experts.
void DenseOperator::QueueAttention(int64_t layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const bool sparse = config_.is_sparse(layer);
  Norm(layer, w.input_norm, false);
  Attention(layer, w);
  Norm(layer, w.post_attention_norm, sparse);
  if (sparse) QueueRouting(layer, w);
}

void DenseOperator::Layer(int64_t layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const bool sparse = config_.is_sparse(layer);
  graphs_->Run(2 * layer, [&] {
    QueueAttention(layer);
    if (sparse) BringRouting();
  });
  if (sparse) stream_->Record(*routed_);
  // Beside the host, which is routing.
  if (w.gate.n > 0) graphs_->Run(2 * layer + 1, [&] { Mlp(w); });
}

DenseOperator::Routed DenseOperator::AwaitRouting(int64_t layer) {
  if (runs_) {
    const StepExperts::Routed routed = step_->AwaitRouting(layer, run_rows_);
    seen_hidden_ = routed.hidden;
    return {.experts = routed.experts,
            .weights = routed.weights,
            .normed = routed.normed,
            .there = {&there_, 1},
            .missed = routed.missed};
  }
  ThrowIfFailed(routed_->Synchronize());
  seen_hidden_ = reinterpret_cast<const float*>(host_hidden_.data());
  return RoutedRows();
}

DenseOperator::Routed DenseOperator::RoutedRows() const {
  const auto* const ids =
      reinterpret_cast<const int32_t*>(host_routing_.data()) + 2 * first_row_ * config_.top_k();
  return {.experts = ids,
          .weights = reinterpret_cast<const float*>(ids + run_rows_ * config_.top_k()),
          .normed = reinterpret_cast<const float*>(host_normed_.data()) +
                    first_row_ * config_.hidden_size,
          .there = {&there_, 1},
          .missed = {}};
}

void DenseOperator::AddExperts(const DeviceOperator& experts, int64_t others,
                               std::span<const int32_t> pair_rows, const float* weights) {
  const auto pairs = static_cast<int64_t>(pair_rows.size());
  CHECK_EQ(pairs, rows_ * config_.top_k());
  const int64_t first_number = 2 * first_row_ * config_.top_k();
  std::byte* const sum = host_sum_.data() + Floats(first_number);
  std::memcpy(sum, pair_rows.data(), pair_rows.size_bytes());
  std::memcpy(sum + pair_rows.size_bytes(), weights, Floats(pairs));
  const uint64_t bytes = Floats(2 * pairs);
  stream_->CopyToDevice(sum_.Subspan(Floats(first_number), bytes), {sum, bytes});
  if (others > 0) {
    const uint64_t first = Floats((pairs - others) * config_.hidden_size);
    const uint64_t others_bytes = Floats(others * config_.hidden_size);
    stream_->CopyToDevice(experts.out().Subspan(first, others_bytes),
                          experts.host_out().span().subspan(first, others_bytes));
  }
  experts.LetWait(*stream_);
  const cuda::CombineSlotsArgs args = {
      .slot_out = FloatsOf(experts.out()),
      .slot_rows = IntsOf(sum_) + first_number,
      .weights = reinterpret_cast<const float*>(IntsOf(sum_) + first_number + pairs),
      .tokens = rows_,
      .top_k = config_.top_k(),
      .hidden = config_.hidden_size,
      .y = FloatsOf(hidden_) + first_row_ * config_.hidden_size};
  stream_->Launch([run = kernels_.combine_slots, args](cuda::StreamHandle stream) {
    return run(args, stream);
  });
}

void DenseOperator::EndStep() {
  if (!runs_) {
    ThrowIfFailed(stream_->Synchronize());
    return;
  }
  step_->AwaitEnd();
  step_->EndStep();
  runs_ = false;
}

void DenseOperator::AbandonStep() {
  if (runs_) step_->Abandon();
  static_cast<void>(stream_->Synchronize());  // it has been told
  stream_->ClearError();
  if (std::exchange(runs_, false)) step_->EndStep();
}

// Logits of the rows into out_.
void DenseOperator::QueueHead(std::span<const int32_t> rows) {
  CHECK_LE(std::ssize(rows), limits_.max_logit_rows);
  first_row_ = 0;
  std::memcpy(host_chosen_.data(), rows.data(), rows.size_bytes());
  stream_->CopyToDevice(chosen_.Subspan(0, rows.size_bytes()),
                        host_chosen_.span().first(rows.size_bytes()));
  const cuda::RmsNormArgs args = {.x = FloatsOf(hidden_),
                                  .rows = std::ssize(rows),
                                  .n = config_.hidden_size,
                                  .token_stride = config_.hidden_size,
                                  .x_tokens = IntsOf(chosen_),
                                  .weight = weights_.final_norm,
                                  .eps = static_cast<float>(config_.final_norm.eps),
                                  .out_bf16 = Bf16Of(x_)};
  stream_->Launch(
      [run = kernels_.rms_norm, args](cuda::StreamHandle stream) { return run(args, stream); });
  Product(weights_.head, x_, std::ssize(rows), out_);
}

template <typename T>
void DenseOperator::Fetch(const DeviceBuffer& from, int64_t count, T* out) {
  const uint64_t bytes = static_cast<uint64_t>(count) * sizeof(T);
  stream_->CopyToHost(host_out_.span().first(bytes), from.Subspan(0, bytes));
  const std::optional<Error> error = stream_->Synchronize();
  stream_->ClearError();
  ThrowIfFailed(error);
  std::memcpy(out, host_out_.data(), bytes);
}

void DenseOperator::Head(std::span<const int32_t> rows, float* logits) {
  QueueHead(rows);
  Fetch(out_, std::ssize(rows) * config_.vocab_size, logits);
}

void DenseOperator::Greedy(std::span<const int32_t> rows, int32_t* tokens) {
  QueueHead(rows);
  const cuda::ArgMaxArgs args = {.x = FloatsOf(out_),
                                 .rows = std::ssize(rows),
                                 .n = config_.vocab_size,
                                 .finite_only = true,
                                 .out = IntsOf(chosen_)};
  stream_->Launch(
      [run = kernels_.argmax, args](cuda::StreamHandle stream) { return run(args, stream); });
  Fetch(chosen_, std::ssize(rows), tokens);
}

}  // namespace moesaic
