// The layers of DeviceDense: how devices bring pieces together, norms, products, routing, MLPs.

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "core/base/error.h"
#include "prefetch/predict/next_gate.h"
#include "serving/model/dense_sizes.h"
#include "serving/model/device_dense.h"
#include "serving/model/device_operator.h"
#include "serving/model/device_rows.h"
#include "serving/model/device_shard.h"

namespace moesaic {

DeviceDense::Columns DeviceDense::OutputColumns(int64_t n) const {
  Columns columns;
  columns.all = n;
  for (int d = 0; d < devices(); ++d) {
    columns.bounds[static_cast<size_t>(d) + 1] = OutputSlice(n, devices(), d).end;
  }
  return columns;
}

// Where the device's own piece is: at its place among all pieces where it wants them.
DeviceSpan DeviceDense::PieceOf(size_t shard, const Columns& columns, int64_t rows,
                                Wants wants) const {
  uint64_t offset = 0;
  if (wants == Wants::kAll) {
    for (size_t d = 0; d < shard; ++d) offset += columns.PieceBytes(d, rows);
  }
  return shards_[shard]->pieces.Subspan(offset, columns.PieceBytes(shard, rows));
}

// Where the device leaves its columns for Join: the piece of one device is the whole.
std::byte* DeviceDense::TargetOf(size_t shard, const Columns& columns, int64_t rows, Wants wants,
                                 DeviceBuffer Shard::*out) const {
  if (!whole()) return PieceOf(shard, columns, rows, wants).data();
  return (*shards_[shard].*out).data() +
         static_cast<uint64_t>(first_row_) * columns.RowBytes(columns.all);
}

void DeviceDense::Gather(const Columns& columns, int64_t rows, Wants wants) {
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
void DeviceDense::Join(const Columns& columns, int64_t rows, Wants wants, DeviceBuffer Shard::*out,
                       int64_t out_stride, int64_t first_column, bool accumulate) {
  if (whole()) return;
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
void DeviceDense::SendHidden() {
  if (whole()) return;
  std::array<DeviceSpan, cuda::JoinColumnsArgs::kMostPieces> pieces;
  std::array<DeviceSpan, cuda::JoinColumnsArgs::kMostPieces> into;
  const uint64_t bytes = Floats(run_rows_ * config_.hidden_size);
  for (size_t d = 0; d < shards_.size(); ++d) {
    const DeviceSpan hidden = shards_[d]->hidden.Subspan(0, bytes);
    (d == 0 ? pieces[d] : into[d]) = hidden;
  }
  collective_->Gather(std::span(pieces).first(shards_.size()),
                      std::span(into).first(shards_.size()));
}

// Of the residual stream into x and, if wanted, normed.
void DeviceDense::Norm(int64_t layer, Shard& shard, const float* weight, bool normed) {
  const int64_t n = config_.hidden_size;
  Queue(shard, kernels_.rms_norm,
        {.x = FloatsOf(shard.hidden) + first_row_ * n,
         .rows = run_rows_,
         .n = n,
         .token_stride = n,
         .weight = weight,
         .eps = static_cast<float>(config_.layer(layer).norm.eps),
         .out = normed ? FloatsOf(shard.normed) + first_row_ * n : nullptr,
         .out_bf16 = Bf16Of(shard.x) + first_row_ * cuda::ActivationStride(n)});
}

// y: [rows, w.n], of rows of x from the module's first on; nothing where the device has no outputs.
void DeviceDense::Product(Shard& shard, const PackedMatrix& w, const DeviceBuffer& x, int64_t rows,
                          float* y, const Onto& onto) {
  if (w.n == 0) return;
  const cuda::ProductArgs args = {.x = Bf16Of(x) + first_row_ * cuda::ActivationStride(w.k),
                                  .rows = rows,
                                  .matrix = w.data,
                                  .type = GpuWeights(w.type),
                                  .n = w.n,
                                  .k = w.k,
                                  .bias = onto.bias,
                                  .y = y,
                                  .accumulate = onto.accumulate};
  if (shard.gemm != nullptr && rows >= cuda::Gemm::kLeastRows && onto.bias == nullptr &&
      cuda::HoldsRows(args.type)) {
    shard.stream->Launch([gemm = shard.gemm.get(), args](cuda::StreamHandle stream) {
      return gemm->Product(args, stream);
    });
    return;
  }
  shard.stream->Launch([run = kernels_.product, args](cuda::StreamHandle stream) {
    return run(args, cuda::ProductPath::kMatrix, stream);
  });
}

void DeviceDense::WholeProduct(const PackedMatrix& (*slice)(const Shard& shard, int64_t layer),
                               int64_t layer, int64_t n, DeviceBuffer Shard::*x, int64_t rows,
                               Wants wants, DeviceBuffer Shard::*out, bool accumulate) {
  const Columns columns = OutputColumns(n);
  for (size_t d = 0; d < shards_.size(); ++d) {
    Shard& shard = *shards_[d];
    Product(shard, slice(shard, layer), shard.*x, rows,
            reinterpret_cast<float*>(TargetOf(d, columns, rows, wants, out)),
            {.accumulate = whole() && accumulate});
  }
  Join(columns, rows, wants, out, n, 0, accumulate);
}

// Of the first device's `normed`, which is not rounded, into its `scores`: [rows, w.n].
void DeviceDense::RowLogits(const PackedMatrix& w) {
  CHECK(w.type == WeightType::kBf16 || w.type == WeightType::kF32);
  Shard& first = *shards_.front();
  Queue(first, kernels_.router_logits,
        {.x = FloatsOf(first.normed) + first_row_ * w.k,
         .matrix = w.data,
         .f32_weights = w.type == WeightType::kF32,
         .tokens = run_rows_,
         .experts = w.n,
         .k = w.k,
         .logits = FloatsOf(first.scores) + first_row_ * w.n});
}

void DeviceDense::SetRows(RowRange rows) {
  if (mixes()) return;  // all rows of the step, and those that fill up
  first_row_ = rows.begin;
  rows_ = run_rows_ = rows.count();
}

void DeviceDense::PreAttention(int64_t layer, RowRange rows, ThreadPool& /*pool*/) {
  if (ahead_ == Ahead::kStep) return;
  SetRows(rows);
  if (graphs_ != nullptr && decode_) {
    graphs_->Run(2 * layer, [&] {
      QueueLayer(layer);
      if (config_.is_sparse(layer)) BringRouting(true);
    });
    ahead_ = Ahead::kLayer;
    return;
  }
  QueueProjection(layer);
  if (!mixes()) ThrowIfFailed(shards_.front()->stream->Synchronize());  // the caller copies
}

void DeviceDense::Attend(int64_t layer, SliceRange /*slices*/, ThreadPool& /*pool*/) {
  CHECK(mixes());
  if (ahead_ == Ahead::kNot) QueueMixing(layer);
}

void DeviceDense::Project(int64_t layer, RowRange rows, ThreadPool& /*pool*/) {
  if (ahead_ != Ahead::kNot) return;
  SetRows(rows);
  QueueOutput(layer);
}

// Up to the choice of experts in a sparse layer.
void DeviceDense::QueueLayer(int64_t layer) {
  QueueProjection(layer);
  QueueMixing(layer);
  QueueOutput(layer);
  QueueNormAndRouting(layer);
}

// The whole step, with the experts that it finds on the device.
void DeviceDense::QueueStep(const DeviceOperator& experts) {
  Shard& shard = *shards_.front();
  for (int64_t layer = 0; layer < config_.num_layers(); ++layer) {
    const bool sparse = config_.is_sparse(layer);
    const StepExperts::LayerRows rows = {
        .layer = layer,
        .rows = run_rows_,
        .real_rows = shard.Table<int32_t>(at_.count),
        .routing = shard.routing.Subspan(0, Floats(2 * run_rows_ * config_.top_k())),
        .normed = shard.normed.Subspan(0, Floats(run_rows_ * config_.hidden_size)),
        .hidden = shard.hidden.Subspan(0, Floats(run_rows_ * config_.hidden_size)),
        .x = Bf16Of(shard.x)};
    QueueLayer(layer);
    if (sparse) step_->QueueLookUp(*shard.stream, rows);
    if (config_.layer(layer).dense_mlp().width > 0) QueueMlp(layer);
    if (!sparse) continue;
    step_->QueueProducts(*shard.stream, rows);
    step_->QueueSum(*shard.stream, rows, experts);
  }
}

// Scores of all experts in f32, then the top k.
void DeviceDense::QueueNormAndRouting(int64_t layer) {
  const LayerSpec& spec = config_.layer(layer);
  Shard& first = *shards_.front();
  for (const std::unique_ptr<Shard>& shard : shards_) {
    Norm(layer, *shard, Weights(*shard, layer).post_attention_norm,
         spec.sparse() && shard.get() == &first);
  }
  if (!spec.sparse()) return;
  const RouterSpec& router = spec.experts().router;
  RowLogits(Weights(first, layer).router);
  int32_t* const ids = IntsOf(first.routing) + 2 * first_row_ * router.top_k;
  Queue(first, kernels_.router_top_k,
        {.logits = FloatsOf(first.scores) + first_row_ * router.experts,
         .tokens = run_rows_,
         .experts = router.experts,
         .top_k = router.top_k,
         .scores = router.score == ScoreFunction::kSigmoid ? cuda::RouterScores::kSigmoid
                                                           : cuda::RouterScores::kSoftmax,
         .bias = Weights(first, layer).router_correction,
         .groups = router.num_groups,
         .top_groups = router.groups_kept,
         .groups_by_best_two = router.group_rule == GroupRule::kTopTwoSum,
         .normalize = router.norm != RouterNorm::kNone,
         .norm_eps =
             router.norm == RouterNorm::kSumPlusEps ? static_cast<float>(router.norm_eps) : 0.0f,
         .scale = static_cast<float>(router.scale),
         .ids = ids,
         .weights = reinterpret_cast<float*>(ids + run_rows_ * router.top_k)});
}

// What the host needs of a sparse layer.
void DeviceDense::BringRouting(bool normed) {
  Shard& first = *shards_.front();
  const int64_t n = config_.hidden_size;
  Bring(first.routing, 2 * first_row_ * config_.top_k(), 2 * run_rows_ * config_.top_k(),
        host_routing_);
  if (normed) Bring(first.normed, first_row_ * n, run_rows_ * n, host_normed_);
  if (!mixes()) return;
  const std::vector<cuda::AttentionSequence>& sequences = step_tables_.sequences;
  if (few_rows() || std::ssize(sequences) > kFewSequences) {
    Bring(first.hidden, 0, run_rows_ * n, host_hidden_);
    return;
  }
  for (const cuda::AttentionSequence& sequence : sequences) {
    const int shown = std::min(NextGate::kMaxRows, sequence.rows);
    for (int i = 0; i < shown; ++i) {
      const int64_t row = sequence.first_row + NextGate::RowOf(i, shown, sequence.rows);
      Bring(first.hidden, row * n, n, host_hidden_);
    }
  }
}

// So many numbers of four bytes of the first device, to the same place.
void DeviceDense::Bring(const DeviceBuffer& from, int64_t first, int64_t count,
                        const HostBuffer& to) {
  shards_.front()->stream->CopyToHost(to.span().subspan(Floats(first), Floats(count)),
                                      from.Subspan(Floats(first), Floats(count)));
}

// Layer by layer the devices are a layer's attention ahead of the host at most: a sparse layer's
// routing is waited for, and by then what the layer before has queued is done. A step that runs as
// a whole is as far ahead as it finds its experts.
void DeviceDense::Route(int64_t layer, RowRange rows, int32_t* ids, float* weights, bool host_rows,
                        ThreadPool& /*pool*/) {
  const bool sparse = config_.is_sparse(layer);
  const int64_t pairs = rows.count() * config_.top_k();
  const auto take = [&](const int32_t* from_ids, const float* from_weights) {
    std::copy_n(from_ids, pairs, ids);
    std::copy_n(from_weights, pairs, weights);
  };
  if (ahead_ == Ahead::kStep) {
    if (!sparse) return;
    const StepExperts::Routed routed = step_->AwaitRouting(layer, run_rows_);
    seen_hidden_ = routed.hidden;
    seen_normed_ = routed.missed.empty() ? nullptr : routed.normed;
    missed_ = routed.missed;
    take(routed.experts, routed.weights);
    return;
  }
  Shard& first = *shards_.front();
  // Rows of a long prompt come when somebody asks for them (OpenExperts).
  const bool brought = host_rows || (mixes() && few_rows());
  if (ahead_ == Ahead::kNot) {
    SetRows(rows);
    QueueNormAndRouting(layer);
    if (sparse) BringRouting(brought);
  }
  ahead_ = Ahead::kNot;
  if (sparse) {
    // The host may read, and use, what all devices have for the experts when it has the routing.
    for (const std::unique_ptr<Shard>& shard : shards_) {
      if (shard.get() == &first) continue;
      shard->stream->Record(*shard->normed_x);
      first.stream->Wait(*shard->normed_x);
    }
    first.stream->Record(*routed_);
  }
  // Beside the host, which is routing.
  if (config_.layer(layer).dense_mlp().width > 0) {
    if (graphs_ != nullptr) {
      graphs_->Run(2 * layer + 1, [&] { QueueMlp(layer); });
    } else {
      QueueMlp(layer);
    }
  }
  if (!mixes()) ThrowIfFailed(first.stream->Synchronize());
  if (!sparse) return;
  ThrowIfFailed(routed_->Synchronize());
  if (mixes()) seen_hidden_ = reinterpret_cast<const float*>(host_hidden_.data());
  seen_normed_ = brought ? reinterpret_cast<const float*>(host_normed_.data()) : nullptr;
  const auto* const routed =
      reinterpret_cast<const int32_t*>(host_routing_.data()) + 2 * first_row_ * config_.top_k();
  take(routed, reinterpret_cast<const float*>(routed + run_rows_ * config_.top_k()));
}

ExpertInputs DeviceDense::OpenExperts(RowRange rows) {
  SetRows(rows);
  if (!mixes()) {
    const uint64_t row_bytes = SentRowBytes(1, config_.hidden_size);
    there_.front() = x_rows_.front().Subspan(static_cast<uint64_t>(rows.begin) * row_bytes,
                                             static_cast<uint64_t>(rows.count()) * row_bytes);
  }
  ExpertInputs inputs = {
      .tokens = rows.count(),
      .x = seen_normed_ != nullptr ? seen_normed_ + rows.begin * config_.hidden_size : nullptr,
      .x_stride = config_.hidden_size,
      .there = there_,
      .step = ahead_ == Ahead::kStep ? step_.get() : nullptr,
      .missed = missed_};
  if (inputs.x == nullptr && inputs.step == nullptr && mixes()) {
    // The layer's norm is there until the next layer's.
    inputs.bring_x = [this] {
      Shard& first = *shards_.front();
      Bring(first.normed, 0, run_rows_ * config_.hidden_size, host_normed_);
      ThrowIfFailed(first.stream->Synchronize());
      return reinterpret_cast<const float*>(host_normed_.data());
    };
  }
  return inputs;
}

// The MLP of a dense layer, or the shared expert of a sparse one, which only the first device adds:
// AddExperts sends the sum.
void DeviceDense::QueueMlp(int64_t layer) {
  const int64_t hidden = config_.hidden_size;
  const bool sparse = config_.is_sparse(layer);
  const int64_t width = config_.layer(layer).dense_mlp().width;
  Columns activated = OutputColumns(width);
  activated.bf16 = true;
  for (size_t d = 0; d < shards_.size(); ++d) {
    Shard& shard = *shards_[d];
    const LayerWeights& w = Weights(shard, layer);
    if (w.gate.n == 0) continue;
    float* const gate = FloatsOf(shard.gate) + first_row_ * w.gate.n;
    float* const up = FloatsOf(shard.up) + first_row_ * w.gate.n;
    Product(shard, w.gate, shard.x, run_rows_, gate, {});
    Product(shard, w.up, shard.x, run_rows_, up, {});
    Queue(shard, kernels_.swiglu,
          {.gate = gate,
           .up = up,
           .rows = run_rows_,
           .n = w.gate.n,
           .out = reinterpret_cast<uint16_t*>(
               TargetOf(d, activated, run_rows_, Wants::kAll, &Shard::h))});
  }
  Join(activated, run_rows_, Wants::kAll, &Shard::h, cuda::ActivationStride(width), 0, false);

  Shard& first = *shards_.front();
  const PackedMatrix& gate = Weights(first, layer).shared_gate;
  const auto down = [](const Shard& shard, int64_t at) -> const PackedMatrix& {
    return shard.weights.layers[static_cast<size_t>(at)].down;
  };
  const Wants wants = sparse ? Wants::kFirst : Wants::kAll;
  if (gate.n == 0) {
    WholeProduct(down, layer, hidden, &Shard::h, run_rows_, wants, &Shard::hidden, true);
    return;
  }
  WholeProduct(down, layer, hidden, &Shard::h, run_rows_, wants, &Shard::out, false);
  RowLogits(gate);
  Queue(first, kernels_.add_gated,
        {.x = FloatsOf(first.out) + first_row_ * hidden,
         .gate = FloatsOf(first.scores) + first_row_,
         .rows = run_rows_,
         .n = hidden,
         .y = FloatsOf(first.hidden) + first_row_ * hidden});
}

void DeviceDense::AddMlp(int64_t /*layer*/, RowRange rows, const ExpertOutputs& experts,
                         const ExpertOutputs& deferred, ThreadPool& /*pool*/) {
  CHECK(experts.slot_out == nullptr && deferred.slot_out == nullptr);
  if (experts.device == nullptr) return;  // a dense layer, or the step adds them itself
  SetRows(rows);
  AddExperts(experts);
}

void DeviceDense::AddExperts(const ExpertOutputs& experts) {
  const auto pairs = static_cast<int64_t>(experts.pair_rows.size());
  CHECK_EQ(pairs, rows_ * config_.top_k());
  Shard& first = *shards_.front();
  const int64_t first_number = 2 * first_row_ * config_.top_k();
  std::byte* const sum = host_sum_.data() + Floats(first_number);
  std::memcpy(sum, experts.pair_rows.data(), experts.pair_rows.size_bytes());
  std::memcpy(sum + experts.pair_rows.size_bytes(), experts.weights, Floats(pairs));
  const uint64_t bytes = Floats(2 * pairs);
  first.stream->CopyToDevice(first.sum.Subspan(Floats(first_number), bytes), {sum, bytes});
  if (experts.others > 0) {
    const uint64_t at = Floats((pairs - experts.others) * config_.hidden_size);
    const uint64_t others_bytes = Floats(experts.others * config_.hidden_size);
    first.stream->CopyToDevice(experts.device->out().Subspan(at, others_bytes),
                               experts.device->host_out().span().subspan(at, others_bytes));
  }
  experts.device->LetWait(*first.stream);
  Queue(first, kernels_.combine_slots,
        {.slot_out = FloatsOf(experts.device->out()),
         .slot_rows = IntsOf(first.sum) + first_number,
         .weights = reinterpret_cast<const float*>(IntsOf(first.sum) + first_number + pairs),
         .tokens = rows_,
         .top_k = config_.top_k(),
         .hidden = config_.hidden_size,
         .y = FloatsOf(first.hidden) + first_row_ * config_.hidden_size});
  SendHidden();
}

}  // namespace moesaic
