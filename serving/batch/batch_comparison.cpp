// PlanAgainstRun: the quantities that a plan predicts beside what the run measured.
#include <algorithm>

#include "serving/batch/batch_report.h"

namespace moesaic {

std::optional<double> Comparison::ratio() const {
  if (!predicted || *predicted <= 0) return std::nullopt;
  return measured / *predicted;
}

std::vector<Comparison> PlanAgainstRun(const BatchReport& report) {
  if (!report.plan.execution || !report.plan.execution->prediction.job) return {};
  const PlanPrediction& prediction = report.plan.execution->prediction;
  const JobPrediction& job = *prediction.job;
  const StepStats& stats = report.stats;
  const auto spent = [&](Activity activity) {
    return static_cast<double>(report.timeline.sum(activity).ns) * 1e-9;
  };
  const auto rate = [](double amount, double seconds) {
    return seconds > 0 ? amount / seconds : 0;
  };
  // Without a device there are no such copies.
  const auto of_device = [&](double predicted) {
    return report.plan.devices.empty() ? std::nullopt : std::optional(predicted);
  };
  const double attention_s = static_cast<double>(stats.attention_us) * 1e-6;
  const auto passes = static_cast<double>(stats.steps);
  const auto bytes = static_cast<double>(stats.experts.bytes_read);
  return {
      {"job", "s", prediction.wall_s, report.seconds},
      {"generated tokens per second", "1/s", prediction.generated_tokens_per_s,
       rate(static_cast<double>(report.output_tokens), report.seconds)},
      {"passes", "", job.passes, passes},
      {"period of a pass", "s", rate(prediction.wall_s, job.passes), rate(report.seconds, passes)},
      {"attention", "s", job.attention_s, attention_s},
      {"router and other dense parts", "s", job.dense_s,
       std::max(0.0, spent(Activity::kDense) + spent(Activity::kAttention) - attention_s)},
      {"experts", "s", job.experts_s, spent(Activity::kExperts)},
      {"logits and sampling", "s", job.head_s, spent(Activity::kHead)},
      {"waiting for experts", "s", job.stall_s,
       spent(Activity::kStallRead) + spent(Activity::kStallQueue) + spent(Activity::kStallPack)},
      {"of it: read under way", "s", std::nullopt, spent(Activity::kStallRead)},
      {"of it: read not begun", "s", std::nullopt, spent(Activity::kStallQueue)},
      {"of it: packing", "s", std::nullopt, spent(Activity::kStallPack)},
      {"waking up", "s", std::nullopt, spent(Activity::kWakeUp)},
      {"between passes", "s", std::nullopt, spent(Activity::kBetween)},
      {"link busy", "s", job.link_busy_s, spent(Activity::kLinkBusy)},
      {"attention outputs to the device", "s", of_device(job.hidden_in_s),
       spent(Activity::kHiddenIn)},
      {"queries, keys and values to the host", "s", of_device(job.hidden_out_s),
       spent(Activity::kHiddenOut)},
      {"expert bytes read", "B", job.link_bytes, bytes},
      {"link rate while busy", "B/s", rate(job.link_bytes, job.link_busy_s),
       rate(bytes, spent(Activity::kLinkBusy))},
      {"preemptions", "", static_cast<double>(prediction.preemptions),
       static_cast<double>(report.preemptions)},
      {"memory", "B", static_cast<double>(report.plan.ledger.total_bytes()),
       static_cast<double>(report.peak_rss_bytes)}};
}

}  // namespace moesaic
