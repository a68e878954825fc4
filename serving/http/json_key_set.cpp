#include "serving/http/json_key_set.h"

#include <bit>
#include <cstring>
#include <random>

#include "core/base/check.h"

namespace moesaic {
namespace {

struct SipState {
  uint64_t v0, v1, v2, v3;

  void Round() {
    v0 += v1;
    v1 = std::rotl(v1, 13) ^ v0;
    v0 = std::rotl(v0, 32);
    v2 += v3;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1;
    v1 = std::rotl(v1, 17) ^ v2;
    v2 = std::rotl(v2, 32);
  }
  void Add(uint64_t word) {
    v3 ^= word;
    Round();
    v0 ^= word;
  }
};

// Tells most keys apart without a look at where they lie.
uint64_t Glance(std::string_view key) {
  if (key.empty()) return 0;
  return (static_cast<uint64_t>(key.size()) << 24) |
         (static_cast<uint64_t>(static_cast<unsigned char>(key.front())) << 16) |
         (static_cast<uint64_t>(static_cast<unsigned char>(key[key.size() / 2])) << 8) |
         static_cast<unsigned char>(key.back());
}

}  // namespace

uint64_t SipHash13(std::string_view text, uint64_t key0, uint64_t key1) {
  SipState state{key0 ^ 0x736f6d6570736575, key1 ^ 0x646f72616e646f6d, key0 ^ 0x6c7967656e657261,
                 key1 ^ 0x7465646279746573};
  size_t pos = 0;
  for (; pos + 8 <= text.size(); pos += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + pos, 8);
    state.Add(word);
  }
  uint64_t last = static_cast<uint64_t>(text.size()) << 56;
  for (size_t i = 0; pos + i < text.size(); ++i) {
    last |= static_cast<uint64_t>(static_cast<unsigned char>(text[pos + i])) << (8 * i);
  }
  state.Add(last);
  state.v2 ^= 0xff;
  for (int i = 0; i < 3; ++i) state.Round();
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

void JsonKeySet::OpenObject() { objects_.push_back({keys_.size(), copies_.size(), 0}); }

void JsonKeySet::CloseObject() {
  keys_.resize(objects_.back().first_key);
  copies_.resize(objects_.back().first_copy);
  objects_.pop_back();
}

bool JsonKeySet::Add(std::string_view key, bool copy) {
  Object& object = objects_.back();
  uint64_t hash = 0;
  size_t slot = 0;
  if (object.table_size == 0 && size() < kCompared) {
    steps_ += size();
    hash = Glance(key);
    for (size_t i = object.first_key; i < keys_.size(); ++i) {
      if (keys_[i].hash == hash && Same(keys_[i], key)) return false;
    }
  } else {
    // At most half full, so that a search looks at few slots.
    if (object.table_size < 2 * (size() + 1)) MakeTable(std::bit_ceil(4 * (size() + 1)));
    hash = Hash(key);
    slot = FindSlot(key, hash);
    if (table()[slot] != 0) return false;
  }
  if (object.table_size > 0) {
    CHECK_LT(keys_.size(), size_t{UINT32_MAX});
    table()[slot] = static_cast<uint32_t>(keys_.size() + 1);
  }
  if (copy) {
    keys_.push_back({nullptr, copies_.size(), key.size(), hash});
    copies_ += key;
  } else {
    keys_.push_back({key.data(), 0, key.size(), hash});
  }
  return true;
}

std::string_view JsonKeySet::View(const Key& key) const {
  return {key.data != nullptr ? key.data : copies_.data() + key.begin, key.size};
}

std::vector<uint32_t>& JsonKeySet::table() { return tables_[objects_.size() - 1]; }

void JsonKeySet::MakeTable(size_t table_size) {
  if (tables_.size() < objects_.size()) tables_.resize(objects_.size());
  std::vector<uint32_t>& slots = table();
  if (slots.size() < table_size) slots.resize(table_size);
  std::memset(slots.data(), 0, table_size * sizeof(uint32_t));
  Object& object = objects_.back();
  const bool hashed = object.table_size > 0;
  object.table_size = table_size;
  for (size_t i = object.first_key; i < keys_.size(); ++i) {
    Key& key = keys_[i];
    if (!hashed) key.hash = Hash(View(key));
    ++steps_;
    size_t slot = key.hash & (table_size - 1);
    while (slots[slot] != 0) slot = (slot + 1) & (table_size - 1);
    slots[slot] = static_cast<uint32_t>(i + 1);
  }
}

size_t JsonKeySet::FindSlot(std::string_view key, uint64_t hash) {
  const std::vector<uint32_t>& slots = table();
  const size_t mask = objects_.back().table_size - 1;
  size_t slot = hash & mask;
  for (;; slot = (slot + 1) & mask) {
    ++steps_;
    if (slots[slot] == 0) return slot;
    const Key& other = keys_[slots[slot] - 1];
    if (other.hash == hash && Same(other, key)) return slot;
  }
}

uint64_t JsonKeySet::Hash(std::string_view key) {
  if (!has_hash_key_) {
    std::random_device random;
    for (uint64_t& word : hash_key_) word = (static_cast<uint64_t>(random()) << 32) | random();
    has_hash_key_ = true;
  }
  return SipHash13(key, hash_key_[0], hash_key_[1]);
}

}  // namespace moesaic
