#include "serving/model/layer_pass.h"

#include <algorithm>

#include "core/base/check.h"

namespace moesaic {
namespace {

// Rows [begin, begin + count) of a slice, as a slice of its own. Recurrent state goes from one part
// to the next in the slot where the slice leaves it, by way of the snapshot.
SequenceSlice PartOf(const SequenceSlice& slice, int64_t begin, int64_t count) {
  SequenceSlice part = slice;
  part.first_row += begin;
  part.start_position += begin;
  part.num_tokens = count;
  const int64_t kept = slice.state.snapshot >= 0 ? slice.state.snapshot_tokens : 0;
  const int64_t end = begin + count;
  if (begin > 0) {
    part.state.from = kept == begin ? slice.state.snapshot : slice.state.slot;
  }
  if (kept == end && end < slice.num_tokens) part.state.slot = slice.state.snapshot;
  if (kept > begin && kept < end) {
    part.state.snapshot_tokens = kept - begin;
  } else {
    part.state.snapshot = -1;
    part.state.snapshot_tokens = 0;
  }
  return part;
}

}  // namespace

LayerPass::LayerPass(Model& model, int64_t max_rows)
    : model_(model),
      max_rows_(max_rows),
      num_layers_(model.config().num_layers()),
      residual_(static_cast<size_t>(max_rows * model.config().hidden_size) * sizeof(float)),
      carried_bytes_(model.carried().row_bytes),
      carried_(static_cast<size_t>(max_rows) * static_cast<size_t>(carried_bytes_)) {
  CHECK(model.runs_layers());
  const auto pairs = static_cast<size_t>(max_rows * model.config().top_k());
  experts_.reserve(pairs);
  weights_.reserve(pairs);
  tokens_.reserve(static_cast<size_t>(max_rows));
  layer_ = num_layers_;
}

uint64_t LayerPass::Bytes(const ModelConfig& config, int64_t max_rows) {
  const auto row = config.hidden_size * static_cast<int64_t>(sizeof(float)) +
                   config.top_k() * static_cast<int64_t>(sizeof(int32_t) + sizeof(float)) +
                   static_cast<int64_t>(sizeof(int32_t));
  return static_cast<uint64_t>(max_rows) *
         (static_cast<uint64_t>(row) + Model::CarriedBytes(config));
}

void LayerPass::Begin(std::span<const int32_t> tokens, std::span<const SequenceSlice> slices) {
  CHECK(!running_ && !tokens.empty());
  CHECK_LE(std::ssize(tokens), max_rows_);
  tokens_.assign(tokens.begin(), tokens.end());
  const auto pairs = tokens.size() * static_cast<size_t>(model_.config().top_k());
  experts_.resize(pairs);
  weights_.resize(pairs);
  blocks_.clear();
  const int64_t most_rows = model_.limits().max_batch_tokens;
  const int64_t most_slices = model_.limits().max_sequences;
  int64_t room = 0;
  for (const SequenceSlice& slice : slices) {
    for (int64_t begin = 0; begin < slice.num_tokens;) {
      if (room == 0 || std::ssize(blocks_.back()) == most_slices) {
        blocks_.emplace_back();
        room = most_rows;
      }
      const int64_t count = std::min(room, slice.num_tokens - begin);
      blocks_.back().push_back(PartOf(slice, begin, count));
      begin += count;
      room -= count;
    }
  }
  running_ = true;
  layer_ = 0;
  block_ = 0;
  layer_began_ = false;
  ended_layer_ = -1;
}

void LayerPass::Drop(int32_t request) {
  for (std::vector<SequenceSlice>& block : blocks_) {
    std::erase_if(block,
                  [request](const SequenceSlice& slice) { return slice.request == request; });
  }
}

StepStats LayerPass::RunBlock() {
  CHECK(running_ && !done());
  const std::vector<SequenceSlice>& block = blocks_[block_];
  const bool last = block_ + 1 == blocks_.size();
  const bool ends = layer_ + 1 == num_layers_;
  batch_tokens_.clear();
  batch_slices_.clear();
  for (const SequenceSlice& part : block) {
    SequenceSlice& slice = batch_slices_.emplace_back(part);
    slice.first_row = std::ssize(batch_tokens_);
    batch_tokens_.insert(batch_tokens_.end(), tokens_.begin() + part.first_row,
                         tokens_.begin() + part.first_row + part.num_tokens);
  }
  const int64_t hidden = model_.config().hidden_size;
  const int64_t top_k = model_.config().top_k();
  float* const rows = model_.residual();
  const auto copy = [&](bool in) {
    for (size_t i = 0; i < block.size(); ++i) {
      float* const here = rows + batch_slices_[i].first_row * hidden;
      float* const kept = residual_.as<float>() + block[i].first_row * hidden;
      const auto floats = static_cast<size_t>(block[i].num_tokens * hidden);
      std::copy_n(in ? kept : here, floats, in ? here : kept);
      if (carried_bytes_ == 0) continue;
      std::byte* const with = model_.carried().rows +
                              static_cast<uint64_t>(batch_slices_[i].first_row) * carried_bytes_;
      std::byte* const saved =
          carried_.data() + static_cast<uint64_t>(block[i].first_row) * carried_bytes_;
      const uint64_t bytes = static_cast<uint64_t>(block[i].num_tokens) * carried_bytes_;
      std::copy_n(in ? saved : with, bytes, in ? with : saved);
    }
  };
  StepStats stats;
  const LayerBlock place = {.first = !layer_began_, .last = last};
  if (!batch_tokens_.empty()) {
    layer_began_ = true;
    if (layer_ > 0) copy(true);
    stats = model_.RunLayer(layer_, {batch_tokens_, batch_slices_}, place);
    copy(false);
    if (model_.config().is_sparse(layer_)) {
      for (size_t i = 0; i < block.size(); ++i) {
        const int64_t from = batch_slices_[i].first_row * top_k;
        const int64_t to = block[i].first_row * top_k;
        const int64_t pairs = block[i].num_tokens * top_k;
        std::copy_n(model_.expert_ids().begin() + from, pairs, experts_.begin() + to);
        std::copy_n(model_.expert_weights().begin() + from, pairs, weights_.begin() + to);
      }
    }
    for (const SequenceSlice& slice : batch_slices_) {
      if (ends) (slice.prefill ? stats.prefill_tokens : stats.decode_tokens) += slice.num_tokens;
    }
  }
  if (ends && last) stats.steps = 1;
  ended_layer_ = last ? layer_ : -1;
  block_ = last ? 0 : block_ + 1;
  layer_ += last ? 1 : 0;
  if (last) layer_began_ = false;
  return stats;
}

double LayerPass::progress() const {
  if (blocks_.empty()) return 0;
  const auto blocks = static_cast<double>(blocks_.size());
  return (static_cast<double>(layer_) * blocks + static_cast<double>(block_)) /
         (static_cast<double>(num_layers_) * blocks);
}

void LayerPass::Pause() {
  if (running_) model_.EndLayers();
}

void LayerPass::Show(std::span<const int32_t> rows) {
  CHECK(running_ && done());
  CHECK_LE(std::ssize(rows), model_.limits().max_batch_tokens);
  const int64_t hidden = model_.config().hidden_size;
  for (size_t i = 0; i < rows.size(); ++i) {
    std::copy_n(residual_.as<float>() + rows[i] * hidden, hidden,
                model_.residual() + static_cast<int64_t>(i) * hidden);
  }
}

void LayerPass::Finish(std::span<const int32_t> rows) {
  Show(rows);
  Over();
}

void LayerPass::Abandon() {
  if (running_) Over();
}

void LayerPass::Over() {
  running_ = false;
  layer_ = num_layers_;
  model_.EndLayers();
}

}  // namespace moesaic
