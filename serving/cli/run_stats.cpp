#include "serving/cli/run_stats.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/units.h"
#include "serving/cli/output.h"

namespace moesaic {
namespace {

double PerSecond(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

// Tokens after the first, over the time from the first to the last.
double OutputRate(const RunResult& result) {
  return PerSecond(result.usage.completion_tokens - 1, result.output_s);
}

nlohmann::ordered_json DevicesJson(const std::vector<DeviceStatus>& devices) {
  auto list = nlohmann::ordered_json::array();
  for (const DeviceStatus& device : devices) {
    list.push_back({{"name", device.name},
                    {"lost", device.lost},
                    {"slots", device.slots},
                    {"resident", device.resident},
                    {"hits", device.hits},
                    {"late_hits", device.late_hits},
                    {"misses", device.misses},
                    {"on_host", device.on_host},
                    {"bytes_copied", device.bytes_copied}});
  }
  return list;
}

nlohmann::ordered_json StoresJson(const std::vector<ReaderLink>& links) {
  auto list = nlohmann::ordered_json::array();
  for (const ReaderLink& link : links) {
    list.push_back({{"name", link.name},
                    {"bytes_read", link.bytes},
                    {"reads", link.reads},
                    {"failed_reads", link.failed},
                    {"busy_us", link.busy_us},
                    {"set_aside", link.set_aside}});
  }
  return list;
}

// By distance: of the experts that layers used, how many were foreseen so many layers before.
std::vector<double> Recall(const RecallStats& recall) {
  std::vector<double> shares;
  for (size_t i = 0; i < recall.used.size(); ++i) {
    shares.push_back(static_cast<double>(recall.found[i]) /
                     static_cast<double>(std::max<uint64_t>(1, recall.used[i])));
  }
  return shares;
}

std::string Share(int64_t part_us, int64_t whole_us) {
  return fmt::format("{:.0f}%", 100.0 * static_cast<double>(part_us) /
                                    static_cast<double>(std::max<int64_t>(1, whole_us)));
}

}  // namespace

double HitRate(const ExpertStats& experts) {
  const uint64_t wanted = experts.hits + experts.late_hits + experts.misses;
  return wanted == 0 ? 1.0 : static_cast<double>(experts.hits) / static_cast<double>(wanted);
}

std::string RunStatsText(const RunSummary& summary) {
  const RunResult& result = summary.result;
  const StepStats& steps = result.steps;
  const ExpertStats& experts = steps.experts;
  const auto blocked_us = static_cast<int64_t>(experts.blocked_us);
  const bool devices = !summary.status.devices.empty();
  TextTable table("<<");
  table.Add({"prompt", fmt::format("{} tokens in {} ({:.0f} tokens/s){}",
                                   result.usage.prompt_tokens, FormatDuration(result.prompt_s),
                                   PerSecond(result.usage.prompt_tokens, result.prompt_s),
                                   result.usage.cached_tokens > 0
                                       ? fmt::format(", {} of them from the prefix cache",
                                                     result.usage.cached_tokens)
                                       : "")});
  table.Add({"output", fmt::format("{} tokens in {} ({:.0f} tokens/s), ended by {}",
                                   result.usage.completion_tokens, FormatDuration(result.output_s),
                                   OutputRate(result), FinishReasonName(result.finish))});
  table.Add({"experts", fmt::format("{:.1f}% found {}: {} hits, {} late, {} misses",
                                    HitRate(experts) * 100, devices ? "on devices" : "in memory",
                                    experts.hits, experts.late_hits, experts.misses)});
  table.Add({devices ? "devices" : "disk",
             fmt::format("{} {}, {} evictions; the computation waited {} ({})",
                         FormatBytes(experts.bytes_read), devices ? "copied" : "read",
                         experts.evictions, FormatDuration(static_cast<double>(blocked_us) * 1e-6),
                         Share(blocked_us, steps.total_us))});
  // Since the start: what was read before the prompt, too.
  for (const ReaderLink& link : summary.status.links) {
    table.Add({"store",
               fmt::format("{} read in {} from {}{}", FormatBytes(link.bytes),
                           FormatDuration(static_cast<double>(link.busy_us) * 1e-6), link.name,
                           link.failed > 0 ? fmt::format("; {} reads failed", link.failed) : "")});
  }
  if (devices) {
    table.Add({"host", fmt::format("{} experts computed in {}; {} failed copies, {} experts "
                                   "given up",
                                   experts.on_host,
                                   FormatDuration(static_cast<double>(experts.host_us) * 1e-6),
                                   experts.failed_reads, experts.given_up)});
  }
  if (experts.prefetched > 0) {
    table.Add(
        {"prefetch", fmt::format("{} started; {} were used, {} left unused", experts.prefetched,
                                 experts.prefetched_used, experts.prefetched_unused)});
  }
  if (experts.fetched_early > 0) {
    table.Add(
        {"fetched early",
         fmt::format("{} for a layer that was sure to want them; {} were missing and deferred",
                     experts.fetched_early, experts.deferred)});
  }
  if (steps.recall.used[0] > 0) {
    std::string shares;
    for (const double share : Recall(steps.recall)) {
      shares += fmt::format("{}{:.0f}%", shares.empty() ? "" : ", ", share * 100);
    }
    table.Add(
        {"predicted", fmt::format("{} of the experts used, 1 to {} layers ahead; it took {} ({})",
                                  shares, RecallStats::kDistances,
                                  FormatDuration(static_cast<double>(steps.predict_us) * 1e-6),
                                  Share(steps.predict_us, steps.total_us))});
  }
  table.Add(
      {"time",
       fmt::format("{} steps: attention {}, experts {}, waiting {}, logits {}", steps.steps,
                   Share(steps.attention_us, steps.total_us), Share(steps.moe_us, steps.total_us),
                   Share(blocked_us, steps.total_us), Share(steps.head_us, steps.total_us))});
  table.Add(
      {"memory",
       fmt::format(
           "{} of {} experts in {} (all: {}); process {} at most", summary.status.experts_resident,
           summary.plan.all_experts_bytes / std::max<uint64_t>(1, summary.plan.slot_bytes),
           FormatBytes(summary.plan.expert_budget_bytes),
           FormatBytes(summary.plan.all_experts_bytes), FormatBytes(summary.peak_rss_bytes))});
  return table.Render();
}

nlohmann::ordered_json RunStatsJson(const RunSummary& summary) {
  const RunResult& result = summary.result;
  const StepStats& steps = result.steps;
  const ExpertStats& experts = steps.experts;
  return {{"load_s", summary.load_s},
          {"time_to_first_token_s", result.prompt_s},
          {"output_s", result.output_s},
          {"output_tokens_per_s", OutputRate(result)},
          {"steps", steps.steps},
          {"prefill_tokens", steps.prefill_tokens},
          {"decode_tokens", steps.decode_tokens},
          {"experts",
           {{"hit_rate", HitRate(experts)},
            {"hits", experts.hits},
            {"late_hits", experts.late_hits},
            {"misses", experts.misses},
            {"on_host", experts.on_host},
            {"evictions", experts.evictions},
            {"failed_reads", experts.failed_reads},
            {"given_up", experts.given_up},
            {"bytes_read", experts.bytes_read},
            {"blocked_us", experts.blocked_us},
            {"host_us", experts.host_us},
            {"prefetched", experts.prefetched},
            {"prefetched_used", experts.prefetched_used},
            {"prefetched_unused", experts.prefetched_unused},
            {"fetched_early", experts.fetched_early},
            {"deferred", experts.deferred},
            {"recall", Recall(steps.recall)},
            {"slots", summary.plan.expert_slots},
            {"resident", summary.status.experts_resident},
            {"budget_bytes", summary.plan.expert_budget_bytes},
            {"all_bytes", summary.plan.all_experts_bytes}}},
          {"devices", DevicesJson(summary.status.devices)},
          {"stores", StoresJson(summary.status.links)},
          {"time_us",
           {{"attention", steps.attention_us},
            {"moe", steps.moe_us},
            {"predict", steps.predict_us},
            {"head", steps.head_us},
            {"total", steps.total_us}}},
          {"peak_rss_bytes", summary.peak_rss_bytes},
          {"planned_bytes", summary.plan.ledger.total_bytes()}};
}

uint64_t PeakRssBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace moesaic
