#include "core/base/hash.h"

#include "core/base/hash_pieces.h"

// The state's size is asked for: it is kept where this object is made.
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

namespace moesaic {

uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH64(bytes.data(), bytes.size(), seed);
}

struct Hash64Stream::State {
  XXH64_state_t hash;
};

Hash64Stream::Hash64Stream() : state_(std::make_unique<State>()) { Reset(); }
Hash64Stream::~Hash64Stream() = default;

void Hash64Stream::Reset() { XXH64_reset(&state_->hash, 0); }

void Hash64Stream::Add(std::span<const std::byte> bytes) {
  XXH64_update(&state_->hash, bytes.data(), bytes.size());
}

uint64_t Hash64Stream::Value() const { return XXH64_digest(&state_->hash); }

uint64_t Hash64OfPieces(std::span<const iovec> pieces, uint64_t seed) {
  XXH64_state_t hash;
  XXH64_reset(&hash, seed);
  for (const iovec& piece : pieces) XXH64_update(&hash, piece.iov_base, piece.iov_len);
  return XXH64_digest(&hash);
}

}  // namespace moesaic
