// What structured output costs a token: the mask of what may come next, put onto the logits, and
// the token that was chosen; with a vocabulary of as many tokens as Qwen3 has. With the mask made
// where it is wanted, and with it made ahead, on a thread of its own, while a step runs (which is
// slept here, as it were waiting for experts): what is left for the sampler. And what compiling
// costs, with nothing cached. Per sequence, on one thread: the engine does it for a batch on all of
// them.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/check.h"
#include "serving/engine/mask_ahead.h"
#include "serving/engine/output_constraint.h"
#include "serving/grammar/grammar_backend.h"
#include "serving/model/sampler.h"

namespace moesaic {
namespace {

constexpr int64_t kTokens = 151'936;
constexpr int32_t kEnd = 256;

const std::string kSchema =
    R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0},)"
    R"("tags":{"type":"array","items":{"enum":["red","green","blue"]}},)"
    R"("home":{"type":"object","properties":{"street":{"type":"string"},"zip":{"type":"string",)"
    R"("pattern":"^[0-9]{5}$"}},"required":["street","zip"],"additionalProperties":false}},)"
    R"("required":["name","age","tags","home"],"additionalProperties":false})";
const std::string kAnswer =
    R"({"name": "Ada Lovelace of London", "age": 36, "tags": ["red", "blue"], )"
    R"("home": {"street": "12 St James's Square", "zip": "10115"}})";

std::unique_ptr<GrammarBackend> MakeBackend() {
  GrammarVocabulary vocabulary;
  for (int c = 0; c < 256; ++c) vocabulary.tokens.emplace_back(1, static_cast<char>(c));
  vocabulary.tokens.emplace_back();
  std::mt19937 random(7);
  const std::string letters = "etaoinshrdlucmfwypvbgkjqxz      ,.:\"{}[]0123456789\n";
  while (std::ssize(vocabulary.tokens) < kTokens) {
    std::string token;
    for (size_t length = 2 + random() % 7; length > 0; --length) {
      token += letters[random() % letters.size()];
    }
    vocabulary.tokens.push_back(std::move(token));
  }
  vocabulary.rows = kTokens;
  vocabulary.end_tokens = {kEnd};
  return MakeGrammarBackend(std::move(vocabulary));
}

GrammarBackend& Backend() {
  static const std::unique_ptr<GrammarBackend> backend = MakeBackend();
  return *backend;
}

const GrammarSpec& Spec() {
  static const GrammarSpec spec = SpecOf({.kind = GrammarPart::Kind::kJsonSchema, .text = kSchema});
  return spec;
}

void BM_Compile(benchmark::State& state) {
  Backend();
  for (auto _ : state) benchmark::DoNotOptimize(Backend().Compile(Spec()));
}
BENCHMARK(BM_Compile)->Unit(benchmark::kMillisecond);

void BM_Token(benchmark::State& state) {
  auto constraint = std::make_shared<OutputConstraint>();
  constraint->grammar = Backend().Compile(Spec());
  std::vector<float> logits(kTokens, 1.0f);
  int64_t tokens = 0;
  for (auto _ : state) {
    ConstraintState sequence(constraint);
    for (const char c : kAnswer) {
      sequence.Mask({}, logits);
      sequence.Append(static_cast<unsigned char>(c), std::string_view(&c, 1), false);
      ++tokens;
    }
  }
  state.counters["of_a_token"] = benchmark::Counter(
      static_cast<double>(tokens), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["grammar_bytes"] = static_cast<double>(constraint->grammar->bytes());
}
BENCHMARK(BM_Token)->Unit(benchmark::kMillisecond);

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double Quantile(std::vector<double>& values, double part) {
  const auto at =
      values.begin() + static_cast<ptrdiff_t>(part * static_cast<double>(values.size()));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// CPU time of the sampler's thread (so that other work on the machine does not count), for steps of
// so many microseconds: of looking at a row of logits and taking the largest, with the mask and
// without one. As in the engine the output projection writes the row just before, which does not
// count.
void BM_TokenAhead(benchmark::State& state) {
  const std::chrono::microseconds step(state.range(0));
  auto constraint = std::make_shared<OutputConstraint>();
  constraint->grammar = Backend().Compile(Spec());
  std::vector<float> logits(kTokens);
  MaskMaker maker;
  std::vector<double> with_s;  // of each token
  std::vector<double> without_s;
  for (auto _ : state) {
    ConstraintState sequence(constraint);
    double sum_s = 0;
    for (const char c : kAnswer) {
      maker.Queue(sequence.NextMask());
      std::this_thread::sleep_for(step);
      for (std::vector<double>* seconds : {&without_s, &with_s}) {
        std::fill(logits.begin(), logits.end(), 1.0f);
        const double began_s = ThreadSeconds();
        benchmark::DoNotOptimize(ArgMax(logits));  // the look for logits that are not finite
        if (seconds == &with_s) sequence.Mask({}, logits);
        benchmark::DoNotOptimize(ArgMax(logits));
        if (seconds == &with_s) {
          sequence.Append(static_cast<unsigned char>(c), std::string_view(&c, 1), false);
        }
        seconds->push_back(ThreadSeconds() - began_s);
      }
      sum_s += with_s.back();
    }
    state.SetIterationTime(sum_s);
  }
  const double without = Quantile(without_s, 0.5);
  state.counters["of_a_token"] = Quantile(with_s, 0.5) - without;
  state.counters["of_a_token_p90"] = Quantile(with_s, 0.9) - without;
  state.counters["of_the_step"] =
      (Quantile(with_s, 0.5) - without) / std::chrono::duration<double>(step).count();
}
BENCHMARK(BM_TokenAhead)
    ->Arg(2'000)
    ->Arg(10'000)
    ->Arg(30'000)
    ->UseManualTime()
    ->Iterations(10)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace moesaic

BENCHMARK_MAIN();
