// Random blocks of GGUF's types, as they lie in a file, in panels and as numbers.
#pragma once

#include <string_view>
#include <vector>

#include "kernels/cpu/gguf_blocks.h"
#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic::testing_util {

inline constexpr const char* kGgufBlockTypes[] = {"Q4_0",   "Q4_1",   "Q5_0", "Q5_1", "Q8_0",
                                                  "Q2_K",   "Q3_K",   "Q4_K", "Q5_K", "Q6_K",
                                                  "IQ4_NL", "IQ4_XS", "MXFP4"};

// Where the f16 numbers of a block are, which random bytes would make infinite; -1: none.
struct Halves {
  int first = -1;
  int second = -1;
};
inline Halves HalvesOf(std::string_view type) {
  if (type == "Q4_1" || type == "Q5_1" || type == "Q4_K" || type == "Q5_K") return {0, 2};
  if (type == "Q2_K") return {80, 82};
  if (type == "Q3_K") return {108, -1};
  if (type == "Q6_K") return {208, -1};
  if (type == "MXFP4") return {};
  return {0, -1};
}

// Rows of random blocks with scales of both signs, some of them subnormal, as they lie in a file,
// in panels and as numbers.
class BlockWeights {
 public:
  BlockWeights(const char* type, int64_t n, int64_t k, Random& random,
               WeightType weights = WeightType::kGgufF32)
      : type_(*FindGgufType(type)), matrix_{nullptr, weights, n, k, GgufFormOf(type_)} {
    const int64_t blocks = k / type_.block_values;
    rows_.resize(static_cast<size_t>(n * row_bytes()));
    for (std::byte& byte : rows_) byte = static_cast<std::byte>(random.Uniform(0, 255));
    for (int64_t block = 0; block < n * blocks; ++block) {
      std::byte* const at = rows_.data() + block * type_.block_bytes;
      Tame(at, random);
    }
    Pack();
  }
  // Bytes of a row as the file has it.
  std::byte* row(int64_t at) { return rows_.data() + at * row_bytes(); }
  int64_t row_bytes() const { return matrix_.k / type_.block_values * type_.block_bytes; }
  const GgufType& type() const { return type_; }

  // After rows were changed.
  void Pack() {
    values_.resize(static_cast<size_t>(matrix_.n * matrix_.k));
    DequantiseGguf(type_, rows_, values_);
    panels_ = AlignedBuffer(static_cast<size_t>(matrix_.bytes()));
    panels_.Zero();
    matrix_.data = panels_.data();
    for (int64_t at = 0; at < matrix_.n; ++at) {
      PackGgufRow(matrix_, at, row(at),
                  panels_.data() + at / kPanelOutputs * matrix_.panel_bytes());
    }
  }
  const PackedMatrix& matrix() const { return matrix_; }
  const std::vector<float>& values() const { return values_; }

 private:
  // Makes numbers finite and not too large.
  void Tame(std::byte* block, Random& random) const {
    if (type_.name == "MXFP4") {
      block[0] = static_cast<std::byte>(random.Uniform(0, 140));
    } else if (type_.block_values > 1) {
      for (const int at : {HalvesOf(type_.name).first, HalvesOf(type_.name).second}) {
        if (at >= 0) block[at + 1] &= std::byte{0xbf};
      }
    } else if (type_.name == "F32") {
      const float value = random.Normal();
      std::memcpy(block, &value, sizeof(value));
    } else {
      block[1] &= std::byte{0xbf};
    }
  }

  const GgufType& type_;
  PackedMatrix matrix_;
  std::vector<std::byte> rows_;
  std::vector<float> values_;
  AlignedBuffer panels_;
};

// For what takes Weights. Only their matrix counts.
inline Weights AsWeights(const BlockWeights& w) {
  Weights weights(KernelsFor(Isa::kScalar), {}, 0, w.matrix().k, WeightType::kF32);
  weights.matrix = w.matrix();
  return weights;
}

}  // namespace moesaic::testing_util
