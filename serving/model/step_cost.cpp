#include "serving/model/step_cost.h"

#include <algorithm>
#include <variant>

#include "serving/model/model.h"
#include "serving/model/weights.h"

namespace moesaic {
namespace {

double Flop(const PackedMatrix& matrix) {
  return 2.0 * static_cast<double>(matrix.n) * static_cast<double>(matrix.k);
}

// A token's reading, correcting and reading again of all heads' states.
double Flop(const DeltaNetSpec& spec) {
  return 7.0 * static_cast<double>(spec.value_heads * spec.key_dim * spec.value_dim);
}

// Of one token's attention to one position.
double PositionFlop(const GroupedQuerySpec& spec) {
  return 4.0 * static_cast<double>(spec.q_width());
}
double PositionFlop(const LatentSpec& spec) {
  return 2.0 * static_cast<double>(spec.heads * (spec.row_width() + spec.kv_rank));
}
double PositionFlop(const DeltaNetSpec&) { return 0; }

uint64_t Bytes(const PackedMatrix& matrix) {
  return static_cast<uint64_t>(matrix.panels() * matrix.panel_bytes());
}

}  // namespace

StepCost StepCostOf(const ModelConfig& config, WeightType weights, WeightType kv,
                    uint64_t expert_bytes) {
  const ModelWeights shapes = ModelWeights::Shapes(config, weights);
  StepCost cost;
  cost.head_bytes = Bytes(shapes.head);
  cost.dense_bytes = ModelWeights::Bytes(config, weights) - cost.head_bytes;
  if (!config.tie_word_embeddings) cost.dense_bytes -= Bytes(shapes.embedding);
  cost.expert_bytes = expert_bytes;
  cost.position_bytes = Model::KvBytesOfAllLayers(config, kv) /
                        static_cast<uint64_t>(kKvBlockTokens * config.num_attention_layers());
  // A sequence's state is read and written.
  cost.state_bytes = 2 * Model::StateSlotBytes(config);
  for (const LayerWeights& layer : shapes.layers) {
    std::visit(
        [&](const auto& mixer) {
          for (const PackedMatrix* matrix : MatricesOf(mixer)) cost.token_flop += Flop(*matrix);
        },
        layer.mixer);
    for (const PackedMatrix* matrix :
         {&layer.router, &layer.shared_gate, &layer.gate, &layer.up, &layer.down}) {
      cost.token_flop += Flop(*matrix);
    }
  }
  if (const DeltaNetSpec* const delta = config.FindMixer<DeltaNetSpec>()) {
    cost.token_flop += static_cast<double>(config.NumMixers<DeltaNetSpec>()) * Flop(*delta);
  }
  cost.token_flop += 2.0 * static_cast<double>(config.num_sparse_layers() * config.top_k() *
                                               config.expert_parameters());
  cost.logit_row_flop = Flop(shapes.head);
  for (const LayerSpec& layer : config.layers) {
    if (!layer.has_attention()) continue;
    cost.position_flop =
        std::visit([](const auto& spec) { return PositionFlop(spec); }, layer.mixer);
    // Positions that are chosen are as many as a window's; what scores all of them is left out.
    const auto* const latent = std::get_if<LatentSpec>(&layer.mixer);
    cost.windows.push_back(latent != nullptr ? latent->top_k : WindowOf(layer.mixer));
  }
  return cost;
}

int64_t StepCost::Positions(int64_t context_tokens) const {
  int64_t positions = 0;
  for (const int64_t window : windows) {
    positions += window > 0 ? std::min(window, context_tokens) : context_tokens;
  }
  return positions;
}

double StepCost::Bytes(const StepWork& work) const {
  return static_cast<double>(work.steps) * static_cast<double>(dense_bytes) +
         static_cast<double>(work.head_steps) * static_cast<double>(head_bytes) +
         static_cast<double>(work.experts) * static_cast<double>(expert_bytes) +
         static_cast<double>(work.positions_read) * static_cast<double>(position_bytes) +
         static_cast<double>(work.sequence_steps) * static_cast<double>(state_bytes);
}

double StepCost::Flop(const StepWork& work) const {
  return static_cast<double>(work.tokens) * token_flop +
         static_cast<double>(work.logit_rows) * logit_row_flop +
         static_cast<double>(work.positions_attended) * position_flop;
}

}  // namespace moesaic
