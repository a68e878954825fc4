#include "serving/cli/batch_progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "serving/cli/output.h"

namespace moesaic {
namespace {

constexpr int kBarWidth = 20;

}  // namespace

double TokensPerSecond(const BatchProgress& progress) {
  return progress.seconds > 0 ? static_cast<double>(progress.output_tokens) / progress.seconds : 0;
}

std::string StageShares(const StepStats& stats) {
  const auto total_us = static_cast<double>(std::max<int64_t>(stats.total_us, 1));
  const auto share = [&](auto us) { return 100.0 * static_cast<double>(us) / total_us; };
  return fmt::format("attention {:.0f}%  experts {:.0f}%  waiting {:.0f}%  head {:.0f}%",
                     share(stats.attention_us), share(stats.moe_us),
                     share(stats.experts.blocked_us), share(stats.head_us));
}

double DoneShare(const BatchProgress& progress, const StepStats& stats, int64_t planned_passes) {
  if (progress.left() == 0) return 1;
  if (stats.steps < planned_passes) {
    return static_cast<double>(stats.steps) / static_cast<double>(planned_passes);
  }
  const int64_t ended = progress.done + progress.refused + progress.failed;
  return static_cast<double>(ended) / static_cast<double>(ended + progress.left());
}

std::string ProgressText(const BatchProgress& progress, const StepStats& stats,
                         int64_t planned_passes) {
  const double share = DoneShare(progress, stats, planned_passes);
  const int filled = static_cast<int>(share * kBarWidth);
  std::string text =
      fmt::format("[{:#<{}}{:-<{}}] {} of {}  {:.1f} tok/s", "", filled, "", kBarWidth - filled,
                  progress.lines - progress.left(), progress.lines, TokensPerSecond(progress));
  if (progress.draining) {
    text +=
        fmt::format("  stopping: {} to finish; Ctrl-C again stops at once", progress.outstanding);
  } else if (share > 0) {
    text += fmt::format("  {} left", FormatDuration(progress.seconds * (1 - share) / share));
  }
  text += "  ";
  return text += StageShares(stats);
}

}  // namespace moesaic
