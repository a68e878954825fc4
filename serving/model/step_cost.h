// StepCost: what the steps of a model have to read and to compute at least, by its shapes and
// types: what a measured time is compared with. Plain data and formulas.
#pragma once

#include <cstdint>
#include <vector>

#include "core/config/model_config.h"
#include "kernels/cpu/kernels.h"

namespace moesaic {

// What one or more steps did, in the units that cost.
struct StepWork {
  int64_t steps = 0;
  int64_t tokens = 0;      // rows that ran
  int64_t head_steps = 0;  // steps that wanted logits
  int64_t logit_rows = 0;
  uint64_t experts = 0;        // distinct experts of a layer and step
  int64_t positions_read = 0;  // of the KV cache, summed over layers: once per sequence and step
  int64_t positions_attended = 0;  // likewise, once per token
  int64_t sequence_steps = 0;      // sequences of a step, summed over steps
};

struct StepCost {
  // Weights that every step reads: neither embedding, head nor routed experts.
  uint64_t dense_bytes = 0;
  uint64_t head_bytes = 0;      // of a step that wants logits
  uint64_t expert_bytes = 0;    // one expert
  uint64_t position_bytes = 0;  // keys and values of one position in one layer
  uint64_t state_bytes = 0;     // of a sequence's recurrent state in a step, read and written
  // Products of one token, its experts included; head and attention left out.
  double token_flop = 0;
  double logit_row_flop = 0;     // the head
  double position_flop = 0;      // attention of one token to one position in one layer
  std::vector<int64_t> windows;  // [layers with attention] sliding window, or positions that
                                 // an indexer chooses; 0: neither

  // Positions that the last token of a context attends to, itself included, summed over the layers.
  int64_t Positions(int64_t context_tokens) const;
  // Weights once per step, keys and values, and recurrent state, once per sequence.
  double Bytes(const StepWork& work) const;
  double Flop(const StepWork& work) const;  // a multiply-add counts as two
};

StepCost StepCostOf(const ModelConfig& config, WeightType weights, WeightType kv,
                    uint64_t expert_bytes);

}  // namespace moesaic
