// The modules of a DenseOperator for passes whose attention is the host's. Each waits for what it
// has queued, so that who runs tasks in order need not know of streams.

#include "core/base/check.h"
#include "core/base/error.h"
#include "kernels/cuda/kernels.h"
#include "serving/model/dense_operator.h"
#include "serving/model/device_rows.h"

namespace moesaic {

void DenseOperator::SetRows(RowRange rows) {
  CHECK(limits_.host_attention);
  first_row_ = rows.begin;
  rows_ = run_rows_ = rows.count();
}

void DenseOperator::PreAttention(int64_t layer, RowRange rows) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  SetRows(rows);
  Norm(layer, w.input_norm, false);
  Queries(layer, w);
  ThrowIfFailed(stream_->Synchronize());
}

void DenseOperator::Project(int64_t layer, RowRange rows) {
  SetRows(rows);
  Product(weights_.layers[static_cast<size_t>(layer)].output, attention_, run_rows_, hidden_, true);
}

DenseOperator::Routed DenseOperator::Route(int64_t layer, RowRange rows, bool normed) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const bool sparse = config_.is_sparse(layer);
  SetRows(rows);
  Norm(layer, w.post_attention_norm, sparse);
  if (sparse) {
    QueueRouting(layer, w);
    BringRouting();
  }
  if (sparse && normed) BringNormed();
  if (w.gate.n > 0) Mlp(w);
  ThrowIfFailed(stream_->Synchronize());
  return RoutedRows();
}

DeviceSpan DenseOperator::OpenExperts(RowRange rows) {
  SetRows(rows);
  const uint64_t row_bytes = SentRowBytes(1, config_.hidden_size);
  const auto first = static_cast<uint64_t>(rows.begin) * row_bytes;
  return x_.Subspan(first, static_cast<uint64_t>(rows.count()) * row_bytes);
}

void DenseOperator::EndPass(float* hidden, int64_t rows) {
  const auto bytes = static_cast<uint64_t>(rows * config_.hidden_size) * sizeof(float);
  stream_->CopyToHost({reinterpret_cast<std::byte*>(hidden), bytes}, hidden_.Subspan(0, bytes));
  ThrowIfFailed(stream_->Synchronize());
}

}  // namespace moesaic
