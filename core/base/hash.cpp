#include "core/base/hash.h"

#include <xxhash.h>

namespace moesaic {

uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH64(bytes.data(), bytes.size(), seed);
}

}  // namespace moesaic
