#include "core/perf/workload.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/perf/execution_plan.h"

namespace moesaic {
namespace {

std::string WorkloadRefusal(const std::string& text) {
  try {
    ParseUniformWorkload(text, "--workload");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(WorkloadTest, ReadsOneLength) {
  const Workload workload = ParseUniformWorkload("gen=64,prompt=98,requests=3", "--workload");
  ASSERT_EQ(workload.requests.size(), 3u);
  EXPECT_EQ(workload.prompt_tokens(), 294);
  EXPECT_EQ(workload.generated_tokens(), 192);
  EXPECT_DOUBLE_EQ(workload.mean_prompt(), 98);
  EXPECT_EQ(workload.longest(), 162);
}

TEST(WorkloadTest, BadTextsAreRefusedWithAReason) {
  EXPECT_EQ(WorkloadRefusal("prompt=98,gen=64"),
            "--workload: requests=N is missing, as in prompt=98,gen=64,requests=5000");
  EXPECT_EQ(WorkloadRefusal("prompt=x,gen=64,requests=1"),
            "--workload: prompt: expected an integer from 1 to 16777216, not 'x'");
  EXPECT_EQ(WorkloadRefusal("lines=3"),
            "--workload: 'lines=3' is none of prompt=N, gen=N and requests=N (joined by commas)");
}

TEST(ExecutionPlanTest, SchedulesHaveNamesBothWays) {
  for (const ScheduleKind kind :
       {ScheduleKind::kPagedWeights, ScheduleKind::kOverlapped, ScheduleKind::kModuleBatching}) {
    EXPECT_EQ(ParseScheduleKind(ScheduleKindName(kind), "--schedule"), kind);
  }
  EXPECT_THROW(ParseScheduleKind("fast", "--schedule"), Error);
}

TEST(ExecutionPlanTest, LedgersAddUpAndAreWritten) {
  ExecutionPlan plan;
  plan.ledgers.push_back({"host", 100, {{"experts", 60}, {"keys and values", 41}}});
  EXPECT_EQ(plan.Ledger("host")->total_bytes(), 101u);
  EXPECT_FALSE(plan.Ledger("host")->fits());
  EXPECT_EQ(plan.Ledger("device"), nullptr);
  plan.constants.push_back({"link", "byte/s", {1e9, Provenance::kMeasured, "here"}});
  const Json json = PlanToJson(plan);
  EXPECT_EQ(json["ledgers"][0]["total_bytes"], 101);
  EXPECT_EQ(json["policy"]["schedule"], "module-batching");
  EXPECT_EQ(json["constants"][0]["from"], "measured");
  EXPECT_FALSE(json["prediction"].contains("closed_form"));
}

}  // namespace
}  // namespace moesaic
