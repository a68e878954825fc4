#include "serving/batch/batch_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/units.h"

namespace moesaic {
namespace {

constexpr size_t kPlottedIntervals = 1500;
constexpr double kPlotWidth = 1100;
constexpr double kLaneHeight = 34;

constexpr std::array kComputing = {Activity::kDense, Activity::kAttention, Activity::kExperts,
                                   Activity::kHead, Activity::kBetween};
constexpr std::array kStalls = {Activity::kStallRead, Activity::kStallQueue, Activity::kStallPack,
                                Activity::kWakeUp};

// Rows of the plot for each lane of the timeline.
enum RowOfLane { kComputeRow, kLinkRow, kOtherRow, kRowsOfLane };

struct Look {
  Activity activity;
  int row;  // RowOfLane
  const char* color;
  const char* text;
};
constexpr std::array kLooks = {
    Look{Activity::kDense, kComputeRow, "#4878a8", "dense parts"},
    Look{Activity::kAttention, kComputeRow, "#76a5af", "attention"},
    Look{Activity::kExperts, kComputeRow, "#6aa84f", "experts"},
    Look{Activity::kHead, kComputeRow, "#8e7cc3", "logits and sampling"},
    Look{Activity::kBetween, kComputeRow, "#cccccc", "between passes"},
    Look{Activity::kStallRead, kComputeRow, "#cc4125", "waits for a read under way"},
    Look{Activity::kStallQueue, kComputeRow, "#990000", "waits for a read not begun"},
    Look{Activity::kStallPack, kComputeRow, "#e69138", "waits for packing"},
    Look{Activity::kWakeUp, kComputeRow, "#f6b26b", "wakes up"},
    Look{Activity::kLinkBusy, kLinkRow, "#45818e", "link busy"},
    Look{Activity::kPack, kOtherRow, "#bf9000", "packing"},
    Look{Activity::kHiddenIn, kLinkRow, "#a64d79", "attention outputs to the device"},
    Look{Activity::kHiddenOut, kOtherRow, "#c27ba0", "queries, keys, values to the host"},
};

const Look* LookOf(Activity activity) {  // null: it is not plotted
  const auto look = std::find_if(kLooks.begin(), kLooks.end(), [&](const Look& candidate) {
    return candidate.activity == activity;
  });
  return look == kLooks.end() ? nullptr : &*look;
}

int RowOf(const TimelineInterval& interval) {
  return interval.lane * kRowsOfLane + LookOf(interval.activity)->row;
}

std::string RowName(int row) {
  constexpr std::array kHost = {"computing", "disk link", "packing"};
  constexpr std::array kDevice = {"device {}", "to device {}", "from device {}"};
  const auto of_lane = static_cast<size_t>(row % kRowsOfLane);
  const int lane = row / kRowsOfLane;
  return lane == 0 ? kHost[of_lane] : fmt::format(fmt::runtime(kDevice[of_lane]), lane - 1);
}

double Seconds(const ActivitySum& sum) { return static_cast<double>(sum.ns) * 1e-9; }

double Rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

// The stretch of time that is plotted: from the middle of what was kept, as long as the plot can
// show.
std::vector<TimelineInterval> PlottedIntervals(const Timeline::Snapshot& timeline) {
  std::vector<TimelineInterval> shown;
  for (const TimelineInterval& interval : timeline.intervals) {
    if (LookOf(interval.activity) != nullptr && interval.end_ns > interval.begin_ns)
      shown.push_back(interval);
  }
  std::sort(shown.begin(), shown.end(),
            [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
  if (shown.size() > kPlottedIntervals) {
    const auto first = shown.begin() + static_cast<int64_t>((shown.size() - kPlottedIntervals) / 2);
    shown = std::vector<TimelineInterval>(first, first + kPlottedIntervals);
  }
  return shown;
}

std::string TimelineSvg(const Timeline::Snapshot& timeline) {
  const std::vector<TimelineInterval> shown = PlottedIntervals(timeline);
  if (shown.empty()) return "<p>Nothing was recorded.</p>";
  const int64_t begin = shown.front().begin_ns;
  int64_t end = begin + 1;
  for (const TimelineInterval& interval : shown) end = std::max(end, interval.end_ns);
  const double scale = kPlotWidth / static_cast<double>(end - begin);
  std::map<int, int> rows;  // those that have something to show, from the top
  for (const TimelineInterval& interval : shown) rows[RowOf(interval)] = 0;
  int next_row = 0;
  for (auto& [number, row] : rows) row = next_row++;
  const double height = next_row * kLaneHeight;
  std::string svg = fmt::format(R"(<svg viewBox="0 0 {} {}" role="img" aria-label="timeline">)",
                                kPlotWidth + 110, height + 40);
  for (const auto& [number, row] : rows) {
    svg +=
        fmt::format(R"(<text x="0" y="{:.0f}">{}</text>)", row * kLaneHeight + 20, RowName(number));
  }
  for (const TimelineInterval& interval : shown) {
    const Look* const look = LookOf(interval.activity);
    const std::string where =
        interval.layer >= 0 ? fmt::format(", layer {}", interval.layer) : std::string();
    svg += fmt::format(
        R"(<rect x="{:.2f}" y="{:.0f}" width="{:.2f}" height="{:.0f}" fill="{}"><title>{}{}: {:.3f} ms</title></rect>)",
        100 + static_cast<double>(interval.begin_ns - begin) * scale,
        rows[RowOf(interval)] * kLaneHeight + 2,
        std::max(0.05, static_cast<double>(interval.end_ns - interval.begin_ns) * scale),
        kLaneHeight - 8, look->color, look->text, where,
        static_cast<double>(interval.end_ns - interval.begin_ns) * 1e-6);
  }
  for (int tick = 0; tick <= 5; ++tick) {
    const double part = tick / 5.0;
    svg += fmt::format(R"(<text x="{:.0f}" y="{:.0f}" class="tick">{:.1f} ms</text>)",
                       100 + part * (kPlotWidth - 40), height + 18,
                       part * static_cast<double>(end - begin) * 1e-6);
  }
  svg += "</svg><p class=\"legend\">";
  for (const Look& look : kLooks) {
    svg += fmt::format(R"(<span><i style="background:{}"></i>{}</span> )", look.color, look.text);
  }
  return svg + "</p>";
}

std::string Row(std::string_view name, const std::string& value) {
  return fmt::format("<tr><td>{}</td><td>{}</td></tr>", Escaped(name), value);
}

std::string Quantity(double value, std::string_view unit) {
  if (unit == "s") return fmt::format("{:.3f} s", value);
  if (unit == "B" || unit == "B/s") {
    return FormatBytes(static_cast<uint64_t>(value)) + (unit == "B" ? "" : "/s");
  }
  return fmt::format("{:.1f}", value);
}

std::string ComparisonTable(const BatchReport& report) {
  const std::vector<Comparison> rows = PlanAgainstRun(report);
  if (rows.empty()) return "";
  std::string html =
      "<h2>Plan against run</h2><table><tr><td></td><td>planned</td><td>measured</td>"
      "<td>measured / planned</td></tr>";
  for (const Comparison& row : rows) {
    html += Row(row.name, fmt::format("{}</td><td>{}</td><td>{}",
                                      row.predicted ? Quantity(*row.predicted, row.unit) : "",
                                      Quantity(row.measured, row.unit),
                                      row.ratio() ? fmt::format("{:.3f}", *row.ratio()) : ""));
  }
  return html + "</table>";
}

std::string ShareRow(const Look& look, const Timeline::Snapshot& timeline, double seconds) {
  const ActivitySum& sum = timeline.sum(look.activity);
  return Row(look.text, fmt::format("{:.2f} s</td><td>{:.1f}%", Seconds(sum),
                                    100 * Rate(Seconds(sum), seconds)));
}

// Links that carry weights: the disk's, or each device's.
double Links(const BatchReport& report) {
  return static_cast<double>(std::max<size_t>(1, report.plan.devices.size()));
}

// Seconds that computing waited for experts while a link rested for as long as it takes for one.
double WaitedWhileResting(const BatchReport& report) {
  const Timeline::Snapshot& timeline = report.timeline;
  const int64_t experts = std::max<int64_t>(1, timeline.sum(Activity::kRead).count);
  const int64_t page_ns = timeline.sum(Activity::kLinkBusy).ns / experts;
  return static_cast<double>(WaitedBesideRestingLink(timeline, page_ns)) * 1e-9;
}

}  // namespace

Json BatchReportJson(const BatchReport& report) {
  const Timeline::Snapshot& timeline = report.timeline;
  const ExpertStats& experts = report.stats.experts;
  const BatchSizes& sizes = report.plan.sizes;
  Json json;
  json["model"] = report.model;
  json["seconds"] = report.seconds;
  json["passes"] = report.stats.steps;
  json["period_s"] = Rate(static_cast<double>(report.stats.total_us) * 1e-6,
                          static_cast<double>(report.stats.steps));
  json["tokens"] = {
      {"prompt", report.prompt_tokens},
      {"output", report.output_tokens},
      {"prefill_computed", report.stats.prefill_tokens},
      {"decode_computed", report.stats.decode_tokens},
      {"output_per_s", Rate(static_cast<double>(report.output_tokens), report.seconds)}};
  json["preemptions"] = report.preemptions;
  json["schedule"] = ScheduleKindName(sizes.schedule);
  json["sizes"] = {{"sequences", sizes.max_num_seqs},
                   {"micro_batches", sizes.micro_batches},
                   {"tokens_per_pass", sizes.max_batch_tokens},
                   {"context_tokens", sizes.max_context_tokens},
                   {"kv_blocks", sizes.num_kv_blocks},
                   {"expert_slots", sizes.expert_slots},
                   {"buffers", sizes.buffers},
                   {"packet_bytes", sizes.packet_bytes}};
  Json ledger = Json::object();
  for (const MemoryItem& entry : report.plan.ledger.items) ledger[entry.name] = entry.bytes;
  json["memory"] = {{"ledger", ledger},
                    {"ledger_bytes", report.plan.ledger.total_bytes()},
                    {"peak_rss_bytes", report.peak_rss_bytes}};
  json["experts"] = {{"resident", experts.hits},
                     {"in_flight", experts.late_hits},
                     {"absent", experts.misses},
                     {"bytes_read", experts.bytes_read},
                     {"read_ahead", experts.prefetched},
                     {"read_ahead_unused", experts.prefetched_unused},
                     {"failed_reads", experts.failed_reads}};
  for (const Activity activity : kComputing) {
    json["busy_s"][ActivityName(activity)] = Seconds(timeline.sum(activity));
  }
  for (const Activity activity : kStalls) {
    json["stalls_s"][ActivityName(activity)] = Seconds(timeline.sum(activity));
  }
  const ActivitySum& link = timeline.sum(Activity::kLinkBusy);
  json["link"] = {{"busy_s", Seconds(link)},
                  {"busy_share", Rate(Seconds(link), Links(report) * report.seconds)},
                  {"nothing_to_read_s", Seconds(timeline.sum(Activity::kLinkIdle))},
                  {"waited_while_resting_s", WaitedWhileResting(report)},
                  {"hidden_in_s", Seconds(timeline.sum(Activity::kHiddenIn))},
                  {"hidden_out_s", Seconds(timeline.sum(Activity::kHiddenOut))},
                  {"pack_s", Seconds(timeline.sum(Activity::kPack))},
                  {"bytes", link.bytes},
                  {"bytes_per_s", Rate(static_cast<double>(link.bytes), Seconds(link))}};
  if (report.plan.execution) {
    json["plan"] = PlanToJson(*report.plan.execution);
    json["plan_against_run"] = Json::array();
    for (const Comparison& row : PlanAgainstRun(report)) {
      Json entry = {{"name", row.name}, {"unit", row.unit}, {"measured", row.measured}};
      entry["predicted"] = row.predicted ? Json(*row.predicted) : Json(nullptr);
      entry["ratio"] = row.ratio() ? Json(*row.ratio()) : Json(nullptr);
      json["plan_against_run"].push_back(std::move(entry));
    }
  }
  return json;
}

std::string BatchReportHtml(const BatchReport& report) {
  const Timeline::Snapshot& timeline = report.timeline;
  const BatchSizes& sizes = report.plan.sizes;
  const ActivitySum& link = timeline.sum(Activity::kLinkBusy);
  std::string html = fmt::format(
      R"(<!doctype html><html lang="en"><meta charset="utf-8"><title>Batch job: {0}</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;max-width:1240px;margin:2em auto;padding:0 1em;color:#222}}
table{{border-collapse:collapse;margin:.5em 2em 1.5em 0}}td{{padding:.1em 1em .1em 0}}td+td{{text-align:right}}
svg{{width:100%;background:#fafafa;border:1px solid #ddd}}svg text{{font-size:14px}}.tick{{fill:#777;font-size:12px}}
.legend span{{white-space:nowrap;margin-right:1em}}.legend i{{display:inline-block;width:.8em;height:.8em;margin-right:.3em}}
.tables{{display:flex;flex-wrap:wrap}}</style>
<h1>Batch job: {0}</h1>)",
      Escaped(report.model));
  html += fmt::format(
      "<p>{} output tokens in {:.1f} s: <b>{:.1f} tokens/s</b>. {} passes of {:.3f} s on "
      "average over at most {} sequences.</p>",
      report.output_tokens, report.seconds,
      Rate(static_cast<double>(report.output_tokens), report.seconds), report.stats.steps,
      Rate(static_cast<double>(report.stats.total_us) * 1e-6,
           static_cast<double>(report.stats.steps)),
      sizes.max_num_seqs);
  html += ComparisonTable(report);
  html += fmt::format("<h2>Timeline</h2><p>A stretch from the middle of the job{}.</p>",
                      timeline.left_out > 0 ? "'s beginning: later intervals were not kept" : "");
  html += TimelineSvg(timeline);
  html += "<div class=\"tables\"><div><h2>Computing thread</h2><table>";
  for (const Look& look : kLooks) {
    if (look.row == kComputeRow) html += ShareRow(look, timeline, report.seconds);
  }
  html += "</table></div><div><h2>Link</h2><table>";
  html += Row("busy", fmt::format("{:.2f} s, {:.1f}%", Seconds(link),
                                  100 * Rate(Seconds(link), Links(report) * report.seconds)));
  html += Row("read", FormatBytes(link.bytes));
  html +=
      Row("rate while busy",
          FormatBytes(static_cast<uint64_t>(Rate(static_cast<double>(link.bytes), Seconds(link)))) +
              "/s");
  html +=
      Row("nothing to read", fmt::format("{:.2f} s", Seconds(timeline.sum(Activity::kLinkIdle))));
  html += Row("waited for while it rested", fmt::format("{:.3f} s", WaitedWhileResting(report)));
  html += Row("packing", fmt::format("{:.2f} s", Seconds(timeline.sum(Activity::kPack))));
  html += "</table></div><div><h2>Memory</h2><table>";
  for (const MemoryItem& entry : report.plan.ledger.items)
    html += Row(entry.name, FormatBytes(entry.bytes));
  html += Row("in all", FormatBytes(report.plan.ledger.total_bytes()));
  html += Row("largest resident size", FormatBytes(report.peak_rss_bytes));
  html += "</table></div><div><h2>Sizes</h2><table>";
  html += Row("schedule", ScheduleKindName(sizes.schedule));
  html += Row("sequences", std::to_string(sizes.max_num_seqs));
  html += Row("groups of them", std::to_string(sizes.micro_batches));
  html += Row("tokens per pass", std::to_string(sizes.max_batch_tokens));
  html += Row("KV blocks", std::to_string(sizes.num_kv_blocks));
  html += Row("resident experts", std::to_string(report.plan.residents()));
  html += Row("buffers", std::to_string(sizes.buffers));
  html += Row("preemptions", std::to_string(report.preemptions));
  return html + "</table></div></div></html>\n";
}

}  // namespace moesaic
