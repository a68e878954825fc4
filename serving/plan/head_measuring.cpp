#include "serving/plan/head_measuring.h"

#include <cstddef>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "serving/model/sampler.h"
#include "serving/model/sampling_params.h"
#include "serving/plan/measuring.h"

namespace moesaic {
namespace {

constexpr int kHeadRepeats = 7;

}  // namespace

LinearFit MeasureHead(PassMeter& passes, const ModuleProfilerInputs& inputs) {
  const ModelConfig& config = passes.config();
  std::vector<Sampler> samplers;
  samplers.reserve(static_cast<size_t>(passes.pool().threads()));
  for (int worker = 0; worker < passes.pool().threads(); ++worker) {
    samplers.emplace_back(inputs.kernels, config.vocab_size);
  }
  const int64_t block = passes.limits().max_logit_rows;
  std::vector<float> logits(static_cast<size_t>(block * config.vocab_size));
  const auto vocab = static_cast<size_t>(config.vocab_size);
  SamplingParams sampling;
  // What requests ask for by default; the largest logit is found faster.
  sampling.temperature = 1;
  const PenaltyState penalties;
  std::vector<std::vector<double>> terms;
  std::vector<double> values;
  for (const int64_t rows : {int64_t{1}, int64_t{8}, int64_t{32}, block}) {
    if (rows > block) continue;
    passes.Run(passes.DecodeSlices(rows, 16), config.top_k());
    std::vector<int32_t> wanted(static_cast<size_t>(rows));
    std::iota(wanted.begin(), wanted.end(), 0);
    std::vector<double> samples;
    for (int repeat = 0; repeat < kHeadRepeats; ++repeat) {
      const Stopwatch watch;
      passes.model().Logits(wanted, logits.data());
      passes.pool().ParallelFor(rows, [&](int64_t row, int worker) {
        samplers[static_cast<size_t>(worker)].Sample(
            sampling, static_cast<uint64_t>(row), repeat, penalties,
            std::span(logits).subspan(static_cast<size_t>(row) * vocab, vocab));
      });
      samples.push_back(watch.seconds());
    }
    terms.push_back({1, static_cast<double>(rows)});
    values.push_back(Summarise(std::move(samples), "s", "").value);
  }
  return FitLinear(terms, values);
}

}  // namespace moesaic
