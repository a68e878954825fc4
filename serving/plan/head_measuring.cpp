#include "serving/plan/head_measuring.h"

#include <memory>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "serving/online/step_sampler.h"
#include "serving/plan/measuring.h"
#include "serving/text/id_tokenizer.h"

namespace moesaic {
namespace {

constexpr int kRepeats = 7;

class NoSink : public OutputSink {
 public:
  void OnDelta(OutputDelta) override {}
  void OnError(const Error&) override {}
};

}  // namespace

LinearFit MeasureHead(PassMeter& passes, const ModuleProfilerInputs& inputs) {
  const ModelConfig& config = passes.config();
  const std::unique_ptr<Tokenizer> ids = MakeIdTokenizer(static_cast<int32_t>(config.vocab_size));
  const Tokenizer& tokenizer = inputs.tokenizer != nullptr ? *inputs.tokenizer : *ids;
  const SequenceContext context = {config, tokenizer, {}, int64_t{1} << 20};
  StepSampler sampler(passes.model(), inputs.kernels, passes.pool());
  const int64_t block = passes.limits().max_logit_rows;
  std::vector<std::vector<double>> terms;
  std::vector<double> values;
  for (const int64_t rows : {int64_t{1}, int64_t{8}, int64_t{32}, block}) {
    if (rows > block) continue;
    StepRows step;
    step.slices = passes.DecodeSlices(rows, 16);
    passes.Run(step.slices, config.top_k);
    const auto sink = std::make_shared<NoSink>();
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<ScheduledSlice> plan;
    for (int64_t row = 0; row < rows; ++row) {
      GenerationRequest request;
      request.prompt = {0};
      request.max_tokens = kRepeats + 1;
      // What requests ask for by default; the largest logit is found faster.
      request.sampling.temperature = 1;
      request.sampling.seed = static_cast<uint64_t>(row);
      plan.push_back(
          {sequences.emplace_back(MakeSequence(std::move(request), sink, context)).get(), 1});
    }
    std::vector<double> samples;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      // As if the pass had computed the last token of each.
      for (const auto& sequence : sequences) {
        sequence->computed_tokens = static_cast<int64_t>(sequence->tokens.size());
      }
      const Stopwatch watch;
      sampler.NextTokens(
          plan, step, [](Sequence&, FinishReason) {}, [](Sequence&, const Error&) {});
      samples.push_back(watch.seconds());
    }
    terms.push_back({1, static_cast<double>(rows)});
    values.push_back(Summarise(std::move(samples), "s", "").value);
  }
  return FitLinear(terms, values);
}

}  // namespace moesaic
