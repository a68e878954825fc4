#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include "core/io/checkpoint.h"
#include "serving/cli/commands.h"
#include "serving/cli/model_summary.h"
#include "serving/cli/output.h"
#include "serving/startup/machine_options.h"

namespace moesaic {
namespace {

// One setting of --expert-memory and what it comes to.
struct Fit {
  std::string setting;
  std::optional<EnginePlan> plan;  // empty when it does not fit
  std::string problem;
};

std::vector<Fit> TryBudgets(const EngineOptions& base) {
  const std::string& asked = base.expert_memory.text();
  std::vector<std::string> settings = {"100%", "75%", "50%", "25%", "10%", "5%"};
  if (asked != "auto" && std::find(settings.begin(), settings.end(), asked) == settings.end()) {
    settings.insert(settings.begin(), asked);
  }
  settings.insert(settings.begin(), "auto");
  if (base.devices.count > 0) settings = {asked};  // all experts live in host memory then
  const ModelFiles files = OpenModelFilesToPlan(base);
  std::vector<Fit> fits;
  for (const std::string& setting : settings) {
    EngineOptions options = base;
    options.expert_memory = setting;
    Fit fit{setting, std::nullopt, ""};
    try {
      fit.plan = PlanEngine(options, files);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kResourceExhausted) throw;
      fit.problem = error.what();
    }
    fits.push_back(std::move(fit));
  }
  return fits;
}

std::string FitTable(const std::vector<Fit>& fits, const ModelSummary& model) {
  TextTable table("<>>>><");
  table.Add({"--expert-memory", "experts", "in memory", "of each layer", "total memory", ""});
  for (const Fit& fit : fits) {
    if (!fit.plan) {
      table.Add({fit.setting, "", "", "", "", "does not fit"});
      continue;
    }
    const EnginePlan& plan = *fit.plan;
    const auto layers = static_cast<double>(model.config.num_sparse_layers());
    const bool all = plan.expert_slots >= static_cast<int64_t>(model.num_experts());
    table.Add({fit.setting, FormatBytes(plan.expert_budget_bytes),
               fmt::format("{} of {}", plan.expert_slots, model.num_experts()),
               fmt::format("{:.1f} of {}", static_cast<double>(plan.expert_slots) / layers,
                           model.config.num_experts()),
               FormatBytes(plan.ledger.total_bytes()), all ? "all experts, no reading" : ""});
  }
  return table.Render();
}

Json FitsToJson(const std::vector<Fit>& fits) {
  Json rows = Json::array();
  for (const Fit& fit : fits) {
    Json row = {{"expert_memory", fit.setting}, {"fits", fit.plan.has_value()}};
    if (fit.plan) {
      row["expert_budget_bytes"] = fit.plan->expert_budget_bytes;
      row["expert_slots"] = fit.plan->expert_slots;
      row["max_context_tokens"] = fit.plan->max_context_tokens;
      row["total_bytes"] = fit.plan->ledger.total_bytes();
      Json ledger;
      for (const MemoryItem& entry : fit.plan->ledger.items) ledger[entry.name] = entry.bytes;
      row["ledger"] = ledger;
      if (fit.plan->share != ShareRole::kNone) {
        row["shared_experts"] = fit.plan->share == ShareRole::kFills ? "filled" : "read";
      }
      if (!fit.plan->devices.empty()) row["dense_devices"] = fit.plan->dense_devices;
      for (const DevicePlan& device : fit.plan->devices) {
        Json memory = {{"experts", device.experts}, {"slots", device.slots}};
        for (const MemoryItem& entry : device.ledger.items)
          memory["ledger"][entry.name] = entry.bytes;
        row["devices"].push_back(memory);
      }
    } else {
      row["problem"] = fit.problem;
    }
    rows.push_back(row);
  }
  return rows;
}

// The rules in force, those of flags first, and what each one comes to.
std::string RulesText(const Placement& placement) {
  TextTable table("<<>>");
  table.Add({"rule", "from", "modules", "experts"});
  const auto of = [](int64_t decided, int64_t matched) {
    return matched == 0         ? std::string("-")
           : decided == matched ? fmt::format("{}", matched)
                                : fmt::format("{} of {}", decided, matched);
  };
  for (size_t r = 0; r < placement.rules().size(); ++r) {
    const PlacementRule& rule = placement.rules()[r];
    const Placement::Extent& extent = placement.extent(r);
    table.Add({rule.text, rule.origin, of(extent.modules_decided, extent.modules),
               of(extent.experts_decided, extent.experts)});
  }
  return "\nPlacement (of what a rule matches, what no later one does)\n" + table.Render();
}

Json RulesToJson(const Placement& placement) {
  Json rows = Json::array();
  for (size_t r = 0; r < placement.rules().size(); ++r) {
    const Placement::Extent& extent = placement.extent(r);
    rows.push_back({{"rule", placement.rules()[r].text},
                    {"from", placement.rules()[r].origin},
                    {"modules", extent.modules_decided},
                    {"modules_matched", extent.modules},
                    {"experts", extent.experts_decided},
                    {"experts_matched", extent.experts}});
  }
  return rows;
}

std::string LedgerText(const Fit& fit, const std::string& share) {
  if (!fit.plan) return "";
  std::string out = fmt::format("\nMemory at --expert-memory {}\n", fit.setting);
  TextTable table("<>");
  for (const MemoryItem& entry : fit.plan->ledger.items) {
    table.Add({entry.name, FormatBytes(entry.bytes)});
  }
  table.Add({"total", FormatBytes(fit.plan->ledger.total_bytes())});
  for (size_t d = 0; d < fit.plan->devices.size(); ++d) {
    const DevicePlan& device = fit.plan->devices[d];
    for (const MemoryItem& entry : device.ledger.items) {
      table.Add({fmt::format("device {}, {}", d, entry.name), FormatBytes(entry.bytes)});
    }
  }
  out += table.Render();
  if (fit.plan->share == ShareRole::kFills) {
    out += fmt::format(
        "  experts are shared as {}: this process counts them, another one that starts beside it "
        "counts a few of its own\n",
        share);
  } else if (fit.plan->share == ShareRole::kReads) {
    out += fmt::format(
        "  experts are shared as {}: a running process fills and counts their memory\n", share);
  }
  if (!fit.plan->why_dense_on_host.empty()) {
    out += fmt::format("  dense part on the CPU: {}\n", fit.plan->why_dense_on_host);
  }
  return out + fmt::format("  longest context: {} tokens\n", fit.plan->max_context_tokens);
}

}  // namespace

int ShowCommand(const Invocation& invocation) {
  CommandLine line(
      {"show",
       "MODEL",
       "Describe a model: architecture, parameters, bytes of its parts, and which memory "
       "settings fit this machine. Reads config.json (or a GGUF file's metadata) and the headers "
       "of "
       "the checkpoint only; without weights the sizes come from config.json.",
       {"moesaic show models/sample", "moesaic show Qwen/Qwen3-30B-A3B --memory 16GiB"}});
  Settings settings;
  bool json = false;
  line.table().Add({"json", &json, "", "Print everything as JSON.", "Output"});
  line.UseSettings(settings, {true, false});
  if (!line.Parse(invocation)) return 0;
  std::vector<std::string> positionals = line.positionals();
  line.RequireAtMost(line.GivenAsFlag("model") ? 0 : 1);
  TakeModel(line, settings.engine, positionals);

  const Machine machine = ReadMachine(invocation.environment);
  const Topology& topology = machine.topology;
  const EngineOptions options = OptionsOnMachine(settings.engine, machine);
  const ModelSummary model = SummariseModel(options);
  const Placement placement(model.config, PlacementRulesOf(options));
  const std::vector<Fit> fits = TryBudgets(options);
  const Fit* asked = nullptr;
  for (const Fit& fit : fits) {
    if (fit.setting == options.expert_memory.text()) asked = &fit;
  }

  if (json) {
    Json root = ModelSummaryJson(model);
    root["machine"] = {{"memory_total_bytes", topology.memory_total_bytes},
                       {"memory_usable_bytes", topology.usable_memory_bytes()},
                       {"memory_limit_bytes", options.machine_memory_bytes},
                       {"threads", options.threads}};
    root["expert_memory"] = FitsToJson(fits);
    if (!placement.rules().empty()) root["placement"] = RulesToJson(placement);
    WriteOut(root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return 0;
  }
  WriteOut(ModelSummaryText(model));
  Print("\nOn this machine ({} may be used of {})\n{}", FormatBytes(options.machine_memory_bytes),
        FormatBytes(topology.memory_total_bytes), FitTable(fits, model));
  if (asked != nullptr) WriteOut(LedgerText(*asked, options.share_experts));
  if (!placement.rules().empty()) WriteOut(RulesText(placement));
  return 0;
}

}  // namespace moesaic
