#include "serving/multi/model_needs.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"
#include "serving/online/engine_plan.h"
#include "serving/online/model_files.h"
#include "serving/startup/machine_options.h"

namespace moesaic {
namespace {

// More than any machine has, and small enough for sums.
constexpr uint64_t kBoundlessBytes = uint64_t{1} << 50;

// A plan of one model with so much memory; nullopt: too little.
class Planner {
 public:
  Planner(const ModelEntry& entry, const Machine& machine)
      : options_(OptionsOnMachine(entry.engine, machine)), files_(OpenModelFiles(options_)) {}

  const ModelFiles& files() const { return files_; }
  EnginePlan PlanBoundless() {
    options_.machine_memory_bytes = kBoundlessBytes;
    return PlanEngine(options_, files_);
  }
  std::optional<EnginePlan> Plan(uint64_t memory_bytes) {
    options_.machine_memory_bytes = memory_bytes;
    try {
      return PlanEngine(options_, files_);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kResourceExhausted) throw;
      return std::nullopt;
    }
  }
  // The smallest memory, to within a mebibyte, in which `enough` holds; at most `most`, in which it
  // does.
  uint64_t Smallest(uint64_t most, const std::function<bool(const EnginePlan&)>& enough) {
    constexpr uint64_t kStep = uint64_t{1} << 20;
    uint64_t too_little = 0;
    while (most - too_little > kStep) {
      const uint64_t middle = too_little + (most - too_little) / 2;
      const std::optional<EnginePlan> plan = Plan(middle);
      (plan && enough(*plan) ? most : too_little) = middle;
    }
    return most;
  }

 private:
  EngineOptions options_;
  ModelFiles files_;
};

uint64_t FloorBytes(const ModelEntry& entry, const EnginePlan& plan) {
  return std::min(entry.min_experts.BytesOf(plan.all_experts_bytes), plan.all_experts_bytes);
}

// An expert-memory in bytes that all entries but those with their own have alike. Returns who they
// are.
std::vector<size_t> SharePool(std::vector<ModelEntry>& entries, const Machine& machine) {
  std::vector<size_t> members;
  const auto is_pool = [](const MemorySize& size) { return !size.is_auto() && !size.is_share(); };
  for (size_t i = 0; i < entries.size(); ++i) {
    const MemorySize& size = entries[i].engine.expert_memory;
    const bool shared = std::count_if(entries.begin(), entries.end(), [&](const ModelEntry& other) {
                          return other.engine.expert_memory == size;
                        }) > 1;
    if (is_pool(size) && shared) members.push_back(i);
  }
  if (members.empty()) return members;
  const MemorySize pool = entries[members.front()].engine.expert_memory;
  std::erase_if(members, [&](size_t i) { return !(entries[i].engine.expert_memory == pool); });
  std::vector<MemoryNeed> needs;
  std::string floors;
  for (const size_t i : members) {
    ModelEntry& entry = entries[i];
    entry.engine.expert_memory = MemorySize();
    const EnginePlan plan = AtPlace(entry, [&] { return Planner(entry, machine).PlanBoundless(); });
    needs.push_back({std::max(FloorBytes(entry, plan), plan.slot_bytes), plan.all_experts_bytes});
    floors += fmt::format("\n  {}: {} of {}", entry.id, FormatBytes(needs.back().least_bytes),
                          FormatBytes(needs.back().most_bytes));
  }
  const uint64_t bytes = pool.BytesOf(0);
  const std::vector<uint64_t> shares = ShareMemory(bytes, needs);
  if (shares.empty()) {
    Fail(ErrorKind::kResourceExhausted,
         "--expert-memory {}: is less than the models keep in any case (min-experts); raise it, or "
         "lower min-experts of some{}",
         pool.text(), floors);
  }
  for (size_t m = 0; m < members.size(); ++m) {
    const uint64_t share = std::min(shares[m], needs[m].most_bytes);
    entries[members[m]].engine.expert_memory = MemorySize(std::to_string(share));
    entries[members[m]].engine.most_expert_bytes = bytes;
  }
  return members;
}

}  // namespace

ModelNeed NeedOf(const ModelEntry& entry, const Machine& machine) {
  return AtPlace(entry, [&] {
    Planner planner(entry, machine);
    const EnginePlan roomy = planner.PlanBoundless();
    // What was given is what it gets, whatever it would keep.
    const uint64_t floor_bytes =
        entry.engine.expert_memory.is_auto() ? FloorBytes(entry, roomy) : roomy.expert_budget_bytes;
    ModelNeed need;
    need.floor_bytes = std::min(FloorBytes(entry, roomy), floor_bytes);
    const uint64_t whole_bytes = roomy.ledger.total_bytes() * 2;
    need.memory.least_bytes = planner.Smallest(whole_bytes, [&](const EnginePlan& plan) {
      return plan.expert_budget_bytes >= floor_bytes;
    });
    need.memory.most_bytes = planner.Smallest(whole_bytes, [&](const EnginePlan& plan) {
      return plan.expert_budget_bytes >= roomy.expert_budget_bytes;
    });
    need.memory.most_bytes = std::max(need.memory.most_bytes, need.memory.least_bytes);
    if (const auto least = planner.Plan(need.memory.least_bytes)) need.least = least->ledger.items;
    return need;
  });
}

MemoryLedger LedgerOf(std::span<const ModelEntry> entries, std::span<const ModelNeed> needs,
                      uint64_t limit_bytes) {
  MemoryLedger ledger;
  ledger.limit_bytes = limit_bytes;
  for (size_t i = 0; i < entries.size(); ++i) {
    for (const MemoryItem& item : needs[i].least) {
      ledger.Add(fmt::format("{}: {}", entries[i].id, item.name), item.bytes);
    }
  }
  return ledger;
}

ModelsPlan PlanModels(std::vector<ModelEntry>& entries, const Machine& machine,
                      uint64_t reserved_bytes) {
  ModelsPlan plan;
  const uint64_t limit_bytes = MemoryLimitBytes(entries.front().engine.machine, machine.topology);
  plan.memory_bytes = limit_bytes - std::min(limit_bytes, reserved_bytes);
  std::vector<int> pools;
  pools.reserve(entries.size());
  for (ModelEntry& entry : entries) {
    const bool moves = entries.size() > 1 && entry.engine.expert_memory.is_auto();
    if (moves) entry.engine.most_expert_bytes = entry.engine.most_kv_bytes = plan.memory_bytes;
    pools.push_back(moves ? 0 : -1);
  }
  for (const size_t member : SharePool(entries, machine)) pools[member] = 1;
  std::vector<MemoryNeed> at_start;
  std::vector<ModelEntry> start_entries;
  std::vector<ModelNeed> start_needs;
  uint64_t largest_later = 0;
  for (const ModelEntry& entry : entries) {
    ModelNeed& need = plan.needs.emplace_back(NeedOf(entry, machine));
    need.pool = pools[plan.needs.size() - 1];
    if (entry.load == LoadTime::kStart) {
      at_start.push_back(need.memory);
      start_entries.push_back(entry);
      start_needs.push_back(need);
      continue;
    }
    largest_later = std::max(largest_later, need.memory.least_bytes);
    if (need.memory.least_bytes <= plan.memory_bytes) continue;
    Fail(
        ErrorKind::kResourceExhausted,
        "{}: '{}' needs {} at least but the models of this process may use {} (--memory, or what "
        "the machine or its control group has): it could never be loaded; raise --memory, or lower "
        "its min-experts, expert-memory, kv-memory or max-model-len{}",
        entry.place, entry.id, FormatBytes(need.memory.least_bytes), FormatBytes(plan.memory_bytes),
        LedgerLines(LedgerOf({&entry, 1}, {&need, 1}, 0)));
  }
  uint64_t least_bytes = 0;
  for (const MemoryNeed& need : at_start) least_bytes += need.least_bytes;
  const uint64_t spare = plan.memory_bytes - std::min(plan.memory_bytes, least_bytes);
  const std::vector<uint64_t> shares =
      ShareMemory(plan.memory_bytes - std::min(spare, largest_later), at_start);
  if (shares.empty() && !at_start.empty()) {
    Fail(ErrorKind::kResourceExhausted,
         "the models that are loaded at start need {} at least but this process may use {} for "
         "them (--memory, or what the machine or its control group has): {} are missing; raise "
         "--memory, give some of them `load: demand` in the --models file, or lower min-experts, "
         "kv-memory or max-model-len{}",
         FormatBytes(least_bytes), FormatBytes(plan.memory_bytes),
         FormatBytes(least_bytes - plan.memory_bytes),
         LedgerLines(LedgerOf(start_entries, start_needs, plan.memory_bytes)));
  }
  size_t next = 0;
  for (const ModelEntry& entry : entries) {
    plan.start_shares.push_back(entry.load == LoadTime::kStart ? shares[next++] : 0);
  }
  return plan;
}

}  // namespace moesaic
