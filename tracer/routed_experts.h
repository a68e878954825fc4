// RoutedExperts: which experts each token of one request was routed to, in every layer.
//
// A value: whoever holds it owns it. Not synchronised.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace moesaic {

class RoutedExperts {
 public:
  // Of a position that was not run (its keys and values came from the prefix cache), and of a layer
  // without routed experts.
  static constexpr int16_t kNone = -1;

  // num_layers counts all layers of the model.
  RoutedExperts(int64_t num_layers, int64_t top_k) : num_layers_(num_layers), top_k_(top_k) {}

  int64_t num_layers() const { return num_layers_; }
  int64_t top_k() const { return top_k_; }
  int64_t tokens() const {
    return static_cast<int64_t>(experts_.size()) / std::max<int64_t>(num_layers_ * top_k_, 1);
  }

  // Makes room for positions below `tokens`.
  void Grow(int64_t tokens) {
    experts_.resize(static_cast<size_t>(tokens * num_layers_ * top_k_), kNone);
  }
  // experts: [count, top_k], of the positions from `position` on, for which there is room.
  void Set(int64_t position, int64_t layer, std::span<const int32_t> experts) {
    const auto top_k = static_cast<size_t>(top_k_);
    for (size_t i = 0; i < experts.size(); ++i) {
      const size_t token = static_cast<size_t>(position) + i / top_k;
      const size_t row = token * static_cast<size_t>(num_layers_) + static_cast<size_t>(layer);
      experts_[row * top_k + i % top_k] = static_cast<int16_t>(experts[i]);
    }
  }

  std::span<const int16_t> experts() const { return experts_; }  // [tokens, num_layers, top_k]

 private:
  int64_t num_layers_;
  int64_t top_k_;
  std::vector<int16_t> experts_;  // [tokens, num_layers, top_k]
};

}  // namespace moesaic
