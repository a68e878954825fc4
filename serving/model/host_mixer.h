// HostMixer: what mixes tokens in those layers of a model that have one kind of mixer, on the host:
// products with its weights, and the state that it keeps of sequences.
//
// Owned by a HostDense, whose thread calls; Attend may run beside the other two, on another pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "cache/kv_memory.h"
#include "core/base/aligned_buffer.h"
#include "core/base/thread_pool.h"
#include "core/config/mixer_spec.h"
#include "serving/model/forward_batch.h"

namespace moesaic {

// Values of a row that PreAttention and Attend leave; one overload for each alternative of
// MixerSpec.
struct MixerWidths {
  int64_t projected = 0;
  int64_t mixed = 0;
  int64_t input = 0;  // of the longest row that a product of the mixer takes, the hidden one apart
};
MixerWidths WidthsOf(const GroupedQuerySpec& spec);
MixerWidths WidthsOf(const LatentSpec& spec);
MixerWidths WidthsOf(const DeltaNetSpec& spec);

class HostMixer {
 public:
  // Rows of the batch by number, strides in floats. PreAttention leaves a row in `projected`,
  // Attend makes `mixed` of it, which Project takes.
  struct Rows {
    float* projected = nullptr;  // [rows, projected_stride]
    int64_t projected_stride = 0;
    float* mixed = nullptr;  // [rows, mixed_stride]
    int64_t mixed_stride = 0;
    // A device has projected them, and has done all that concerns a row by itself (a rotation).
    bool by_device = false;
  };

  virtual ~HostMixer() = default;

  // A pass over this batch begins, which lives until it ends.
  virtual void Begin(const ForwardBatch& batch) = 0;
  // normed: of the first of these rows, `stride` floats apart.
  virtual void PreAttention(int64_t layer, RowRange rows, const float* normed, int64_t stride,
                            const Rows& at, ThreadPool& pool) = 0;
  virtual void Attend(int64_t layer, SliceRange slices, const Rows& at, ThreadPool& pool) = 0;
  // y: [rows, hidden].
  virtual void Project(int64_t layer, RowRange rows, const Rows& at, float* y,
                       ThreadPool& pool) = 0;

  virtual AlignedBuffer& state() = 0;  // the memory of sequences' state
  // The blocks of keys and values of a layer that has it; nullopt: its state is none.
  virtual std::optional<KvMemory::Layer> KvOf(int64_t /*layer*/) { return std::nullopt; }
  virtual bool is_recurrent() const { return false; }  // state() is slots of one size

  // Blocks from this number on, the first of a slab, hold nothing any more: their memory is the
  // kernel's until they are written again.
  virtual void GiveBackKv(int64_t /*first_block*/) {}

  // What Attend leaves of a row for layers behind: [rows, row_bytes], by the rows of the batch. A
  // pass that runs other batches between two layers copies it out and in again.
  struct CarriedRows {
    std::byte* rows = nullptr;
    uint64_t row_bytes = 0;
  };
  virtual CarriedRows carried() { return {}; }
};

}  // namespace moesaic
