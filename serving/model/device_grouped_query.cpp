// Softmax attention with grouped queries on the devices of a DeviceDense.

#include "core/base/check.h"
#include "serving/model/dense_sizes.h"
#include "serving/model/device_dense.h"
#include "serving/model/device_shard.h"

namespace moesaic {

DeviceDense::Columns DeviceDense::HeadColumns(int64_t values_of_kv_head) const {
  const int64_t kv_heads = config_.attention().kv_heads;
  Columns columns;
  columns.all = kv_heads * values_of_kv_head;
  for (int d = 0; d < devices(); ++d) {
    columns.bounds[static_cast<size_t>(d) + 1] =
        KvHeadSlice(kv_heads, devices(), d).end * values_of_kv_head;
  }
  return columns;
}

DeviceDense::Columns DeviceDense::AttendedColumns(const GroupedQuerySpec& attention) const {
  Columns columns = HeadColumns(attention.group() * attention.head_dim);
  columns.bf16 = true;
  return columns;
}

DeviceDense::QkvRows DeviceDense::QkvOf(Shard& shard, const GroupedQuerySpec& spec) const {
  QkvRows rows;
  const bool all_heads = spec.qk_norm == QkNorm::kProjection && !whole();
  rows.kv_heads = all_heads ? spec.kv_heads : shard.kv_heads.count();
  rows.heads = rows.kv_heads * spec.group();
  rows.stride = (rows.heads + 2 * rows.kv_heads) * spec.head_dim;
  rows.first_kv_head = all_heads ? shard.kv_heads.begin : 0;
  rows.first = FloatsOf(all_heads ? shard.whole_qkv : shard.qkv) + first_row_ * rows.stride;
  return rows;
}

// In place, of `heads` runs of n floats of each row.
void DeviceDense::NormHeads(const NormSpec& norm, Shard& shard, float* first, int64_t heads,
                            int64_t n, int64_t stride, const float* weight) {
  Queue(shard, kernels_.rms_norm,
        {.x = first,
         .rows = run_rows_ * heads,
         .n = n,
         .heads = heads,
         .token_stride = stride,
         .weight = weight,
         .eps = static_cast<float>(norm.eps),
         .out = first});
}

// Norm, then queries, keys and values, rotated.
void DeviceDense::QueueProjection(int64_t layer) {
  const GroupedQuerySpec& spec = config_.layer(layer).attention();
  const int64_t d = spec.head_dim;
  for (const std::unique_ptr<Shard>& shard : shards_) {
    Norm(layer, *shard, Weights(*shard, layer).input_norm, false);
  }
  const bool over_all_heads = spec.qk_norm == QkNorm::kProjection;
  if (over_all_heads && !whole()) ProjectWhole(layer);
  for (const std::unique_ptr<Shard>& shard : shards_) {
    if (shard->kv_heads.count() == 0) continue;
    const GroupedQueryWeights& w = Weights(*shard, layer).attention();
    const QkvRows rows = QkvOf(*shard, spec);
    float* const keys = rows.first + rows.heads * d;
    if (!over_all_heads || whole()) {
      Product(*shard, w.qkv.whole(), shard->x, run_rows_, rows.first, {.bias = w.qkv_bias});
    }
    if (over_all_heads) {
      NormHeads(spec.norm, *shard, rows.first, 1, rows.heads * d, rows.stride, w.q_norm);
      NormHeads(spec.norm, *shard, keys, 1, rows.kv_heads * d, rows.stride, w.k_norm);
    } else if (spec.qk_norm == QkNorm::kPerHead) {
      NormHeads(spec.norm, *shard, rows.first, rows.heads, d, rows.stride, w.q_norm);
      NormHeads(spec.norm, *shard, keys, rows.kv_heads, d, rows.stride, w.k_norm);
    }
    Queue(*shard, kernels_.rope,
          {.x = rows.first,
           .tokens = run_rows_,
           .heads = rows.heads + rows.kv_heads,  // keys follow queries
           .head_dim = d,
           .rotary_dim = spec.rotary_dim,
           .token_stride = rows.stride,
           .positions = shard->Table<int32_t>(at_.positions) + first_row_,
           .cos = FloatsOf(shard->cos),
           .sin = FloatsOf(shard->sin)});
  }
}

// Queries, keys and values where the norm is over those of all heads: each device's are brought
// together, and what follows is done of all heads by all, but for attention.
void DeviceDense::ProjectWhole(int64_t layer) {
  const GroupedQuerySpec& spec = config_.layer(layer).attention();
  const int64_t d = spec.head_dim;
  const int64_t q_width = spec.q_width();
  const auto part = [&](int64_t first_head, int64_t heads_of_kv, int64_t column) {
    const Columns columns = HeadColumns(heads_of_kv * d);
    for (size_t i = 0; i < shards_.size(); ++i) {
      Shard& shard = *shards_[i];
      const GroupedQueryWeights& w = Weights(shard, layer).attention();
      const PackedMatrix& qkv = w.qkv.whole();
      const int64_t first = shard.kv_heads.count() * first_head * d;
      const PackedMatrix rows =
          qkv.From(first / kPanelOutputs, shard.kv_heads.count() * heads_of_kv * d);
      Product(
          shard, rows, shard.x, run_rows_,
          reinterpret_cast<float*>(TargetOf(i, columns, run_rows_, Wants::kAll, &Shard::whole_qkv)),
          {.bias = w.qkv_bias != nullptr ? w.qkv_bias + first : nullptr});
    }
    Join(columns, run_rows_, Wants::kAll, &Shard::whole_qkv, spec.qkv_width(), column, false);
  };
  part(0, spec.group(), 0);
  part(spec.group(), 1, q_width);
  part(spec.group() + 1, 1, q_width + spec.kv_width());
}

void DeviceDense::QueueMixing(int64_t layer) {
  const GroupedQuerySpec& spec = config_.layer(layer).attention();
  for (size_t d = 0; d < shards_.size(); ++d) {
    if (shards_[d]->kv_heads.count() > 0) MixOn(d, layer);
  }
  Join(AttendedColumns(spec), run_rows_, Wants::kAll, &Shard::attention,
       cuda::ActivationStride(spec.q_width()), 0, false);
}

// Keys and values into the cache, and attention, of the device's heads.
void DeviceDense::MixOn(size_t index, int64_t layer) {
  Shard& shard = *shards_[index];
  const GroupedQuerySpec& spec = config_.layer(layer).attention();
  const int64_t d = spec.head_dim;
  const size_t group = groups_.of_layer[static_cast<size_t>(layer)];
  const int64_t place = groups_.index[static_cast<size_t>(layer)];
  const int64_t kv_heads = shard.kv_heads.count();
  const int64_t heads = kv_heads * spec.group();
  const QkvRows rows = QkvOf(shard, spec);
  const float* const keys = rows.first + (rows.heads + rows.first_kv_head) * d;
  const cuda::KvCache cache = {
      .data = shard.kv.data() + place * limits_.num_kv_blocks * shard.block_bytes,
      .block_stride_bytes = shard.block_bytes,
      .kv_heads = kv_heads,
      .head_dim = d};
  Queue(shard, kernels_.store_kv,
        {.cache = cache,
         .keys = keys,
         .values = keys + rows.kv_heads * d,
         .token_stride = rows.stride,
         .tokens = run_rows_,
         .slots = shard.Table<int32_t>(at_.slots[group])});
  cuda::AttentionArgs attend = {
      .cache = cache,
      .q = rows.first + rows.first_kv_head * spec.group() * d,
      .q_row_stride = rows.stride,
      .heads = heads,
      .scale = static_cast<float>(spec.scale),
      .window = spec.window,
      .sequences = shard.Table<cuda::AttentionSequence>(at_.sequences),
      .num_sequences = static_cast<int64_t>(step_tables_.sequences.size()),
      .max_rows = step_tables_.max_rows,
      .max_context = max_context_,
      .blocks = shard.Table<int32_t>(at_.blocks[group]),
      .out = reinterpret_cast<uint16_t*>(
          TargetOf(index, AttendedColumns(spec), run_rows_, Wants::kAll, &Shard::attention)),
      .out_stride = cuda::ActivationStride(heads * d),
      .workspace = FloatsOf(shard.partials)};
  // The same bits either way.
  attend.split = decode_ && max_context_ > cuda::kChunkTokens &&
                 Floats(kernels_.attention_workspace_floats(attend)) <= shard.partials.bytes();
  Queue(shard, kernels_.attention, attend);
}

void DeviceDense::QueueOutput(int64_t layer) {
  WholeProduct(
      [](const Shard& shard, int64_t at) -> const PackedMatrix& {
        return shard.weights.layers[static_cast<size_t>(at)].attention().output;
      },
      layer, config_.hidden_size, &Shard::attention, run_rows_, Wants::kAll, &Shard::hidden, true);
}

}  // namespace moesaic
