// DensePart: the dense part of a model where devices have it: the residual stream, embedding,
// norms, attention with the KV cache, routers, the MLPs that every token runs, and the head, with
// their weights: of one device (dense_operator.h) or sharded over several (dense_shards.h). What
// comes to the host of a layer is its routing, for who finds and computes the experts
// (ExpertRunner), and goes back is their sum or, of experts on the first of its devices, nothing
// but where their outputs are: a layer waits once.
//
// Owned by the Model; one thread calls. What is queued is waited for by AwaitRouting, EndStep, Head
// and Greedy, which throw Error when a device fails: the keys and values are there and nowhere
// else, so that a lost device is the end of all requests. The devices outlive it. No allocation
// after construction but what streams take.
#pragma once

#include <cstdint>
#include <span>

#include "cache/slot_table.h"
#include "core/device/device_buffer.h"
#include "core/io/expert_layout.h"
#include "serving/model/forward_batch.h"

namespace moesaic {

class DeviceOperator;
class StepExperts;

class DensePart {
 public:
  // Waits for what is queued.
  virtual ~DensePart() = default;

  // A step: its tokens are embedded, and each Layer in turn queues all but the routed experts of a
  // sparse one, for which AwaitRouting and AddExperts follow. EndStep waits for the last, or, after
  // an error, AbandonStep, whatever it was.
  virtual void BeginStep(const ForwardBatch& batch) = 0;
  // Instead of all Layers: queues the whole step, which computes the experts that it finds on the
  // device. AwaitRouting follows for each sparse layer in turn and, where it has missed experts,
  // their Answer (step_experts.h), computed by `experts` or sent from its host_out(). False: Layer
  // by Layer. Whole steps are of experts of this layout, which this table has; both outlive it.
  virtual void CaptureSteps(const ExpertLayout& /*experts*/, SlotTable& /*table*/) {}
  virtual bool RunStep(const DeviceOperator& /*experts*/) { return false; }
  virtual StepExperts* running_step() { return nullptr; }  // null: Layer by Layer
  virtual void Layer(int64_t layer) = 0;
  // What a sparse layer's experts are given; valid until the next Layer.
  struct Routed {
    const int32_t* experts = nullptr;  // [rows, top_k]
    const float* weights = nullptr;    // [rows, top_k]
    const float* normed = nullptr;     // [rows, hidden] what experts multiply, before rounding
    // The same on the devices of this, the first one first: [.., ActivationStride(hidden)] bf16.
    std::span<const DeviceSpan> there;
    // Of a step that runs as a whole: who is missing. normed and there are valid where any is,
    // until they are answered for.
    std::span<const int32_t> missed;
  };
  virtual Routed AwaitRouting(int64_t layer) = 0;
  // Residual stream [rows, hidden] of the running step, as the router of the layer that was waited
  // for sees it through its norm.
  virtual const float* hidden() const = 0;
  // Queues: residual += sum over slots, in order, of weight times output. `experts` is of the first
  // device. Outputs are rows of experts.out(), pair (row, slot) at pair_rows, after what `experts`
  // has queued; the last `others` of them, in all pair_rows.size(), are sent from
  // experts.host_out(). weights: [rows, top_k].
  virtual void AddExperts(const DeviceOperator& experts, int64_t others,
                          std::span<const int32_t> pair_rows, const float* weights) = 0;
  virtual void EndStep() = 0;
  virtual void AbandonStep() = 0;

  // Of these rows of the last step, at most limits.max_logit_rows: logits [rows, vocab], or the
  // token of the largest logit, the lower one of equals; -1 where a logit is not finite.
  virtual void Head(std::span<const int32_t> rows, float* logits) = 0;
  virtual void Greedy(std::span<const int32_t> rows, int32_t* tokens) = 0;

  virtual int64_t whole_steps() const { return 0; }  // that ran as one graph
  virtual int64_t captured() const { return 0; }     // graphs so far
};

}  // namespace moesaic
