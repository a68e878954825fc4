// ExpertActivationMatrix (EAM): how many tokens were routed to each expert of each layer
// (MoE-Infinity, section 4). The counts of one iteration, of one request, or a sum of those.
//
// A value: whoever holds it owns it. Not synchronised. No allocation after construction but by
// copying.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moesaic {

class ExpertActivationMatrix {
 public:
  ExpertActivationMatrix() = default;  // 0 x 0
  ExpertActivationMatrix(int num_layers, int num_experts);

  int num_layers() const { return num_layers_; }
  int num_experts() const { return num_experts_; }

  // Sums that do not fit 32 bits stay at the largest value.
  void Add(int layer, int expert, uint32_t tokens = 1);
  // CHECKs that the shapes are equal.
  ExpertActivationMatrix& operator+=(const ExpertActivationMatrix& other);
  // Likewise; `other` is a part of this, whose sums have fit.
  ExpertActivationMatrix& operator-=(const ExpertActivationMatrix& other);
  void Clear();

  uint32_t count(int layer, int expert) const {
    return counts_[static_cast<size_t>(layer) * static_cast<size_t>(num_experts_) +
                   static_cast<size_t>(expert)];
  }
  std::span<const uint32_t> Row(int layer) const;  // [num_experts]
  // Tokens times top-k of the layer; 0 for layers without experts and those not seen yet.
  uint64_t row_sum(int layer) const { return row_sums_[static_cast<size_t>(layer)]; }
  uint64_t total() const;
  int distinct(int layer) const;  // experts of the layer that were used

  bool operator==(const ExpertActivationMatrix&) const = default;

 private:
  int num_layers_ = 0;
  int num_experts_ = 0;
  std::vector<uint32_t> counts_;    // [num_layers, num_experts]
  std::vector<uint64_t> row_sums_;  // [num_layers]
};

// Cosine of the angle between the flattened matrices (MoE-Infinity, equation 1 uses one minus
// this), over the layers [0, num_layers): a matrix that is still being filled is compared on the
// layers that it has seen. 0 when one of them is zero there. CHECKs that the shapes are equal.
double CosineSimilarity(const ExpertActivationMatrix& a, const ExpertActivationMatrix& b,
                        int num_layers);
double CosineSimilarity(const ExpertActivationMatrix& a, const ExpertActivationMatrix& b);

}  // namespace moesaic
