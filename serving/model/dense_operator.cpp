#include "serving/model/dense_operator.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "serving/model/rope.h"

namespace moesaic {
namespace {

// Decode steps of up to so many sequences spread a long context over the whole device.
constexpr int64_t kSplitSequences = 16;

uint64_t Floats(int64_t count) { return static_cast<uint64_t>(count) * sizeof(float); }

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

KvLayout KvLayoutFor(const ModelConfig& config) {
  return {config.num_kv_heads, config.head_dim, WeightType::kBf16};
}

// That the sequences of a step name; they may share some.
int64_t MostBlocks(const ModelLimits& limits) {
  return limits.max_sequences * (limits.max_context_tokens / cuda::kBlockTokens + 1);
}

}  // namespace

// Bytes of each buffer.
struct DenseOperator::Sizes {
  Sizes(const ModelConfig& c, const ModelLimits& limits) {
    const int64_t rows = limits.max_batch_tokens;
    const int64_t mlp = c.widest_dense_mlp();
    rope = Floats(limits.max_context_tokens * (c.head_dim / 2));
    x = SentRowBytes(rows, c.hidden_size);
    qkv = Floats(rows * (c.num_heads + 2 * c.num_kv_heads) * c.head_dim);
    attention = SentRowBytes(rows, c.num_heads * c.head_dim);
    middle = Floats(rows * mlp);
    h = SentRowBytes(rows, mlp);
    out = Floats(std::max(rows * c.hidden_size, limits.max_logit_rows * c.vocab_size));
    greedy = static_cast<uint64_t>(limits.max_logit_rows) * sizeof(int32_t);
    tables = 4 * Device::kAlignment +
             static_cast<uint64_t>(2 * rows + MostBlocks(limits)) * sizeof(int32_t) +
             static_cast<uint64_t>(limits.max_sequences) * sizeof(cuda::AttentionSequence);
    const int64_t chunks = limits.max_context_tokens / cuda::kChunkTokens + 2;
    partials = Floats(kSplitSequences * c.num_heads * chunks * AttentionPartialFloats(c.head_dim));
  }
  uint64_t device() const {
    return SumOnDevice(
        {rope, rope, x, qkv, attention, middle, middle, h, out, greedy, tables, partials});
  }
  uint64_t host() const { return SumPinned({x, out, tables}); }

  uint64_t rope, x, qkv, attention, middle, h, out, greedy, tables, partials;
};

void DenseOperator::CheckSupported(const ModelConfig& c, WeightType type, WeightType kv_type) {
  GpuWeights(type);
  const auto refuse = [](const char* what) {
    Fail(ErrorKind::kUnsupported,
         "--gpu-dense: {} are not computed on GPUs yet; the CPU does it with --gpu-dense auto or "
         "off",
         what);
  };
  if (kv_type != WeightType::kBf16) {
    Fail(ErrorKind::kUnsupported,
         "--gpu-dense: no kernel takes keys and values in float32; give --kv-cache-dtype bfloat16, "
         "or --gpu-dense off");
  }
  if (c.qkv_bias || c.output_bias) refuse("biases of attention");
  if (c.clip_qkv > 0) refuse("clipped queries, keys and values");
  if (c.head_dim % 2 != 0 || c.head_dim > cuda::kMaxHeadDim) refuse("heads of this size");
}

uint64_t DenseOperator::WorkspaceBytes(const ModelConfig& config, const ModelLimits& limits) {
  return Sizes(config, limits).device();
}
uint64_t DenseOperator::HostBytes(const ModelConfig& config, const ModelLimits& limits) {
  return Sizes(config, limits).host();
}

DenseOperator::DenseOperator(Device& device, const cuda::Kernels& kernels,
                             const ModelConfig& config, WeightType type,
                             const ModelWeights& weights, const ModelLimits& limits)
    : kernels_(kernels),
      config_(config),
      limits_(limits),
      qkv_width_((config.num_heads + 2 * config.num_kv_heads) * config.head_dim),
      block_bytes_(KvLayoutFor(config).block_bytes()) {
  CheckSupported(config, type, limits.kv_type);
  const Sizes sizes(config, limits);
  const auto take = [&](uint64_t bytes, const char* what) {
    return AllocateOrThrow(device, bytes, what);
  };
  const std::span<const std::byte> host_weights = weights.memory();
  weights_memory_ = take(host_weights.size(), "the dense weights");
  weights_ = ModelWeights::At(config, type, weights_memory_.data());
  kv_ = take(static_cast<uint64_t>(block_bytes_ * limits.num_kv_blocks * config.num_layers),
             "keys and values");
  cos_ = take(sizes.rope, "rotary positions");
  sin_ = take(sizes.rope, "rotary positions");
  x_ = take(sizes.x, "the workspace");
  qkv_ = take(sizes.qkv, "the workspace");
  attention_ = take(sizes.attention, "the workspace");
  gate_ = take(sizes.middle, "the workspace");
  up_ = take(sizes.middle, "the workspace");
  h_ = take(sizes.h, "the workspace");
  out_ = take(sizes.out, "the workspace");
  greedy_ = take(sizes.greedy, "the workspace");
  tables_ = take(sizes.tables, "the workspace");
  partials_ = take(sizes.partials, "the workspace");
  pool_ = std::make_unique<PinnedHostPool>(sizes.host(), device.numa_node(), device.host_pinner());
  host_x_ = TakePinned(*pool_, sizes.x);
  host_out_ = TakePinned(*pool_, sizes.out);
  host_tables_ = TakePinned(*pool_, sizes.tables);
  const auto rows = static_cast<size_t>(limits.max_batch_tokens);
  positions_.reserve(rows);
  slots_.reserve(rows);
  sequences_.reserve(static_cast<size_t>(limits.max_sequences));
  blocks_.reserve(static_cast<size_t>(MostBlocks(limits)));
  stream_ = device.CreateStream();

  const RopeTable rope(config.rope, config.head_dim, config.max_position,
                       limits.max_context_tokens);
  const auto bytes_of = [&](const float* table) {
    return std::span(reinterpret_cast<const std::byte*>(table), sizes.rope);
  };
  stream_->CopyToDevice(weights_memory_.span(), host_weights);
  stream_->CopyToDevice(cos_.span(), bytes_of(rope.cos(0)));
  stream_->CopyToDevice(sin_.span(), bytes_of(rope.sin(0)));
  ThrowIfFailed(stream_->Synchronize());
}

DenseOperator::~DenseOperator() = default;

template <typename T>
const T* DenseOperator::Upload(const std::vector<T>& values, uint64_t& used) {
  const uint64_t bytes = values.size() * sizeof(T);
  CHECK_LE(used + bytes, host_tables_.bytes());
  if (bytes > 0) std::memcpy(host_tables_.data() + used, values.data(), bytes);
  const auto* const at = reinterpret_cast<const T*>(tables_.data() + used);
  used += RoundUp(bytes, Device::kAlignment);
  return at;
}

void DenseOperator::BeginStep(const ForwardBatch& batch) {
  positions_.clear();
  slots_.clear();
  blocks_.clear();
  sequences_.clear();
  attend_ = {};
  CHECK_LE(std::ssize(batch.slices), limits_.max_sequences);
  for (const SequenceSlice& slice : batch.slices) {
    const int64_t end = slice.start_position + slice.num_tokens;
    sequences_.push_back({.first_row = static_cast<int32_t>(slice.first_row),
                          .rows = static_cast<int32_t>(slice.num_tokens),
                          .context_end = static_cast<int32_t>(slice.start_position + 1),
                          .first_block = static_cast<int32_t>(blocks_.size())});
    attend_.max_rows = std::max(attend_.max_rows, slice.num_tokens);
    attend_.max_context = std::max(attend_.max_context, end);
    const auto used = static_cast<size_t>((end + cuda::kBlockTokens - 1) / cuda::kBlockTokens);
    blocks_.insert(blocks_.end(), slice.blocks.begin(),
                   slice.blocks.begin() + static_cast<std::ptrdiff_t>(used));
    for (int64_t position = slice.start_position; position < end; ++position) {
      positions_.push_back(static_cast<int32_t>(position));
      const int32_t block = slice.blocks[static_cast<size_t>(position / cuda::kBlockTokens)];
      slots_.push_back(block * static_cast<int32_t>(cuda::kBlockTokens) +
                       static_cast<int32_t>(position % cuda::kBlockTokens));
    }
  }
  uint64_t used = 0;
  device_positions_ = Upload(positions_, used);
  device_slots_ = Upload(slots_, used);
  attend_.sequences = Upload(sequences_, used);
  attend_.blocks = Upload(blocks_, used);
  used = std::min(used, tables_.bytes());  // the last one's alignment
  stream_->CopyToDevice(tables_.Subspan(0, used), host_tables_.span().first(used));

  const ModelConfig& c = config_;
  attend_.cache = {.data = nullptr,
                   .block_stride_bytes = block_bytes_,
                   .kv_heads = c.num_kv_heads,
                   .head_dim = c.head_dim};
  attend_.q = reinterpret_cast<const float*>(qkv_.data());
  attend_.q_row_stride = qkv_width_;
  attend_.heads = c.num_heads;
  attend_.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)));
  attend_.num_sequences = static_cast<int64_t>(sequences_.size());
  attend_.out = reinterpret_cast<uint16_t*>(attention_.data());
  attend_.out_stride = cuda::ActivationStride(c.num_heads * c.head_dim);
  attend_.workspace = reinterpret_cast<float*>(partials_.data());
  // The same bits either way.
  attend_.split = attend_.max_rows == 1 && attend_.max_context > cuda::kChunkTokens &&
                  Floats(kernels_.attention_workspace_floats(attend_)) <= partials_.bytes();
}

void DenseOperator::Product(const PackedMatrix& w, const DeviceBuffer& x, int64_t rows,
                            const DeviceBuffer& y) {
  const cuda::ProductArgs args = {.x = reinterpret_cast<const uint16_t*>(x.data()),
                                  .rows = rows,
                                  .matrix = w.data,
                                  .type = GpuWeights(w.type),
                                  .n = w.n,
                                  .k = w.k,
                                  .y = reinterpret_cast<float*>(y.data())};
  stream_->Launch([run = kernels_.product, args](cuda::StreamHandle stream) {
    return run(args, cuda::ProductPath::kMatrix, stream);
  });
}

// In place, of `heads` runs of n floats of each row.
void DenseOperator::NormHeads(float* first, int64_t heads, int64_t n, const float* weight,
                              int64_t rows) {
  const cuda::RmsNormArgs args = {.x = first,
                                  .rows = rows * heads,
                                  .n = n,
                                  .heads = heads,
                                  .token_stride = qkv_width_,
                                  .weight = weight,
                                  .eps = static_cast<float>(config_.rms_norm_eps),
                                  .out = first};
  stream_->Launch(
      [run = kernels_.rms_norm, args](cuda::StreamHandle stream) { return run(args, stream); });
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

void DenseOperator::Attention(ThreadPool& pool, int64_t layer, const HostRows& rows, float* out) {
  const ModelConfig& c = config_;
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const int64_t q_width = c.num_heads * c.head_dim;
  const int64_t kv_width = c.num_kv_heads * c.head_dim;
  auto* const q = reinterpret_cast<float*>(qkv_.data());
  CHECK_EQ(rows.rows, static_cast<int64_t>(positions_.size()));
  SendRows(pool, *stream_, rows, config_.hidden_size, host_x_, x_);
  Product(w.qkv, x_, rows.rows, qkv_);
  if (c.qk_norm == QkNorm::kPerHead) {
    NormHeads(q, c.num_heads, c.head_dim, w.q_norm, rows.rows);
    NormHeads(q + q_width, c.num_kv_heads, c.head_dim, w.k_norm, rows.rows);
  } else if (c.qk_norm == QkNorm::kProjection) {
    NormHeads(q, 1, q_width, w.q_norm, rows.rows);
    NormHeads(q + q_width, 1, kv_width, w.k_norm, rows.rows);
  }
  const cuda::RopeArgs rope = {.x = q,
                               .tokens = rows.rows,
                               .heads = c.num_heads + c.num_kv_heads,  // keys follow queries
                               .head_dim = c.head_dim,
                               .token_stride = qkv_width_,
                               .positions = device_positions_,
                               .cos = reinterpret_cast<const float*>(cos_.data()),
                               .sin = reinterpret_cast<const float*>(sin_.data())};
  stream_->Launch(
      [run = kernels_.rope, rope](cuda::StreamHandle stream) { return run(rope, stream); });

  cuda::AttentionArgs attend = attend_;
  attend.cache.data = kv_.data() + layer * limits_.num_kv_blocks * block_bytes_;
  attend.window = c.layer_window[static_cast<size_t>(layer)];
  const cuda::StoreKvArgs store = {.cache = attend.cache,
                                   .keys = q + q_width,
                                   .values = q + q_width + kv_width,
                                   .token_stride = qkv_width_,
                                   .tokens = rows.rows,
                                   .slots = device_slots_};
  stream_->Launch(
      [run = kernels_.store_kv, store](cuda::StreamHandle stream) { return run(store, stream); });
  stream_->Launch([run = kernels_.attention, attend](cuda::StreamHandle stream) {
    return run(attend, stream);
  });
  Product(w.output, attention_, rows.rows, out_);
  Fetch(out_, rows.rows * c.hidden_size, out);
}

void DenseOperator::Mlp(ThreadPool& pool, int64_t layer, const HostRows& rows, float* out) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  CHECK_GT(w.gate.n, 0);
  SendRows(pool, *stream_, rows, config_.hidden_size, host_x_, x_);
  Product(w.gate, x_, rows.rows, gate_);
  Product(w.up, x_, rows.rows, up_);
  const cuda::SwiGluArgs activation = {.gate = reinterpret_cast<const float*>(gate_.data()),
                                       .up = reinterpret_cast<const float*>(up_.data()),
                                       .rows = rows.rows,
                                       .n = w.gate.n,
                                       .out = reinterpret_cast<uint16_t*>(h_.data())};
  stream_->Launch([run = kernels_.swiglu, activation](cuda::StreamHandle stream) {
    return run(activation, stream);
  });
  Product(w.down, h_, rows.rows, out_);
  Fetch(out_, rows.rows * config_.hidden_size, out);
}

void DenseOperator::Head(ThreadPool& pool, const HostRows& rows, float* out) {
  CHECK_LE(rows.rows, limits_.max_logit_rows);
  SendRows(pool, *stream_, rows, config_.hidden_size, host_x_, x_);
  Product(weights_.head, x_, rows.rows, out_);
  Fetch(out_, rows.rows * config_.vocab_size, out);
}

void DenseOperator::Greedy(ThreadPool& pool, const HostRows& rows, int32_t* tokens) {
  CHECK_LE(rows.rows, limits_.max_logit_rows);
  SendRows(pool, *stream_, rows, config_.hidden_size, host_x_, x_);
  Product(weights_.head, x_, rows.rows, out_);
  const cuda::ArgMaxArgs args = {.x = reinterpret_cast<const float*>(out_.data()),
                                 .rows = rows.rows,
                                 .n = config_.vocab_size,
                                 .finite_only = true,
                                 .out = reinterpret_cast<int32_t*>(greedy_.data())};
  stream_->Launch(
      [run = kernels_.argmax, args](cuda::StreamHandle stream) { return run(args, stream); });
  Fetch(greedy_, rows.rows, tokens);
}

}  // namespace moesaic
