// What a predictor costs per layer of a decode step: observing the routing, learning from it, and
// stating the probabilities that the step predictor asks for (the next eight layers and the layer's
// next turn). Routing is drawn so that it has a memory, as real routing has; the weights of all
// layers are cycled through, as in service.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "prefetch/predict/predictor.h"

namespace moesaic {
namespace {

void BM_PredictorLayer(benchmark::State& state, const std::string& name) {
  const PredictorShape shape{static_cast<int>(state.range(0)), static_cast<int>(state.range(1)),
                             static_cast<int>(state.range(2)), 1};
  const auto predictor = MakePredictor(name, shape, SelectKernels());
  std::mt19937 random(1);
  std::vector<std::vector<int32_t>> routed(64 * static_cast<size_t>(shape.num_layers));
  for (size_t i = 0; i < routed.size(); ++i) {
    for (int k = 0; k < shape.top_k; ++k) {
      const bool again = i >= static_cast<size_t>(shape.num_layers) && random() % 2 == 0;
      routed[i].push_back(
          again ? routed[i - static_cast<size_t>(shape.num_layers)][static_cast<size_t>(k)]
                : static_cast<int32_t>(random() % static_cast<uint32_t>(shape.num_experts)));
    }
  }
  std::vector<float> probability(static_cast<size_t>(shape.num_experts));
  predictor->BeginRequest(0);
  size_t at = 0;
  double sum = 0;
  for (auto _ : state) {
    const int layer = static_cast<int>(at % static_cast<size_t>(shape.num_layers));
    if (layer == 0) predictor->BeginIteration(0, static_cast<int32_t>(at % 1000), 1);
    predictor->Observe(0, layer, routed[at]);
    for (int distance = 1; distance <= 8; ++distance) predictor->Predict(0, distance, probability);
    predictor->Predict(0, shape.num_layers, probability);
    sum += static_cast<double>(probability[0]);
    at = (at + 1) % routed.size();
  }
  benchmark::DoNotOptimize(sum);
  state.counters["bytes"] = static_cast<double>(predictor->memory_bytes());
}

void Shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"layers", "experts", "top_k"});
  bench->Args({24, 32, 4})->Args({48, 128, 8});
  bench->Unit(benchmark::kMicrosecond);
}

BENCHMARK_CAPTURE(BM_PredictorLayer, blend, "blend")->Apply(Shapes);
BENCHMARK_CAPTURE(BM_PredictorLayer, transition, "transition")->Apply(Shapes);
BENCHMARK_CAPTURE(BM_PredictorLayer, request_eam, "request-eam")->Apply(Shapes);

}  // namespace
}  // namespace moesaic

BENCHMARK_MAIN();
