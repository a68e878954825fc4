// ExpertSet: a set of experts as bits, a row of words for each layer, so that questions about
// several sets of one layer ("needed, and there, and streamed") are a few words. Plain data.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "cache/expert_grid.h"

namespace moesaic {

class ExpertSet {
 public:
  // Empty, or all experts of the grid.
  explicit ExpertSet(const ExpertGrid& grid, bool all = false)
      : num_experts_(grid.num_experts()), words_((num_experts_ + 63) / 64) {
    bits_.resize(static_cast<size_t>(grid.num_layers()) * static_cast<size_t>(words_));
    if (!all) return;
    for (ExpertIndex expert = 0; expert < grid.total(); ++expert) Add(expert);
  }

  bool Has(ExpertIndex expert) const { return (bits_[WordOf(expert)] & BitOf(expert)) != 0; }
  void Add(ExpertIndex expert) { bits_[WordOf(expert)] |= BitOf(expert); }
  void Remove(ExpertIndex expert) { bits_[WordOf(expert)] &= ~BitOf(expert); }
  // Removes it; whether it was there.
  bool Take(ExpertIndex expert) {
    const bool there = Has(expert);
    Remove(expert);
    return there;
  }
  void ClearLayer(int layer) { std::fill_n(bits_.begin() + Begin(layer), words_, uint64_t{0}); }
  void CopyLayer(int layer, const ExpertSet& from) {
    std::copy_n(from.bits_.begin() + Begin(layer), words_, bits_.begin() + Begin(layer));
  }

  // Bit i of word n: expert n * 64 + i of the layer.
  int words() const { return words_; }
  uint64_t word(int layer, int n) const { return bits_[static_cast<size_t>(Begin(layer) + n)]; }

 private:
  int64_t Begin(int layer) const { return int64_t{layer} * words_; }
  size_t WordOf(ExpertIndex expert) const {
    return static_cast<size_t>(Begin(expert / num_experts_) + expert % num_experts_ / 64);
  }
  uint64_t BitOf(ExpertIndex expert) const { return uint64_t{1} << (expert % num_experts_ % 64); }

  int num_experts_;
  int words_;
  std::vector<uint64_t> bits_;
};

// The first and the last expert of a layer whose bit is set in word_of(0), word_of(1), ..., by its
// number in the layer.
std::optional<int> FirstOf(int words, const auto& word_of) {
  for (int n = 0; n < words; ++n) {
    if (const uint64_t word = word_of(n)) return n * 64 + std::countr_zero(word);
  }
  return std::nullopt;
}
std::optional<int> LastOf(int words, const auto& word_of) {
  for (int n = words - 1; n >= 0; --n) {
    if (const uint64_t word = word_of(n)) return n * 64 + 63 - std::countl_zero(word);
  }
  return std::nullopt;
}

}  // namespace moesaic
