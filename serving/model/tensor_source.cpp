#include "serving/model/tensor_source.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "serving/model/fp8_weights.h"

namespace moesaic {
namespace {

class CheckpointTensorSource : public TensorSource {
 public:
  explicit CheckpointTensorSource(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  DType Require(const PlannedTensor& tensor, std::span<const int64_t> shape) const override {
    if (FindFp8(checkpoint_, tensor, shape)) return DType::kF32;
    return checkpoint_.Require(tensor.name, shape).dtype;
  }

  void ReadRows(const PlannedTensor& tensor, int64_t row_begin, int64_t row_end,
                int64_t row_elements, std::span<std::byte> destination) const override {
    const TensorInfo* stored = checkpoint_.Find(tensor.name);
    CHECK(stored != nullptr);
    if (stored->dtype == DType::kF8E4M3) {
      ReadFp8Rows(*FindFp8(checkpoint_, tensor, stored->shape), row_begin, row_end, row_elements,
                  destination);
      return;
    }
    ReadRowsAsTheyAre(*stored, row_begin, row_end, row_elements, destination);
  }

  uint64_t Fingerprint() const override { return checkpoint_.Fingerprint(); }

 private:
  void ReadRowsAsTheyAre(const TensorInfo& tensor, int64_t row_begin, int64_t row_end,
                         int64_t row_elements, std::span<std::byte> destination) const {
    const uint64_t row_bytes =
        static_cast<uint64_t>(row_elements) * static_cast<uint64_t>(DTypeBits(tensor.dtype)) / 8;
    TensorInfo rows = tensor;
    rows.shape = {row_end - row_begin, row_elements};
    rows.extent.offset += static_cast<uint64_t>(row_begin) * row_bytes;
    rows.extent.bytes = static_cast<uint64_t>(row_end - row_begin) * row_bytes;
    CHECK_LE(rows.extent.offset + rows.extent.bytes, tensor.extent.offset + tensor.extent.bytes);
    checkpoint_.Read(rows, destination);
  }

  // The values are read into the last quarter of the destination and widened from its start on.
  void ReadFp8Rows(const Fp8Tensor& fp8, int64_t row_begin, int64_t row_end, int64_t row_elements,
                   std::span<std::byte> destination) const {
    const std::span<std::byte> values = destination.last(destination.size() / sizeof(float));
    ReadRowsAsTheyAre(*fp8.values, row_begin, row_end, row_elements, values);
    std::vector<std::byte> scales(fp8.scales->extent.bytes);
    checkpoint_.Read(*fp8.scales, scales);
    DequantiseFp8(values.data(), row_begin, row_end - row_begin, row_elements, scales.data(),
                  fp8.scales->dtype, fp8.blocks, reinterpret_cast<float*>(destination.data()));
  }

  const Checkpoint& checkpoint_;
};

// splitmix64 (Steele, Lea, Flood 2014): a counter-based generator, so that any row can be made
// alone.
uint64_t SplitMix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

class DummyTensorSource : public TensorSource {
 public:
  explicit DummyTensorSource(uint64_t seed) : seed_(seed) {}

  DType Require(const PlannedTensor&, std::span<const int64_t>) const override {
    return DType::kBF16;
  }

  void ReadRows(const PlannedTensor& tensor, int64_t row_begin, int64_t row_end,
                int64_t row_elements, std::span<std::byte> destination) const override {
    const std::string& name = tensor.name;
    auto* out = reinterpret_cast<uint16_t*>(destination.data());
    const int64_t count = (row_end - row_begin) * row_elements;
    CHECK_EQ(destination.size(), static_cast<size_t>(count) * 2);
    if (name.find("norm") != std::string::npos) {
      for (int64_t i = 0; i < count; ++i) out[i] = F32ToBf16(1.0f);
      return;
    }
    uint64_t base = seed_;
    for (const char c : name) base = SplitMix(base ^ static_cast<unsigned char>(c));
    const float scale = std::sqrt(3.0f / static_cast<float>(row_elements)) / 32768.0f;
    // Four values from each draw; element e of the tensor depends on e alone.
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t element = static_cast<uint64_t>(row_begin * row_elements + i);
      const uint64_t draw = SplitMix(base + element / 4);
      const auto part = static_cast<int16_t>(draw >> (16 * (element % 4)));
      out[i] = F32ToBf16(static_cast<float>(part) * scale);
    }
  }

  uint64_t Fingerprint() const override { return SplitMix(seed_ ^ 0x64756d6d79ull); }

 private:
  uint64_t seed_;
};

}  // namespace

std::unique_ptr<TensorSource> MakeCheckpointTensorSource(const Checkpoint& checkpoint) {
  return std::make_unique<CheckpointTensorSource>(checkpoint);
}

std::unique_ptr<TensorSource> MakeDummyTensorSource(uint64_t seed) {
  return std::make_unique<DummyTensorSource>(seed);
}

}  // namespace moesaic
