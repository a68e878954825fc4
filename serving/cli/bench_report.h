// BenchReport: what a load run comes to, in the terms and under the keys of vLLM's `bench serve`.
// Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "serving/cli/load_client.h"

namespace moesaic {

// Mean, median, standard deviation (of the population) and percentiles of one latency, in ms.
struct LatencySummary {
  double mean_ms = 0;
  double median_ms = 0;
  double std_ms = 0;
  std::vector<double> percentiles_ms;  // of BenchReport::percentiles
};

struct BenchReport {
  double duration_s = 0;
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  int64_t good_requests = -1;  // met every goodput limit; -1: there are none
  std::vector<double> percentiles;
  std::map<std::string, LatencySummary> latencies;  // "ttft", "tpot", "itl", "e2el"
};

// `goodput`: the most milliseconds of each named latency that a good request may take.
BenchReport MakeBenchReport(const LoadRun& run, std::vector<double> percentiles,
                            const std::map<std::string, double>& goodput);

// Linear between neighbours, as numpy.percentile; 0 for no samples.
double Percentile(std::vector<double> samples, double percent);

// The table that vLLM prints; `metrics` are the latencies with percentiles, in order.
std::string BenchReportText(const BenchReport& report, const std::vector<std::string>& metrics);
// vLLM's result keys. `detailed` adds the lists per request.
nlohmann::ordered_json BenchReportJson(const BenchReport& report,
                                       const std::vector<std::string>& metrics, const LoadRun& run,
                                       bool detailed);

}  // namespace moesaic
