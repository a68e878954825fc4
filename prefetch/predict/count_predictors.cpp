#include "prefetch/predict/count_predictors.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/base/check.h"
#include "prefetch/predict/learned_section.h"
#include "tracer/routing_trace.h"

namespace moesaic {
namespace {

// P(at least one of `rows` tokens), each with probability p.
float AnyOf(float p, int64_t rows) {
  if (rows == 1) return p;
  return 1 - std::pow(1 - p, static_cast<float>(rows));
}

// What all of them need: where each request is, and the experts of the layer that is observed.
class CountingPredictor : public Predictor {
 public:
  explicit CountingPredictor(const PredictorShape& shape)
      : shape_(shape),
        experts_(static_cast<size_t>(shape.num_experts)),
        cells_(static_cast<size_t>(shape.num_layers) * experts_),
        even_share_(static_cast<float>(shape.top_k) / static_cast<float>(shape.num_experts)),
        share_(experts_),
        positions_(static_cast<size_t>(shape.max_requests)) {
    CHECK_GT(shape.num_layers, 0);
    CHECK_GT(shape.top_k, 0);
  }

  void BeginRequest(int request) override {
    Position(request).Begin(shape_.num_layers);
    Start(request);
  }
  void BeginIteration(int request, int32_t /*token*/, int64_t rows) override {
    Position(request).BeginIteration(rows);
  }
  void Observe(int request, int layer, std::span<const int32_t> experts) override {
    const auto rows = static_cast<float>(experts.size() / static_cast<size_t>(shape_.top_k));
    std::fill(share_.begin(), share_.end(), 0.0f);
    for (const int32_t expert : experts) share_[static_cast<size_t>(expert)] += 1 / rows;
    Learn(request, layer);
    Position(request).Observed(layer);
  }
  void Predict(int request, int distance, std::span<float> probability) override {
    CHECK_EQ(probability.size(), experts_);
    const RequestPosition& position = Position(request);
    const int64_t rows = position.NextIteration(distance) ? 1 : position.rows();
    State(request, position.Target(distance), distance, probability);
    for (float& p : probability) p = AnyOf(std::min(p, 1.0f), rows);
  }
  void EndRequest(int /*request*/) override {}

 protected:
  virtual void Start(int request) = 0;
  // share_ is that of the layer.
  virtual void Learn(int request, int layer) = 0;
  // Per token.
  virtual void State(int request, int layer, int distance, std::span<float> probability) = 0;

  RequestPosition& Position(int request) { return positions_[static_cast<size_t>(request)]; }
  size_t Cell(int layer, size_t expert = 0) const {
    return static_cast<size_t>(layer) * experts_ + expert;
  }

  const PredictorShape shape_;
  const size_t experts_;
  const size_t cells_;
  const float even_share_;
  std::vector<float> share_;  // [experts] of the tokens of the layer that is observed

 private:
  std::vector<RequestPosition> positions_;
};

// How often an expert was used per iteration, over all requests (BrainStorm, DeepUM:
// "model-level").
class FrequencyPredictor final : public CountingPredictor {
 public:
  explicit FrequencyPredictor(const PredictorShape& shape)
      : CountingPredictor(shape),
        used_(cells_, 0.0f),
        seen_(static_cast<size_t>(shape.num_layers), 0.0f) {}
  const char* name() const override { return "frequency"; }
  std::vector<StateSection*> Sections() override { return {&section_}; }
  uint64_t memory_bytes() const override { return (used_.size() + seen_.size()) * sizeof(float); }

 protected:
  void Start(int) override {}
  void Learn(int, int layer) override {
    seen_[static_cast<size_t>(layer)] += 1;
    for (size_t j = 0; j < experts_; ++j) used_[Cell(layer, j)] += share_[j];
  }
  void State(int, int layer, int, std::span<float> probability) override {
    const float seen = seen_[static_cast<size_t>(layer)];
    for (size_t j = 0; j < experts_; ++j) {
      probability[j] = (used_[Cell(layer, j)] + even_share_) / (seen + 1);
    }
  }

 private:
  std::vector<float> used_;  // [layers, experts]
  std::vector<float> seen_;  // [layers]
  LearnedSection section_{"frequency", 1, {{std::span(used_)}, {std::span(seen_)}}};
};

// Every expert of every later layer, alike: what the data flow alone says.
class DependencyPredictor final : public CountingPredictor {
 public:
  using CountingPredictor::CountingPredictor;
  const char* name() const override { return "dependency"; }
  uint64_t memory_bytes() const override { return 0; }

 protected:
  void Start(int) override {}
  void Learn(int, int) override {}
  void State(int, int, int, std::span<float> probability) override {
    std::fill(probability.begin(), probability.end(), 1.0f);
  }
};

// By how many iterations ago the request last used the expert; the probability that goes with an
// age is counted over all requests.
class RecencyPredictor final : public CountingPredictor {
 public:
  static constexpr size_t kAges = 64;  // the last one stands for older ones and never

  explicit RecencyPredictor(const PredictorShape& shape)
      : CountingPredictor(shape), last_use_(static_cast<size_t>(shape.max_requests)) {
    used_.fill(0);
    seen_.fill(0);
  }
  const char* name() const override { return "recency"; }
  std::vector<StateSection*> Sections() override { return {&section_}; }
  uint64_t memory_bytes() const override {
    return last_use_.size() * cells_ * sizeof(int64_t) + sizeof(used_) + sizeof(seen_);
  }

 protected:
  void Start(int request) override {
    last_use_[static_cast<size_t>(request)].assign(cells_, INT64_MIN);
  }
  void Learn(int request, int layer) override {
    const int64_t now = Position(request).iterations();
    for (size_t j = 0; j < experts_; ++j) {
      int64_t& last = last_use_[static_cast<size_t>(request)][Cell(layer, j)];
      const size_t age = Age(last, now);
      seen_[age] += 1;
      used_[age] += share_[j];
      if (share_[j] > 0) last = now;
    }
  }
  void State(int request, int layer, int distance, std::span<float> probability) override {
    const RequestPosition& position = Position(request);
    const int64_t when = position.iterations() + (position.NextIteration(distance) ? 1 : 0);
    for (size_t j = 0; j < experts_; ++j) {
      const size_t age = Age(last_use_[static_cast<size_t>(request)][Cell(layer, j)], when);
      probability[j] = static_cast<float>((used_[age] + even_share_) / (seen_[age] + 1));
    }
  }

 private:
  static size_t Age(int64_t last, int64_t now) {
    if (last == INT64_MIN) return kAges - 1;
    return std::min(static_cast<size_t>(now - last), kAges - 1);
  }

  std::vector<std::vector<int64_t>> last_use_;  // [requests][layers, experts] iteration
  std::array<double, kAges> used_;
  std::array<double, kAges> seen_;
  LearnedSection section_{"recency", 1, {{std::span<double>(used_)}, {std::span<double>(seen_)}}};
};

// The request's own EAM: its counts per iteration, drawn to an even share while it is young.
class RequestEamPredictor final : public CountingPredictor {
 public:
  explicit RequestEamPredictor(const PredictorShape& shape)
      : CountingPredictor(shape),
        used_(static_cast<size_t>(shape.max_requests)),
        seen_(static_cast<size_t>(shape.max_requests)) {}
  const char* name() const override { return "request-eam"; }
  uint64_t memory_bytes() const override {
    return used_.size() * (cells_ + static_cast<size_t>(shape_.num_layers)) * sizeof(float);
  }

 protected:
  void Start(int request) override {
    used_[static_cast<size_t>(request)].assign(cells_, 0.0f);
    seen_[static_cast<size_t>(request)].assign(static_cast<size_t>(shape_.num_layers), 0.0f);
  }
  void Learn(int request, int layer) override {
    seen_[static_cast<size_t>(request)][static_cast<size_t>(layer)] += 1;
    std::vector<float>& used = used_[static_cast<size_t>(request)];
    for (size_t j = 0; j < experts_; ++j) used[Cell(layer, j)] += share_[j];
  }
  void State(int request, int layer, int, std::span<float> probability) override {
    const float seen = seen_[static_cast<size_t>(request)][static_cast<size_t>(layer)];
    const std::vector<float>& used = used_[static_cast<size_t>(request)];
    for (size_t j = 0; j < experts_; ++j) {
      probability[j] = (used[Cell(layer, j)] + even_share_) / (seen + 1);
    }
  }

 private:
  std::vector<std::vector<float>> used_;  // [requests][layers, experts]
  std::vector<std::vector<float>> seen_;  // [requests][layers]
};

// Counts of expert j of layer l + d given expert i of layer l, for the last four layers, combined
// as naive Bayes: logit = prior + sum over the experts used of log P(i | j) / P(i | not j).
class TransitionPredictor final : public CountingPredictor {
 public:
  static constexpr int kWindow = 4;

  explicit TransitionPredictor(const PredictorShape& shape)
      : CountingPredictor(shape),
        pairs_(cells_ * kWindow * experts_, 0.0f),
        used_(cells_, 0.0f),
        seen_(static_cast<size_t>(shape.num_layers), 0.0f),
        now_(static_cast<size_t>(shape.max_requests)) {}
  const char* name() const override { return "transition"; }
  std::vector<StateSection*> Sections() override { return {&section_}; }
  uint64_t memory_bytes() const override {
    return (pairs_.size() + used_.size() + seen_.size() + now_.size() * cells_) * sizeof(float);
  }

 protected:
  void Start(int request) override { now_[static_cast<size_t>(request)].assign(cells_, 0.0f); }

  void Learn(int request, int layer) override {
    std::vector<float>& now = now_[static_cast<size_t>(request)];
    seen_[static_cast<size_t>(layer)] += 1;
    for (size_t j = 0; j < experts_; ++j) used_[Cell(layer, j)] += share_[j];
    for (int gap = 1; gap <= Window(); ++gap) {
      const int source = Source(layer, gap);
      for (size_t i = 0; i < experts_; ++i) {
        const float from = now[Cell(source, i)];
        if (from == 0) continue;
        float* pairs = Pairs(layer, gap, i);
        for (size_t j = 0; j < experts_; ++j) pairs[j] += from * share_[j];
      }
    }
    std::copy(share_.begin(), share_.end(), now.begin() + static_cast<ptrdiff_t>(Cell(layer)));
  }

  void State(int request, int layer, int distance, std::span<float> probability) override {
    const std::vector<float>& now = now_[static_cast<size_t>(request)];
    const float seen = seen_[static_cast<size_t>(layer)];
    constexpr float kPrior = 1;  // of an even share, in iterations
    for (size_t j = 0; j < experts_; ++j) {
      const float p = (used_[Cell(layer, j)] + kPrior * even_share_) / (seen + kPrior);
      probability[j] = std::log(p / (1 - std::min(p, 0.9999f)));
    }
    for (int gap = distance; gap <= Window(); ++gap) {
      const int source = Source(layer, gap);
      for (size_t i = 0; i < experts_; ++i) {
        const float from = now[Cell(source, i)];
        if (from == 0) continue;
        const float* pairs = Pairs(layer, gap, i);
        const float all_i = used_[Cell(source, i)];
        for (size_t j = 0; j < experts_; ++j) {
          // P(i | j used) against P(i | j not used).
          const float all_j = used_[Cell(layer, j)];
          const float with = (pairs[j] + kPrior * even_share_) / (all_j + kPrior);
          const float without = (std::max(all_i - pairs[j], 0.0f) + kPrior * even_share_) /
                                (std::max(seen - all_j, 0.0f) + kPrior);
          probability[j] += from * std::log(with / without);
        }
      }
    }
    for (float& p : probability) p = 1 / (1 + std::exp(-p));
  }

 private:
  int Window() const { return std::min(kWindow, shape_.num_layers - 1); }
  // The layer `gap` before: of the running iteration, or of the one before when it wraps.
  int Source(int layer, int gap) const {
    return (layer - gap + shape_.num_layers) % shape_.num_layers;
  }
  float* Pairs(int layer, int gap, size_t i) {
    return &pairs_
        [((static_cast<size_t>(layer) * kWindow + static_cast<size_t>(gap - 1)) * experts_ + i) *
         experts_];
  }

  std::vector<float> pairs_;  // [layers, gaps, experts i, experts j] iterations with both
  std::vector<float> used_;   // [layers, experts]
  std::vector<float> seen_;   // [layers]
  LearnedSection section_{
      "transition", 1, {{std::span(pairs_)}, {std::span(used_)}, {std::span(seen_)}}};
  std::vector<std::vector<float>> now_;  // [requests][layers, experts] shares when last passed
};

// ---------------------------------------------------------------------------------------------------

class OraclePredictor final : public Predictor {
 public:
  OraclePredictor(const RoutingTrace& trace, std::span<const int> order)
      : trace_(trace), order_(order.begin(), order.end()) {
    position_.Begin(trace.header.num_layers);
  }
  const char* name() const override { return "oracle"; }
  uint64_t memory_bytes() const override { return 0; }
  void BeginRequest(int request) override {
    CHECK_EQ(request, 0);
    CHECK_LT(next_, order_.size());
    sequence_ = next_++;
    position_.Begin(trace_.header.num_layers);
  }
  void BeginIteration(int, int32_t, int64_t rows) override {
    CHECK_EQ(rows, 1);
    position_.BeginIteration(rows);
  }
  void Observe(int, int layer, std::span<const int32_t>) override { position_.Observed(layer); }
  void EndRequest(int) override {}
  void Predict(int, int distance, std::span<float> probability) override {
    std::fill(probability.begin(), probability.end(), 0.0f);
    size_t at = sequence_;
    int64_t token = position_.iterations() - 1 + (position_.NextIteration(distance) ? 1 : 0);
    const TraceSequence* sequence = &trace_.sequences[static_cast<size_t>(order_[at])];
    if (token >= trace_.tokens(*sequence)) {
      if (++at == order_.size()) return;
      sequence = &trace_.sequences[static_cast<size_t>(order_[at])];
      token = 0;
    }
    for (const uint16_t expert : trace_.Experts(*sequence, token, position_.Target(distance))) {
      probability[expert] = 1;
    }
  }

 private:
  const RoutingTrace& trace_;
  const std::vector<int> order_;
  size_t next_ = 0;
  size_t sequence_ = 0;
  RequestPosition position_;
};

template <typename Kind>
std::unique_ptr<Predictor> Make(const PredictorShape& shape) {
  return std::make_unique<Kind>(shape);
}

constexpr Named<MakeCountingPredictor> kCountingPredictors[] = {
    {"transition", Make<TransitionPredictor>}, {"request-eam", Make<RequestEamPredictor>},
    {"recency", Make<RecencyPredictor>},       {"frequency", Make<FrequencyPredictor>},
    {"dependency", Make<DependencyPredictor>},
};

}  // namespace

std::span<const Named<MakeCountingPredictor>> CountingPredictors() { return kCountingPredictors; }

std::unique_ptr<Predictor> MakeOraclePredictor(const RoutingTrace& trace,
                                               std::span<const int> sequence_order) {
  return std::make_unique<OraclePredictor>(trace, sequence_order);
}

}  // namespace moesaic
