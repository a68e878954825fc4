// Placement: which rule decides about each module and each expert of a model. The last rule that
// matches decides alone: what it leaves open is the engine's choice, whatever earlier ones say.
//
// Made once of a model's specs and the rules; immutable, so that reading is safe from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "core/config/model_config.h"
#include "core/config/placement_rule.h"

namespace moesaic {

class Placement {
 public:
  static constexpr int64_t kNoLayer = -1;

  // A module that every token runs.
  struct DenseModule {
    ModelPart part;
    int64_t layer;                        // kNoLayer: outside of the layers
    const PlacementRule* rule = nullptr;  // null: none decides
  };
  // How much a rule matches, and what of that is left to it.
  struct Extent {
    int64_t modules = 0;
    int64_t experts = 0;
    int64_t modules_decided = 0;
    int64_t experts_decided = 0;
  };

  // Throws Error(kInvalidArgument) that names a rule which matches nothing.
  Placement(const ModelConfig& config, std::vector<PlacementRule> rules);
  Placement(const Placement&) = delete;  // it points to its rules
  Placement& operator=(const Placement&) = delete;

  const std::vector<PlacementRule>& rules() const { return rules_; }
  const Extent& extent(size_t rule) const { return extents_[rule]; }

  // In the order in which a token passes them.
  const std::vector<DenseModule>& modules() const { return modules_; }
  // Null: none decides.
  const PlacementRule* OfExpert(int64_t layer, int64_t index) const {
    return experts_[static_cast<size_t>(layer * num_experts_ + index)];
  }

 private:
  void AddModule(ModelPart part, int64_t layer);
  template <typename Matches>
  const PlacementRule* Decide(int64_t Extent::*matched, int64_t Extent::*decided,
                              const Matches& matches);

  std::vector<PlacementRule> rules_;
  std::vector<Extent> extents_;  // [rules]
  std::vector<DenseModule> modules_;
  int64_t num_experts_;
  std::vector<const PlacementRule*> experts_;  // [layers, experts]
};

}  // namespace moesaic
