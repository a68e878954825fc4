// ExpertGrid: numbers the experts of one stack of one model densely, layer after layer, so that
// tables over experts are plain arrays. Plain data.
#pragma once

#include <cstdint>

#include "core/base/check.h"
#include "core/base/expert_id.h"

namespace moesaic {

// layer * num_experts + index. Layers without experts have numbers too; nobody uses them.
using ExpertIndex = int32_t;
constexpr ExpertIndex kNoExpert = -1;

class ExpertGrid {
 public:
  ExpertGrid(int num_layers, int num_experts, uint16_t model = 0, Stack stack = Stack::kDecoder)
      : num_layers_(num_layers), num_experts_(num_experts), model_(model), stack_(stack) {
    CHECK_GT(num_layers, 0);
    CHECK_LE(num_layers, 1 << 16);
    CHECK_GT(num_experts, 0);
    CHECK_LE(num_experts, 1 << 16);
    CHECK_LT(int64_t{num_layers} * num_experts, int64_t{1} << 31);
  }

  int num_layers() const { return num_layers_; }
  int num_experts() const { return num_experts_; }  // per layer
  int64_t total() const { return int64_t{num_layers_} * num_experts_; }

  ExpertIndex Index(ExpertId id) const {
    CHECK_EQ(id.model, model_);
    CHECK(id.stack == stack_);
    CHECK_LT(int{id.layer}, num_layers_);
    CHECK_LT(int{id.index}, num_experts_);
    return id.layer * num_experts_ + id.index;
  }
  ExpertId Id(ExpertIndex expert) const {
    return {.model = model_,
            .stack = stack_,
            .layer = static_cast<uint16_t>(expert / num_experts_),
            .index = static_cast<uint16_t>(expert % num_experts_)};
  }

 private:
  int num_layers_;
  int num_experts_;
  uint16_t model_;
  Stack stack_;
};

}  // namespace moesaic
