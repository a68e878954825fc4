// What the models of a server need of its memory, found by planning each of them with more and with
// less (serving/online/engine_plan.h); nothing is loaded.
//
// Functions of their arguments; they read the models' files.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/memory_ledger.h"
#include "serving/multi/memory_shares.h"
#include "serving/multi/model_entry.h"
#include "serving/startup/machine.h"

namespace moesaic {

struct ModelNeed {
  MemoryNeed memory;
  uint64_t floor_bytes = 0;  // of experts, that it keeps in any case
  // Models with the same number give each other memory of experts while they run: 0: of what is
  // free in the process, too; another number: of one --expert-memory. -1: it keeps what it has.
  int pool = -1;
  std::vector<MemoryItem> least;  // what the least is made of
};

struct ModelsPlan {
  uint64_t memory_bytes = 0;           // for all models together
  std::vector<ModelNeed> needs;        // [models]
  std::vector<uint64_t> start_shares;  // [models] of those that are loaded at start; else 0
};

// Of the least that the model can be planned with, `min_experts` among it, and of the memory in
// which all its experts fit. `entry` has passed PrepareEntries. Throws as PlanEngine, with the
// entry's place.
ModelNeed NeedOf(const ModelEntry& entry, const Machine& machine);

// Shares the memory of the machine, less `reserved_bytes`: models that are loaded at start get
// theirs now, and leave what the largest of the others needs. An expert-memory in bytes that
// several entries have alike is one pool, of which each gets a part (set here). Throws
// Error(kResourceExhausted) with the ledger of all and what to change when not even the least of
// those at start fits, or that of another one alone. Where there are several, memory of experts
// moves between those that do not have an expert-memory of their own (set here).
ModelsPlan PlanModels(std::vector<ModelEntry>& entries, const Machine& machine,
                      uint64_t reserved_bytes);

// The least of models as one ledger: "id: dense weights".
MemoryLedger LedgerOf(std::span<const ModelEntry> entries, std::span<const ModelNeed> needs,
                      uint64_t limit_bytes);

}  // namespace moesaic
