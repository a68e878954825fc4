#include "serving/cli/plan_report.h"

#include <fmt/format.h>

#include "core/base/units.h"
#include "serving/cli/output.h"

namespace moesaic {
namespace {

std::string MillisecondsText(double seconds) { return fmt::format("{:.3f} ms", seconds * 1e3); }

const char* Name(Resource resource, bool has_gpu) {
  if (has_gpu) return ResourceName(resource);
  return resource == Resource::kLinkIn ? "disk" : "cpu";
}

// Prefill attends where the projections run.
std::string Name(const ComponentTime& component, bool has_gpu) {
  return !has_gpu && component.name == "device attention" ? "prefill attention" : component.name;
}

std::string PolicyText(const ExecutionPlan& plan, bool has_gpu) {
  TextTable table("<<");
  table.Add({"schedule", ScheduleKindName(plan.schedule)});
  table.Add({"batch", fmt::format("{} sequences in {} micro-batch{} of {}", plan.batch_sequences,
                                  plan.num_micro_batches, plan.num_micro_batches == 1 ? "" : "es",
                                  plan.micro_batch_sequences)});
  table.Add({"prefill", fmt::format("{} tokens at once, {} at a time", plan.token_budget,
                                    plan.micro_batch_tokens)});
  table.Add({"expert micro-batch", fmt::format("{} tokens", plan.expert_micro_batch)});
  if (has_gpu) {
    table.Add({"decode attention", fmt::format("{}% on the CPU", 10 * plan.cpu_attention_tenths)});
    table.Add({"dense weights", plan.dense_resident ? "on the device" : "streamed by layer"});
  }
  table.Add(
      {"experts", fmt::format("{} of each layer resident, {} buffers of {}", plan.resident_experts,
                              plan.expert_buffers, FormatBytes(plan.expert_bytes))});
  table.Add(
      {"keys and values", fmt::format("{} blocks of {} tokens, {} each", plan.kv_blocks,
                                      plan.kv_block_tokens, FormatBytes(plan.kv_block_bytes))});
  table.Add({"copies", fmt::format("in packets of {}", FormatBytes(plan.packet_bytes))});
  table.Add({"threads", fmt::format("{}", plan.threads)});
  return "Plan\n" + table.Render();
}

std::string LedgerText(const MemoryLedger& ledger) {
  TextTable table("<>");
  for (const MemoryItem& item : ledger.items) table.Add({item.name, FormatBytes(item.bytes)});
  table.Add({"total", FormatBytes(ledger.total_bytes())});
  table.Add({"may be used", FormatBytes(ledger.limit_bytes)});
  return fmt::format("\nMemory of the {}\n{}", ledger.memory, table.Render());
}

std::string PhaseText(const char* title, const PhasePrediction& phase, bool has_gpu) {
  std::string out = fmt::format("\n{}, per layer\n", title);
  TextTable table("<<>>");
  for (const ComponentTime& component : phase.components) {
    table.Add({Name(component, has_gpu), Name(component.resource, has_gpu),
               MillisecondsText(component.seconds),
               phase.period_s > 0 ? fmt::format("{:.0f}%", 100 * component.seconds / phase.period_s)
                                  : ""});
  }
  table.Add({"period", "", MillisecondsText(phase.period_s), ""});
  out += table.Render();
  out += fmt::format("  between {} (every part alone) and {} (nothing overlaps); iteration {}\n",
                     MillisecondsText(phase.roofline_s), MillisecondsText(phase.serial_s),
                     FormatDuration(phase.iteration_s));
  out += fmt::format("  bottleneck: {}; next: {}, with {:.0f}% slack\n",
                     Name(phase.bottleneck, has_gpu), Name(phase.next_bottleneck, has_gpu),
                     100 * phase.slack);
  return out;
}

}  // namespace

std::string PlanReport(const ExecutionPlan& plan, const Workload& workload, bool has_gpu) {
  const PlanPrediction& prediction = plan.prediction;
  std::string out = fmt::format("{} on {}\n{}\n\n", plan.model, plan.machine, workload.source);
  out += PolicyText(plan, has_gpu);
  for (const MemoryLedger& ledger : plan.ledgers) out += LedgerText(ledger);

  const bool overlapped = plan.schedule == ScheduleKind::kOverlapped;
  out += PhaseText("Prefill", prediction.prefill, has_gpu);
  out += PhaseText(overlapped ? "Decode with prefill" : "Decode", prediction.decode, has_gpu);

  out += "\nPrediction\n";
  TextTable table("<>");
  table.Add({"wall time", FormatDuration(prediction.wall_s)});
  table.Add(
      {overlapped ? "of it prefill alone" : "of it prefill", FormatDuration(prediction.prefill_s)});
  table.Add({"generated", fmt::format("{:.1f} tokens/s", prediction.generated_tokens_per_s)});
  table.Add({"with prompts", fmt::format("{:.1f} tokens/s", prediction.total_tokens_per_s)});
  table.Add({"iterations", fmt::format("{}", prediction.iterations)});
  if (overlapped) table.Add({"preemptions", fmt::format("{}", prediction.preemptions)});
  if (prediction.lens) {
    table.Add({"closed form",
               fmt::format("{:.1f} tokens/s, bound by {}", prediction.lens->tokens_per_s,
                           prediction.lens->kv_bound ? "keys and values" : "the token budget")});
  }
  out += table.Render();

  if (!plan.what_if.empty()) {
    out += "\nWhat would help (each plan made anew)\n";
    TextTable what_if("<>>");
    for (const WhatIf& answer : plan.what_if) {
      what_if.Add({answer.change, fmt::format("{:.1f} tokens/s", answer.throughput),
                   fmt::format("{:+.1f}%", 100 * answer.gain)});
    }
    out += what_if.Render();
    out += "  Requests help while they join a batch, and cost where they begin another one.\n";
  }

  out += "\nConstants\n";
  TextTable constants("<><<");
  for (const NamedConstant& named : plan.constants) {
    constants.Add({named.name, fmt::format("{:.4g} {}", named.constant.value, named.unit),
                   ProvenanceName(named.constant.from), named.constant.note});
  }
  return out + constants.Render();
}

}  // namespace moesaic
