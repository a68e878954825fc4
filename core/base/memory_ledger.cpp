#include "core/base/memory_ledger.h"

#include <fmt/format.h>

#include <utility>

#include "core/base/units.h"

namespace moesaic {

void MemoryLedger::Add(std::string name, uint64_t bytes) {
  items.push_back({std::move(name), bytes});
}

void MemoryLedger::Add(const std::vector<MemoryItem>& more) {
  items.insert(items.end(), more.begin(), more.end());
}

uint64_t MemoryLedger::total_bytes() const { return SumOf(items); }

uint64_t MemoryLedger::missing_bytes() const {
  const uint64_t total = total_bytes();
  return total > limit_bytes ? total - limit_bytes : 0;
}

uint64_t MemoryLedger::bytes(std::string_view name) const {
  uint64_t sum = 0;
  for (const MemoryItem& item : items) sum += item.name == name ? item.bytes : 0;
  return sum;
}

uint64_t SumOf(const std::vector<MemoryItem>& items) {
  uint64_t sum = 0;
  for (const MemoryItem& item : items) sum += item.bytes;
  return sum;
}

std::string LedgerLines(const MemoryLedger& ledger) {
  std::string lines;
  for (const MemoryItem& item : ledger.items) {
    lines += fmt::format("\n  {:<22} {:>12}", item.name, FormatBytes(item.bytes));
  }
  return lines;
}

}  // namespace moesaic
