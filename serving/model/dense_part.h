// DensePart: the dense part of a model, wherever it is: the residual stream, embedding, norms,
// mixers with their state of sequences, routers, the MLPs that every token runs, and the head, with
// their weights. HostDense is the host's, DeviceDense that of one device or sharded over several,
// and SplitDense has its mixers on the host and all else on a device.
//
// Owned by the Model, which runs the layers and the experts; one thread calls, but for Attend
// (below). What a device is told is queued; what has to be known is waited for by Route, End, Head
// and Greedy. These throw Error when a device fails. No allocation after construction but what
// streams take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cache/kv_memory.h"
#include "core/base/check.h"
#include "core/base/thread_pool.h"
#include "serving/model/expert_rows.h"
#include "serving/model/forward_batch.h"
#include "serving/model/host_mixer.h"
#include "serving/model/weights.h"

namespace moesaic {

class DensePart {
 public:
  // Waits for what is queued.
  virtual ~DensePart() = default;

  // A pass: Begin, then for each layer and any groups of rows, each group in this order,
  // PreAttention, Attend, Project, Route, OpenExperts (in a sparse layer) and AddMlp, then End. In
  // a layer whose experts read its input (LayerSpec::routes_first) Route comes before PreAttention.
  // A group's bits do not depend on the others. Modules of different groups may run at the same
  // time on different pools where one is Attend and the other is not.

  // Embeds the tokens. The batch lives until the pass ends. `experts` (which may be null): who
  // computes experts where the residual stream is, if nobody replaces the routing: the pass may run
  // ahead of its layers then.
  virtual void Begin(const ForwardBatch& batch, const DeviceOperator* experts) = 0;
  // Norm, and what the mixer makes of a row by itself.
  virtual void PreAttention(int64_t layer, RowRange rows, ThreadPool& pool) = 0;
  // The mixer over sequences; the state of sequences grows by the rows.
  virtual void Attend(int64_t layer, SliceRange slices, ThreadPool& pool) = 0;
  // The mixer's output projection, onto the residual stream.
  virtual void Project(int64_t layer, RowRange rows, ThreadPool& pool) = 0;
  // Norm and, in a sparse layer, the experts of each row: ids and weights [rows, top_k]. May begin
  // the MLP that every token runs. `host_rows`: whether OpenExperts is to give rows on the host.
  virtual void Route(int64_t layer, RowRange rows, int32_t* ids, float* weights, bool host_rows,
                     ThreadPool& pool) = 0;
  // What the experts of these rows, which were routed, are given.
  virtual ExpertInputs OpenExperts(RowRange rows) = 0;
  // Onto the residual stream: of a sparse layer what its experts have made; then the MLP that every
  // token runs; then what was deferred to this layer.
  virtual void AddMlp(int64_t layer, RowRange rows, const ExpertOutputs& experts,
                      const ExpertOutputs& deferred, ThreadPool& pool) = 0;
  virtual void End() = 0;
  // In place of Begin: a pass goes on at any layer. Its residual stream is what the caller has
  // written into residual(). Only where that is the host's.
  virtual void Continue(const ForwardBatch& /*batch*/) { CHECK(false); }
  // The residual stream [max_batch_tokens, hidden] between two layers; null: it is a device's.
  virtual float* residual() { return nullptr; }
  // What else rows take from layer to layer, [rows, row_bytes] likewise; no bytes: nothing.
  virtual HostMixer::CarriedRows carried() { return {}; }
  // Instead, after an error: what is queued is over, whatever it was.
  virtual void Abandon() = 0;

  // Of these rows of the last pass, at most limits.max_logit_rows: logits [rows, vocab].
  virtual void Head(std::span<const int32_t> rows, float* logits) = 0;
  // Likewise, where tokens can be chosen without bringing logits over: those of the largest logit,
  // the lower one of equals; -1 where a logit is not finite.
  virtual bool has_greedy() const { return false; }
  virtual void Greedy(std::span<const int32_t> rows, int32_t* tokens) = 0;

  // Residual stream [rows, hidden] of the last pass (after the last layer, before the final norm);
  // with a device's, of the layer that was routed last, as its router sees it through its norm,
  // and of a long prompt only the rows that NextGate looks at.
  virtual const float* hidden() const = 0;

  // In the host's memory, where mixers are the host's: what Attend takes of PreAttention and what
  // Project takes of it, row by row; for who copies them between the memories of both.
  struct MixerRows {
    float* projected = nullptr;
    uint64_t projected_row_bytes = 0;
    const std::byte* mixed = nullptr;
    uint64_t mixed_row_bytes = 0;
  };
  virtual MixerRows mixer_rows() const { return {}; }

  // The layers' weights in the host's memory, for the biases of experts; none where a device has
  // them.
  virtual std::span<const LayerWeights> host_layers() const { return {}; }

  // The blocks of keys and values in the host's memory; no layers: they are not there.
  virtual KvMemory kv_memory() { return {}; }
  // HostMixer::GiveBackKv, of all mixers.
  virtual void GiveBackKv(int64_t /*first_block*/) {}

  // Has the kernel give the memory of the state of sequences now. Best effort.
  virtual void PopulateState(ThreadPool& /*pool*/) {}

  virtual int64_t whole_steps() const { return 0; }  // that ran ahead, as one graph
  virtual int64_t captured() const { return 0; }     // graphs so far
};

}  // namespace moesaic
