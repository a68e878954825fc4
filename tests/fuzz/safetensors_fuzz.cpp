// The header of a safetensors file: whatever it says, the extents that come out lie inside the
// file, do not overlap and have the size of their tensor.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/io/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The last byte says how much data follows the header, so that the corpus stays readable.
  const uint64_t data_bytes = size == 0 ? 0 : uint64_t{data[size - 1]} * 16;
  const std::string_view text(reinterpret_cast<const char*>(data), size == 0 ? 0 : size - 1);
  const uint64_t data_offset = 8 + text.size();
  const uint64_t file_bytes = data_offset + data_bytes;
  try {
    const auto tensors =
        moesaic::ParseSafetensorsHeader(text, data_offset, file_bytes, "fuzz.safetensors");
    std::vector<std::pair<uint64_t, uint64_t>> ranges;
    for (const auto& [name, tensor] : tensors) {
      const moesaic::Extent& extent = tensor.extent;
      CHECK_GE(extent.offset, data_offset);
      CHECK_LE(extent.bytes, data_bytes);
      CHECK_LE(extent.offset + extent.bytes, file_bytes);
      if (tensor.supported_dtype) {
        // No overflow: the parser has said that the product fits the file, or that a dimension is
        // 0.
        uint64_t elements = 1;
        for (const int64_t dim : tensor.shape) {
          CHECK_GE(dim, 0);
          elements = dim == 0 || elements == 0 ? 0 : elements * static_cast<uint64_t>(dim);
        }
        if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end())
          elements = 0;
        CHECK_EQ(elements * static_cast<uint64_t>(moesaic::DTypeBits(tensor.dtype)),
                 extent.bytes * 8);
      }
      if (extent.bytes > 0) ranges.emplace_back(extent.offset, extent.offset + extent.bytes);
    }
    std::sort(ranges.begin(), ranges.end());
    for (size_t i = 1; i < ranges.size(); ++i) CHECK_LE(ranges[i - 1].second, ranges[i].first);
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == moesaic::ErrorKind::kCorrupt);
  }
  return 0;
}
