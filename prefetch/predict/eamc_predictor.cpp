#include "prefetch/predict/eamc_predictor.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "tracer/eam_collection.h"
#include "tracer/eam_collection_section.h"
#include "tracer/expert_activation_matrix.h"

namespace moesaic {
namespace {

class EamcPredictor final : public Predictor {
 public:
  EamcPredictor(const PredictorShape& shape, const CpuKernels& kernels, const EamcOptions& options)
      : shape_(shape),
        options_(options),
        collection_(shape.num_layers, shape.num_experts, options.capacity, kernels) {
    requests_.reserve(static_cast<size_t>(shape.max_requests));
    for (int i = 0; i < shape.max_requests; ++i) {
      requests_.push_back({{},
                           ExpertActivationMatrix(shape.num_layers, shape.num_experts),
                           EamMatcher(collection_, options.matches),
                           {}});
      requests_.back().matches.reserve(static_cast<size_t>(options.matches));
    }
  }

  const char* name() const override { return "eamc"; }

  void BeginRequest(int request) override {
    Request& state = At(request);
    state.position.Begin(shape_.num_layers);
    state.eam.Clear();
    state.matches.clear();
  }

  void BeginIteration(int request, int32_t /*token*/, int64_t rows) override {
    At(request).position.BeginIteration(rows);
    BeginMatching(At(request));
  }

  void Observe(int request, int layer, std::span<const int32_t> experts) override {
    Request& state = At(request);
    state.position.Observed(layer);
    for (const int32_t expert : experts) state.eam.Add(layer, expert);
    // Others may have ended between two layers of a prompt that runs layer after layer: from here
    // on it is compared with what there is now.
    if (state.matched_with != collection_.generation()) BeginMatching(state);
    state.matcher.ObserveExperts(layer, experts);
    const auto best = state.matcher.Best(options_.matches);
    state.matches.assign(best.begin(), best.end());
    state.generation = collection_.generation();
  }

  void Predict(int request, int distance, std::span<float> probability) override {
    Request& state = At(request);
    // An insertion may have replaced an entry that had matched.
    const bool matched =
        !state.matches.empty() && state.generation == collection_.generation() &&
        collection_.PredictRow(state.position.Target(distance), state.matches, probability);
    const auto k = static_cast<float>(shape_.top_k);
    if (!matched) {
      std::fill(probability.begin(), probability.end(), 1 / static_cast<float>(shape_.num_experts));
    }
    const int64_t rows = state.position.NextIteration(distance) ? 1 : state.position.rows();
    for (float& p : probability) {
      p = std::min(1.0f, k * p);
      if (rows > 1) p = 1 - std::pow(1 - p, static_cast<float>(rows));
    }
  }

  void EndRequest(int request) override { collection_.Insert(At(request).eam); }

  std::vector<StateSection*> Sections() override { return {&section_}; }
  EamCollection* collection() override { return &collection_; }

  uint64_t memory_bytes() const override {
    uint64_t bytes = collection_.memory_bytes();
    for (const Request& state : requests_) bytes += state.matcher.memory_bytes();
    return bytes;
  }

 private:
  struct Request {
    RequestPosition position;
    ExpertActivationMatrix eam;
    EamMatcher matcher;
    std::vector<EamMatch> matches;  // as of the last observation
    uint64_t generation = 0;        // of the collection then
    uint64_t matched_with = 0;      // of the collection when the matcher began
  };

  Request& At(int request) { return requests_[static_cast<size_t>(request)]; }

  void BeginMatching(Request& request) {
    request.matcher.Begin();
    request.matched_with = collection_.generation();
  }

  const PredictorShape shape_;
  const EamcOptions options_;
  EamCollection collection_;
  EamCollectionSection section_{collection_};
  std::vector<Request> requests_;
};

}  // namespace

std::unique_ptr<Predictor> MakeEamcPredictor(const PredictorShape& shape, const CpuKernels& kernels,
                                             const EamcOptions& options) {
  return std::make_unique<EamcPredictor>(shape, kernels, options);
}

}  // namespace moesaic
