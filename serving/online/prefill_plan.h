// PrefillPlan: how prompts run that are longer than a step's budget: in chunks, each through all
// layers, or layer after layer (serving/model/layer_pass), and what either is predicted to read.
//
// Functions of their arguments.
#pragma once

#include <cstdint>

#include "core/config/model_config.h"
#include "serving/online/engine_options.h"

namespace moesaic {

struct PrefillPlan {
  PrefillOrder order = PrefillOrder::kChunks;
  int64_t chunk_tokens = 0;  // of a step
  int64_t piece_tokens = 0;  // that run layer after layer at once, at most; 0: none do
  uint64_t bytes = 0;        // that a piece takes

  // Of the experts, and of the slots that they come and go in.
  int64_t layers = 0;   // that have experts
  int64_t experts = 0;  // of a layer
  int64_t top_k = 0;
  int64_t slots = 0;
  int64_t changing = 0;  // experts that are not pinned, of all layers

  bool ByLayers(int64_t tokens) const;
};

// Experts that a prompt of so many tokens is predicted to read in chunks and by layers. A token's
// experts are taken for independent of the others', and the slots for filled evenly. By layers a
// piece reads, besides what is not there, as much as a layer has to make room for when it begins.
double ExpertsReadByChunks(const PrefillPlan& plan, int64_t tokens);
double ExpertsReadByLayers(const PrefillPlan& plan, int64_t tokens);

// `slots`: of experts, those pinned (`kept`) included. A piece is as long as a request may be, or
// as many chunks as most_bytes hold the rows of; there is none, where nothing is read (but with
// kLayers), where a layer's experts do not fit the slots (likewise), with devices, deferral, and a
// routing that is recorded or replayed.
PrefillPlan PlanPrefill(const EngineOptions& options, const ModelConfig& config, int64_t slots,
                        int64_t kept, int64_t context, uint64_t most_bytes);

}  // namespace moesaic
