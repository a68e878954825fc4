// Throughput mode end to end: the answers of latency mode in every bit that can be seen from
// outside, preemption, cancellation, sizes that fit, and the report.

#include "serving/batch/batch_engine.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/metrics.h"
#include "serving/batch/batch_report.h"
#include "tests/core/base/caught.h"
#include "tests/serving/batch/timeline_checks.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

EngineOptions BatchOptions() {
  EngineOptions options = SmallOptions();
  options.kv_memory = "auto";
  options.max_num_seqs = 0;
  options.max_num_batched_tokens = 0;
  return options;
}

std::unique_ptr<BatchEngine> MakeEngine(const EngineOptions& options,
                                        const BatchWorkload& workload = {64, 40, 12}) {
  return std::make_unique<BatchEngine>(options, PlanBatch(options, workload));
}

// 16 requests: greedy and sampled, short and long, with log-probabilities.
std::vector<GenerationRequest> Requests(int32_t more_tokens) {
  const std::vector<ReferencePrompt> prompts = ReferencePrompts();
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < 16; ++i) {
    GenerationRequest request = Greedy(prompts[i % prompts.size()].prompt, 4 + i % 9);
    request.max_tokens += more_tokens;
    request.ignore_eos = true;
    request.logprobs = 2;
    if (i % 4 == 1) {
      request.sampling.temperature = 0.9;
      request.sampling.seed = i;
    }
    if (i % 7 == 2) request.prompt_logprobs = 0;
    requests.push_back(std::move(request));
  }
  return requests;
}

// Token ids and log-probabilities of all requests.
std::vector<std::vector<float>> RunAll(Engine& engine, int32_t more_tokens = 0) {
  std::vector<GenerationRequest> requests = Requests(more_tokens);
  std::vector<std::shared_ptr<Collector>> collectors;
  std::vector<std::shared_ptr<OutputSink>> sinks;
  for (size_t i = 0; i < requests.size(); ++i) {
    collectors.push_back(std::make_shared<Collector>());
    sinks.push_back(collectors.back());
  }
  engine.Submit(std::move(requests), std::move(sinks));
  std::vector<std::vector<float>> seen;
  for (const auto& collector : collectors) {
    collector->Wait();
    EXPECT_EQ(collector->error, "");
    std::vector<float>& values = seen.emplace_back();
    for (const auto* tokens : {&collector->prompt_tokens, &collector->tokens}) {
      for (const GeneratedToken& token : *tokens) {
        values.push_back(static_cast<float>(token.token));
        values.push_back(token.logprob);
      }
    }
  }
  return seen;
}

TEST(BatchEngineTest, AnswersOfLatencyMode) {
  for (const char* const dtype : {"auto", "int4"}) {
    std::vector<std::vector<float>> expected;
    {
      EngineOptions options = SmallOptions();
      options.dtype = dtype;
      MetricsRegistry metrics;
      expected = RunAll(*CreateEngine(options, metrics));
    }
    const std::pair<const char*, int64_t> settings[] = {
        {"80KiB", 0}, {"25%", 1}, {"25%", 7}, {"100%", 0}};
    for (const auto& [memory, sequences] : settings) {
      EngineOptions options = BatchOptions();
      options.dtype = dtype;
      options.expert_memory = memory;
      options.max_num_seqs = sequences;
      if (sequences == 7) options.max_num_batched_tokens = 16;
      const auto engine = MakeEngine(options);
      EXPECT_EQ(RunAll(*engine), expected)
          << dtype << ", " << memory << ", " << sequences << " sequences";
      const Timeline::Snapshot timeline = engine->TakeTimeline();
      ExpectComputeLaneInOrder(timeline);
      ExpectNoStallWhileIdle(timeline);
    }
  }
}

TEST(BatchEngineTest, PreemptionChangesNothing) {
  const auto roomy = MakeEngine(BatchOptions());
  const auto expected = RunAll(*roomy, 40);
  EXPECT_EQ(roomy->preemptions(), 0);
  EngineOptions options = BatchOptions();
  options.kv_memory = "500KiB";
  options.max_model_len = 0;
  options.max_num_seqs = 32;
  const auto tight = MakeEngine(options);
  EXPECT_EQ(RunAll(*tight, 40), expected);
  EXPECT_GT(tight->preemptions(), 0);
}

TEST(BatchEngineTest, CancelAndEnd) {
  auto engine = MakeEngine(BatchOptions());
  RequestId id = 0;
  GenerationRequest request = Greedy({1, 2, 3}, 900);
  request.ignore_eos = true;
  const auto collector = SubmitOne(*engine, request, &id);
  collector->WaitForDeltas(2);
  engine->Cancel(id);
  EXPECT_EQ(collector->Wait().finish, FinishReason::kCancelled);
  const auto left = SubmitOne(*engine, request);
  left->WaitForDeltas(1);
  engine.reset();
  EXPECT_EQ(left->Wait().finish, FinishReason::kCancelled);
}

TEST(BatchEngineTest, RefusesWhatCanNeverRun) {
  const auto engine = MakeEngine(BatchOptions());
  EXPECT_EQ(Caught([&] { SubmitOne(*engine, Greedy({}, 1)); }).kind(), ErrorKind::kInvalidArgument);
  EXPECT_EQ(Caught([&] { SubmitOne(*engine, Greedy({-1}, 1)); }).kind(),
            ErrorKind::kInvalidArgument);
  EXPECT_EQ(Caught([&] { SubmitOne(*engine, Greedy(std::vector<int32_t>(5000, 1), 1)); }).kind(),
            ErrorKind::kInvalidArgument);
}

TEST(BatchPlanTest, SizesFitTheMemory) {
  EngineOptions options = BatchOptions();
  options.expert_memory = "auto";
  std::set<int64_t> residents;
  int refused = 0;
  for (uint64_t mib = 100; mib < 360; mib += 10) {
    options.machine_memory_bytes = mib << 20;
    try {
      const BatchPlan plan = PlanBatch(options, {500, 100, 50});
      EXPECT_LE(plan.total_bytes, options.machine_memory_bytes);
      EXPECT_GE(plan.sizes.max_batch_tokens, plan.sizes.max_num_seqs);
      EXPECT_GE(plan.sizes.expert_slots, 1);
      residents.insert(plan.sizes.expert_slots - plan.sizes.buffers);
      uint64_t sum = 0;
      for (const LedgerEntry& entry : plan.ledger) sum += entry.bytes;
      EXPECT_EQ(sum, plan.total_bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kResourceExhausted);
      EXPECT_TRUE(Contains(error, "--memory"));
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_EQ(*residents.rbegin(), 256);  // all experts
  EXPECT_LT(*residents.begin(), 128);
  // With all the memory in the world, as many sequences as there are requests.
  options.machine_memory_bytes = uint64_t{1} << 34;
  EXPECT_EQ(PlanBatch(options, {500, 100, 50}).sizes.max_num_seqs, 500);
  EXPECT_EQ(PlanBatch(options, {500, 100, 50}).sizes.buffers, 0);
}

TEST(BatchReportTest, SaysWhereTimeBytesAndMemoryWent) {
  EngineOptions options = BatchOptions();
  options.expert_memory = "25%";
  const auto engine = MakeEngine(options);
  RunAll(*engine);
  BatchReport report;
  report.model = "<model>";
  report.plan = engine->plan();
  report.stats = engine->Stats();
  report.timeline = engine->TakeTimeline();
  report.seconds = 2;
  report.output_tokens = 100;
  const Json json = BatchReportJson(report);
  EXPECT_EQ(json["tokens"]["output_per_s"], 50);
  EXPECT_EQ(json["passes"], report.stats.steps);
  EXPECT_GT(json["experts"]["bytes_read"], 0);
  EXPECT_GE(json["link"]["bytes"], json["experts"]["bytes_read"]);
  EXPECT_GT(json["busy_s"]["experts"], 0.0);
  EXPECT_EQ(json["memory"]["ledger_bytes"], report.plan.total_bytes);
  const std::string html = BatchReportHtml(report);
  EXPECT_NE(html.find("<svg"), std::string::npos);
  EXPECT_NE(html.find("&lt;model>"), std::string::npos);
  EXPECT_EQ(html.find("http"), std::string::npos);  // one file, without links
  EXPECT_NE(BatchReportHtml({}).find("Nothing was recorded"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
