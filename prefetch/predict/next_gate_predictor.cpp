#include "prefetch/predict/next_gate_predictor.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"

namespace moesaic {
namespace {

constexpr float kLearningRate = 0.1f;
constexpr float kBiasFloor = 0.1f;  // of AdaGrad sums
constexpr float kWeightFloor = 1.0f;
// A margin is in units of the router's logits.
constexpr float kFirstMarginWeight = 1.0f;
constexpr float kFirstBlendWeight = 0.5f;
// Of a stored weight and sum: far beyond what training makes, far below what overflows.
constexpr double kMostGateWeight = 1e6;
constexpr double kMostGateSquares = 1e30;

}  // namespace

NextGatePredictor::NextGatePredictor(const PredictorShape& shape, const CpuKernels& kernels,
                                     NextGate& gates, bool with_blend)
    : shape_(shape), kernels_(kernels), gates_(gates), stride_(gates.stride()) {
  if (with_blend) {
    auto blend = std::make_unique<BlendPredictor>(shape, kernels);
    blend_ = blend.get();
    CHECK_EQ(blend_->stride(), stride_);
    far_ = std::move(blend);
  } else {
    far_ = MakePredictor("frequency", shape, kernels);
  }
  const auto distances = static_cast<size_t>(gates.look_ahead());
  const size_t rows = static_cast<size_t>(shape.num_layers) * distances;
  bias_.resize(rows * stride_);
  bias_squares_.resize(rows);
  for (size_t row = 0; row < rows; ++row) {
    weight_.insert(weight_.end(), {kFirstMarginWeight, with_blend ? kFirstBlendWeight : 0.0f});
  }
  weight_squares_.resize(weight_.size());
  section_.emplace(
      with_blend ? "blend-next-gate" : "next-gate", 1,
      std::vector<LearnedArray>{{std::span(bias_), -kMostGateWeight, kMostGateWeight},
                                {std::span(bias_squares_), 0, kMostGateSquares},
                                {std::span(weight_), -kMostGateWeight, kMostGateWeight},
                                {std::span(weight_squares_), 0, kMostGateSquares}});
  requests_.resize(static_cast<size_t>(shape.max_requests));
  for (Request& request : requests_) {
    if (with_blend) request.blend_logit.resize((distances + 1) * distances * stride_);
  }
  stated_.resize(stride_);
  error_.resize(stride_);
  none_.resize(stride_);
}

size_t NextGatePredictor::Row(int layer, int distance) const {
  return static_cast<size_t>(layer * gates_.look_ahead() + distance - 1);
}

float* NextGatePredictor::BlendLogit(Request& request, int layer, int distance) {
  const int ahead = gates_.look_ahead();
  return &request.blend_logit[static_cast<size_t>(layer % (ahead + 1) * ahead + distance - 1) *
                              stride_];
}

void NextGatePredictor::BeginRequest(int request) {
  requests_[static_cast<size_t>(request)].position.Begin(shape_.num_layers);
  far_->BeginRequest(request);
}

void NextGatePredictor::EndRequest(int request) { far_->EndRequest(request); }

void NextGatePredictor::BeginIteration(int request, int32_t token, int64_t rows) {
  requests_[static_cast<size_t>(request)].position.BeginIteration(rows);
  gates_.BeginIteration(request);
  far_->BeginIteration(request, token, rows);
}

void NextGatePredictor::Observe(int request, int layer, std::span<const int32_t> experts) {
  Request& state = requests_[static_cast<size_t>(request)];
  for (int distance = 1; distance <= gates_.look_ahead(); ++distance) {
    Train(request, layer, distance, experts);
  }
  state.position.Observed(layer);
  far_->Observe(request, layer, experts);
  if (blend_ == nullptr) return;
  const int ahead = std::min(gates_.look_ahead(), shape_.num_layers - 1 - layer);
  for (int distance = 1; distance <= ahead; ++distance) {
    blend_->PredictLogit(request, distance,
                         {BlendLogit(state, layer + distance, distance), stride_});
  }
}

// For one row. [stride]
void NextGatePredictor::State(Request& request, int layer, int distance, const float* margins,
                              float* probability) {
  const auto n = static_cast<int64_t>(stride_);
  const size_t row = Row(layer, distance);
  const float* weight = &weight_[row * kNumWeights];
  std::copy_n(&bias_[row * stride_], stride_, probability);
  kernels_.axpy(weight[0], margins, n, probability);
  if (blend_ != nullptr) {
    kernels_.axpy(weight[1], BlendLogit(request, layer, distance), n, probability);
  }
  kernels_.sigmoid(probability, n, probability);
}

void NextGatePredictor::Train(int request, int layer, int distance,
                              std::span<const int32_t> experts) {
  Request& state = requests_[static_cast<size_t>(request)];
  const NextGate::Margins margins = gates_.For(request, layer, distance);
  const auto n = static_cast<int64_t>(stride_);
  const auto top_k = static_cast<size_t>(shape_.top_k);
  const size_t row = Row(layer, distance);
  for (int64_t i = 0; i < margins.rows; ++i) {
    const float* margin = margins.values + static_cast<size_t>(i) * stride_;
    State(state, layer, distance, margin, error_.data());
    for (const int32_t expert :
         experts.subspan(static_cast<size_t>(margins.numbers[i]) * top_k, top_k)) {
      error_[static_cast<size_t>(expert)] -= 1;
    }
    std::fill(error_.begin() + shape_.num_experts, error_.end(), 0.0f);
    float& squares = bias_squares_[row];
    squares +=
        kernels_.dot(error_.data(), error_.data(), n) / static_cast<float>(shape_.num_experts);
    kernels_.axpy(-kLearningRate / std::sqrt(squares + kBiasFloor), error_.data(), n,
                  &bias_[row * stride_]);
    const auto learn = [&](size_t weight, const float* feature) {
      const size_t at = row * kNumWeights + weight;
      const float gradient = kernels_.dot(error_.data(), feature, n);
      weight_squares_[at] += gradient * gradient;
      weight_[at] -=
          0.5f * kLearningRate * gradient / std::sqrt(weight_squares_[at] + kWeightFloor);
    };
    learn(0, margin);
    if (blend_ != nullptr) learn(1, BlendLogit(state, layer, distance));
  }
}

void NextGatePredictor::Predict(int request, int distance, std::span<float> probability) {
  Request& state = requests_[static_cast<size_t>(request)];
  CHECK_EQ(probability.size(), static_cast<size_t>(shape_.num_experts));
  NextGate::Margins margins;
  const int layer = state.position.Target(distance);
  if (!state.position.NextIteration(distance)) margins = gates_.For(request, layer, distance);
  if (margins.rows == 0) return far_->Predict(request, distance, probability);
  std::fill(none_.begin(), none_.end(), 1.0f);
  for (int64_t i = 0; i < margins.rows; ++i) {
    State(state, layer, distance, margins.values + static_cast<size_t>(i) * stride_,
          stated_.data());
    for (size_t j = 0; j < stride_; ++j) none_[j] *= 1 - stated_[j];
  }
  const int64_t rows = state.position.rows();
  if (rows > margins.rows) {
    const float power = static_cast<float>(rows) / static_cast<float>(margins.rows);
    for (float& none : none_) none = std::pow(none, power);
  }
  for (size_t j = 0; j < probability.size(); ++j) probability[j] = 1 - none_[j];
}

std::vector<StateSection*> NextGatePredictor::Sections() {
  std::vector<StateSection*> sections = far_->Sections();
  sections.push_back(&*section_);
  return sections;
}

uint64_t NextGatePredictor::memory_bytes() const {
  uint64_t floats = bias_.size() + bias_squares_.size() + 2 * weight_.size();
  for (const Request& request : requests_) floats += request.blend_logit.size();
  return far_->memory_bytes() + floats * sizeof(float);
}

}  // namespace moesaic
