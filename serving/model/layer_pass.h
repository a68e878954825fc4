// LayerPass: prompts through a model layer after layer. All their rows go through a layer, in
// blocks of as many as a batch may have, before the next layer begins: each expert is read about
// once for all of them, not once for each block, and only the residual stream, and what layers
// share of a row (Model::carried), take memory for each row. The bits are those of passes over the
// blocks: a block's attention finds the same keys and values behind it, and rows are independent of
// each other.
//
// Between two blocks the model may run other batches: the pass keeps its rows itself.
//
// Owned by an engine's step; one thread. No allocation after construction but where a pass begins.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "serving/model/model.h"

namespace moesaic {

class LayerPass {
 public:
  // `model` runs layers (Model::runs_layers) and outlives this. max_rows: of a pass.
  LayerPass(Model& model, int64_t max_rows);

  static uint64_t Bytes(const ModelConfig& config, int64_t max_rows);

  int64_t max_rows() const { return max_rows_; }

  // Begins a pass over these rows, at most max_rows(), as a ForwardBatch has them, but for their
  // number. What slices point at stays until the pass is over; the rest is copied.
  void Begin(std::span<const int32_t> tokens, std::span<const SequenceSlice> slices);
  bool running() const { return running_; }
  bool done() const { return layer_ == num_layers_; }  // all layers
  // The slices of this request (SequenceSlice::request) leave: their rows are not run any more.
  void Drop(int32_t request);
  // Runs the next block of the layer. Throws Error as Model::Forward; Abandon then.
  StepStats RunBlock();
  // The layer that the last block has ended, -1: it has ended none. Then, if the layer is sparse,
  // the routing of all rows, [rows, top_k]; of rows that have left it is not defined.
  int64_t ended_layer() const { return ended_layer_; }
  std::span<const int32_t> experts() const { return experts_; }
  std::span<const float> weights() const { return weights_; }
  // Of the work: block by block, layers alike.
  double progress() const;

  // Others run before its next block: the experts that it has expected keep no memory until then.
  // What is being read arrives all the same.
  void Pause();

  // When it is done: the model's head finds row rows[i] of the pass as row i; at most as many as a
  // batch has.
  void Show(std::span<const int32_t> rows);
  // The same, and the pass is over.
  void Finish(std::span<const int32_t> rows);
  // The pass is over without a result; new positions are not usable.
  void Abandon();

 private:
  void Over();

  Model& model_;
  const int64_t max_rows_;
  const int64_t num_layers_;
  bool running_ = false;
  std::vector<int32_t> tokens_;
  AlignedBuffer residual_;                          // [max_rows, hidden] f32
  const uint64_t carried_bytes_;                    // of a row
  AlignedBuffer carried_;                           // [max_rows, carried_bytes]
  std::vector<int32_t> experts_;                    // [rows, top_k] of the running layer
  std::vector<float> weights_;                      // likewise
  std::vector<std::vector<SequenceSlice>> blocks_;  // first_row: of the pass
  int64_t layer_ = 0;                               // of the next block
  size_t block_ = 0;
  bool layer_began_ = false;  // a block of it has run
  int64_t ended_layer_ = -1;
  std::vector<int32_t> batch_tokens_;  // of the running block
  std::vector<SequenceSlice> batch_slices_;
};

}  // namespace moesaic
