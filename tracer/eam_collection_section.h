// The part of a state file that holds a collection of EAMs: for one learned so far, or for one read
// from a file that `moesaic trace compact` wrote.
//
// Borrows the collection; thread contract of StateSection.
#pragma once

#include "tracer/eam_collection.h"
#include "tracer/state_section.h"

namespace moesaic {

class EamCollectionSection : public StateSection {
 public:
  explicit EamCollectionSection(EamCollection& collection) : collection_(collection) {}

  std::string_view name() const override { return "eam-collection"; }
  uint32_t version() const override { return 1; }
  std::vector<std::byte> Save() const override;
  // Replaces what the collection holds. It may have more layers than the stored one (a trace does
  // not know of dense layers after the last one with experts). Entries beyond the capacity replace
  // their nearest neighbours.
  void Load(uint32_t version, std::span<const std::byte> bytes) override;

 private:
  EamCollection& collection_;
};

}  // namespace moesaic
