// GiveWay: ends a step of somebody's batch when another request has come, before the experts of its
// next layer with experts. What the step has computed so far is lost and computed again; experts
// that were read or are on their way stay.
//
// Used by the engine's thread, around the routing hook that the step has otherwise.
#pragma once

#include <functional>
#include <span>
#include <utility>

#include "serving/model/model.h"

namespace moesaic {

// What the step ends with.
struct StepGaveWay {};

class GiveWay final : public RoutingHook {
 public:
  // has_come: whether another request waits.
  explicit GiveWay(std::function<bool()> has_come) : has_come_(std::move(has_come)) {}

  // The hook for a step whose own is `inner`, which may be null.
  RoutingHook* Around(RoutingHook* inner) {
    inner_ = inner;
    return this;
  }

  void OnRouting(int64_t layer, const ForwardBatch& batch, std::span<int32_t> experts,
                 std::span<float> weights) override {
    if (has_come_()) throw StepGaveWay();
    if (inner_ != nullptr) inner_->OnRouting(layer, batch, experts, weights);
  }
  bool OnlyWatches() const override { return inner_ == nullptr || inner_->OnlyWatches(); }

 private:
  const std::function<bool()> has_come_;
  RoutingHook* inner_ = nullptr;
};

}  // namespace moesaic
