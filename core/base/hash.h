// Hash64: a fast 64-bit hash of bytes, for fingerprints and checksums. It finds accidents, not
// attacks.
//
// The algorithm is XXH64 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md), whose
// values do not depend on the machine: stores, state files and traces keep them. Several GB/s per
// core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace moesaic {

uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed = 0);

inline uint64_t Hash64(std::string_view text, uint64_t seed = 0) {
  return Hash64(std::as_bytes(std::span(text)), seed);
}

// The same hash of bytes that come piece by piece: each is hashed while it is in a cache, and they
// need not lie together.
class Hash64Stream {
 public:
  explicit Hash64Stream(uint64_t seed = 0);
  ~Hash64Stream();
  Hash64Stream(const Hash64Stream&) = delete;
  Hash64Stream& operator=(const Hash64Stream&) = delete;

  void Reset();
  void Add(std::span<const std::byte> bytes);
  uint64_t Value() const;  // of all since Reset

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moesaic
