#include "prefetch/predict/blend_predictor.h"

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
// AdaGrad's sums stop here, so that steps do not shrink for ever: another domain is learned as the
// first one was. The sums of habits are of gradients that are themselves sums over experts.
constexpr float kLargestSquares = 20;
constexpr float kLargestHabitSquares = 2000;
// A token is seen seldom: what its row does not learn at once it may never learn.
constexpr float kTokenRate = 4;
constexpr float kFirstBias = -2.0f;
constexpr float kFirstHabitWeight = 0.2f;
// Of a stored weight of habits and a stored AdaGrad sum: far beyond what training makes, far below
// what overflows.
constexpr double kMostHabitWeight = 1e4;
constexpr double kMostSquares = 1e30;

// A distance behind the window sees no `between` rows: all of those are one.
constexpr int kFar = BlendPredictor::kMaxDistance + 1;
// In which order distances are trained: near ones more often, because they decide more copies.
constexpr std::array<int, 16> kTurns = {1, 2, 3, 4, 1, 2, 5, kFar, 1, 3, 6, 2, 1, 4, 7, 8};

int Bucket(int distance) { return std::min(distance, kFar); }

}  // namespace

BlendPredictor::BlendPredictor(const PredictorShape& shape, const CpuKernels& kernels,
                               const BlendOptions& options)
    : shape_(shape),
      kernels_(kernels),
      options_(options),
      experts_(static_cast<size_t>(shape.num_experts)),
      stride_((experts_ + kWeightBlock - 1) / kWeightBlock * kWeightBlock),
      window_(std::min(kWindow, shape.num_layers - 1)) {
  CHECK_GT(shape.num_layers, 0);
  CHECK_GT(shape.num_experts, 0);
  CHECK_GT(shape.top_k, 0);
  const auto layers = static_cast<size_t>(shape.num_layers);
  const uint64_t row_bytes = stride_ * sizeof(int16_t) + sizeof(float);
  token_rows_ = static_cast<int32_t>(
      std::bit_floor(std::max<uint64_t>(1, options.token_table_bytes / (layers * row_bytes))));
  const size_t biases = layers * kFar;
  const size_t pairs = layers * (kWindow + 2) * experts_;
  const size_t tokens = layers * static_cast<size_t>(token_rows_);
  const size_t habits = biases * kNumHabits;
  blocks_begin_ = biases * stride_;
  tokens_begin_ = blocks_begin_ + pairs * stride_;
  num_weights_ = tokens_begin_ + tokens * stride_;
  weights_ = AlignedBuffer(num_weights_ * sizeof(int16_t));
  weights_.Zero();
  std::fill_n(weights_.as<int16_t>(), blocks_begin_,
              static_cast<int16_t>(kFirstBias * kWeightSteps));
  pair_squares_begin_ = biases;
  token_squares_begin_ = pair_squares_begin_ + pairs;
  habit_begin_ = token_squares_begin_ + tokens;
  dense_.assign(habit_begin_ + 2 * habits, 0.0f);
  std::fill_n(dense_.begin() + static_cast<ptrdiff_t>(habit_begin_), habits, kFirstHabitWeight);

  requests_.resize(static_cast<size_t>(shape.max_requests));
  // Neighbouring layers are not trained at the same distance, but each comes to all of them.
  for (uint32_t layer = 0; layer < layers; ++layer) turns_.push_back(7 * layer);
  share_.resize(stride_);
  error_.resize(stride_);
  stated_.resize(stride_);
  rows_.resize((kWindow + 2) * experts_ + 2);
  scales_.resize(rows_.size());
  const std::span<float> dense = dense_;
  const std::span<int16_t> all_weights = {weights_.as<int16_t>(), num_weights_};
  section_.emplace("blend", 1,
                   std::vector<LearnedArray>{
                       {all_weights, INT16_MIN, INT16_MAX},
                       {dense.first(habit_begin_), 0, kMostSquares},
                       {dense.subspan(habit_begin_, habits), -kMostHabitWeight, kMostHabitWeight},
                       {dense.last(habits), 0, kMostSquares},
                       {std::span<uint32_t>(turns_)}});
}

BlendPredictor::Row BlendPredictor::BiasRow(int layer, int distance) {
  const auto row = static_cast<size_t>(layer * kFar + Bucket(distance) - 1);
  return {weights_.as<int16_t>() + row * stride_, &dense_[row]};
}

int16_t* BlendPredictor::Block(int layer, int expert) {
  const size_t block = static_cast<size_t>(layer) * experts_ + static_cast<size_t>(expert);
  return weights_.as<int16_t>() + blocks_begin_ + block * (kWindow + 2) * stride_;
}

BlendPredictor::Row BlendPredictor::PairRow(int layer, int step, int expert) {
  const int source =
      step < kWindow ? (layer - step - 1 + shape_.num_layers) % shape_.num_layers : layer;
  return {
      Block(source, expert) + static_cast<size_t>(step) * stride_,
      &dense_[pair_squares_begin_ + static_cast<size_t>(layer * (kWindow + 2) + step) * experts_ +
              static_cast<size_t>(expert)]};
}

BlendPredictor::Row BlendPredictor::TokenRow(int layer, int32_t token_row) {
  const size_t row = static_cast<size_t>(token_row) * static_cast<size_t>(shape_.num_layers) +
                     static_cast<size_t>(layer);
  return {weights_.as<int16_t>() + tokens_begin_ + row * stride_,
          &dense_[token_squares_begin_ + row]};
}

size_t BlendPredictor::HabitWeight(int layer, int distance, int habit) const {
  return habit_begin_ +
         static_cast<size_t>((layer * kFar + Bucket(distance) - 1) * kNumHabits + habit);
}

void BlendPredictor::AddBlocks(int layer, std::span<const Used> used, int first, int num_rows,
                               float* to) {
  for (size_t i = 0; i < used.size(); ++i) {
    rows_[i] = Block(layer, used[i].expert) + static_cast<size_t>(first) * stride_;
    scales_[i] = used[i].share;
  }
  kernels_.add_weight_rows(rows_.data(), scales_.data(), static_cast<int64_t>(used.size()), to,
                           static_cast<int64_t>(static_cast<size_t>(num_rows) * stride_));
}

void BlendPredictor::BeginRequest(int request) {
  Request& state = requests_[static_cast<size_t>(request)];
  const auto layers = static_cast<size_t>(shape_.num_layers);
  state.position.Begin(shape_.num_layers);
  state.token_row = -1;
  state.used.resize(layers);
  state.used_before.resize(layers);
  for (size_t layer = 0; layer < layers; ++layer) {
    for (std::vector<Used>* used : {&state.used[layer], &state.used_before[layer]}) {
      used->clear();
      used->reserve(experts_);
    }
  }
  state.sum.assign(layers * stride_, 0.0f);
  state.next_sum.assign(layers * stride_, 0.0f);
  // As if all experts had been used alike: the feature is zero.
  const float share = static_cast<float>(shape_.top_k) / static_cast<float>(shape_.num_experts);
  state.habit.assign(layers * kNumHabits * stride_, share / (share + kHabitFloor));
  state.feature.assign(layers * kNumHabits * stride_, 0.0f);
  state.train_distance.assign(layers, 0);
  state.train_probability.assign(layers * stride_, 0.0f);
  state.train_token_known.assign(layers, 0);
  for (int layer = 0; layer < shape_.num_layers; ++layer) StartTarget(state, layer);
}

void BlendPredictor::EndRequest(int /*request*/) {}

// The logit for the next time the request is in this layer begins with what is known now.
void BlendPredictor::StartTarget(Request& request, int layer) {
  const auto at = static_cast<size_t>(layer);
  float* sum = &request.sum[at * stride_];
  float* next_sum = &request.next_sum[at * stride_];
  std::copy_n(next_sum, stride_, sum);
  std::fill_n(next_sum, stride_, 0.0f);
  AddBlocks(layer, request.used[at], kWindow, 1, sum);
  AddBlocks(layer, request.used[at], kWindow + 1, 1, next_sum);
  request.train_distance[at] = -kTurns[turns_[at]++ % kTurns.size()];
  request.train_token_known[at] = 0;
  if (request.train_distance[at] == -kFar) {
    request.train_distance[at] = kFar;
    State(request, layer, kFar, &request.train_probability[at * stride_]);
  }
}

// Per token, as is what State states. [stride_]
void BlendPredictor::Logit(const Request& request, int layer, int distance, float* logit) {
  const auto at = static_cast<size_t>(layer);
  const auto n = static_cast<int64_t>(stride_);
  std::copy_n(&request.sum[at * stride_], stride_, logit);
  const float one = 1;
  const int16_t* bias = BiasRow(layer, distance).weights;
  kernels_.add_weight_rows(&bias, &one, 1, logit, n);
  for (int habit = 0; habit < kNumHabits; ++habit) {
    const size_t feature = (at * kNumHabits + static_cast<size_t>(habit)) * stride_;
    kernels_.axpy(dense_[HabitWeight(layer, distance, habit)], &request.feature[feature], n, logit);
  }
}

void BlendPredictor::State(const Request& request, int layer, int distance, float* probability) {
  Logit(request, layer, distance, probability);
  kernels_.sigmoid(probability, static_cast<int64_t>(stride_), probability);
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
  const int16_t* all_layers = TokenRow(0, state.token_row).weights;
  const float one = 1;
  kernels_.add_weight_rows(&all_layers, &one, 1, state.sum.data(),
                           static_cast<int64_t>(state.sum.size()));
  for (int layer = 0; layer < std::min(kMaxDistance, shape_.num_layers); ++layer) {
    const auto at = static_cast<size_t>(layer);
    const int distance = layer + 1;
    if (std::abs(state.train_distance[at]) != distance) continue;
    state.train_distance[at] = distance;
    state.train_token_known[at] = 1;
    State(state, layer, distance, &state.train_probability[at * stride_]);
  }
}

void BlendPredictor::Observe(int request, int layer, std::span<const int32_t> experts) {
  Request& state = requests_[static_cast<size_t>(request)];
  const auto at = static_cast<size_t>(layer);
  const size_t num_rows = experts.size() / static_cast<size_t>(shape_.top_k);
  const auto rows = static_cast<float>(num_rows);
  std::fill(share_.begin(), share_.end(), 0.0f);
  for (const int32_t expert : experts) {
    share_[static_cast<size_t>(expert)] += 1.0f / rows;
    // Hides the way to memory behind the training; the hardware fetches the rest of a block.
    for (int i = 0; i < 4; ++i) __builtin_prefetch(Block(layer, expert) + 32 * i);
  }

  if (state.train_distance[at] > 0) Train(state, layer);
  NoteUse(state, layer, rows);
  state.position.Observed(layer);
  StartTarget(state, layer);

  // The window goes on in the next iteration's first layers.
  const int ahead = std::min(window_, shape_.num_layers - 1 - layer);
  const std::vector<Used>& used = state.used[at];
  if (ahead > 0) AddBlocks(layer, used, 0, ahead, &state.sum[(at + 1) * stride_]);
  if (ahead < window_) AddBlocks(layer, used, ahead, window_ - ahead, state.sum.data());
  for (int gap = 1; gap <= window_; ++gap) {
    const int target = (layer + gap) % shape_.num_layers;
    const auto to = static_cast<size_t>(target);
    if (state.train_distance[to] != -gap) continue;
    state.train_distance[to] = gap;
    state.train_token_known[to] = layer + gap < shape_.num_layers ? 1 : 0;
    State(state, target, gap, &state.train_probability[to * stride_]);
  }
}

void BlendPredictor::NoteUse(Request& request, int layer, float rows) {
  const auto at = static_cast<size_t>(layer);
  std::swap(request.used_before[at], request.used[at]);
  request.used[at].clear();
  for (int32_t expert = 0; expert < shape_.num_experts; ++expert) {
    const float share = share_[static_cast<size_t>(expert)];
    if (share > 0) request.used[at].push_back({expert, std::min(share, 1.0f)});
  }
  // In units in which the logarithm of an expert that is used as often as any is zero.
  const float unit =
      static_cast<float>(shape_.top_k) / static_cast<float>(shape_.num_experts) + kHabitFloor;
  for (float& share : share_) share /= unit;
  for (int habit = 0; habit < kNumHabits; ++habit) {
    const float keep = kKeep[static_cast<size_t>(habit)];
    const size_t begin = (at * kNumHabits + static_cast<size_t>(habit)) * stride_;
    kernels_.decayed_log(share_.data(), rows == 1 ? keep : std::pow(keep, rows), kHabitFloor / unit,
                         static_cast<int64_t>(stride_), &request.habit[begin],
                         &request.feature[begin]);
  }
}

// Called before the layer's new routing replaces the old one: `used` still is what the stated
// probability was made of.
void BlendPredictor::Train(Request& request, int layer) {
  const auto at = static_cast<size_t>(layer);
  const auto n = static_cast<int64_t>(stride_);
  const int distance = request.train_distance[at];
  const float* stated = &request.train_probability[at * stride_];
  for (size_t j = 0; j < experts_; ++j) error_[j] = stated[j] - std::min(share_[j], 1.0f);
  const float* error = error_.data();
  const float mean_square = kernels_.dot(error, error, n) / static_cast<float>(experts_);

  size_t num_rows = 0;
  const auto learn = [&](Row row, float scale, float times = 1) {
    *row.squares = std::min(*row.squares + scale * scale * mean_square, kLargestSquares);
    rows_[num_rows] = row.weights;
    scales_[num_rows++] =
        times * options_.learning_rate * scale / std::sqrt(*row.squares + kAdagradFloor);
  };
  learn(BiasRow(layer, distance), 1);
  for (int gap = distance; gap <= window_; ++gap) {
    const int source = (layer - gap + shape_.num_layers) % shape_.num_layers;
    for (const Used& used : request.used[static_cast<size_t>(source)])
      learn(PairRow(layer, gap - 1, used.expert), used.share);
  }
  for (const Used& used : request.used[at]) learn(PairRow(layer, kWindow, used.expert), used.share);
  for (const Used& used : request.used_before[at])
    learn(PairRow(layer, kWindow + 1, used.expert), used.share);
  if (request.train_token_known[at] != 0 && request.token_row >= 0)
    learn(TokenRow(layer, request.token_row), 1, kTokenRate);
  kernels_.step_weight_rows(rows_.data(), scales_.data(), static_cast<int64_t>(num_rows), error, n);

  const size_t habits = (dense_.size() - habit_begin_) / 2;
  for (int habit = 0; habit < kNumHabits; ++habit) {
    const size_t feature = (at * kNumHabits + static_cast<size_t>(habit)) * stride_;
    const float gradient = kernels_.dot(error, &request.feature[feature], n);
    const size_t weight = HabitWeight(layer, distance, habit);
    float& squares = dense_[weight + habits];
    squares = std::min(squares + gradient * gradient, kLargestHabitSquares);
    dense_[weight] -= 0.5f * options_.learning_rate * gradient / std::sqrt(squares + 1);
  }
}

void BlendPredictor::Predict(int request, int distance, std::span<float> probability) {
  const Request& state = requests_[static_cast<size_t>(request)];
  CHECK_EQ(probability.size(), experts_);
  State(state, state.position.Target(distance), distance, stated_.data());
  std::copy_n(stated_.begin(), experts_, probability.begin());
  const int64_t rows = state.position.NextIteration(distance) ? 1 : state.position.rows();
  if (rows == 1) return;
  for (float& p : probability) p = 1 - std::pow(1 - p, static_cast<float>(rows));
}

void BlendPredictor::PredictLogit(int request, int distance, std::span<float> logit) {
  const Request& state = requests_[static_cast<size_t>(request)];
  CHECK_EQ(logit.size(), stride_);
  Logit(state, state.position.Target(distance), distance, logit.data());
}

uint64_t BlendPredictor::memory_bytes() const {
  const auto layers = static_cast<uint64_t>(shape_.num_layers);
  const uint64_t per_request = layers * stride_ * (3 + 2 * kNumHabits) * sizeof(float) +
                               2 * layers * experts_ * sizeof(Used);
  return weights_.bytes() + dense_.size() * sizeof(float) + requests_.size() * per_request;
}

}  // namespace moesaic
