// DeviceDense: its memory, a step's beginning and end, and the head. The layers are
// device_dense_layer.cpp's, attention device_grouped_query.cpp's, what is supported
// dense_support.cpp's.

#include "serving/model/device_dense.h"

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
#include "serving/model/device_shard.h"
#include "serving/model/rope.h"

namespace moesaic {
namespace {

KvLayout KvLayoutFor(const ModelConfig& config, const RowRange& kv_heads) {
  return {kv_heads.count(), config.attention().head_dim, WeightType::kBf16};
}

RowRange KvHeadsOf(const ModelConfig& config, int devices, int device) {
  return KvHeadSlice(config.attention().kv_heads, devices, device);
}

uint64_t PairBytes(const ModelConfig& c, const ModelLimits& limits) {
  return static_cast<uint64_t>(limits.max_batch_tokens * c.top_k()) *
         (sizeof(int32_t) + sizeof(float));
}

uint64_t TableBytes(const ModelConfig& config, const ModelLimits& limits) {
  const int64_t rows = limits.max_batch_tokens;
  if (limits.host_attention) {
    return 2 * (Device::kAlignment + static_cast<uint64_t>(rows) * sizeof(int32_t));
  }
  const auto groups = static_cast<int64_t>(KvGroupsOf(config).count());
  return static_cast<uint64_t>(4 + 2 * groups) * Device::kAlignment +
         static_cast<uint64_t>(2 * rows + 1 + groups * (rows + MostBlocks(limits))) *
             sizeof(int32_t) +
         static_cast<uint64_t>(limits.max_sequences) * sizeof(cuda::AttentionSequence);
}

// For the largest of a device's matrices, of which it has so many heads of queries, keys and values
// and so many columns of an MLP.
uint64_t GemmBytes(const ModelConfig& c, int64_t qkv_heads, int64_t mlp_columns, int devices,
                   int device) {
  const int64_t hidden = c.hidden_size;
  const int64_t hidden_slice = OutputSlice(hidden, devices, device).count();
  return std::max(
      {cuda::GemmWorkspaceBytes(qkv_heads * c.attention().head_dim, hidden),
       cuda::GemmWorkspaceBytes(hidden_slice, c.attention().q_width()),
       cuda::GemmWorkspaceBytes(mlp_columns, hidden),
       cuda::GemmWorkspaceBytes(hidden_slice, c.widest_dense_mlp()),
       cuda::GemmWorkspaceBytes(OutputSlice(c.vocab_size, devices, device).count(), hidden)});
}

}  // namespace

// Bytes of each buffer of a device.
struct DeviceDense::Sizes {
  Sizes(const ModelConfig& c, const ModelLimits& limits, int devices, int device) {
    const int64_t rows = limits.max_batch_tokens;
    const int64_t mlp = c.widest_dense_mlp();
    const GroupedQuerySpec& a = c.attention();
    const int64_t kv_heads = KvHeadsOf(c, devices, device).count();
    const int64_t heads = kv_heads * a.group();
    const bool first = device == 0;
    const bool whole_norm =
        devices > 1 && std::any_of(c.layers.begin(), c.layers.end(), [](const LayerSpec& layer) {
          return layer.attention().qk_norm == QkNorm::kProjection;
        });
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
    const uint64_t logits = Floats(limits.max_logit_rows * c.vocab_size);
    out = first ? std::max(hidden, logits) : 0;
    scores = first ? Floats(rows * std::max<int64_t>(1, c.num_experts())) : 0;
    pairs = first ? PairBytes(c, limits) : 0;
    chosen = static_cast<uint64_t>(limits.max_logit_rows) * sizeof(int32_t);
    tables = TableBytes(c, limits);
    partials = limits.host_attention ? 0 : AttentionPartialsBytes(heads, a.head_dim, limits);
    // Pieces of bf16 rows are padded apart.
    const auto pieces_bf16 = [&](int64_t n) {
      return SentRowBytes(rows, n + devices * (cuda::ActivationStride(1) - 1));
    };
    const uint64_t own_logits =
        Floats(limits.max_logit_rows * OutputSlice(c.vocab_size, devices, device).count());
    pieces =
        devices == 1
            ? 0
            : std::max({pieces_bf16(a.q_width()), pieces_bf16(mlp), hidden,
                        whole_norm ? Floats(rows * a.q_width()) : 0, first ? logits : own_logits});
    if (limits.gemm_library) gemm = GemmBytes(c, heads + 2 * kv_heads, mlp_slice, devices, device);
  }
  uint64_t device() const {
    return SumOnDevice({rope,      rope,   hidden, normed,   x,      qkv,    whole_qkv,
                        attention, middle, middle, h,        out,    scores, pairs,
                        pairs,     chosen, tables, partials, pieces, gemm});
  }

  uint64_t rope, hidden, normed, x, qkv, whole_qkv, attention, middle, h, out, scores, pairs,
      chosen, tables, partials, pieces;
  uint64_t gemm = 0;
};

struct DeviceDense::HostSizes {
  HostSizes(const ModelConfig& c, const ModelLimits& limits) {
    const int64_t rows = limits.max_batch_tokens;
    normed = Floats(rows * c.hidden_size);
    pairs = PairBytes(c, limits);
    chosen = static_cast<uint64_t>(limits.max_logit_rows) * sizeof(int32_t);
    logits = Floats(limits.max_logit_rows * c.vocab_size);
    tables = TableBytes(c, limits);
    hidden = limits.host_attention ? 0 : normed;
    qkv = limits.host_attention ? Floats(rows * c.attention().qkv_width()) : 0;
    attention = limits.host_attention ? SentRowBytes(rows, c.attention().q_width()) : 0;
  }
  uint64_t all() const {
    return SumPinned({hidden, normed, pairs, pairs, chosen, logits, tables, qkv, attention});
  }

  uint64_t hidden, normed, pairs, chosen, logits, tables, qkv, attention;
};

uint64_t DeviceDense::WeightBytes(const ModelConfig& config, WeightType type, int devices,
                                  int device) {
  return devices == 1 ? ModelWeights::Bytes(config, type)
                      : DenseSlices::Bytes(config, type, devices, device);
}

uint64_t DeviceDense::KvBytes(const ModelConfig& config, const ModelLimits& limits, int devices,
                              int device) {
  const KvLayout layout = KvLayoutFor(config, KvHeadsOf(config, devices, device));
  return static_cast<uint64_t>(layout.block_bytes() * limits.num_kv_blocks *
                               KvGroupsOf(config).layers_of_block);
}

uint64_t DeviceDense::WorkspaceBytes(const ModelConfig& config, const ModelLimits& limits,
                                     int devices, int device) {
  const uint64_t all = Sizes(config, limits, devices, device).device();
  const bool steps = devices == 1 && !limits.host_attention;
  return steps ? all + StepExperts::DeviceBytes(config, limits) : all;
}

uint64_t DeviceDense::HostBytes(const ModelConfig& config, const ModelLimits& limits, int devices) {
  const uint64_t all = HostSizes(config, limits).all();
  const bool steps = devices == 1 && !limits.host_attention;
  return steps ? all + StepExperts::HostBytes(config, limits) : all;
}

DeviceDense::DeviceDense(std::span<Device* const> devices, const cuda::Kernels& kernels,
                         const ModelConfig& config, WeightType type, const ModelWeights& weights,
                         const ModelLimits& limits, const DeviceDenseOptions& options)
    : kernels_(kernels),
      config_(config),
      limits_(limits),
      groups_(KvGroupsOf(config)),
      step_tables_(limits, groups_.count()) {
  const auto count = static_cast<int>(devices.size());
  CheckSupported(config, type, limits.kv_type, count);
  CHECK(count == 1 || !limits.host_attention);
  Device& lead = *devices.front();
  const HostSizes host(config, limits);
  pool_ = std::make_unique<PinnedHostPool>(host.all(), lead.numa_node(), lead.host_pinner());
  if (limits.host_attention) {
    host_qkv_ = TakePinned(*pool_, host.qkv);
    host_attention_ = TakePinned(*pool_, host.attention);
  } else {
    host_hidden_ = TakePinned(*pool_, host.hidden);
  }
  host_normed_ = TakePinned(*pool_, host.normed);
  host_routing_ = TakePinned(*pool_, host.pairs);
  host_sum_ = TakePinned(*pool_, host.pairs);
  host_chosen_ = TakePinned(*pool_, host.chosen);
  host_out_ = TakePinned(*pool_, host.logits);
  host_tables_ = TakePinned(*pool_, host.tables);
  routed_ = lead.CreateEvent();
  at_.slots.resize(groups_.count());
  at_.blocks.resize(groups_.count());

  const RopeTable rope(config.attention(), config.max_position, limits.max_context_tokens);
  std::vector<Stream*> streams;
  for (int d = 0; d < count; ++d) {
    Device& device = *devices[static_cast<size_t>(d)];
    const Sizes sizes(config, limits, count, d);
    auto shard = std::make_unique<Shard>();
    shard->kv_heads = KvHeadsOf(config, count, d);
    shard->block_bytes = KvLayoutFor(config, shard->kv_heads).block_bytes();
    shard->memory =
        AllocateOrThrow(device, WeightBytes(config, type, count, d),
                        count == 1 ? "the dense weights" : "its part of the dense weights");
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
                                        {&shard->pieces, sizes.pieces},
                                        {&shard->gemm_memory, sizes.gemm}}) {
      *buffer = AllocateOrThrow(device, bytes, "the workspace of the dense part");
    }
    shard->normed_x = device.CreateEvent();
    shard->stream = device.CreateStream();
    if (limits.gemm_library) {
      shard->gemm = options.make_gemm(*shard->stream, shard->gemm_memory.span());
    }
    if (count == 1) {  // as they lie, in one copy
      shard->weights = ModelWeights::At(config, type, shard->memory.data());
      shard->stream->CopyToDevice(shard->memory.span(), weights.memory());
    } else {
      DenseSlices slices(config, weights, count, d, shard->memory.data());
      for (const DenseSlices::Piece& piece : slices.pieces()) {
        shard->stream->CopyToDevice(shard->memory.Subspan(piece.offset, piece.source.size()),
                                    piece.source);
      }
      shard->weights = slices.TakeWeights();
    }
    const auto bytes_of = [&](const float* table) {
      return std::span(reinterpret_cast<const std::byte*>(table), sizes.rope);
    };
    shard->stream->CopyToDevice(shard->cos.span(), bytes_of(rope.cos(0)));
    shard->stream->CopyToDevice(shard->sin.span(), bytes_of(rope.sin(0)));
    streams.push_back(shard->stream.get());
    x_rows_.push_back(shard->x.span());
    shards_.push_back(std::move(shard));
  }
  there_ = x_rows_;
  for (const std::unique_ptr<Shard>& shard : shards_) ThrowIfFailed(shard->stream->Synchronize());
  if (whole()) {
    if (options.capture && mixes()) {
      graphs_ = std::make_unique<DenseGraphs>(*streams.front(), 2 * config.num_layers() + 1);
    }
    return;
  }
  collective_ = options.make_collective(streams);
  LogInfo("{} devices share the dense part, by {}", count, collective_->name());
}

DeviceDense::~DeviceDense() = default;

void DeviceDense::CaptureSteps(const ExpertLayout& experts, SlotTable& table) {
  if (graphs_ == nullptr) return;
  step_ = std::make_unique<StepExperts>(shards_.front()->stream->device(), kernels_, config_,
                                        experts, limits_, table);
  if (!step_->usable()) step_.reset();
}

// A decode step becomes one of few kinds.
void DeviceDense::PadDecodeStep() {
  const int64_t most = std::min(limits_.max_batch_tokens, limits_.max_sequences);
  run_rows_ = std::min(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows_))), most);
  for (int64_t row = rows_; row < run_rows_; ++row) {
    step_tables_.tokens.push_back(0);
    step_tables_.positions.push_back(0);
    // Not stored.
    for (StepTables::Places& places : step_tables_.groups) places.slots.push_back(-1);
    step_tables_.sequences.push_back({.first_row = static_cast<int32_t>(row)});
  }
  const auto chunks_of = [](int64_t tokens) {
    return (tokens + cuda::kChunkTokens - 1) / cuda::kChunkTokens;
  };
  const auto chunks = static_cast<uint64_t>(chunks_of(max_context_));
  max_context_ =
      std::min(static_cast<int64_t>(std::bit_ceil(chunks)), chunks_of(limits_.max_context_tokens)) *
      cuda::kChunkTokens;
}

// The place of a table does not depend on how much is in it.
void DeviceDense::UploadTables() {
  uint64_t used = 0;
  uint64_t end = 0;
  const auto put = [&](const auto& values, int64_t most) {
    const uint64_t bytes = values.size() * sizeof(values[0]);
    const uint64_t at = used;
    CHECK_LE(std::ssize(values), most);
    CHECK_LE(at + bytes, host_tables_.bytes());
    if (bytes > 0) std::memcpy(host_tables_.data() + at, values.data(), bytes);
    used += RoundUp(static_cast<uint64_t>(most) * sizeof(values[0]), Device::kAlignment);
    end = at + bytes;
    return at;
  };
  const int64_t rows = limits_.max_batch_tokens;
  at_.positions = put(step_tables_.positions, rows);
  at_.tokens = put(step_tables_.tokens, rows);
  if (mixes()) {
    at_.sequences = put(step_tables_.sequences, limits_.max_sequences);
    count_.assign(1, static_cast<int32_t>(rows_));
    at_.count = put(count_, 1);
    for (size_t g = 0; g < groups_.count(); ++g) {
      at_.slots[g] = put(step_tables_.groups[g].slots, rows);
      at_.blocks[g] = put(step_tables_.groups[g].blocks, MostBlocks(limits_));
    }
  }
  for (const std::unique_ptr<Shard>& shard : shards_) {
    shard->stream->CopyToDevice(shard->tables.Subspan(0, end), host_tables_.span().first(end));
  }
}

void DeviceDense::Embed() {
  Shard& first = *shards_.front();
  const PackedMatrix& embedding = first.weights.embedding;
  Queue(first, kernels_.embedding,
        {.matrix = embedding.data,
         .type = GpuWeights(embedding.type),
         .n = embedding.n,
         .k = embedding.k,
         .ids = first.Table<int32_t>(at_.tokens),
         .tokens = run_rows_,
         .out = FloatsOf(first.hidden)});
  SendHidden();
}

void DeviceDense::Begin(const ForwardBatch& batch, const DeviceOperator* experts) {
  rows_ = run_rows_ = std::ssize(batch.tokens);
  first_row_ = 0;
  ahead_ = Ahead::kNot;
  missed_ = {};
  if (!mixes()) {
    step_tables_.FillRows(batch, limits_);
    UploadTables();
    Embed();
    return;
  }
  step_tables_.Fill(batch, limits_);
  max_context_ = step_tables_.max_context;
  decode_ = step_tables_.max_rows == 1;
  if (decode_ && whole()) PadDecodeStep();
  UploadTables();
  Embed();
  if (graphs_ == nullptr) return;
  if (decode_) {
    graphs_->BeginKind({run_rows_, max_context_});
    if (experts != nullptr && RunStep(*experts)) ahead_ = Ahead::kStep;
  } else {
    graphs_->EndKind();
  }
}

bool DeviceDense::RunStep(const DeviceOperator& experts) {
  if (step_ == nullptr || run_rows_ > StepExperts::MostRows(limits_)) return false;
  Stream& stream = *shards_.front()->stream;
  step_->BeginStep();
  if (!graphs_->RunIfCaptured(2 * config_.num_layers(), [&] { QueueStep(experts); })) {
    LogWarn("device {}: decode steps cannot be captured as a whole, they are queued layer by layer",
            stream.device().name());
    step_.reset();
    return false;
  }
  step_->Launched(stream);
  ++whole_steps_;
  return true;
}

void DeviceDense::End() {
  if (ahead_ == Ahead::kStep) {
    step_->AwaitEnd();
    step_->EndStep();
    ahead_ = Ahead::kNot;
    return;
  }
  for (const std::unique_ptr<Shard>& shard : shards_) ThrowIfFailed(shard->stream->Synchronize());
}

void DeviceDense::Abandon() {
  const bool runs = std::exchange(ahead_, Ahead::kNot) == Ahead::kStep;
  if (runs) step_->Abandon();
  // An error may be on its way from stream to stream: none is cleared before all are done.
  for (const std::unique_ptr<Shard>& shard : shards_) {
    static_cast<void>(shard->stream->Synchronize());  // it has been told
  }
  for (const std::unique_ptr<Shard>& shard : shards_) shard->stream->ClearError();
  if (runs) step_->EndStep();
}

void DeviceDense::BringHidden(float* hidden) {
  Shard& first = *shards_.front();
  const auto bytes = Floats(std::ssize(step_tables_.tokens) * config_.hidden_size);
  first.stream->CopyToHost({reinterpret_cast<std::byte*>(hidden), bytes},
                           first.hidden.Subspan(0, bytes));
  ThrowIfFailed(first.stream->Synchronize());
}

DeviceSpan DeviceDense::qkv() const { return shards_.front()->qkv.span(); }
DeviceSpan DeviceDense::attention() const { return shards_.front()->attention.span(); }

// Logits of the rows into the first device's `out`.
void DeviceDense::QueueHead(std::span<const int32_t> rows) {
  CHECK_LE(std::ssize(rows), limits_.max_logit_rows);
  first_row_ = 0;
  std::memcpy(host_chosen_.data(), rows.data(), rows.size_bytes());
  const int64_t count = std::ssize(rows);
  for (const std::unique_ptr<Shard>& shard : shards_) {
    if (shard->weights.head.n == 0) continue;
    shard->stream->CopyToDevice(shard->chosen.Subspan(0, rows.size_bytes()),
                                host_chosen_.span().first(rows.size_bytes()));
    Queue(*shard, kernels_.rms_norm,
          {.x = FloatsOf(shard->hidden),
           .rows = count,
           .n = config_.hidden_size,
           .token_stride = config_.hidden_size,
           .x_tokens = IntsOf(shard->chosen),
           .weight = shard->weights.final_norm,
           .eps = static_cast<float>(config_.final_norm.eps),
           .out_bf16 = Bf16Of(shard->x)});
  }
  WholeProduct(
      [](const Shard& shard, int64_t) -> const PackedMatrix& { return shard.weights.head; }, 0,
      config_.vocab_size, &Shard::x, count, Wants::kFirst, &Shard::out, false);
}

template <typename T>
void DeviceDense::Fetch(const DeviceBuffer& from, int64_t count, T* out) {
  const uint64_t bytes = static_cast<uint64_t>(count) * sizeof(T);
  Stream& stream = *shards_.front()->stream;
  stream.CopyToHost(host_out_.span().first(bytes), from.Subspan(0, bytes));
  for (const std::unique_ptr<Shard>& shard : shards_) {
    const std::optional<Error> error = shard->stream->Synchronize();
    if (!error) continue;
    Abandon();
    throw *error;
  }
  std::memcpy(out, host_out_.data(), bytes);
}

void DeviceDense::Head(std::span<const int32_t> rows, float* logits) {
  QueueHead(rows);
  Fetch(shards_.front()->out, std::ssize(rows) * config_.vocab_size, logits);
}

void DeviceDense::Greedy(std::span<const int32_t> rows, int32_t* tokens) {
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
