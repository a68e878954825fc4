// The header of a GGUF file: whatever it says, the extents that come out lie inside the file, do
// not overlap and have the size of their tensor.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/io/gguf.h"
#include "core/io/gguf_types.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The last byte says how much data follows, so that the corpus stays small.
  const uint64_t header_bytes = size == 0 ? 0 : size - 1;
  const uint64_t file_bytes = header_bytes + (size == 0 ? 0 : uint64_t{data[size - 1]} * 64);
  const auto read = [&](uint64_t offset, std::span<std::byte> to) {
    std::memset(to.data(), 0, to.size());
    if (offset < header_bytes) {
      std::memcpy(to.data(), data + offset, std::min<uint64_t>(to.size(), header_bytes - offset));
    }
    return to.size();
  };
  try {
    const moesaic::GgufHeader header = moesaic::ParseGgufHeader(read, file_bytes, "fuzz.gguf");
    CHECK(header.metadata.is_object());
    std::vector<std::pair<uint64_t, uint64_t>> ranges;
    for (const auto& [name, tensor] : header.tensors) {
      const moesaic::GgufType* const type = moesaic::FindGgufType(tensor.dtype_name);
      CHECK(type != nullptr);
      CHECK_LE(tensor.extent.offset + tensor.extent.bytes, file_bytes);
      // No overflow: the parser has said that the product fits the file.
      uint64_t elements = 1;
      for (const int64_t dim : tensor.shape) elements *= static_cast<uint64_t>(dim);
      CHECK_EQ(elements / static_cast<uint64_t>(type->block_values) *
                   static_cast<uint64_t>(type->block_bytes),
               tensor.extent.bytes);
      ranges.emplace_back(tensor.extent.offset, tensor.extent.offset + tensor.extent.bytes);
    }
    std::sort(ranges.begin(), ranges.end());
    for (size_t i = 1; i < ranges.size(); ++i) CHECK_LE(ranges[i - 1].second, ranges[i].first);
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == moesaic::ErrorKind::kCorrupt ||
          error.kind() == moesaic::ErrorKind::kUnsupported);
  }
  return 0;
}
