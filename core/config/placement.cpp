#include "core/config/placement.h"

#include <utility>

#include "core/base/error.h"

namespace moesaic {

Placement::Placement(const ModelConfig& config, std::vector<PlacementRule> rules)
    : rules_(std::move(rules)),
      extents_(rules_.size()),
      num_experts_(config.num_experts()),
      experts_(static_cast<size_t>(config.num_layers() * num_experts_), nullptr) {
  AddModule(ModelPart::kEmbedding, kNoLayer);
  for (int64_t l = 0; l < config.num_layers(); ++l) {
    const LayerSpec& layer = config.layer(l);
    AddModule(ModelPart::kNorm, l);
    AddModule(ModelPart::kAttention, l);
    if (!layer.sparse()) {
      AddModule(ModelPart::kMlp, l);
      continue;
    }
    AddModule(ModelPart::kRouter, l);
    if (layer.dense_mlp().width > 0) AddModule(ModelPart::kSharedExpert, l);
    for (int64_t e = 0; e < num_experts_; ++e) {
      experts_[static_cast<size_t>(l * num_experts_ + e)] =
          Decide(&Extent::experts, &Extent::experts_decided, [&](const PlacementRule& rule) {
            return rule.About(ModelPart::kExperts) && rule.layers.Has(l) && rule.experts.Has(e);
          });
    }
  }
  AddModule(ModelPart::kNorm, kNoLayer);
  AddModule(ModelPart::kHead, kNoLayer);
  for (size_t r = 0; r < rules_.size(); ++r) {
    if (extents_[r].modules + extents_[r].experts > 0) continue;
    Fail(ErrorKind::kInvalidArgument,
         "{}: '{}' matches nothing: the model has layers 0 to {}, {} of them with experts 0 to {}; "
         "mend the rule or leave it out",
         rules_[r].origin, rules_[r].text, config.num_layers() - 1, config.num_sparse_layers(),
         num_experts_ - 1);
  }
}

void Placement::AddModule(ModelPart part, int64_t layer) {
  const PlacementRule* const rule =
      Decide(&Extent::modules, &Extent::modules_decided, [&](const PlacementRule& candidate) {
        return candidate.About(part) &&
               (layer == kNoLayer ? candidate.outside_of_layers : candidate.layers.Has(layer));
      });
  modules_.push_back({part, layer, rule});
}

template <typename Matches>
const PlacementRule* Placement::Decide(int64_t Extent::*matched, int64_t Extent::*decided,
                                       const Matches& matches) {
  const PlacementRule* last = nullptr;
  for (size_t r = 0; r < rules_.size(); ++r) {
    if (!matches(rules_[r])) continue;
    ++(extents_[r].*matched);
    last = &rules_[r];
  }
  if (last != nullptr) ++(extents_[static_cast<size_t>(last - rules_.data())].*decided);
  return last;
}

}  // namespace moesaic
