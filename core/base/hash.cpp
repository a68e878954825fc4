#include "core/base/hash.h"

// The state's size is asked for: it is kept where this object is made.
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

namespace moesaic {

uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH64(bytes.data(), bytes.size(), seed);
}

struct Hash64Stream::State {
  const uint64_t seed;
  XXH64_state_t hash = {};
};

Hash64Stream::Hash64Stream(uint64_t seed) : state_(new State{seed}) { Reset(); }
Hash64Stream::~Hash64Stream() = default;

void Hash64Stream::Reset() { XXH64_reset(&state_->hash, state_->seed); }

void Hash64Stream::Add(std::span<const std::byte> bytes) {
  XXH64_update(&state_->hash, bytes.data(), bytes.size());
}

uint64_t Hash64Stream::Value() const { return XXH64_digest(&state_->hash); }

}  // namespace moesaic
