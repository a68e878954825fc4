#include "core/config/tensor_plan.h"

#include <string_view>

#include "core/base/check.h"

namespace moesaic {
namespace {

void Replace(std::string& text, std::string_view what, int64_t number) {
  const size_t at = text.find(what);
  if (at != std::string::npos) text.replace(at, what.size(), std::to_string(number));
}

}  // namespace

void TensorPlan::Set(TensorSlot slot, std::string pattern,
                     std::vector<TensorTransform> transforms) {
  slots_[static_cast<size_t>(slot)] = {std::move(pattern), std::move(transforms)};
}

void TensorPlan::TransformAll(TensorTransform transform) {
  of_all_.push_back(std::move(transform));
}

void TensorPlan::SetMlp(const MlpSlots& slots, const std::string& prefix,
                        const std::array<const char*, 3>& names) {
  for (size_t i = 0; i < slots.size(); ++i) Set(slots[i], prefix + names[i]);
}

bool TensorPlan::HasMxfp4Experts() const {
  return slots_[static_cast<size_t>(TensorSlot::kExpertGate)].Find<Mxfp4Blocks>() != nullptr;
}

bool TensorPlan::HasPackedInt4() const {
  return PlannedTensor{"", of_all_}.Find<PackedInt4>() != nullptr;
}

PlannedTensor TensorPlan::At(TensorSlot slot, int64_t layer, int64_t expert) const {
  PlannedTensor tensor = slots_[static_cast<size_t>(slot)];
  CHECK(!tensor.name.empty());
  Replace(tensor.name, "{layer}", layer);
  Replace(tensor.name, "{expert}", expert);
  for (TensorTransform& transform : tensor.transforms) {
    if (auto* const stack = std::get_if<StackOf>(&transform)) stack->index = expert;
  }
  tensor.transforms.insert(tensor.transforms.end(), of_all_.begin(), of_all_.end());
  return tensor;
}

}  // namespace moesaic
