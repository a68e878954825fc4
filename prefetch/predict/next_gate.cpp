#include "prefetch/predict/next_gate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/base/check.h"
#include "kernels/cpu/moe.h"
#include "kernels/cpu/router_scores.h"

namespace moesaic {
namespace {

// A score's difference as the difference of logits that makes it where the score rises fastest, so
// that margins of all routers are about alike.
float LogitsOfScore(ScoreFunction score) { return score == ScoreFunction::kSigmoid ? 4.0f : 1.0f; }

PackedMatrix RowsOf(std::byte* data, int64_t n, int64_t k) {
  PackedMatrix m;
  m.data = data;
  m.type = WeightType::kBf16;
  m.n = n;
  m.k = k;
  return m;
}

}  // namespace

NextGate::NextGate(const PredictorShape& shape, int64_t hidden_size, int look_ahead,
                   const CpuKernels& kernels)
    : shape_(shape),
      hidden_size_(hidden_size),
      look_ahead_(std::min(look_ahead, shape.num_layers - 1)),
      kernels_(kernels),
      stride_(static_cast<size_t>((shape.num_experts + kPanelOutputs - 1) / kPanelOutputs *
                                  kPanelOutputs)) {
  CHECK_GT(look_ahead, 0);
  CHECK_GT(shape.num_experts, shape.top_k);
  CHECK(kernels.numerics == NumericsClass::kF32);
  const int64_t outputs = shape.num_layers * static_cast<int64_t>(stride_);
  routers_ = AlignedBuffer(
      static_cast<size_t>(PackedMatrix::Bytes(WeightType::kBf16, outputs, hidden_size)));
  const auto rows = static_cast<size_t>(shape.max_requests * kMaxRows);
  x_ = AlignedBuffer(rows *
                     static_cast<size_t>(ActivationRowBytes(ActivationType::kF32, hidden_size)));
  const auto distances = static_cast<size_t>(look_ahead_);
  scale_.resize(rows);
  logits_.resize(rows * distances * stride_);
  choices_.resize(static_cast<size_t>(shape.num_experts));
  order_.resize(static_cast<size_t>(shape.num_experts));
  requests_.resize(static_cast<size_t>(shape.max_requests));
  for (Request& request : requests_) {
    request.margins.resize((distances + 1) * distances * kMaxRows * stride_);
  }
}

void NextGate::Load(std::span<const Router> routers, double norm_eps, ThreadPool& pool) {
  CHECK_EQ(routers.size(), static_cast<size_t>(shape_.num_layers));
  pool_ = &pool;
  norm_eps_ = static_cast<float>(norm_eps);
  routers_.Zero();
  addends_.assign(routers.size(), {});
  const auto layer_bytes = static_cast<size_t>(
      PackedMatrix::Bytes(WeightType::kBf16, static_cast<int64_t>(stride_), hidden_size_));
  std::vector<float> folded(static_cast<size_t>(shape_.num_experts * hidden_size_));
  for (size_t layer = 0; layer < routers.size(); ++layer) {
    const Router& router = routers[layer];
    CHECK_EQ(router.weights.n, shape_.num_experts);
    CHECK_EQ(router.weights.k, hidden_size_);
    Addends& addends = addends_[layer];
    addends.score = router.score;
    if (router.bias != nullptr) {
      addends.bias.assign(router.bias, router.bias + shape_.num_experts);
    }
    if (router.correction != nullptr) {
      addends.correction.assign(router.correction, router.correction + shape_.num_experts);
    }
    for (int64_t expert = 0; expert < shape_.num_experts; ++expert) {
      float* row = folded.data() + expert * hidden_size_;
      kernels_.unpack_row(router.weights, expert, row);
      for (int64_t i = 0; i < hidden_size_; ++i) row[i] *= router.norm[i];
      if (!router.centred) continue;
      // W (x - mean(x)) is (W - means of its rows) x. That the norm divides by the size of x
      // without its mean is left out: it is the same factor for all experts.
      const float mean =
          std::accumulate(row, row + hidden_size_, 0.0f) / static_cast<float>(hidden_size_);
      for (int64_t i = 0; i < hidden_size_; ++i) row[i] -= mean;
    }
    const PackedMatrix to =
        RowsOf(routers_.data() + layer * layer_bytes, shape_.num_experts, hidden_size_);
    kernels_.pack_panels(folded.data(), DType::kF32, hidden_size_, to.n, to.k, to.type, 0,
                         to.panels(), routers_.data() + layer * layer_bytes);
  }
}

size_t NextGate::Place(int layer, int distance) const {
  return static_cast<size_t>(layer % (look_ahead_ + 1) * look_ahead_ + distance - 1) * kMaxRows *
         stride_;
}

void NextGate::BeginIteration(int request) { requests_[static_cast<size_t>(request)].last = -1; }

void NextGate::Look(int layer, std::span<const StepRequest> requests, const float* hidden) {
  const int ahead = std::min(look_ahead_, shape_.num_layers - 1 - layer);
  const int64_t x_stride = ActivationRowBytes(ActivationType::kF32, hidden_size_);
  int64_t rows = 0;
  for (const StepRequest& of : requests) {
    Request& request = requests_[static_cast<size_t>(of.request)];
    request.last = layer;
    request.rows = std::min<int64_t>(of.num_rows, kMaxRows);
    for (int64_t i = 0; i < request.rows; ++i, ++rows) {
      request.numbers[i] = RowOf(i, request.rows, of.num_rows);
      const float* x = hidden + (of.first_row + request.numbers[i]) * hidden_size_;
      kernels_.prepare_activations(x, hidden_size_, 1, hidden_size_, ActivationType::kF32,
                                   x_.data() + rows * x_stride, x_stride);
      const float* copy = reinterpret_cast<const float*>(x_.data() + rows * x_stride);
      const float squares = kernels_.dot(copy, copy, x_stride / int64_t{sizeof(float)});
      scale_[static_cast<size_t>(rows)] =
          1.0f / std::sqrt(squares / static_cast<float>(hidden_size_) + norm_eps_);
    }
  }
  if (ahead == 0) return;

  const auto outputs = static_cast<int64_t>(static_cast<size_t>(ahead) * stride_);
  const auto layer_bytes =
      PackedMatrix::Bytes(WeightType::kBf16, static_cast<int64_t>(stride_), hidden_size_);
  MatmulArgs product;
  product.x = x_.data();
  product.x_stride_bytes = x_stride;
  product.m = rows;
  product.w = RowsOf(routers_.data() + (layer + 1) * layer_bytes, outputs, hidden_size_);
  product.y = logits_.data();
  product.y_stride = outputs;
  ParallelMatmul(*pool_, kernels_, product);

  int64_t row = 0;
  for (const StepRequest& of : requests) {
    Request& request = requests_[static_cast<size_t>(of.request)];
    for (int64_t i = 0; i < request.rows; ++i, ++row) {
      for (int distance = 1; distance <= ahead; ++distance) {
        KeepMargins(
            layer + distance,
            logits_.data() + row * outputs + (distance - 1) * static_cast<int64_t>(stride_),
            scale_[static_cast<size_t>(row)],
            &request.margins[Place(layer + distance, distance) + static_cast<size_t>(i) * stride_]);
      }
    }
  }
}

// What the layer's router chooses by, into choices_: logits (times a positive number, which the
// product is short of) or corrected scores. Returns what turns their differences into margins.
float NextGate::Choices(int layer, const float* logits, float scale) {
  const Addends& addends = addends_[static_cast<size_t>(layer)];
  const auto experts = static_cast<int64_t>(choices_.size());
  std::copy_n(logits, choices_.size(), choices_.begin());
  if (addends.bias.empty() && addends.correction.empty()) return scale;
  for (float& choice : choices_) choice *= scale;
  if (!addends.bias.empty()) kernels_.axpy(1.0f, addends.bias.data(), experts, choices_.data());
  if (addends.correction.empty()) return 1.0f;
  ScoreLogits(addends.score, kernels_, experts, choices_.data());
  kernels_.axpy(1.0f, addends.correction.data(), experts, choices_.data());
  return LogitsOfScore(addends.score);
}

void NextGate::KeepMargins(int layer, const float* logits, float scale, float* margins) {
  const auto experts = static_cast<size_t>(shape_.num_experts);
  // A poisoned row ends its request; it must not end what is learned from the others.
  if (!std::isfinite(scale * kernels_.dot(logits, logits, static_cast<int64_t>(stride_)))) {
    std::fill_n(margins, experts, 0.0f);
    return;
  }
  const float factor = Choices(layer, logits, scale);
  std::copy(choices_.begin(), choices_.end(), order_.begin());
  const auto chosen = order_.begin() + shape_.top_k;
  std::nth_element(order_.begin(), chosen, order_.end(), std::greater<>());
  const float boundary = 0.5f * (*chosen + *std::min_element(order_.begin(), chosen));
  for (size_t j = 0; j < experts; ++j) margins[j] = factor * (choices_[j] - boundary);
}

NextGate::Margins NextGate::For(int request, int layer, int distance) const {
  const Request& of = requests_[static_cast<size_t>(request)];
  // Asked for when `layer` is ahead, or the one that was looked at last.
  const int from = layer - distance;
  if (from < 0 || distance > look_ahead_ || of.last < from || of.last > layer) return {};
  return {of.rows, of.numbers, &of.margins[Place(layer, distance)]};
}

uint64_t NextGate::memory_bytes() const {
  uint64_t floats = logits_.size();
  for (const Addends& addends : addends_) floats += addends.bias.size() + addends.correction.size();
  for (const Request& request : requests_) floats += request.margins.size();
  return routers_.bytes() + x_.bytes() + floats * sizeof(float);
}

}  // namespace moesaic
