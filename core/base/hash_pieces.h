// Hash64 (core/base/hash.h) of bytes that do not lie together.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>

namespace moesaic {

// That of the pieces one behind the other, as if they were one.
uint64_t Hash64OfPieces(std::span<const iovec> pieces, uint64_t seed = 0);

}  // namespace moesaic
