// `moesaic perplexity`: how well a model predicts a text, counted as llama-perplexity counts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/metrics.h"
#include "serving/api/prompt_builder.h"
#include "serving/cli/commands.h"
#include "serving/cli/output.h"
#include "serving/cli/serving_setup.h"
#include "serving/startup/machine_options.h"

namespace moesaic {
namespace {

constexpr uint64_t kMaxTextBytes = uint64_t{256} << 20;

// One window's log-probabilities, when the engine has them.
class LogprobSink : public OutputSink {
 public:
  void OnDelta(OutputDelta delta) override {
    for (GeneratedToken& token : delta.prompt_tokens) tokens_.push_back(std::move(token));
    if (delta.finish) done_.set_value(std::move(tokens_));
  }
  void OnError(const Error& error) override { done_.set_exception(std::make_exception_ptr(error)); }
  std::vector<GeneratedToken> Wait() { return done_.get_future().get(); }

 private:
  std::vector<GeneratedToken> tokens_;
  std::promise<std::vector<GeneratedToken>> done_;
};

struct Sum {
  double nll = 0;  // natural logarithms
  double nll_squared = 0;
  int64_t tokens = 0;

  double mean() const { return nll / static_cast<double>(tokens); }
  double perplexity() const { return std::exp(mean()); }
  // Standard error, of independent tokens.
  double error() const {
    const double variance =
        std::max(0.0, nll_squared / static_cast<double>(tokens) - mean() * mean());
    return perplexity() *
           std::sqrt(variance / static_cast<double>(std::max<int64_t>(1, tokens - 1)));
  }
};

// Windows of `context` tokens, each on its own and begun with the tokenizer's prefix (BOS) in place
// of its first tokens; what is left of the text is not used.
std::vector<std::vector<int32_t>> WindowsOf(const Tokenizer& tokenizer, const std::string& text,
                                            size_t context, size_t most) {
  const std::vector<int32_t> prefix = EncodeText(tokenizer, "", true);
  const std::vector<int32_t> tokens = EncodeText(tokenizer, text, true);
  std::vector<std::vector<int32_t>> windows;
  for (size_t at = 0; at + context <= tokens.size() && (most == 0 || windows.size() < most);
       at += context) {
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(at);
    std::vector<int32_t>& window =
        windows.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(context));
    std::copy_n(prefix.begin(), std::min(prefix.size(), context), window.begin());
  }
  if (windows.empty()) {
    Fail(ErrorKind::kInvalidArgument,
         "the text has {} tokens, fewer than a window of {}: give a longer one, or lower --context",
         tokens.size(), context);
  }
  return windows;
}

}  // namespace

int PerplexityCommand(const Invocation& invocation) {
  CommandLine line(
      {"perplexity",
       "MODEL FILE",
       "Measure how well a model predicts a text: the exponential of the mean negative "
       "log-probability of its tokens. The text is cut into windows of --context "
       "tokens and the second half of each is counted, as llama-perplexity does, so "
       "that figures compare. It shows what a --dtype or --kv-cache-dtype costs, and what "
       "--defer-experts does: the second half counts as generated.",
       {"moesaic perplexity models/sample wiki.test.raw",
        "moesaic perplexity models/sample wiki.test.raw --dtype int4 --json"}});
  Settings settings;
  int64_t context = 512;
  int64_t most_windows = 0;
  bool json = false;
  line.table().Add({"context", &context, "TOKENS", "Length of a window.", "Text", 'c', {}, 4, 1e6});
  line.table().Add(
      {"windows", &most_windows, "N", "Use the first N windows. 0: all.", "Text", 0, {}, 0, 1e9});
  line.table().Add({"json", &json, "", "Print one JSON object.", "Output"});
  line.UseSettings(settings, {true, false});
  if (!line.Parse(invocation)) return 0;
  SetUpLogging(line, settings.log, LogLevel::kWarning);
  line.RequireAtMost(line.GivenAsFlag("model") ? 1 : 2);
  std::vector<std::string> words = line.positionals();
  const std::string model_name = TakeModel(line, settings.engine, words);
  if (words.empty()) Fail(ErrorKind::kInvalidArgument, "the FILE with the text is missing");
  const std::string text = ReadTextFile(words[0], kMaxTextBytes);

  MetricsRegistry metrics;
  StatusLine(fmt::format("loading {} ...", model_name));
  const LoadedModel loaded =
      LoadModel(settings.engine, settings.chat, ReadMachine(invocation.environment), metrics);
  Engine& engine = *loaded.model.engine;
  StatusLine("");
  if (context > engine.max_context_tokens()) {
    Fail(ErrorKind::kInvalidArgument, "--context: {} is more than the {} tokens that fit", context,
         engine.max_context_tokens());
  }
  const std::vector<std::vector<int32_t>> windows = WindowsOf(
      engine.tokenizer(), text, static_cast<size_t>(context), static_cast<size_t>(most_windows));

  const Stopwatch watch;
  Sum sum;
  const auto at_once = static_cast<size_t>(std::max<int64_t>(1, settings.engine.max_num_seqs / 2));
  std::vector<std::shared_ptr<LogprobSink>> sinks;
  size_t submitted = 0;
  for (size_t done = 0; done < windows.size(); ++done) {
    for (; submitted < windows.size() && submitted < done + at_once; ++submitted) {
      EngineRequest request;
      request.id = fmt::format("window-{}", submitted);
      request.prompt = windows[submitted];
      request.max_tokens = 0;
      request.prompt_logprobs = 0;
      request.decode_from = context / 2;  // what is counted is predicted from here on
      sinks.push_back(std::make_shared<LogprobSink>());
      engine.Submit({std::move(request)}, {sinks.back()});
    }
    const std::vector<GeneratedToken> tokens = sinks[done]->Wait();
    sinks[done].reset();
    CHECK_EQ(tokens.size(), windows[done].size() - 1);  // [i]: of token i + 1
    for (size_t i = static_cast<size_t>(context) / 2; i < tokens.size(); ++i) {
      const double nll = -static_cast<double>(tokens[i].logprob);
      sum.nll += nll;
      sum.nll_squared += nll * nll;
      ++sum.tokens;
    }
    StatusLine(fmt::format("{} of {} windows: {:.4f}", done + 1, windows.size(), sum.perplexity()));
  }
  StatusLine("");
  const double rate =
      static_cast<double>(windows.size()) * static_cast<double>(context) / watch.seconds();
  if (json) {
    const Json result = {{"model", model_name},
                         {"perplexity", sum.perplexity()},
                         {"standard_error", sum.error()},
                         {"mean_nll", sum.mean()},
                         {"tokens", sum.tokens},
                         {"windows", windows.size()},
                         {"context", context},
                         {"dtype", line.table().ValueText("dtype")},
                         {"tokens_per_s", rate},
                         {"defer_experts", settings.engine.defer_experts}};
    WriteOut(result.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  } else {
    Print("perplexity {:.4f} +/- {:.4f} of {} tokens in {} windows of {} ({:.0f} tokens/s)\n",
          sum.perplexity(), sum.error(), sum.tokens, windows.size(), context, rate);
  }
  return 0;
}

}  // namespace moesaic
