// The layers of DenseShards.

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "core/base/error.h"
#include "serving/model/dense_shard.h"
#include "serving/model/dense_shards.h"
#include "serving/model/dense_sizes.h"
#include "serving/model/device_operator.h"

namespace moesaic {
namespace {

float* FloatsAt(const DeviceSpan& span) { return reinterpret_cast<float*>(span.data()); }

}  // namespace

DenseShards::Columns DenseShards::OutputColumns(int64_t n) const {
  Columns columns;
  for (int d = 0; d < devices(); ++d) {
    columns.bounds[static_cast<size_t>(d) + 1] = OutputSlice(n, devices(), d).end;
  }
  return columns;
}

DenseShards::Columns DenseShards::HeadColumns(int64_t values_of_kv_head) const {
  Columns columns;
  for (int d = 0; d < devices(); ++d) {
    columns.bounds[static_cast<size_t>(d) + 1] =
        KvHeadSlice(config_.attention().kv_heads, devices(), d).end * values_of_kv_head;
  }
  return columns;
}

// Where the device's own piece is: at its place among all pieces where it wants them.
DeviceSpan DenseShards::PieceOf(size_t shard, const Columns& columns, int64_t rows,
                                Wants wants) const {
  uint64_t offset = 0;
  if (wants == Wants::kAll) {
    for (size_t d = 0; d < shard; ++d) offset += columns.PieceBytes(d, rows);
  }
  return shards_[shard]->pieces.Subspan(offset, columns.PieceBytes(shard, rows));
}

void DenseShards::Gather(const Columns& columns, int64_t rows, Wants wants) {
  std::array<DeviceSpan, cuda::JoinColumnsArgs::kMostPieces> pieces;
  std::array<DeviceSpan, cuda::JoinColumnsArgs::kMostPieces> into;
  uint64_t bytes = 0;
  for (size_t d = 0; d < shards_.size(); ++d) {
    pieces[d] = PieceOf(d, columns, rows, wants);
    bytes += pieces[d].bytes();
  }
  for (size_t d = 0; d < shards_.size(); ++d) {
    const bool wanted = wants == Wants::kAll || d == 0;
    into[d] = shards_[d]->pieces.Subspan(0, wanted ? bytes : 0);
  }
  collective_->Gather(std::span(pieces).first(shards_.size()),
                      std::span(into).first(shards_.size()));
}

// Gathers the pieces and puts them side by side into columns of `out`, whose rows are out_stride
// elements.
void DenseShards::GatherInto(const Columns& columns, int64_t rows, Wants wants,
                             DeviceBuffer Shard::*out, int64_t out_stride, int64_t first_column,
                             bool accumulate) {
  Gather(columns, rows, wants);
  cuda::JoinColumnsArgs args;
  args.num_pieces = devices();
  for (size_t i = 0; i <= shards_.size(); ++i) {
    args.bounds[i] = static_cast<int32_t>(columns.bounds[i]);
  }
  args.rows = rows;
  args.bf16 = columns.bf16;
  args.accumulate = accumulate;
  args.out_stride = out_stride;
  for (const std::unique_ptr<Shard>& shard : shards_) {
    args.pieces = shard->pieces.data();
    std::byte* const to = (*shard.*out).data();
    args.out = to + static_cast<uint64_t>(first_column) *
                        (columns.bf16 ? sizeof(uint16_t) : sizeof(float));
    Queue(*shard, kernels_.join_columns, args);
    if (wants == Wants::kFirst) return;
  }
}

// The first device's residual stream to the others.
void DenseShards::SendHidden() {
  std::array<DeviceSpan, cuda::JoinColumnsArgs::kMostPieces> pieces;
  std::array<DeviceSpan, cuda::JoinColumnsArgs::kMostPieces> into;
  const uint64_t bytes = Floats(rows_ * config_.hidden_size);
  for (size_t d = 0; d < shards_.size(); ++d) {
    const DeviceSpan hidden = shards_[d]->hidden.Subspan(0, bytes);
    (d == 0 ? pieces[d] : into[d]) = hidden;
  }
  collective_->Gather(std::span(pieces).first(shards_.size()),
                      std::span(into).first(shards_.size()));
}

// Of the residual stream into x and, unless it is null, `out`.
void DenseShards::Norm(int64_t layer, Shard& shard, const float* weight, float* out) {
  Queue(shard, kernels_.rms_norm,
        {.x = FloatsOf(shard.hidden),
         .rows = rows_,
         .n = config_.hidden_size,
         .token_stride = config_.hidden_size,
         .weight = weight,
         .eps = static_cast<float>(config_.layer(layer).norm.eps),
         .out = out,
         .out_bf16 = Bf16Of(shard.x)});
}

// y: [rows, w.n]; nothing where the device has no outputs.
void DenseShards::Product(Shard& shard, const PackedMatrix& w, const DeviceBuffer& x, int64_t rows,
                          float* y) {
  if (w.n == 0) return;
  const cuda::ProductArgs args = {.x = Bf16Of(x),
                                  .rows = rows,
                                  .matrix = w.data,
                                  .type = GpuWeights(w.type),
                                  .n = w.n,
                                  .k = w.k,
                                  .y = y};
  shard.stream->Launch([run = kernels_.product, args](cuda::StreamHandle stream) {
    return run(args, cuda::ProductPath::kMatrix, stream);
  });
}

// Of `normed`, which is not rounded, into `scores`.
void DenseShards::RowLogits(Shard& shard, const PackedMatrix& w) {
  CHECK(w.type == WeightType::kBf16 || w.type == WeightType::kF32);
  Queue(shard, kernels_.router_logits,
        {.x = FloatsOf(shard.normed),
         .matrix = w.data,
         .f32_weights = w.type == WeightType::kF32,
         .tokens = rows_,
         .experts = w.n,
         .k = w.k,
         .logits = FloatsOf(shard.scores)});
}

void DenseShards::Layer(int64_t layer) {
  const LayerSpec& spec = config_.layer(layer);
  const auto weights = [layer](const Shard& shard) -> const LayerWeights& {
    return shard.weights.layers[static_cast<size_t>(layer)];
  };
  for (const std::unique_ptr<Shard>& shard : shards_) {
    Norm(layer, *shard, weights(*shard).input_norm, nullptr);
  }
  if (spec.attention().qk_norm == QkNorm::kProjection) ProjectWhole(layer);
  Attention(layer);
  Shard& first = *shards_.front();
  for (const std::unique_ptr<Shard>& shard : shards_) {
    const bool routes = spec.sparse() && shard.get() == &first;
    Norm(layer, *shard, weights(*shard).post_attention_norm,
         routes ? FloatsOf(shard->normed) : nullptr);
  }
  if (spec.sparse()) {
    Route(layer);
    // The host may read, and use, what all devices have for the experts when it has the routing.
    for (const std::unique_ptr<Shard>& shard : shards_) {
      if (shard.get() == &first) continue;
      shard->stream->Record(*shard->normed_x);
      first.stream->Wait(*shard->normed_x);
    }
    first.stream->Record(*routed_);
  }
  if (spec.dense_mlp().width > 0) Mlp(layer);
}

// Queries, keys and values where the norm is over those of all heads: each device's are brought
// together, and what follows is done of all heads by all, but for attention.
void DenseShards::ProjectWhole(int64_t layer) {
  const GroupedQuerySpec& spec = config_.layer(layer).attention();
  const int64_t d = spec.head_dim;
  const int64_t q_width = spec.q_width();
  const int64_t kv_width = spec.kv_width();
  const int64_t stride = spec.qkv_width();
  const int64_t group = spec.group();
  const auto part = [&](int64_t first_head, int64_t heads_of_kv, int64_t column) {
    const Columns columns = HeadColumns(heads_of_kv * d);
    for (size_t i = 0; i < shards_.size(); ++i) {
      Shard& shard = *shards_[i];
      const PackedMatrix& qkv = shard.weights.layers[static_cast<size_t>(layer)].qkv;
      PackedMatrix rows = qkv;
      rows.n = shard.kv_heads.count() * heads_of_kv * d;
      rows.data =
          qkv.data + shard.kv_heads.count() * first_head * d / kPanelOutputs * qkv.panel_bytes();
      Product(shard, rows, shard.x, rows_, FloatsAt(PieceOf(i, columns, rows_, Wants::kAll)));
    }
    GatherInto(columns, rows_, Wants::kAll, &Shard::whole_qkv, stride, column, false);
  };
  part(0, group, 0);
  part(group, 1, q_width);
  part(group + 1, 1, q_width + kv_width);
  for (const std::unique_ptr<Shard>& shard : shards_) {
    const LayerWeights& w = shard->weights.layers[static_cast<size_t>(layer)];
    float* const q = FloatsOf(shard->whole_qkv);
    NormHeads(spec.norm, *shard, q, 1, q_width, stride, w.q_norm);
    NormHeads(spec.norm, *shard, q + q_width, 1, kv_width, stride, w.k_norm);
  }
}

// In place, of `heads` runs of n floats of each row.
void DenseShards::NormHeads(const NormSpec& norm, Shard& shard, float* first, int64_t heads,
                            int64_t n, int64_t stride, const float* weight) {
  Queue(shard, kernels_.rms_norm,
        {.x = first,
         .rows = rows_ * heads,
         .n = n,
         .heads = heads,
         .token_stride = stride,
         .weight = weight,
         .eps = static_cast<float>(norm.eps),
         .out = first});
}

void DenseShards::Attention(int64_t layer) {
  const GroupedQuerySpec& spec = config_.layer(layer).attention();
  for (size_t d = 0; d < shards_.size(); ++d) {
    if (shards_[d]->kv_heads.count() > 0) Attend(d, layer);
  }
  GatherInto(AttendedColumns(spec), rows_, Wants::kAll, &Shard::attention,
             cuda::ActivationStride(spec.q_width()), 0, false);
  const Columns outputs = OutputColumns(config_.hidden_size);
  for (size_t d = 0; d < shards_.size(); ++d) {
    Shard& shard = *shards_[d];
    Product(shard, shard.weights.layers[static_cast<size_t>(layer)].output, shard.attention, rows_,
            FloatsAt(PieceOf(d, outputs, rows_, Wants::kAll)));
  }
  GatherInto(outputs, rows_, Wants::kAll, &Shard::hidden, config_.hidden_size, 0, true);
}

DenseShards::Columns DenseShards::AttendedColumns(const GroupedQuerySpec& attention) const {
  Columns columns = HeadColumns(attention.group() * attention.head_dim);
  columns.bf16 = true;
  return columns;
}

// Of the device's heads, into its piece.
void DenseShards::Attend(size_t index, int64_t layer) {
  Shard& shard = *shards_[index];
  const GroupedQuerySpec& spec = config_.layer(layer).attention();
  const LayerWeights& w = shard.weights.layers[static_cast<size_t>(layer)];
  const bool whole = spec.qk_norm == QkNorm::kProjection;
  const int64_t d = spec.head_dim;
  const int64_t kv_heads = shard.kv_heads.count();
  const int64_t group = spec.group();
  const int64_t heads = kv_heads * group;
  // Of the row: all heads', or the device's.
  const int64_t row_heads = whole ? spec.heads : heads;
  const int64_t row_kv_heads = whole ? spec.kv_heads : kv_heads;
  const int64_t stride = (row_heads + 2 * row_kv_heads) * d;
  const int64_t first_head = whole ? shard.kv_heads.begin : 0;
  float* const row = FloatsOf(whole ? shard.whole_qkv : shard.qkv);
  if (!whole) {
    Product(shard, w.qkv, shard.x, rows_, row);
    if (spec.qk_norm == QkNorm::kPerHead) {
      NormHeads(spec.norm, shard, row, heads, d, stride, w.q_norm);
      NormHeads(spec.norm, shard, row + heads * d, kv_heads, d, stride, w.k_norm);
    }
  }
  Queue(shard, kernels_.rope,
        {.x = row,
         .tokens = rows_,
         .heads = row_heads + row_kv_heads,  // keys follow queries
         .head_dim = d,
         .token_stride = stride,
         .positions = shard.Table<int32_t>(at_.positions),
         .cos = FloatsOf(shard.cos),
         .sin = FloatsOf(shard.sin)});

  const float* const keys = row + (row_heads + first_head) * d;
  const cuda::KvCache cache = {
      .data = shard.kv.data() + layer * limits_.num_kv_blocks * shard.block_bytes,
      .block_stride_bytes = shard.block_bytes,
      .kv_heads = kv_heads,
      .head_dim = d};
  Queue(shard, kernels_.store_kv,
        {.cache = cache,
         .keys = keys,
         .values = keys + row_kv_heads * d,
         .token_stride = stride,
         .tokens = rows_,
         .slots = shard.Table<int32_t>(at_.slots)});
  const DeviceSpan piece = PieceOf(index, AttendedColumns(spec), rows_, Wants::kAll);
  cuda::AttentionArgs attend = {
      .cache = cache,
      .q = row + first_head * group * d,
      .q_row_stride = stride,
      .heads = heads,
      .scale = static_cast<float>(spec.scale),
      .window = spec.window,
      .sequences = shard.Table<cuda::AttentionSequence>(at_.sequences),
      .num_sequences = static_cast<int64_t>(step_tables_.sequences.size()),
      .max_rows = step_tables_.max_rows,
      .max_context = step_tables_.max_context,
      .blocks = shard.Table<int32_t>(at_.blocks),
      .out = reinterpret_cast<uint16_t*>(piece.data()),
      .out_stride = cuda::ActivationStride(heads * d),
      .workspace = FloatsOf(shard.partials)};
  // The same bits either way.
  attend.split = step_tables_.max_rows == 1 && step_tables_.max_context > cuda::kChunkTokens &&
                 Floats(kernels_.attention_workspace_floats(attend)) <= shard.partials.bytes();
  Queue(shard, kernels_.attention, attend);
}

// Softmax over all experts in f32, then the top k, and what the host needs of it.
void DenseShards::Route(int64_t layer) {
  const RouterSpec& router = config_.layer(layer).experts().router;
  Shard& first = *shards_.front();
  RowLogits(first, first.weights.layers[static_cast<size_t>(layer)].router);
  int32_t* const ids = IntsOf(first.routing);
  Queue(first, kernels_.router_top_k,
        {.logits = FloatsOf(first.scores),
         .tokens = rows_,
         .experts = router.experts,
         .top_k = router.top_k,
         .normalize = router.norm == RouterNorm::kSum,
         .ids = ids,
         .weights = reinterpret_cast<float*>(ids + rows_ * router.top_k)});
  const auto bring = [&](const DeviceBuffer& from, uint64_t bytes, const HostBuffer& to) {
    first.stream->CopyToHost(to.span().first(bytes), from.Subspan(0, bytes));
  };
  bring(first.routing, Floats(2 * rows_ * router.top_k), host_routing_);
  bring(first.normed, Floats(rows_ * config_.hidden_size), host_normed_);
  bring(first.hidden, Floats(rows_ * config_.hidden_size), host_hidden_);
}

// The MLP of a dense layer, or the shared expert of a sparse one, which only the first device adds:
// AddExperts sends the sum.
void DenseShards::Mlp(int64_t layer) {
  const ModelConfig& c = config_;
  const bool sparse = c.is_sparse(layer);
  const int64_t width = c.layer(layer).dense_mlp().width;
  Columns activated = OutputColumns(width);
  activated.bf16 = true;
  for (size_t d = 0; d < shards_.size(); ++d) {
    Shard& shard = *shards_[d];
    const LayerWeights& w = shard.weights.layers[static_cast<size_t>(layer)];
    if (w.gate.n == 0) continue;
    Product(shard, w.gate, shard.x, rows_, FloatsOf(shard.gate));
    Product(shard, w.up, shard.x, rows_, FloatsOf(shard.up));
    const DeviceSpan piece = PieceOf(d, activated, rows_, Wants::kAll);
    Queue(shard, kernels_.swiglu,
          {.gate = FloatsOf(shard.gate),
           .up = FloatsOf(shard.up),
           .rows = rows_,
           .n = w.gate.n,
           .out = reinterpret_cast<uint16_t*>(piece.data())});
  }
  GatherInto(activated, rows_, Wants::kAll, &Shard::h, cuda::ActivationStride(width), 0, false);

  const Wants wants = sparse ? Wants::kFirst : Wants::kAll;
  const Columns outputs = OutputColumns(c.hidden_size);
  for (size_t d = 0; d < shards_.size(); ++d) {
    Shard& shard = *shards_[d];
    Product(shard, shard.weights.layers[static_cast<size_t>(layer)].down, shard.h, rows_,
            FloatsAt(PieceOf(d, outputs, rows_, wants)));
  }
  Shard& first = *shards_.front();
  const PackedMatrix& gate = first.weights.layers[static_cast<size_t>(layer)].shared_gate;
  if (gate.n == 0) {
    GatherInto(outputs, rows_, wants, &Shard::hidden, c.hidden_size, 0, true);
    return;
  }
  GatherInto(outputs, rows_, wants, &Shard::out, c.hidden_size, 0, false);
  RowLogits(first, gate);
  Queue(first, kernels_.add_gated,
        {.x = FloatsOf(first.out),
         .gate = FloatsOf(first.scores),
         .rows = rows_,
         .n = c.hidden_size,
         .y = FloatsOf(first.hidden)});
}

DensePart::Routed DenseShards::AwaitRouting(int64_t /*layer*/) {
  ThrowIfFailed(routed_->Synchronize());
  const auto* const ids = reinterpret_cast<const int32_t*>(host_routing_.data());
  return {.experts = ids,
          .weights = reinterpret_cast<const float*>(ids + rows_ * config_.top_k()),
          .normed = reinterpret_cast<const float*>(host_normed_.data()),
          .there = there_,
          .missed = {}};
}

const float* DenseShards::hidden() const {
  return reinterpret_cast<const float*>(host_hidden_.data());
}

void DenseShards::AddExperts(const DeviceOperator& experts, int64_t others,
                             std::span<const int32_t> pair_rows, const float* weights) {
  const auto pairs = static_cast<int64_t>(pair_rows.size());
  CHECK_EQ(pairs, rows_ * config_.top_k());
  Shard& first = *shards_.front();
  std::memcpy(host_sum_.data(), pair_rows.data(), pair_rows.size_bytes());
  std::memcpy(host_sum_.data() + pair_rows.size_bytes(), weights, Floats(pairs));
  const uint64_t bytes = Floats(2 * pairs);
  first.stream->CopyToDevice(first.sum.Subspan(0, bytes), host_sum_.span().first(bytes));
  if (others > 0) {
    const uint64_t at = Floats((pairs - others) * config_.hidden_size);
    const uint64_t others_bytes = Floats(others * config_.hidden_size);
    first.stream->CopyToDevice(experts.out().Subspan(at, others_bytes),
                               experts.host_out().span().subspan(at, others_bytes));
  }
  experts.LetWait(*first.stream);
  Queue(first, kernels_.combine_slots,
        {.slot_out = FloatsOf(experts.out()),
         .slot_rows = IntsOf(first.sum),
         .weights = reinterpret_cast<const float*>(IntsOf(first.sum) + pairs),
         .tokens = rows_,
         .top_k = config_.top_k(),
         .hidden = config_.hidden_size,
         .y = FloatsOf(first.hidden)});
  SendHidden();
}

}  // namespace moesaic
