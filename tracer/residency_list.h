// ResidencyList: which experts a cache held, the most worthy first, so that a restarted process
// loads those before the first request. Plain data, and its part of a state file.
#pragma once

#include <vector>

#include "core/base/expert_id.h"
#include "tracer/state_section.h"

namespace moesaic {

struct ResidentExpert {
  ExpertId id;      // model is 0: a state file is about one model
  float worth = 0;  // on whatever scale the cache has
};

struct ResidencyList {
  std::vector<ResidentExpert> experts;  // by descending worth
};

// Borrows the list; thread contract of StateSection.
class ResidencyListSection : public StateSection {
 public:
  // Numbers of layers and experts that are not below these are refused.
  ResidencyListSection(ResidencyList& list, int num_layers, int num_experts)
      : list_(list), num_layers_(num_layers), num_experts_(num_experts) {}

  std::string_view name() const override { return "residency"; }
  uint32_t version() const override { return 1; }
  std::vector<std::byte> Save() const override;
  void Load(uint32_t version, std::span<const std::byte> bytes) override;

 private:
  ResidencyList& list_;
  int num_layers_;
  int num_experts_;
};

}  // namespace moesaic
