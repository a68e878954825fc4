#include "core/base/hash.h"

#include <bit>
#include <cstring>

namespace moesaic {
namespace {

// Primes of the specification, section "XXH64 algorithm description".
constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5;

static_assert(std::endian::native == std::endian::little, "loads below are little-endian");

template <typename T>
T Load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

uint64_t Round(uint64_t accumulator, uint64_t lane) {
  return std::rotl(accumulator + lane * kPrime2, 31) * kPrime1;
}

uint64_t Merge(uint64_t hash, uint64_t accumulator) {
  return (hash ^ Round(0, accumulator)) * kPrime1 + kPrime4;
}

}  // namespace

uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed) {
  const std::byte* p = bytes.data();
  size_t left = bytes.size();
  uint64_t hash;
  if (left >= 32) {
    uint64_t a = seed + kPrime1 + kPrime2;
    uint64_t b = seed + kPrime2;
    uint64_t c = seed;
    uint64_t d = seed - kPrime1;
    for (; left >= 32; left -= 32, p += 32) {
      a = Round(a, Load<uint64_t>(p));
      b = Round(b, Load<uint64_t>(p + 8));
      c = Round(c, Load<uint64_t>(p + 16));
      d = Round(d, Load<uint64_t>(p + 24));
    }
    hash = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
    hash = Merge(Merge(Merge(Merge(hash, a), b), c), d);
  } else {
    hash = seed + kPrime5;
  }
  hash += bytes.size();
  for (; left >= 8; left -= 8, p += 8) {
    hash = std::rotl(hash ^ Round(0, Load<uint64_t>(p)), 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    hash = std::rotl(hash ^ (uint64_t{Load<uint32_t>(p)} * kPrime1), 23) * kPrime2 + kPrime3;
    left -= 4;
    p += 4;
  }
  for (; left > 0; --left, ++p) {
    hash = std::rotl(hash ^ (static_cast<uint64_t>(*p) * kPrime5), 11) * kPrime1;
  }
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace moesaic
