// ModuleBatchPlan: how lines of batches run beside a server's requests: in steps, as those, or as
// module batches (MoE-Gen, arXiv:2503.09716): many more sequences and tokens at once, layer after
// layer (serving/model/layer_pass), each expert read and computed once for all of them.
//
// Functions of their arguments.
#pragma once

#include <cstdint>

#include "core/config/model_config.h"
#include "serving/online/engine_options.h"

namespace moesaic {

struct ModuleBatchPlan {
  ModuleBatches choice = ModuleBatches::kOff;
  int64_t tokens = 0;       // of a module batch, at most; 0: there are none
  int64_t sequences = 0;    // of lines, that run at once beside others'; 0: they share their places
  uint64_t bytes = 0;       // that the rows take
  int64_t most_tokens = 0;  // that the memory for rows would hold
  double predicted_tokens_per_s = 0;  // of lines alone, where these sizes were planned; 0: by rule

  // Of the experts.
  int64_t experts = 0;  // of a layer
  int64_t top_k = 0;
  int64_t changing = 0;  // that are not pinned, of all layers

  // Whether lines of so many tokens had better run so, with so many slots of experts that change.
  // While a layer runs a module batch reads the next one as a whole, which is right where it will
  // use most of it. With fewer tokens the predictors know better, whose experts a step reads. Where
  // nothing is read it is right as well: it waits for others without losing anything.
  bool Worth(int64_t now_tokens, int64_t slots) const;
};

// Of a layer's experts, those that so many tokens use: each one's are taken for independent of the
// others'.
double UsedShare(int64_t experts, int64_t top_k, int64_t tokens);
// Steps that are predicted to use such a share may run as module batches.
inline constexpr double kUsedShareOfModuleBatch = 0.75;

// As many tokens as were asked for, or as four steps have, or as most_bytes hold the rows of, a
// step's at least; there are none where no lines of batches are served, with devices, deferral, and
// a routing that is recorded or replayed. A model with recurrent layers has no places besides.
ModuleBatchPlan PlanModuleBatches(const EngineOptions& options, const ModelConfig& config,
                                  int64_t kept, uint64_t most_bytes);

// Lines that run at once for each request that may, where that is planned: at most.
constexpr int64_t kMostLinesPerSequence = 16;

// Sequences of lines that run at once; those of these that have places beside max_num_seqs; and how
// many it may come to when sizes are planned.
int64_t LinesOf(const EngineOptions& options);
int64_t LinesBeside(const EngineOptions& options, const ModelConfig& config);
int64_t MostLines(const EngineOptions& options);

}  // namespace moesaic
