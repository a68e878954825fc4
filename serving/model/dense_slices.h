// DenseSlices: which part of the dense weights each of several devices has (tensor parallelism).
// Matrices are cut by outputs only, in whole panels, so that every output is computed by one device
// in the order in which one device would do it, and logits have the bits of one device whatever
// their number. Keys, values and queries are cut by KV head. Plain data.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/config/model_config.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/forward_batch.h"
#include "serving/model/weights.h"

namespace moesaic {

// Outputs of a matrix of n that device `device` of `devices` has: consecutive, from a multiple of
// two panels on, the same number everywhere but for 32. May be none.
RowRange OutputSlice(int64_t n, int devices, int device);

// KV heads, each with the queries that share it: the same number everywhere but for one. With fewer
// KV heads than devices some devices have none.
RowRange KvHeadSlice(int64_t kv_heads, int devices, int device);

// Throws Error(kUnsupported) for heads that are not whole panels, which cannot be cut by head, and
// for more devices than can be put together.
void CheckSliceable(const ModelConfig& config, int devices);

class DenseSlices {
 public:
  // Bytes of the device's part.
  static uint64_t Bytes(const ModelConfig& config, WeightType type, int devices, int device);

  // Where a part of the whole weights goes.
  struct Piece {
    uint64_t offset = 0;                // from the part's base
    std::span<const std::byte> source;  // of the whole weights
  };
  // The part of `whole`, which is loaded, to lie at `base`: its shapes and addresses, and what is
  // to be copied there.
  //
  // All have the norms. The first has the embedding and the routers besides: tokens are looked up
  // and routed there. A matrix of which a device has no outputs has n = 0.
  DenseSlices(const ModelConfig& config, const ModelWeights& whole, int devices, int device,
              std::byte* base);

  ModelWeights TakeWeights() { return std::move(weights_); }
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  DenseSlices() = default;
  uint64_t LayOut(const ModelConfig& config, const ModelWeights& whole, int devices, int device,
                  std::byte* base);

  ModelWeights weights_;  // without memory of its own
  std::vector<Piece> pieces_;
};

}  // namespace moesaic
