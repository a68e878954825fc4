// RoutingCurve: how many experts of a layer so many rows of a job use, counted from the routing of
// some of its prompts.
//
// Rows of a decode step choose alike, the more so the deeper the layer and the more their prompts
// share (a chat template), so decode steps are counted by themselves, in all layers that were run.
// For more rows than they had it is the second halves of the prompts.
//
// Thread contract: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/perf/module_costs.h"
#include "serving/model/model.h"

namespace moesaic {

class RoutingCurve : public RoutingHook {
 public:
  explicit RoutingCurve(int64_t num_experts) : num_experts_(num_experts) {}

  void OnRouting(int64_t layer, const ForwardBatch& batch, std::span<int32_t> experts,
                 std::span<float> weights) override;
  // Expected experts of n of the counted rows, drawn without putting back (Hurlbert 1971, Eq. 1:
  // rarefaction), mean over the layers; n by factors of the square root of two up to all of them.
  std::vector<RoutedRows> Points() const;

 private:
  struct LayerCounts {
    int64_t rows = 0;
    std::vector<int64_t> rows_of;  // [experts] rows that chose it
  };

  const int64_t num_experts_;
  std::vector<LayerCounts> decode_;  // [layers]
  std::vector<LayerCounts> prompts_;
};

}  // namespace moesaic
