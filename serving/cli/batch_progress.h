// What `moesaic batch` shows while it runs. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "serving/jobs/batch_job.h"
#include "serving/model/step_stats.h"

namespace moesaic {

// Of this run: output tokens per second so far.
double TokensPerSecond(const BatchProgress& progress);
// "attention 21%  experts 60%  waiting 12%  head 7%"
std::string StageShares(const StepStats& stats);

// The share of this run's work that is done, 0 to 1. By passes while a plan says how many there
// will be (`planned_passes`; 0: no plan), as sequences that run side by side end together; else,
// and when there are more than planned, by lines that have ended.
double DoneShare(const BatchProgress& progress, const StepStats& stats, int64_t planned_passes);

// "[#####---------------] 3 of 64  51.2 tok/s  1 min 10 s left  attention 21% ..."
std::string ProgressText(const BatchProgress& progress, const StepStats& stats,
                         int64_t planned_passes);

}  // namespace moesaic
