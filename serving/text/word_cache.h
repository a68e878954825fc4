// WordCache: the token ids of words seen lately, so that a text's frequent words are merged once.
//
// Owned by one thread at a time (it is part of an encoder's scratch). Bounded: when its tables are
// full it starts afresh, and colliding words replace each other, so no input makes it slow.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 64;  // longer words seldom come back

  static uint64_t Hash(std::string_view word);

  // The ids of `word`, or null data when it is not cached. Valid until the next Insert.
  std::span<const int32_t> Find(std::string_view word, uint64_t hash) const {
    if (slots_.empty()) return {};
    const size_t base = hash & (slots_.size() - 1);
    for (size_t way = 0; way < kWays; ++way) {
      const Slot& slot = slots_[base ^ way];
      if (slot.hash == hash && slot.key_bytes == word.size() &&
          std::string_view(keys_).substr(slot.key_at, slot.key_bytes) == word) {
        return {ids_.data() + slot.ids_at, slot.ids_count};
      }
    }
    return {};
  }
  // `word` is not longer than kMaxWordBytes and not cached.
  void Insert(std::string_view word, uint64_t hash, std::span<const int32_t> ids);

 private:
  static constexpr size_t kSlots = 1 << 16;
  static constexpr size_t kWays = 4;
  static constexpr size_t kMaxKeyBytes = 1 << 20;
  struct Slot {
    uint64_t hash = 0;
    uint32_t key_at = 0;
    uint32_t key_bytes = 0;  // 0: free (words are not empty)
    uint32_t ids_at = 0;
    uint32_t ids_count = 0;
  };
  std::vector<Slot> slots_;
  std::string keys_;
  std::vector<int32_t> ids_;
};

}  // namespace moesaic
