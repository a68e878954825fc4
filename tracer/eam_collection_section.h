// The part of a state file that holds a collection of EAMs: for one learned so far, or for one read
// from a file that `moesaic trace compact` wrote.
//
// Borrows the collection; thread contract of StateSection.
#pragma once

#include <vector>

#include "tracer/eam_collection.h"
#include "tracer/state_section.h"

namespace moesaic {

class EamCollectionSection : public StateSection {
 public:
  explicit EamCollectionSection(EamCollection& collection) : collection_(collection) {}

  static constexpr std::string_view kName = "eam-collection";

  std::string_view name() const override { return kName; }
  uint32_t version() const override { return 1; }
  std::vector<std::byte> Save() const override;
  // Replaces what the collection holds. It may have more layers than the stored one (a trace does
  // not know of dense layers after the last one with experts). Entries beyond the capacity replace
  // their nearest neighbours.
  void Load(uint32_t version, std::span<const std::byte> bytes) override;
  // The same beside what the collection holds.
  void Merge(uint32_t version, std::span<const std::byte> bytes);

 private:
  // What Save wrote, checked.
  struct Stored {
    std::vector<uint8_t> counts;  // [entries, its layers, num_experts]
    std::vector<float> scales;    // [entries]
    size_t cells = 0;             // of an entry
  };
  Stored Parse(uint32_t stored_version, std::span<const std::byte> bytes) const;
  void Append(const Stored& stored);

  EamCollection& collection_;
};

}  // namespace moesaic
