// DenseShards: its memory, a step's beginning and end, and the head. The layers are
// dense_shards_layer.cpp's.

#include "serving/model/dense_shards.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/logging.h"
#include "core/base/units.h"
#include "serving/model/dense_operator.h"
#include "serving/model/dense_shard.h"
#include "serving/model/dense_sizes.h"
#include "serving/model/device_rows.h"
#include "serving/model/rope.h"

namespace moesaic {
namespace {

KvLayout KvLayoutFor(const ModelConfig& config, const RowRange& kv_heads) {
  return {kv_heads.count(), config.attention().head_dim, WeightType::kBf16};
}

RowRange KvHeadsOf(const ModelConfig& config, int devices, int device) {
  return KvHeadSlice(config.attention().kv_heads, devices, device);
}

}  // namespace

// Bytes of each buffer of a device.
struct DenseShards::Sizes {
  Sizes(const ModelConfig& c, const ModelLimits& limits, int devices, int device) {
    const int64_t rows = limits.max_batch_tokens;
    const int64_t mlp = c.widest_dense_mlp();
    const GroupedQuerySpec& a = c.attention();
    const int64_t kv_heads = KvHeadsOf(c, devices, device).count();
    const int64_t heads = kv_heads * a.group();
    const bool first = device == 0;
    const bool whole_norm = std::any_of(
        c.layers.begin(), c.layers.end(),
        [](const LayerSpec& layer) { return layer.attention().qk_norm == QkNorm::kProjection; });
    rope = Floats(limits.max_context_tokens * (a.rotary_dim / 2));
    hidden = Floats(rows * c.hidden_size);
    normed = first ? hidden : 0;
    x = SentRowBytes(rows, c.hidden_size);
    qkv = Floats(rows * (heads + 2 * kv_heads) * a.head_dim);
    whole_qkv = whole_norm ? Floats(rows * a.qkv_width()) : 0;
    attention = SentRowBytes(rows, a.q_width());
    // The wider MLP's slice may be the narrower one on some device.
    int64_t mlp_slice = 0;
    for (const LayerSpec& layer : c.layers) {
      const RowRange slice = OutputSlice(layer.dense_mlp().width, devices, device);
      mlp_slice = std::max(mlp_slice, slice.count());
    }
    middle = Floats(rows * mlp_slice);
    h = SentRowBytes(rows, mlp);
    logits = Floats(limits.max_logit_rows * c.vocab_size);
    out = first ? std::max(hidden, logits) : 0;
    scores = first ? Floats(rows * std::max<int64_t>(1, c.num_experts())) : 0;
    const uint64_t of_pairs =
        static_cast<uint64_t>(rows * c.top_k()) * (sizeof(int32_t) + sizeof(float));
    pairs = first ? of_pairs : 0;
    chosen = static_cast<uint64_t>(limits.max_logit_rows) * sizeof(int32_t);
    tables = 5 * Device::kAlignment +
             static_cast<uint64_t>(3 * rows + MostBlocks(limits)) * sizeof(int32_t) +
             static_cast<uint64_t>(limits.max_sequences) * sizeof(cuda::AttentionSequence);
    partials = AttentionPartialsBytes(heads, a.head_dim, limits);
    // Pieces of bf16 rows are padded apart.
    const auto pieces_bf16 = [&](int64_t n) {
      return SentRowBytes(rows, n + devices * (cuda::ActivationStride(1) - 1));
    };
    const uint64_t own_logits =
        Floats(limits.max_logit_rows * OutputSlice(c.vocab_size, devices, device).count());
    pieces = std::max({pieces_bf16(a.q_width()), pieces_bf16(mlp), hidden,
                       whole_norm ? Floats(rows * a.q_width()) : 0, first ? logits : own_logits});
  }
  uint64_t device() const {
    return SumOnDevice({rope, rope, hidden, normed, x, qkv, whole_qkv, attention, middle, middle, h,
                        out, scores, pairs, pairs, chosen, tables, partials, pieces});
  }

  uint64_t rope, hidden, normed, x, qkv, whole_qkv, attention, middle, h, logits, out, scores,
      pairs, chosen, tables, partials, pieces;
};

void DenseShards::CheckSupported(const ModelConfig& config, WeightType type, WeightType kv_type,
                                 int devices) {
  DenseOperator::CheckSupported(config, type, kv_type);
  CheckSliceable(config, devices);
}

uint64_t DenseShards::WeightBytes(const ModelConfig& config, WeightType type, int devices,
                                  int device) {
  return DenseSlices::Bytes(config, type, devices, device);
}

uint64_t DenseShards::KvBytes(const ModelConfig& config, const ModelLimits& limits, int devices,
                              int device) {
  const KvLayout layout = KvLayoutFor(config, KvHeadsOf(config, devices, device));
  return static_cast<uint64_t>(layout.block_bytes() * limits.num_kv_blocks * config.num_layers());
}

uint64_t DenseShards::WorkspaceBytes(const ModelConfig& config, const ModelLimits& limits,
                                     int devices, int device) {
  return Sizes(config, limits, devices, device).device();
}

uint64_t DenseShards::HostBytes(const ModelConfig& config, const ModelLimits& limits) {
  const Sizes first(config, limits, 1, 0);
  return SumPinned({first.hidden, first.hidden, first.pairs, first.pairs, first.chosen,
                    first.logits, first.tables});
}

DenseShards::DenseShards(std::span<Device* const> devices, const cuda::Kernels& kernels,
                         const ModelConfig& config, WeightType type, const ModelWeights& weights,
                         const ModelLimits& limits, MakeCollective make_collective)
    : kernels_(kernels), config_(config), limits_(limits), step_tables_(limits) {
  const auto count = static_cast<int>(devices.size());
  CheckSupported(config, type, limits.kv_type, count);
  Device& lead = *devices.front();
  pool_ = std::make_unique<PinnedHostPool>(HostBytes(config, limits), lead.numa_node(),
                                           lead.host_pinner());
  const Sizes first(config, limits, 1, 0);
  host_hidden_ = TakePinned(*pool_, first.hidden);
  host_normed_ = TakePinned(*pool_, first.hidden);
  host_routing_ = TakePinned(*pool_, first.pairs);
  host_sum_ = TakePinned(*pool_, first.pairs);
  host_chosen_ = TakePinned(*pool_, first.chosen);
  host_out_ = TakePinned(*pool_, first.logits);
  host_tables_ = TakePinned(*pool_, first.tables);
  routed_ = lead.CreateEvent();

  const RopeTable rope(config.attention(), config.max_position, limits.max_context_tokens);
  const auto bytes_of = [&](const float* table) {
    return std::span(reinterpret_cast<const std::byte*>(table), first.rope);
  };
  std::vector<Stream*> streams;
  for (int d = 0; d < count; ++d) {
    Device& device = *devices[static_cast<size_t>(d)];
    const Sizes sizes(config, limits, count, d);
    auto shard = std::make_unique<Shard>();
    shard->kv_heads = KvHeadsOf(config, count, d);
    shard->block_bytes = KvLayoutFor(config, shard->kv_heads).block_bytes();
    shard->memory = AllocateOrThrow(device, WeightBytes(config, type, count, d),
                                    "its part of the dense weights");
    DenseSlices slices(config, weights, count, d, shard->memory.data());
    shard->kv = AllocateOrThrow(device, KvBytes(config, limits, count, d), "keys and values");
    for (const auto& [buffer, bytes] : {std::pair(&shard->cos, sizes.rope),
                                        {&shard->sin, sizes.rope},
                                        {&shard->hidden, sizes.hidden},
                                        {&shard->normed, sizes.normed},
                                        {&shard->x, sizes.x},
                                        {&shard->qkv, sizes.qkv},
                                        {&shard->whole_qkv, sizes.whole_qkv},
                                        {&shard->attention, sizes.attention},
                                        {&shard->gate, sizes.middle},
                                        {&shard->up, sizes.middle},
                                        {&shard->h, sizes.h},
                                        {&shard->out, sizes.out},
                                        {&shard->scores, sizes.scores},
                                        {&shard->routing, sizes.pairs},
                                        {&shard->sum, sizes.pairs},
                                        {&shard->chosen, sizes.chosen},
                                        {&shard->tables, sizes.tables},
                                        {&shard->partials, sizes.partials},
                                        {&shard->pieces, sizes.pieces}}) {
      *buffer = AllocateOrThrow(device, bytes, "the workspace of the dense part");
    }
    shard->normed_x = device.CreateEvent();
    shard->stream = device.CreateStream();
    for (const DenseSlices::Piece& piece : slices.pieces()) {
      shard->stream->CopyToDevice(shard->memory.Subspan(piece.offset, piece.source.size()),
                                  piece.source);
    }
    shard->stream->CopyToDevice(shard->cos.span(), bytes_of(rope.cos(0)));
    shard->stream->CopyToDevice(shard->sin.span(), bytes_of(rope.sin(0)));
    shard->weights = slices.TakeWeights();
    streams.push_back(shard->stream.get());
    there_.push_back(shard->x.span());
    shards_.push_back(std::move(shard));
  }
  for (const std::unique_ptr<Shard>& shard : shards_) ThrowIfFailed(shard->stream->Synchronize());
  collective_ = make_collective(streams);
  LogInfo("{} devices share the dense part, by {}", count, collective_->name());
}

DenseShards::~DenseShards() = default;

void DenseShards::UploadTables() {
  uint64_t used = 0;
  const auto put = [&](const auto& values) {
    const uint64_t bytes = values.size() * sizeof(values[0]);
    const uint64_t at = used;
    CHECK_LE(at + bytes, host_tables_.bytes());
    if (bytes > 0) std::memcpy(host_tables_.data() + at, values.data(), bytes);
    used += RoundUp(bytes, Device::kAlignment);
    return at;
  };
  at_.tokens = put(step_tables_.tokens);
  at_.positions = put(step_tables_.positions);
  at_.slots = put(step_tables_.slots);
  at_.sequences = put(step_tables_.sequences);
  at_.blocks = put(step_tables_.blocks);
  used = std::min<uint64_t>(used, host_tables_.bytes());
  for (const std::unique_ptr<Shard>& shard : shards_) {
    shard->stream->CopyToDevice(shard->tables.Subspan(0, used), host_tables_.span().first(used));
  }
}

void DenseShards::BeginStep(const ForwardBatch& batch) {
  step_tables_.Fill(batch, limits_);
  rows_ = std::ssize(batch.tokens);
  UploadTables();
  Shard& first = *shards_.front();
  const PackedMatrix& embedding = first.weights.embedding;
  Queue(first, kernels_.embedding,
        {.matrix = embedding.data,
         .type = GpuWeights(embedding.type),
         .n = embedding.n,
         .k = embedding.k,
         .ids = first.Table<int32_t>(at_.tokens),
         .tokens = rows_,
         .out = FloatsOf(first.hidden)});
  SendHidden();
}

void DenseShards::EndStep() {
  for (const std::unique_ptr<Shard>& shard : shards_) ThrowIfFailed(shard->stream->Synchronize());
}

void DenseShards::AbandonStep() {
  // An error may be on its way from stream to stream: none is cleared before all are done.
  for (const std::unique_ptr<Shard>& shard : shards_) {
    static_cast<void>(shard->stream->Synchronize());  // it has been told
  }
  for (const std::unique_ptr<Shard>& shard : shards_) shard->stream->ClearError();
}

// Logits of the rows into the first device's `out`.
void DenseShards::QueueHead(std::span<const int32_t> rows) {
  CHECK_LE(std::ssize(rows), limits_.max_logit_rows);
  std::memcpy(host_chosen_.data(), rows.data(), rows.size_bytes());
  const int64_t count = std::ssize(rows);
  const Columns vocabulary = OutputColumns(config_.vocab_size);
  for (size_t d = 0; d < shards_.size(); ++d) {
    Shard& shard = *shards_[d];
    if (shard.weights.head.n == 0) continue;
    shard.stream->CopyToDevice(shard.chosen.Subspan(0, rows.size_bytes()),
                               host_chosen_.span().first(rows.size_bytes()));
    Queue(shard, kernels_.rms_norm,
          {.x = FloatsOf(shard.hidden),
           .rows = count,
           .n = config_.hidden_size,
           .token_stride = config_.hidden_size,
           .x_tokens = IntsOf(shard.chosen),
           .weight = shard.weights.final_norm,
           .eps = static_cast<float>(config_.final_norm.eps),
           .out_bf16 = Bf16Of(shard.x)});
    Product(shard, shard.weights.head, shard.x, count,
            reinterpret_cast<float*>(PieceOf(d, vocabulary, count, Wants::kFirst).data()));
  }
  GatherInto(vocabulary, count, Wants::kFirst, &Shard::out, config_.vocab_size, 0, false);
}

template <typename T>
void DenseShards::Fetch(const DeviceBuffer& from, int64_t count, T* out) {
  const uint64_t bytes = static_cast<uint64_t>(count) * sizeof(T);
  Stream& stream = *shards_.front()->stream;
  stream.CopyToHost(host_out_.span().first(bytes), from.Subspan(0, bytes));
  for (const std::unique_ptr<Shard>& shard : shards_) {
    const std::optional<Error> error = shard->stream->Synchronize();
    if (!error) continue;
    AbandonStep();
    throw *error;
  }
  std::memcpy(out, host_out_.data(), bytes);
}

void DenseShards::Head(std::span<const int32_t> rows, float* logits) {
  QueueHead(rows);
  Fetch(shards_.front()->out, std::ssize(rows) * config_.vocab_size, logits);
}

void DenseShards::Greedy(std::span<const int32_t> rows, int32_t* tokens) {
  QueueHead(rows);
  Shard& first = *shards_.front();
  Queue(first, kernels_.argmax,
        {.x = FloatsOf(first.out),
         .rows = std::ssize(rows),
         .n = config_.vocab_size,
         .finite_only = true,
         .out = IntsOf(first.chosen)});
  Fetch(first.chosen, std::ssize(rows), tokens);
}

}  // namespace moesaic
