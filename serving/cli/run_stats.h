// What `moesaic run --stats` and `--json` say of a finished request. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "serving/api/request_runner.h"
#include "serving/online/create_engine.h"

namespace moesaic {

struct RunSummary {
  const RunResult& result;
  const EnginePlan& plan;
  EngineStatus status;
  double load_s = 0;            // making the engine
  uint64_t peak_rss_bytes = 0;  // of the process
};

// A block of aligned lines.
std::string RunStatsText(const RunSummary& summary);
nlohmann::ordered_json RunStatsJson(const RunSummary& summary);

// Of the experts that layers wanted, those that were in memory; 1 when none was wanted.
double HitRate(const ExpertStats& experts);

// Largest resident size of this process so far.
uint64_t PeakRssBytes();

}  // namespace moesaic
