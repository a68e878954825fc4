#include "core/perf/execution_plan.h"

#include <algorithm>

#include "core/base/error.h"

namespace moesaic {
namespace {

Json PhaseToJson(const PhasePrediction& phase) {
  Json json;
  json["components"] = Json::array();
  for (const ComponentTime& component : phase.components) {
    json["components"].push_back({{"name", component.name},
                                  {"resource", ResourceName(component.resource)},
                                  {"seconds_per_layer", component.seconds}});
  }
  for (int r = 0; r < kNumResources; ++r) {
    json["busy_s_per_layer"][ResourceName(static_cast<Resource>(r))] = phase.busy_s[r];
  }
  json["roofline_s_per_layer"] = phase.roofline_s;
  json["period_s_per_layer"] = phase.period_s;
  json["serial_s_per_layer"] = phase.serial_s;
  json["iteration_s"] = phase.iteration_s;
  json["bottleneck"] = ResourceName(phase.bottleneck);
  json["next_bottleneck"] = ResourceName(phase.next_bottleneck);
  json["slack"] = phase.slack;
  return json;
}

Json LensToJson(const LensPrediction& lens) {
  return {{"prompts_per_iteration", lens.prompts_per_iteration},
          {"decode_per_iteration", lens.decode_per_iteration},
          {"tokens_per_iteration", lens.tokens_per_iteration},
          {"regime", lens.kv_bound ? "kv" : "token budget"},
          {"iterations", lens.iterations},
          {"kv_bound_tokens_per_s", lens.kv_bound_tokens_per_s},
          {"compute_bound_tokens_per_s", lens.compute_bound_tokens_per_s},
          {"generated_tokens_per_s", lens.tokens_per_s},
          {"stage1_total_tokens_per_s", lens.stage1_total_tokens_per_s}};
}

Json JobToJson(const JobPrediction& job) {
  return {{"attention_s", job.attention_s}, {"dense_s", job.dense_s},
          {"experts_s", job.experts_s},     {"head_s", job.head_s},
          {"stall_s", job.stall_s},         {"link_busy_s", job.link_busy_s},
          {"hidden_in_s", job.hidden_in_s}, {"hidden_out_s", job.hidden_out_s},
          {"link_bytes", job.link_bytes},   {"passes", job.passes}};
}

Json PredictionToJson(const PlanPrediction& prediction) {
  Json json = {{"wall_s", prediction.wall_s},
               {"prefill_s", prediction.prefill_s},
               {"decode_s", prediction.decode_s},
               {"generated_tokens_per_s", prediction.generated_tokens_per_s},
               {"total_tokens_per_s", prediction.total_tokens_per_s},
               {"iterations", prediction.iterations},
               {"preemptions", prediction.preemptions},
               {"prefill", PhaseToJson(prediction.prefill)},
               {"decode", PhaseToJson(prediction.decode)}};
  if (prediction.lens) json["closed_form"] = LensToJson(*prediction.lens);
  if (prediction.job) json["job"] = JobToJson(*prediction.job);
  return json;
}

Json LedgerToJson(const MemoryLedger& ledger) {
  Json items = Json::array();
  for (const MemoryItem& item : ledger.items) {
    items.push_back({{"name", item.name}, {"bytes", item.bytes}});
  }
  return {{"memory", ledger.memory},
          {"limit_bytes", ledger.limit_bytes},
          {"total_bytes", ledger.total_bytes()},
          {"items", items}};
}

}  // namespace

const char* ScheduleKindName(ScheduleKind kind) { return NameOf(kScheduleKinds, kind); }

ScheduleKind ParseScheduleKind(std::string_view text, std::string_view what) {
  const auto* named = FindNamed(kScheduleKinds, text);
  if (named != nullptr) return named->value;
  Fail(ErrorKind::kInvalidArgument, "{}: expected {}, not '{}'", what,
       OneOfText(NamesOf(kScheduleKinds)), text);
}

const char* ResourceName(Resource resource) {
  switch (resource) {
    case Resource::kDevice:
      return "device";
    case Resource::kLinkIn:
      return "link in";
    case Resource::kLinkOut:
      return "link out";
    case Resource::kCpu:
      return "cpu";
  }
  return "?";
}

const MemoryLedger* ExecutionPlan::Ledger(std::string_view memory) const {
  for (const MemoryLedger& ledger : ledgers) {
    if (ledger.memory == memory) return &ledger;
  }
  return nullptr;
}

Json PlanToJson(const ExecutionPlan& plan) {
  Json json = {{"format", "moesaic-execution-plan"},
               {"version", 1},
               {"model", plan.model},
               {"machine", plan.machine}};
  json["policy"] = {{"schedule", ScheduleKindName(plan.schedule)},
                    {"batch_sequences", plan.batch_sequences},
                    {"micro_batch_sequences", plan.micro_batch_sequences},
                    {"num_micro_batches", plan.num_micro_batches},
                    {"micro_batch_tokens", plan.micro_batch_tokens},
                    {"expert_micro_batch", plan.expert_micro_batch},
                    {"token_budget", plan.token_budget},
                    {"cpu_attention_share", static_cast<double>(plan.cpu_attention_tenths) / 10},
                    {"attention_on_device", plan.attention_on_device},
                    {"ffn_on_device", plan.ffn_on_device},
                    {"dense_resident", plan.dense_resident},
                    {"resident_experts_per_layer", plan.resident_experts},
                    {"expert_buffers", plan.expert_buffers},
                    {"expert_bytes", plan.expert_bytes},
                    {"packet_bytes", plan.packet_bytes},
                    {"kv_block_tokens", plan.kv_block_tokens},
                    {"kv_blocks", plan.kv_blocks},
                    {"kv_block_bytes", plan.kv_block_bytes},
                    {"threads", plan.threads}};
  json["ledgers"] = Json::array();
  for (const MemoryLedger& ledger : plan.ledgers) json["ledgers"].push_back(LedgerToJson(ledger));
  json["prediction"] = PredictionToJson(plan.prediction);
  json["what_if"] = Json::array();
  for (const WhatIf& what_if : plan.what_if) {
    json["what_if"].push_back({{"change", what_if.change},
                               {"generated_tokens_per_s", what_if.throughput},
                               {"gain", what_if.gain}});
  }
  json["constants"] = Json::array();
  for (const NamedConstant& named : plan.constants) {
    json["constants"].push_back({{"name", named.name},
                                 {"value", named.constant.value},
                                 {"unit", named.unit},
                                 {"from", ProvenanceName(named.constant.from)},
                                 {"note", named.constant.note}});
  }
  return json;
}

void SortByGain(std::vector<WhatIf>& answers) {
  std::stable_sort(answers.begin(), answers.end(),
                   [](const WhatIf& a, const WhatIf& b) { return a.gain > b.gain; });
}

}  // namespace moesaic
