// The report of a batch job: where its time, bytes and memory went, as JSON and as a page with a
// timeline. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "serving/batch/batch_plan.h"
#include "serving/batch/timeline.h"
#include "serving/model/step_stats.h"

namespace moesaic {

struct BatchReport {
  std::string model;
  BatchPlan plan;
  StepStats stats;
  Timeline::Snapshot timeline;
  double seconds = 0;  // of the job
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  int64_t preemptions = 0;
  uint64_t peak_rss_bytes = 0;
};

// One quantity as it was planned and as it was.
struct Comparison {
  std::string name;
  std::string unit;
  std::optional<double> predicted;  // none: the plan says nothing of it
  double measured = 0;

  // measured / predicted; none without a prediction, or when it was zero.
  std::optional<double> ratio() const;
};
// Throughput, passes, busy times, waits, bytes, memory; empty when the sizes were chosen by rule.
std::vector<Comparison> PlanAgainstRun(const BatchReport& report);

Json BatchReportJson(const BatchReport& report);
// One file without links to anything.
std::string BatchReportHtml(const BatchReport& report);

}  // namespace moesaic
