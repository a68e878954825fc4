// MemoryLedger: what is taken of one memory, item by item, in whole bytes: of host memory or of a
// device, by an engine of either mode or by a plan for another machine.
//
// Plain data.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

struct MemoryItem {
  std::string name;  // "dense weights"
  uint64_t bytes = 0;
};

struct MemoryLedger {
  std::string memory = "host";        // whose: "host", "device"
  uint64_t limit_bytes = UINT64_MAX;  // that may be taken; UINT64_MAX: no limit
  std::vector<MemoryItem> items = {};

  void Add(std::string name, uint64_t bytes);
  void Add(const std::vector<MemoryItem>& more);

  uint64_t total_bytes() const;
  uint64_t missing_bytes() const;  // 0: it fits
  bool fits() const { return missing_bytes() == 0; }
  // Of the items of this name; 0 when there is none.
  uint64_t bytes(std::string_view name) const;
};

uint64_t SumOf(const std::vector<MemoryItem>& items);

// A line for each item, with a line break before it, for messages.
std::string LedgerLines(const MemoryLedger& ledger);

}  // namespace moesaic
