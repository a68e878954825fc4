#include "prefetch/predict/learned_section.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/base/error.h"

namespace moesaic {
namespace {

constexpr size_t kBlock = 32;  // values

size_t BlockCount(size_t values) { return (values + kBlock - 1) / kBlock; }

template <typename T>
void Append(std::vector<std::byte>& out, const T* values, size_t count) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values);
  out.insert(out.end(), bytes, bytes + count * sizeof(T));
}

template <typename T>
void SaveArray(std::span<const T> values, std::vector<std::byte>& out) {
  static constexpr std::array<T, kBlock> kZeros{};
  const uint64_t size = values.size();
  uint64_t blocks = 0;
  Append(out, &size, 1);
  const size_t count_at = out.size();
  Append(out, &blocks, 1);
  for (uint32_t block = 0; block < BlockCount(values.size()); ++block) {
    const std::span<const T> part =
        values.subspan(block * kBlock, std::min(kBlock, values.size() - block * kBlock));
    if (std::memcmp(part.data(), kZeros.data(), part.size_bytes()) == 0) continue;
    Append(out, &block, 1);
    Append(out, part.data(), part.size());
    Append(out, kZeros.data(), kBlock - part.size());
    ++blocks;
  }
  std::memcpy(out.data() + count_at, &blocks, sizeof(blocks));
}

template <typename T>
T Take(std::span<const std::byte>& bytes) {
  if (bytes.size() < sizeof(T)) Fail(ErrorKind::kCorrupt, "is cut off");
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes = bytes.subspan(sizeof(T));
  return value;
}

// Checks one array's bytes and takes them off `bytes`; writes the values only if `apply`.
template <typename T>
void LoadArray(std::span<const std::byte>& bytes, std::span<T> values, const LearnedArray& limits,
               bool apply) {
  const auto size = Take<uint64_t>(bytes);
  if (size != values.size()) {
    Fail(ErrorKind::kCorrupt, "holds {} numbers where this program has {}", size, values.size());
  }
  const auto blocks = Take<uint64_t>(bytes);
  if (apply) std::fill(values.begin(), values.end(), T{0});
  size_t next = 0;  // the least number that the next block may have
  for (uint64_t i = 0; i < blocks; ++i) {
    const size_t block = Take<uint32_t>(bytes);
    if (block < next || block >= BlockCount(values.size())) {
      Fail(ErrorKind::kCorrupt, "block {} is out of range or out of order", block);
    }
    next = block + 1;
    const auto stored = Take<std::array<T, kBlock>>(bytes);
    const std::span<T> part =
        values.subspan(block * kBlock, std::min(kBlock, values.size() - block * kBlock));
    for (size_t j = 0; j < part.size(); ++j) {
      const auto value = static_cast<double>(stored[j]);
      if (!(value >= limits.low && value <= limits.high)) {  // or not a number
        Fail(ErrorKind::kCorrupt, "a number is {}, expected {} to {}", value, limits.low,
             limits.high);
      }
    }
    if (apply) std::copy_n(stored.begin(), part.size(), part.begin());
  }
}

}  // namespace

LearnedSection::LearnedSection(std::string_view name, uint32_t version,
                               std::vector<LearnedArray> arrays)
    : name_(name), version_(version), arrays_(std::move(arrays)) {}

std::vector<std::byte> LearnedSection::Save() const {
  // Room for all, so that nothing is copied twice; what is left out is never touched.
  size_t bytes = 0;
  for (const LearnedArray& array : arrays_) {
    std::visit(
        [&](auto values) {
          bytes += 16 + BlockCount(values.size()) * (4 + kBlock * sizeof(values[0]));
        },
        array.values);
  }
  std::vector<std::byte> out;
  out.reserve(bytes);
  for (const LearnedArray& array : arrays_) {
    std::visit([&]<typename T>(std::span<T> values) { SaveArray(std::span<const T>(values), out); },
               array.values);
  }
  return out;
}

void LearnedSection::Load(uint32_t stored_version, std::span<const std::byte> bytes) {
  if (stored_version != version_) {
    Fail(ErrorKind::kUnsupported, "has version {}, this program reads {}", stored_version,
         version_);
  }
  for (const bool apply : {false, true}) {
    std::span<const std::byte> left = bytes;
    for (const LearnedArray& array : arrays_) {
      std::visit([&](auto values) { LoadArray(left, values, array, apply); }, array.values);
    }
    if (!left.empty()) Fail(ErrorKind::kCorrupt, "{} bytes follow it", left.size());
  }
}

}  // namespace moesaic
