// JsonKeySet: the keys of the JSON objects that are open while a text is walked, to notice one that
// an object has twice. The time is linear in the keys, whoever chose them: few keys are compared
// with each other, many go into a hash table with a random key of its own (SipHash), which nobody
// can fill with collisions.
//
// Used by one thread. Keys are referred to until their object is closed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

class JsonKeySet {
 public:
  // Counts the comparisons of keys and looks into the table in `steps`.
  explicit JsonKeySet(uint64_t& steps) : steps_(steps) {}

  void OpenObject();
  void CloseObject();
  // Into the object opened last. False when it has this key. `key` must stay where it is until the
  // object is closed; of one that cannot (`copy`), a copy is kept.
  bool Add(std::string_view key, bool copy);
  size_t size() const { return keys_.size() - objects_.back().first_key; }

 private:
  static constexpr size_t kCompared = 16;  // keys of an object; with more there is a table
  struct Key {
    const char* data;  // null: in copies_
    size_t begin;      // in copies_
    size_t size;
    uint64_t hash;  // of an object with a table; of others a word that differs for most keys
  };
  struct Object {
    size_t first_key = 0;
    size_t first_copy = 0;
    size_t table_size = 0;  // a power of two; 0: none
  };

  std::string_view View(const Key& key) const;
  bool Same(const Key& key, std::string_view other) const { return View(key) == other; }
  std::vector<uint32_t>& table();
  void MakeTable(size_t table_size);
  // The slot of the key, or the free one where it belongs.
  size_t FindSlot(std::string_view key, uint64_t hash);
  uint64_t Hash(std::string_view key);

  uint64_t& steps_;
  std::vector<Key> keys_;        // of all open objects, innermost last
  std::string copies_;           // likewise
  std::vector<Object> objects_;  // open ones
  // Of the open objects by depth; 1 + index into keys_, 0 is free. Reused: only the part that an
  // object uses is cleared for it.
  std::vector<std::vector<uint32_t>> tables_;
  std::array<uint64_t, 2> hash_key_{};
  bool has_hash_key_ = false;
};

// SipHash-1-3 of Aumasson and Bernstein ("SipHash: a fast short-input PRF", 2012), with one round
// for each word and three at the end.
uint64_t SipHash13(std::string_view text, uint64_t key0, uint64_t key1);

}  // namespace moesaic
