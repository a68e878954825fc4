#include "serving/cli/throughput_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/check.h"
#include "serving/cli/output.h"
#include "serving/cli/run_stats.h"

namespace moesaic {
namespace {

// Parts of the measured time.
struct TimeShares {
  double attention = 0;
  double mlp = 0;      // router, experts, dense MLP
  double waiting = 0;  // for experts
  double rest = 0;     // head, sampler, scheduler
};

TimeShares SharesOf(const ThroughputRow& row) {
  const double us = row.seconds * 1e6;
  TimeShares shares;
  shares.attention = static_cast<double>(row.stats.attention_us) / us;
  shares.mlp = static_cast<double>(row.stats.moe_us) / us;
  shares.waiting = static_cast<double>(row.stats.experts.blocked_us) / us;
  shares.rest = std::max(0.0, 1 - shares.attention - shares.mlp - shares.waiting);
  return shares;
}

std::string WholePercent(double share) { return fmt::format("{:.0f}%", 100 * share); }

}  // namespace

double ThroughputRow::median() const {
  std::vector<double> sorted = tokens_per_s;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

bool ThroughputRow::memory_bound() const {
  return bytes_per_s * peaks.flop_per_s >= flop_per_s * peaks.read_bytes_per_s;
}

double ThroughputRow::peak_share() const {
  return memory_bound() ? bytes_per_s / peaks.read_bytes_per_s : flop_per_s / peaks.flop_per_s;
}

ThroughputRow MakeThroughputRow(const ThroughputTest& test, int threads, std::string weight_type,
                                std::vector<ThroughputSample> samples, const StepCost& cost,
                                const MachinePeaks& peaks) {
  CHECK(!samples.empty());
  ThroughputRow row;
  row.test = test;
  row.threads = threads;
  row.weight_type = std::move(weight_type);
  row.peaks = peaks;
  for (const ThroughputSample& sample : samples) row.tokens_per_s.push_back(sample.tokens_per_s());
  std::sort(samples.begin(), samples.end(),
            [](const auto& a, const auto& b) { return a.tokens_per_s() < b.tokens_per_s(); });
  const ThroughputSample& median = samples[samples.size() / 2];
  row.bytes_per_s = cost.Bytes(median.work) / median.seconds;
  row.flop_per_s = cost.Flop(median.work) / median.seconds;
  row.stats = median.stats;
  row.seconds = median.seconds;
  return row;
}

std::string ThroughputText(std::span<const ThroughputRow> rows) {
  TextTable table("<>><>>>>>>>>>", 0);
  table.Add({"test", "batch", "threads", "weights", "tokens/s", "min .. max", "GB/s", "GFLOP/s",
             "limit", "attention", "experts", "waiting", "rest"});
  for (const ThroughputRow& row : rows) {
    const auto [least, most] =
        std::minmax_element(row.tokens_per_s.begin(), row.tokens_per_s.end());
    const TimeShares shares = SharesOf(row);
    table.Add({
        row.test.name(),
        std::to_string(row.test.batch),
        std::to_string(row.threads),
        row.weight_type,
        fmt::format("{:.2f}", row.median()),
        fmt::format("{:.2f} .. {:.2f}", *least, *most),
        fmt::format("{:.1f}", row.bytes_per_s * 1e-9),
        fmt::format("{:.1f}", row.flop_per_s * 1e-9),
        fmt::format("{} of {}", WholePercent(row.peak_share()),
                    row.memory_bound()
                        ? fmt::format("{:.1f} GB/s", row.peaks.read_bytes_per_s * 1e-9)
                        : fmt::format("{:.0f} GFLOP/s", row.peaks.flop_per_s * 1e-9)),
        WholePercent(shares.attention),
        WholePercent(shares.mlp),
        WholePercent(shares.waiting),
        WholePercent(shares.rest),
    });
  }
  return table.Render();
}

std::string ThroughputJson(std::span<const ThroughputRow> rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ThroughputRow& row : rows) {
    const auto [least, most] =
        std::minmax_element(row.tokens_per_s.begin(), row.tokens_per_s.end());
    const TimeShares shares = SharesOf(row);
    list.push_back({
        {"test", row.test.name()},
        {"batch", row.test.batch},
        {"threads", row.threads},
        {"weight_type", row.weight_type},
        {"tokens_per_s", row.median()},
        {"tokens_per_s_min", *least},
        {"tokens_per_s_max", *most},
        {"bytes_per_s", row.bytes_per_s},
        {"flops_per_s", row.flop_per_s},
        {"peak_share", row.peak_share()},
        {"bound", row.memory_bound() ? "memory" : "compute"},
        {"peak_bytes_per_s", row.peaks.read_bytes_per_s},
        {"peak_flops_per_s", row.peaks.flop_per_s},
        {"samples", row.tokens_per_s},
        {"expert_hit_rate", HitRate(row.stats.experts)},
        {"expert_bytes_read_per_s",
         static_cast<double>(row.stats.experts.bytes_read) / row.seconds},
        {"time_shares",
         {{"attention", shares.attention},
          {"mlp", shares.mlp},
          {"waiting", shares.waiting},
          {"rest", shares.rest}}},
    });
  }
  return list.dump(2) + "\n";
}

}  // namespace moesaic
