// What tests against recorded references (tests/reference) share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/isas.h"
#include "tests/serving/model/model_harness.h"

namespace moesaic {

inline std::string DirName(const ::testing::TestParamInfo<std::string>& info) {
  return std::filesystem::path(info.param).filename().string();
}

inline std::string Key(size_t prompt, const char* what) {
  return (prompt < 10 ? "0" : "") + std::to_string(prompt) + "." + what;
}

// Of class kF32, or of those that round activations to bf16.
inline std::vector<Isa> IsasOf(NumericsClass numerics) {
  std::vector<Isa> isas;
  for (const Isa isa : AllIsas()) {
    if (!IsaSupported(isa)) continue;
    const bool rounds = KernelsFor(isa).numerics != NumericsClass::kF32;
    if (rounds == (numerics != NumericsClass::kF32)) isas.push_back(isa);
  }
  return isas;
}

// Puts the recorded experts in the place of the model's own. Rounding activations flips experts
// whose probabilities nearly tie; random weights tie often, and one flip moves logits by units,
// which says nothing about the arithmetic that is tested here.
class RecordedRouting : public RoutingHook {
 public:
  RecordedRouting(const Reference& reference, size_t prompt)
      : experts_(reference.Ints(Key(prompt, "experts"))),
        weights_(reference.Floats(Key(prompt, "expert_weights"))),
        tokens_(reference.Shape(Key(prompt, "experts"))[1]),
        sparse_layers_(reference.Ints("sparse_layers")) {}

  void OnRouting(int64_t layer, const ForwardBatch& batch, std::span<int32_t> experts,
                 std::span<float> weights) override {
    const auto sparse =
        std::find(sparse_layers_.begin(), sparse_layers_.end(), layer) - sparse_layers_.begin();
    const auto top_k = static_cast<int64_t>(experts.size() / batch.tokens.size());
    const auto first =
        static_cast<size_t>((sparse * tokens_ + batch.slices[0].start_position) * top_k);
    std::copy_n(experts_.begin() + static_cast<int64_t>(first), experts.size(), experts.begin());
    std::copy_n(weights_.begin() + static_cast<int64_t>(first), weights.size(), weights.begin());
  }

 private:
  std::vector<int32_t> experts_;
  std::vector<float> weights_;
  int64_t tokens_;
  std::vector<int32_t> sparse_layers_;
};

}  // namespace moesaic
