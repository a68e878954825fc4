// StepWays: in which of two ways steps fetch their experts: as they are foreseen, or, as module
// batches do, whole layers in the order of need (Model::Forward, whole_layers). The first is right
// for a few sequences; from some number on nearly all experts of a layer are used, and what is
// foreseen is only late. Where that is depends on model, disk and processors.
//
// So it is measured: what steps of so many rows take either way, those that decode apart from those
// that have prompts, in classes of rows by powers of two. The second way is tried when it is
// predicted to be faster from the times of the modules in the first: the larger of computing and
// reading, and a layer's reading, which nothing hides. Once both are measured the faster one runs,
// and the other again now and then, as both may change.
//
// No threads, no clock. Owned by a LatencyStep.
#pragma once

#include <array>
#include <cstdint>

#include "serving/model/step_stats.h"
#include "serving/online/engine_options.h"

namespace moesaic {

class StepWays {
 public:
  struct Experts {
    int64_t layers = 0;  // that have some
    int64_t of_layer = 0;
    int64_t top_k = 0;
  };

  StepWays(ModuleBatches choice, const Experts& experts) : choice_(choice), experts_(experts) {}

  // Whether the next step, of so many rows, is to run as a module batch. `decodes`: it has no
  // prompts. `reads`: not all experts have room.
  bool AsModuleBatch(int64_t rows, bool decodes, bool reads);
  // It has.
  void Ran(bool as_module_batch, int64_t rows, bool decodes, const StepStats& stats);

  // Of steps that decode: from which number of rows on module batches are faster, as far as both
  // ways were measured; 0: nowhere.
  int64_t least_rows() const;

 private:
  static constexpr int kClasses = 20;
  // How many steps of a class run between two that try the slower way.
  static constexpr int64_t kTryEvery = 64;

  // Of a row, moving averages.
  struct Times {
    int64_t steps = 0;
    double total_us = 0;
    double computing_us = 0;
    double bytes = 0;
  };
  struct Class {
    Times foreseen;
    Times whole;
    int64_t since_tried = 0;
  };

  Class& ClassOf(int64_t rows, bool decodes);
  bool Foretold(const Class& of) const;

  const ModuleBatches choice_;
  const Experts experts_;
  std::array<std::array<Class, kClasses>, 2> classes_;  // with prompts, and without
  double bytes_per_us_ = 0;                             // that were read at best lately
};

}  // namespace moesaic
