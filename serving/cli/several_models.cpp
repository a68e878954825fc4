#include "serving/cli/several_models.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "core/base/allocator.h"
#include "core/base/error.h"
#include "core/base/logging.h"
#include "core/base/units.h"
#include "serving/cli/serving_setup.h"
#include "serving/multi/model_needs.h"
#include "serving/multi/models_file.h"
#include "serving/online/engine_plan.h"

namespace moesaic {
namespace {

void Refuse(bool given, const char* what, const char* instead) {
  if (given) Fail(ErrorKind::kInvalidArgument, "{} with several models: {}", what, instead);
}

ModelRegistry::Model RegistryModel(const ModelEntry& entry, const ModelNeed& need,
                                   uint64_t start_bytes) {
  ModelRegistry::Model model;
  model.names = entry.names();
  model.rules.need = need.memory;
  model.rules.pin = entry.pin;
  model.rules.may_leave = entry.load == LoadTime::kDemand;
  if (entry.idle_unload.count() > 0) {
    model.rules.idle_ns = std::chrono::nanoseconds(entry.idle_unload).count();
  }
  model.start_bytes = start_bytes;
  model.least = need.least;
  model.experts = {need.pool, need.floor_bytes};
  return model;
}

}  // namespace

std::vector<ModelEntry> TakeSeveralModels(const CommandLine& line, const Settings& settings) {
  std::vector<ModelEntry> entries;
  if (!settings.server.models_file.empty()) {
    Refuse(!line.positionals().empty() || line.GivenAsFlag("model"), "--models and a model",
           "name it in the file");
    entries = ReadModelsFile(settings.server.models_file, settings.engine, settings.chat);
  } else if (line.positionals().size() > 1 && !line.GivenAsFlag("model")) {
    entries = EntriesOf(line.positionals(), settings.engine, settings.chat);
  }
  if (entries.empty()) return entries;
  Refuse(!settings.server.served_model_names.empty(), "--served-model-name",
         "give `id` and `aliases` in the --models file");
  PrepareEntries(entries);
  return entries;
}

SeveralModels::SeveralModels(std::vector<ModelEntry> entries, const Machine& machine,
                             MetricsRegistry& metrics)
    : entries_(std::move(entries)), machine_(machine), all_metrics_(metrics) {
  for (const ModelEntry& entry : entries_) {
    metrics_.push_back(std::make_unique<MetricsRegistry>(
        metrics, entries_.size() > 1 ? MetricLabels{{"model_name", entry.id}} : MetricLabels{}));
  }
}

void SeveralModels::Start(Server& server, uint64_t reserved_bytes) {
  UseFewArenas();
  const ModelsPlan plan = PlanModels(entries_, machine_, reserved_bytes);
  std::vector<ModelRegistry::Model> models;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const MemoryNeed& need = plan.needs[i].memory;
    LogInfo("{}: {} of {}; it needs {} at least, {} with all experts", entries_[i].id,
            plan.start_shares[i] > 0 ? FormatBytes(plan.start_shares[i]) : "on demand",
            FormatBytes(plan.memory_bytes), FormatBytes(need.least_bytes),
            FormatBytes(need.most_bytes));
    models.push_back(RegistryModel(entries_[i], plan.needs[i], plan.start_shares[i]));
  }
  Gauge& memory = all_metrics_.GetGauge(
      "moe_memory_ledger_bytes",
      "Memory that models have by their ledgers, those that are being loaded or unloaded among "
      "them, and requests that are read: what the process should have at most");
  // Without a model there is the process.
  const auto show_memory = [&memory, reserved_bytes](uint64_t bytes) {
    memory.Set(static_cast<double>(reserved_bytes + std::max(bytes, kProcessBytes)));
  };
  show_memory(0);
  registry_ = std::make_unique<ModelRegistry>(
      plan.memory_bytes, std::move(models),
      [this](size_t model, uint64_t bytes, const ModelRegistry::Loading& loading) {
        return Load(model, bytes, loading);
      },
      [&server](std::vector<ServedModel> now) { server.SetModels(std::move(now)); },
      [this](const ExpertPools& pools) { ShowPools(pools); }, show_memory);
  server.SetManager(registry_.get());
  registry_->Start();
  registry_->WaitStarted(std::chrono::steady_clock::time_point::max());
  if (const auto why = registry_->WhyNone()) {
    Fail(ErrorKind::kUnavailable, "no model could be loaded; the first: {}", *why);
  }
}

void SeveralModels::ShowPools(const ExpertPools& pools) {
  if (entries_.size() < 2) return;
  shown_.resize(entries_.size());
  constexpr const char* kMoved =
      "Memory of experts that moved between models while they ran, by direction";
  constexpr const char* kKvMoved =
      "Memory of keys and values that moved while models ran, by direction";
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (!pools.Moves(i)) continue;
    const ExpertPools::Held& held = pools.held(i);
    MetricsRegistry& metrics = *metrics_[i];
    metrics.GetGauge("moe_expert_memory_bytes", "Memory of experts that a model has now")
        .Set(static_cast<double>(held.expert_bytes));
    metrics
        .GetGauge("moe_expert_memory_gain_ratio",
                  "Seconds of waiting that a GiB more for experts would save a second")
        .Set(held.gain);
    const auto add = [&](const char* name, const char* help, const char* direction, uint64_t now,
                         uint64_t& before) {
      // A model that was loaded anew counts from 0.
      metrics.GetCounter(name, help, {{"direction", direction}})
          .Add(static_cast<double>(now >= before ? now - before : now));
      before = now;
    };
    const auto count = [&](const char* direction, uint64_t now, uint64_t& before) {
      add("moe_expert_memory_moved_bytes_total", kMoved, direction, now, before);
    };
    const auto count_kv = [&](const char* direction, uint64_t now, uint64_t& before) {
      add("moe_kv_memory_moved_bytes_total", kKvMoved, direction, now, before);
    };
    count("taken", held.taken_bytes, shown_[i].taken_bytes);
    count("given", held.given_bytes, shown_[i].given_bytes);
    if (held.kv_bytes == 0) continue;
    metrics.GetGauge("moe_kv_memory_bytes", "Memory of keys and values that a model has now")
        .Set(static_cast<double>(held.kv_bytes));
    count_kv("taken", held.kv_taken_bytes, shown_[i].kv_taken_bytes);
    count_kv("given", held.kv_given_bytes, shown_[i].kv_given_bytes);
  }
  all_metrics_
      .GetGauge("moe_expert_memory_fragment_bytes",
                "Memory of experts that no model has, less than moves at a time")
      .Set(static_cast<double>(pools.fragment_bytes()));
}

ServedModel SeveralModels::Load(size_t model, uint64_t bytes,
                                const ModelRegistry::Loading& loading) {
  const ModelEntry& entry = entries_[model];
  EngineOptions options = entry.engine;
  options.machine.memory = MemorySize(std::to_string(bytes));
  AmongOthers others;
  others.hold = loading.hold;
  others.on_progress = loading.on_progress;
  if (entries_.size() > 1) others.turn = turns_->Join(entry.priority);
  return LoadModel(options, entry.chat, machine_, *metrics_[model], others).model;
}

}  // namespace moesaic
