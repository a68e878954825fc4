// RoutingCurve: how many experts of a layer so many rows of a job use, counted from the routing of
// some of its prompts.
//
// Rows of a decode step choose alike, the more so the deeper the layer and the more their prompts
// share (a chat template), and a sequence's rows of several steps choose more alike than rows of as
// many sequences. So each decode step is counted by itself, as the rows of a job's pass are one of
// each sequence, in all layers that were run. For many more rows than the steps had it is the
// second halves of the prompts.
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
  // By factors of the square root of two, mean over layers (and decode steps):
  //  - of n of the rows of a step, drawn without putting back (Hurlbert 1971, Eq. 1: rarefaction);
  //  - up to twice a step's rows, what unseen experts may add (Chao et al. 2014, Ecol. Monogr. 84,
  //    Table 1, incidence data, with the estimator of unseen ones that is bounded by all experts);
  //  - beyond, of n of all prompts' rows.
  std::vector<RoutedRows> Points() const;

 private:
  struct Counts {
    int64_t rows = 0;
    std::vector<int64_t> rows_of;  // [experts] rows that chose it
  };

  Counts& CountsOf(int64_t layer, bool decode);
  void AddPoint(std::span<const Counts* const> all, int64_t drawn,
                std::vector<RoutedRows>& points) const;

  const int64_t num_experts_;
  std::vector<Counts> decode_;   // of every layer and step
  std::vector<Counts> prompts_;  // [layers]
};

}  // namespace moesaic
