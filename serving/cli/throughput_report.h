// What `moesaic bench` prints: a row for each test, as text or as JSON. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "serving/cli/throughput_test.h"
#include "serving/plan/machine_profiler.h"

namespace moesaic {

struct ThroughputRow {
  ThroughputTest test;
  int threads = 0;
  std::string weight_type;
  std::vector<double> tokens_per_s;  // of all repetitions, in order
  // Of the median repetition:
  double bytes_per_s = 0;
  double flop_per_s = 0;
  StepStats stats;
  double seconds = 0;
  MachinePeaks peaks;  // measured beside it with as many threads

  double median() const;
  // The bound that the work is nearest to: reading memory or arithmetic.
  bool memory_bound() const;
  double peak_share() const;
};

// CHECKs that there is a sample.
ThroughputRow MakeThroughputRow(const ThroughputTest& test, int threads, std::string weight_type,
                                std::vector<ThroughputSample> samples, const StepCost& cost,
                                const MachinePeaks& peaks);

std::string ThroughputText(std::span<const ThroughputRow> rows);
std::string ThroughputJson(std::span<const ThroughputRow> rows);  // a list of objects

}  // namespace moesaic
