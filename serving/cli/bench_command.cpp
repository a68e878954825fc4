#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/base/metrics.h"
#include "core/base/topology.h"
#include "kernels/cpu/kernels.h"
#include "serving/cli/commands.h"
#include "serving/cli/output.h"
#include "serving/cli/serving_setup.h"
#include "serving/cli/throughput_report.h"
#include "serving/cli/throughput_test.h"
#include "serving/plan/machine_profiler.h"
#include "serving/startup/machine_options.h"

namespace moesaic {
namespace {

struct ThroughputFlags {
  std::vector<std::string> prompt_tokens = {"512"};
  std::vector<std::string> output_tokens = {"128"};
  std::vector<std::string> batch = {"1"};
  std::vector<std::string> threads = {"0"};
  int64_t context_tokens = 1;
  int64_t repetitions = 5;
  bool json = false;
};

void AddThroughputFlags(ThroughputFlags& flags, OptionTable& table) {
  const char* section = "Tests";
  table.Add({"prompt-tokens", &flags.prompt_tokens, "LIST",
             "Prefill: lengths of one prompt. 0: no such test.", section});
  table.Add({"output-tokens", &flags.output_tokens, "LIST",
             "Decode: tokens that each sequence generates. 0: no such test.", section});
  table.Add({"batch", &flags.batch, "LIST", "Decode: sequences at once.", section});
  table.Add({"context-tokens",
             &flags.context_tokens,
             "N",
             "Decode: tokens of context before the first that is measured.",
             section,
             0,
             {},
             1,
             1e7});
  table.Add({"repetitions",
             &flags.repetitions,
             "N",
             "Measured runs of each test, after one that is not.",
             section,
             0,
             {},
             1,
             1e6});
  table.Add({"json", &flags.json, "", "Print a list of objects.", section});
  Option threads{"threads", &flags.threads, "LIST",
                 "Compute threads; the model is loaded for each. 0: one per core.", section};
  threads.settable_outside = true;
  table.Replace(std::move(threads));
}

std::vector<int64_t> ParseCounts(const std::vector<std::string>& texts, const char* flag,
                                 int64_t least) {
  std::vector<int64_t> counts;
  for (const std::string& text : texts) {
    int64_t count = 0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), count);
    if (end.ec != std::errc() || end.ptr != text.data() + text.size() || count < least ||
        count > 10'000'000) {
      Fail(ErrorKind::kInvalidArgument,
           "{}: expected integers of at least {} with commas between "
           "them, not '{}'",
           flag, least, text);
    }
    counts.push_back(count);
  }
  return counts;
}

std::vector<ThroughputTest> TestsOf(const ThroughputFlags& flags) {
  std::vector<ThroughputTest> tests;
  for (const int64_t tokens : ParseCounts(flags.prompt_tokens, "--prompt-tokens", 0)) {
    if (tokens > 0) tests.push_back({false, 1, tokens, 0});
  }
  const std::vector<int64_t> batches = ParseCounts(flags.batch, "--batch", 1);
  for (const int64_t tokens : ParseCounts(flags.output_tokens, "--output-tokens", 0)) {
    for (const int64_t batch : batches) {
      if (tokens > 0) tests.push_back({true, batch, flags.context_tokens, tokens});
    }
  }
  if (tests.empty()) {
    Fail(ErrorKind::kInvalidArgument,
         "nothing to measure: give --prompt-tokens or --output-tokens");
  }
  return tests;
}

// Room for the largest test, where the settings leave it open.
void MakeRoom(const std::vector<ThroughputTest>& tests, EngineOptions& options) {
  int64_t longest = 0;
  int64_t most = 1;
  for (const ThroughputTest& test : tests) most = std::max(most, test.batch);
  options.max_num_seqs = most;
  options.max_num_batched_tokens = std::max(options.max_num_batched_tokens, most);
  for (const ThroughputTest& test : tests) {
    longest = std::max(longest, test.positions(options.max_num_batched_tokens));
  }
  if (options.max_model_len == 0) options.max_model_len = longest;
  options.prefix_cache = false;
}

// A sequence that is preempted would be computed twice, and no one would know.
void CheckRoom(const std::vector<ThroughputTest>& tests, int64_t step_tokens,
               const EnginePlan& plan) {
  for (const ThroughputTest& test : tests) {
    const int64_t blocks =
        plan.kv_needs.MostTogether(test.batch, test.positions(step_tokens), step_tokens);
    if (blocks <= plan.num_kv_blocks) continue;
    Fail(ErrorKind::kResourceExhausted,
         "{} with {} sequences needs {} blocks of KV cache and there are {}; raise --kv-memory",
         test.name(), test.batch, blocks, plan.num_kv_blocks);
  }
}

MachinePeaks Better(const MachinePeaks& a, const MachinePeaks& b) {
  return {std::max(a.read_bytes_per_s, b.read_bytes_per_s), std::max(a.flop_per_s, b.flop_per_s)};
}

// All tests with one number of threads. Peaks are measured before and after each: the machine may
// have neighbours.
void RunTests(const std::vector<ThroughputTest>& tests, EngineOptions options,
              const Invocation& invocation, int threads, int64_t repetitions,
              std::vector<ThroughputRow>& rows) {
  options.machine.threads = threads;
  MetricsRegistry metrics;
  const LoadedModel loaded = LoadModel(options, {}, ReadMachine(invocation.environment), metrics);
  CheckRoom(tests, options.max_num_batched_tokens, loaded.plan);
  const Topology topology = ReadTopology();
  const WeightType weights = loaded.plan.weight_type;
  const Isa isa = SelectKernels(weights).isa;
  MachinePeaks before = MeasurePeaks(topology, isa, weights, threads);
  for (const ThroughputTest& test : tests) {
    std::vector<ThroughputSample> samples;
    for (int64_t i = 0; i <= repetitions; ++i) {
      StatusLine(fmt::format("{}, batch {}, {} threads: {} of {}", test.name(), test.batch, threads,
                             i, repetitions));
      const ThroughputSample sample =
          RunThroughputTest(*loaded.model.engine, loaded.plan.step_cost,
                            options.max_num_batched_tokens, test, static_cast<uint64_t>(i));
      if (i > 0) samples.push_back(sample);
    }
    const MachinePeaks after = MeasurePeaks(topology, isa, weights, threads);
    rows.push_back(MakeThroughputRow(test, threads, WeightTypeName(weights), std::move(samples),
                                     loaded.plan.step_cost, Better(before, after)));
    before = after;
  }
  StatusLine("");
}

}  // namespace

int BenchCommand(const Invocation& invocation) {
  CommandLine line(
      {"bench",
       "MODEL",
       "Measure how fast a model runs on this machine: prefill (pp512: a prompt of 512 tokens) and "
       "decode (tg128: 128 tokens after another), with random tokens. GB/s and GFLOP/s are what "
       "the steps had to read and to compute; the peak that they are compared with is measured "
       "beside them with as many threads.",
       {"moesaic bench models/sample",
        "moesaic bench MODEL --prompt-tokens 128,512,2048 --batch 1,4,16,64 --threads 1,2 "
        "--json"}});
  Settings settings;
  ThroughputFlags flags;
  line.UseSettings(settings, {.engine = true});
  AddThroughputFlags(flags, line.table());
  if (!line.Parse(invocation)) return 0;
  std::vector<std::string> positionals = line.positionals();
  TakeModel(line, settings.engine, positionals);
  line.RequireAtMost(1);
  SetUpLogging(line, settings.log, LogLevel::kWarning);

  const std::vector<ThroughputTest> tests = TestsOf(flags);
  const std::vector<int64_t> thread_counts = ParseCounts(flags.threads, "--threads", 0);
  MakeRoom(tests, settings.engine);
  std::vector<ThroughputRow> rows;
  for (const int64_t threads : thread_counts) {
    RunTests(tests, settings.engine, invocation,
             threads > 0 ? static_cast<int>(threads) : ReadTopology().default_threads(),
             flags.repetitions, rows);
  }
  WriteOut(flags.json ? ThroughputJson(rows) : ThroughputText(rows));
  return 0;
}

}  // namespace moesaic
