#include "serving/text/word_cache.h"

#include <algorithm>
#include <cstring>

#include "core/base/check.h"

namespace moesaic {
namespace {

uint64_t Mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

// Multiply-and-fold over eight bytes at a time; the last word may overlap the one before it.
uint64_t WordCache::Hash(std::string_view word) {
  constexpr uint64_t kFirst = 0x9E3779B97F4A7C15ull;
  constexpr uint64_t kSecond = 0xD1B54A32D192ED03ull;
  uint64_t hash = Mix(word.size() ^ kSecond, kFirst);
  const char* data = word.data();
  size_t left = word.size();
  uint64_t block = 0;
  if (left < 8) {
    std::memcpy(&block, data, left);
    return Mix(hash ^ block ^ kSecond, kFirst) | 1;
  }
  for (; left > 8; left -= 8, data += 8) {
    std::memcpy(&block, data, 8);
    hash = Mix(hash ^ block, kFirst);
  }
  std::memcpy(&block, data + left - 8, 8);
  return Mix(hash ^ block ^ kSecond, kFirst) | 1;
}

void WordCache::Insert(std::string_view word, uint64_t hash, std::span<const int32_t> ids) {
  CHECK(!word.empty() && word.size() <= kMaxWordBytes);
  if (slots_.empty()) slots_.resize(kSlots);
  if (keys_.size() + word.size() > kMaxKeyBytes) {
    std::fill(slots_.begin(), slots_.end(), Slot{});
    keys_.clear();
    ids_.clear();
  }
  const size_t base = hash & (kSlots - 1);
  size_t place = base ^ ((hash >> 32) & (kWays - 1));  // the victim when no way is free
  for (size_t way = 0; way < kWays; ++way) {
    if (slots_[base ^ way].key_bytes == 0) {
      place = base ^ way;
      break;
    }
  }
  slots_[place] = {hash, static_cast<uint32_t>(keys_.size()), static_cast<uint32_t>(word.size()),
                   static_cast<uint32_t>(ids_.size()), static_cast<uint32_t>(ids.size())};
  keys_.append(word);
  ids_.insert(ids_.end(), ids.begin(), ids.end());
}

}  // namespace moesaic
