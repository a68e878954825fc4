#include "prefetch/blend_predictor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "core/base/check.h"

namespace moesaic {
namespace {

// Per iteration; the fastest forgets in two tokens, the slowest in two hundred. Chosen to span that
// range, not swept.
constexpr std::array<float, BlendPredictor::kNumHabits> kKeep = {0.6f, 0.9f, 0.98f, 0.995f};
constexpr float kHabitFloor = 0.02f;  // a share that says nothing any more
constexpr float kAdagradFloor = 0.1f;
constexpr float kFirstBias = -2.0f;
constexpr float kFirstHabitWeight = 0.2f;

// A distance behind the window sees no `between` rows: all of those are one.
constexpr int kFar = BlendPredictor::kMaxDistance + 1;
// In which order distances are trained: near ones more often, because they decide more copies.
constexpr std::array<int, 16> kTurns = {1, 2, 3, 4, 1, 2, 5, kFar, 1, 3, 6, 2, 1, 4, 7, 8};

int Bucket(int distance) { return std::min(distance, kFar); }

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

}  // namespace

BlendPredictor::BlendPredictor(const PredictorShape& shape, const BlendOptions& options)
    : shape_(shape), options_(options), experts_(static_cast<size_t>(shape.num_experts)) {
  CHECK_GT(shape.num_layers, 0);
  CHECK_GT(shape.num_experts, 0);
  CHECK_GT(shape.top_k, 0);
  const auto layers = static_cast<size_t>(shape.num_layers);
  const uint64_t row_bytes = 2 * experts_ * sizeof(float);
  token_rows_ = static_cast<int32_t>(
      std::bit_floor(std::max<uint64_t>(1, options.token_table_bytes / (layers * row_bytes))));
  bias_begin_ = 0;
  between_begin_ = bias_begin_ + layers * kFar * experts_;
  again_begin_ = between_begin_ + layers * kWindow * experts_ * experts_;
  token_begin_ = again_begin_ + layers * 2 * experts_ * experts_;
  habit_begin_ = token_begin_ + layers * static_cast<size_t>(token_rows_) * experts_;
  const size_t weights = habit_begin_ + layers * kFar * kNumHabits;
  learned_.assign(2 * weights, 0.0f);
  std::fill_n(learned_.begin(), between_begin_, kFirstBias);
  std::fill_n(learned_.begin() + static_cast<ptrdiff_t>(habit_begin_), layers * kFar * kNumHabits,
              kFirstHabitWeight);
  requests_.resize(static_cast<size_t>(shape.max_requests));
  // Neighbouring layers are not trained at the same distance, but each comes to all of them.
  for (uint32_t layer = 0; layer < layers; ++layer) turns_.push_back(7 * layer);
  share_.resize(experts_);
  error_.resize(experts_);
}

BlendPredictor::Row BlendPredictor::BiasRow(int layer, int distance) const {
  return bias_begin_ + static_cast<size_t>(layer * kFar + Bucket(distance) - 1) * experts_;
}

BlendPredictor::Row BlendPredictor::BetweenRow(int layer, int gap, int expert) const {
  return between_begin_ +
         (static_cast<size_t>(layer * kWindow + gap - 1) * experts_ + static_cast<size_t>(expert)) *
             experts_;
}

BlendPredictor::Row BlendPredictor::AgainRow(int layer, int age, int expert) const {
  return again_begin_ +
         (static_cast<size_t>(layer * 2 + age) * experts_ + static_cast<size_t>(expert)) * experts_;
}

BlendPredictor::Row BlendPredictor::TokenRow(int layer, int32_t token_row) const {
  return token_begin_ + (static_cast<size_t>(layer) * static_cast<size_t>(token_rows_) +
                         static_cast<size_t>(token_row)) *
                            experts_;
}

size_t BlendPredictor::HabitWeight(int layer, int distance, int habit) const {
  return habit_begin_ +
         static_cast<size_t>((layer * kFar + Bucket(distance) - 1) * kNumHabits + habit);
}

void BlendPredictor::AddScaled(Row row, float scale, float* sum) const {
  const float* weights = learned_.data() + row;
  for (size_t j = 0; j < experts_; ++j) sum[j] += scale * weights[j];
}

void BlendPredictor::Learn(Row row, float scale, const float* error) {
  float* weights = learned_.data() + row;
  float* squares = weights + learned_.size() / 2;
  const float rate = options_.learning_rate;
  for (size_t j = 0; j < experts_; ++j) {
    const float gradient = scale * error[j];
    squares[j] += gradient * gradient;
    weights[j] -= rate * gradient / std::sqrt(squares[j] + kAdagradFloor);
  }
}

void BlendPredictor::BeginRequest(int request) {
  Request& state = requests_[static_cast<size_t>(request)];
  const auto layers = static_cast<size_t>(shape_.num_layers);
  state.position.Begin(shape_.num_layers);
  state.token_row = -1;
  state.used.assign(layers, {});
  state.used_before.assign(layers, {});
  state.sum.assign(layers * experts_, 0.0f);
  // As if all experts had been used alike: the feature is zero.
  const float share = static_cast<float>(shape_.top_k) / static_cast<float>(shape_.num_experts);
  state.habit.assign(layers * kNumHabits * experts_, share);
  state.feature.assign(layers * kNumHabits * experts_, 0.0f);
  state.train_distance.assign(layers, 0);
  state.train_probability.assign(layers * experts_, 0.0f);
  state.train_token_known.assign(layers, 0);
  for (int layer = 0; layer < shape_.num_layers; ++layer) StartTarget(state, layer);
}

void BlendPredictor::EndRequest(int /*request*/) {}

// The logit for the next time the request is in this layer begins with what is known now.
void BlendPredictor::StartTarget(Request& request, int layer) {
  const auto at = static_cast<size_t>(layer);
  float* sum = &request.sum[at * experts_];
  std::fill_n(sum, experts_, 0.0f);
  for (const Used& used : request.used[at])
    AddScaled(AgainRow(layer, 0, used.expert), used.share, sum);
  for (const Used& used : request.used_before[at])
    AddScaled(AgainRow(layer, 1, used.expert), used.share, sum);
  request.train_distance[at] = -kTurns[turns_[at]++ % kTurns.size()];  // negative: not stated yet
  request.train_token_known[at] = 0;
  if (request.train_distance[at] == -kFar) {
    request.train_distance[at] = kFar;
    State(request, layer, kFar, &request.train_probability[at * experts_]);
  }
}

// probability: per token, [num_experts].
void BlendPredictor::State(const Request& request, int layer, int distance,
                           float* probability) const {
  const auto at = static_cast<size_t>(layer);
  const float* sum = &request.sum[at * experts_];
  const float* bias = learned_.data() + BiasRow(layer, distance);
  for (size_t j = 0; j < experts_; ++j) probability[j] = sum[j] + bias[j];
  for (int habit = 0; habit < kNumHabits; ++habit) {
    const float weight = learned_[HabitWeight(layer, distance, habit)];
    const float* feature =
        &request.feature[(at * kNumHabits + static_cast<size_t>(habit)) * experts_];
    for (size_t j = 0; j < experts_; ++j) probability[j] += weight * feature[j];
  }
  for (size_t j = 0; j < experts_; ++j) probability[j] = Sigmoid(probability[j]);
}

void BlendPredictor::BeginIteration(int request, int32_t token, int64_t rows) {
  Request& state = requests_[static_cast<size_t>(request)];
  state.position.BeginIteration(rows);
  state.token_row = -1;
  if (token < 0) return;
  // Fibonacci hashing: neighbouring ids get rows far apart, and the low bits are used well.
  state.token_row =
      static_cast<int32_t>((static_cast<uint64_t>(token) * 0x9E3779B97F4A7C15u >> 32) &
                           static_cast<uint64_t>(token_rows_ - 1));
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    const auto at = static_cast<size_t>(layer);
    AddScaled(TokenRow(layer, state.token_row), 1, &state.sum[at * experts_]);
    const int distance = layer + 1;
    if (distance <= kMaxDistance && std::abs(state.train_distance[at]) == distance) {
      state.train_distance[at] = distance;
      state.train_token_known[at] = 1;
      State(state, layer, distance, &state.train_probability[at * experts_]);
    }
  }
}

void BlendPredictor::Observe(int request, int layer, std::span<const int32_t> experts) {
  Request& state = requests_[static_cast<size_t>(request)];
  const auto at = static_cast<size_t>(layer);
  const auto rows = static_cast<float>(experts.size() / static_cast<size_t>(shape_.top_k));
  std::fill(share_.begin(), share_.end(), 0.0f);
  for (const int32_t expert : experts) share_[static_cast<size_t>(expert)] += 1.0f / rows;

  if (state.train_distance[at] > 0) Train(state, layer);

  std::swap(state.used_before[at], state.used[at]);
  state.used[at].clear();
  for (int32_t expert = 0; expert < shape_.num_experts; ++expert) {
    const float share = share_[static_cast<size_t>(expert)];
    if (share > 0) state.used[at].push_back({expert, std::min(share, 1.0f)});
  }
  for (int habit = 0; habit < kNumHabits; ++habit) {
    const float keep = std::pow(kKeep[static_cast<size_t>(habit)], rows);
    const size_t begin = (at * kNumHabits + static_cast<size_t>(habit)) * experts_;
    float* shares = &state.habit[begin];
    float* features = &state.feature[begin];
    const float origin = std::log(
        static_cast<float>(shape_.top_k) / static_cast<float>(shape_.num_experts) + kHabitFloor);
    for (size_t j = 0; j < experts_; ++j) {
      shares[j] = keep * shares[j] + (1 - keep) * share_[j];
      features[j] = std::log(shares[j] + kHabitFloor) - origin;
    }
  }
  state.position.Observed(layer);
  StartTarget(state, layer);

  const int window = std::min(kWindow, shape_.num_layers - 1);
  for (int gap = 1; gap <= window; ++gap) {
    const int target = (layer + gap) % shape_.num_layers;
    const auto to = static_cast<size_t>(target);
    float* sum = &state.sum[to * experts_];
    for (const Used& used : state.used[at])
      AddScaled(BetweenRow(target, gap, used.expert), used.share, sum);
    if (state.train_distance[to] == -gap) {
      state.train_distance[to] = gap;
      state.train_token_known[to] = layer + gap < shape_.num_layers ? 1 : 0;
      State(state, target, gap, &state.train_probability[to * experts_]);
    }
  }
}

// Called before the layer's new routing replaces the old one: `used` still is what the stated
// probability was made of.
void BlendPredictor::Train(Request& request, int layer) {
  const auto at = static_cast<size_t>(layer);
  const int distance = request.train_distance[at];
  const float* stated = &request.train_probability[at * experts_];
  for (size_t j = 0; j < experts_; ++j) error_[j] = stated[j] - std::min(share_[j], 1.0f);
  const float* error = error_.data();

  Learn(BiasRow(layer, distance), 1, error);
  const int window = std::min(kWindow, shape_.num_layers - 1);
  for (int gap = distance; gap <= window; ++gap) {
    const int source = (layer - gap + shape_.num_layers) % shape_.num_layers;
    for (const Used& used : request.used[static_cast<size_t>(source)])
      Learn(BetweenRow(layer, gap, used.expert), used.share, error);
  }
  for (const Used& used : request.used[at])
    Learn(AgainRow(layer, 0, used.expert), used.share, error);
  for (const Used& used : request.used_before[at])
    Learn(AgainRow(layer, 1, used.expert), used.share, error);
  if (request.train_token_known[at] != 0 && request.token_row >= 0)
    Learn(TokenRow(layer, request.token_row), 1, error);

  for (int habit = 0; habit < kNumHabits; ++habit) {
    const float* feature =
        &request.feature[(at * kNumHabits + static_cast<size_t>(habit)) * experts_];
    float gradient = 0;
    for (size_t j = 0; j < experts_; ++j) gradient += error[j] * feature[j];
    const size_t weight = HabitWeight(layer, distance, habit);
    float& square = learned_[weight + learned_.size() / 2];
    square += gradient * gradient;
    learned_[weight] -= 0.5f * options_.learning_rate * gradient / std::sqrt(square + 1);
  }
}

void BlendPredictor::Predict(int request, int distance, std::span<float> probability) {
  const Request& state = requests_[static_cast<size_t>(request)];
  CHECK_EQ(probability.size(), experts_);
  State(state, state.position.Target(distance), distance, probability.data());
  const int64_t rows = state.position.NextIteration(distance) ? 1 : state.position.rows();
  if (rows == 1) return;
  for (float& p : probability) p = 1 - std::pow(1 - p, static_cast<float>(rows));
}

uint64_t BlendPredictor::memory_bytes() const {
  const auto layers = static_cast<uint64_t>(shape_.num_layers);
  const uint64_t per_request = layers * experts_ * (2 + 2 * kNumHabits) * sizeof(float) +
                               2 * layers * experts_ * sizeof(Used);
  return learned_.size() * sizeof(float) + requests_.size() * per_request;
}

bool BlendPredictor::Restore(std::span<const float> learned) {
  if (learned.size() != learned_.size()) return false;
  for (const float value : learned) {
    if (!std::isfinite(value)) return false;
  }
  std::copy(learned.begin(), learned.end(), learned_.begin());
  return true;
}

}  // namespace moesaic
