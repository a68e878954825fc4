// Coded bf16 weights: every bit comes back, panels with too many exponents say so, and products
// have the bits of those with plain bf16 weights.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/coded_weights.h"
#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using testing_util::Activations;
using testing_util::HiddenRows;
using testing_util::IsaParamName;
using testing_util::Multiply;
using testing_util::Random;
using testing_util::SupportedIsas;
using testing_util::TestSeed;
using testing_util::Weights;

// A matrix of these bf16 words, [n, k], packed.
struct Coded {
  Coded(const CpuKernels& kernels, const std::vector<uint16_t>& words, int64_t n, int64_t k,
        WeightType type = WeightType::kBf16Coded)
      : memory(static_cast<size_t>(PackedMatrix::Bytes(type, n, k))),
        matrix{memory.data(), type, n, k} {
    std::memset(memory.data(), 0xa5, memory.bytes());
    kernels.pack_panels(words.data(), DType::kBF16, k, n, k, type, 0, matrix.panels(),
                        memory.data());
  }
  AlignedBuffer memory;
  PackedMatrix matrix;
};

class CodedKernelTest : public ::testing::TestWithParam<Isa> {
 protected:
  CodedKernelTest() : trace_(__FILE__, __LINE__, "seed " + std::to_string(TestSeed())) {}

  // Words of few exponents, and `exceptions` of any of the others in each panel.
  std::vector<uint16_t> Words(int64_t n, int64_t k, int64_t exceptions) {
    std::vector<uint16_t> words(static_cast<size_t>(n * k));
    for (uint16_t& word : words) {
      const int64_t exponent = 110 + random_.Uniform(0, 13);
      word = static_cast<uint16_t>(random_.Uniform(0, 1) << 15 | exponent << 7 |
                                   random_.Uniform(0, 127));
    }
    for (int64_t row = 0; row < n; row += kPanelOutputs) {
      const int64_t values = std::min(kPanelOutputs, n - row) * k;
      for (int64_t i = 0; i < exceptions; ++i) {
        const auto at = static_cast<size_t>(row * k + random_.Uniform(0, values - 1));
        words[at] = static_cast<uint16_t>(words[at] & 0x807f) |
                    static_cast<uint16_t>(random_.Uniform(124, 150) << 7);
      }
    }
    return words;
  }

  const CpuKernels& kernels_ = KernelsFor(GetParam());
  Random random_;
  ::testing::ScopedTrace trace_;
};

void ExpectWords(const CpuKernels& kernels, const PackedMatrix& matrix,
                 const std::vector<uint16_t>& words) {
  std::vector<float> row(static_cast<size_t>(matrix.k));
  for (int64_t r = 0; r < matrix.n; ++r) {
    kernels.unpack_row(matrix, r, row.data());
    for (int64_t i = 0; i < matrix.k; ++i) {
      const uint32_t bits = testing_util::Bits(row[static_cast<size_t>(i)]);
      ASSERT_EQ(bits >> 16, words[static_cast<size_t>(r * matrix.k + i)]) << r << " " << i;
      ASSERT_EQ(bits & 0xffff, 0u);
    }
  }
}

// All 65536 words, payloads of NaN, denormals and -0 among them: 15 exponents at a time, and each
// exponent as the exception among others.
TEST_P(CodedKernelTest, EveryWordComesBack) {
  const CpuKernels& scalar = KernelsFor(Isa::kScalar);
  for (int first = 0; first < 256; first += 15) {
    const int exponents = std::min(15, 256 - first);
    std::vector<uint16_t> words(static_cast<size_t>(16 * 256));
    for (size_t i = 0; i < words.size(); ++i) {
      const auto exponent = static_cast<size_t>(first) + i / 256 % static_cast<size_t>(exponents);
      words[i] = static_cast<uint16_t>((i & 128) << 8 | exponent << 7 | (i & 127));
    }
    const Coded coded(kernels_, words, 16, 256);
    ASSERT_TRUE(CodedMatrixFits(coded.matrix));
    ExpectWords(kernels_, coded.matrix, words);
    const Coded same(scalar, words, 16, 256);
    EXPECT_EQ(std::memcmp(coded.memory.data(), same.memory.data(), coded.memory.bytes()), 0);
  }
  for (int exponent = 0; exponent < 256; ++exponent) {
    std::vector<uint16_t> words(static_cast<size_t>(16 * 72));
    for (size_t i = 0; i < words.size(); ++i) {
      const auto common = (static_cast<size_t>(exponent) + 1 + i % 15) % 256;
      words[i] = static_cast<uint16_t>((i & 1) << 15 | common << 7 | (i & 127));
    }
    for (int at = 0; at < 7; ++at) {
      const auto place = static_cast<size_t>(random_.Uniform(0, 16 * 72 - 1));
      words[place] = static_cast<uint16_t>((words[place] & 0x807f) | exponent << 7);
    }
    const Coded coded(kernels_, words, 16, 72);
    ASSERT_TRUE(CodedMatrixFits(coded.matrix)) << exponent;
    ExpectWords(kernels_, coded.matrix, words);
  }
}

TEST_P(CodedKernelTest, PanelsWithTooManyExponentsSaySo) {
  for (const int64_t k : {64, 2048}) {
    std::vector<uint16_t> words(static_cast<size_t>(40 * k), 0x3f80);
    // The middle panel has 16 exponents, of which one has so many weights.
    const auto with_rare = [&](int64_t rare) {
      for (int64_t i = 0; i < 16 * k; ++i) {
        const int64_t exponent = i < rare ? 77 : 100 + i % 15;
        words[static_cast<size_t>(16 * k + i)] = static_cast<uint16_t>(exponent << 7 | (i & 127));
      }
      return Coded(kernels_, words, 40, k);
    };
    const int64_t room = k == 64 ? 7 : 7 + 16 * ((2048 / 16 + 8) / 16);
    EXPECT_GE(room, k == 64 ? 0 : 16 * k / 256);
    const Coded full = with_rare(room);
    EXPECT_TRUE(CodedMatrixFits(full.matrix)) << k;
    ExpectWords(kernels_, full.matrix, words);
    const Coded over = with_rare(room + 1);
    EXPECT_FALSE(CodedMatrixFits(over.matrix)) << k;
    const int64_t panel_bytes = over.matrix.panel_bytes();
    EXPECT_TRUE(CodedPanelFits(over.matrix.data));
    EXPECT_FALSE(CodedPanelFits(over.matrix.data + panel_bytes));
    EXPECT_TRUE(CodedPanelFits(over.matrix.data + 2 * panel_bytes));
  }
  std::vector<uint16_t> random(static_cast<size_t>(16 * 512));
  for (uint16_t& word : random) word = static_cast<uint16_t>(random_.Uniform(0, 65535));
  EXPECT_FALSE(CodedMatrixFits(Coded(kernels_, random, 16, 512).matrix));
}

TEST_P(CodedKernelTest, TwelveBitsAreFewerFromSixteenInputsOn) {
  EXPECT_FALSE(CodingGains(8));
  for (const int64_t k : {16, 64, 111, 112, 768, 2048, 8192}) {
    EXPECT_TRUE(CodingGains(k)) << k;
    const auto bytes = static_cast<double>(PackedMatrix::Bytes(WeightType::kBf16Coded, 16, k));
    if (k >= 768) {
      EXPECT_LE(bytes, 0.762 * static_cast<double>(PackedMatrix::Bytes(WeightType::kBf16, 16, k)));
    }
  }
}

// What a matrix holds comes from bf16 and from floats that are rounded alike.
TEST_P(CodedKernelTest, FloatsAreRoundedAsBf16Is) {
  constexpr int64_t kRows = 21;
  for (const int64_t k : {7, 64, 130}) {
    const std::vector<float> values = random_.Normals(kRows * k, 0.02f);
    const Weights plain(kernels_, values, kRows, k, WeightType::kBf16);
    const Weights coded(kernels_, values, kRows, k, WeightType::kBf16Coded);
    if (CodedMatrixFits(coded.matrix)) {
      EXPECT_TRUE(testing_util::SameBits(coded.values, plain.values)) << k;
    }
  }
}

TEST_P(CodedKernelTest, ProductsHaveTheBitsOfPlainWeights) {
  constexpr int64_t kOutputs = 85;
  const auto make = [&](const std::vector<uint16_t>& words, int64_t k, WeightType type) {
    Weights weights(kernels_, std::vector<float>(words.size()), kOutputs, k, type);
    kernels_.pack_panels(words.data(), DType::kBF16, k, kOutputs, k, type, 0,
                         weights.matrix.panels(), weights.memory.data());
    return weights;
  };
  int64_t fitted = 0;
  for (const int64_t k : {1, 7, 8, 13, 70, 200, 416}) {
    for (const int64_t exceptions : {0, 1, 5}) {
      const std::vector<uint16_t> gate_words = Words(kOutputs, k, exceptions);
      const std::vector<uint16_t> up_words = Words(kOutputs, k, exceptions);
      const Weights coded = make(gate_words, k, WeightType::kBf16Coded);
      const Weights coded_up = make(up_words, k, WeightType::kBf16Coded);
      const Weights plain = make(gate_words, k, WeightType::kBf16);
      const Weights plain_up = make(up_words, k, WeightType::kBf16);
      // Rows of zeros in the last panel have one of the 15 exponents.
      if (!CodedMatrixFits(coded.matrix) || !CodedMatrixFits(coded_up.matrix)) continue;
      ++fitted;
      const std::vector<float> bias = random_.Normals(kOutputs);
      for (const int64_t m : {1, 2, 3, 4, 5, 13, 40, 200}) {
        if (m == 200 && k != 70) continue;  // more than a chunk
        const Activations x(kernels_, random_.Normals(m * k), m, k, WeightType::kBf16Coded);
        const std::vector<float> expected = Multiply(kernels_, x, plain, m, bias.data(), 3);
        for (const int64_t step : {3, 10}) {
          EXPECT_TRUE(
              testing_util::SameBits(Multiply(kernels_, x, coded, m, bias.data(), step), expected))
              << m << " rows of " << k << ", " << step << " panels, " << exceptions;
        }
        const AlignedBuffer hidden = HiddenRows(kernels_, x, coded, coded_up, m, 4);
        const AlignedBuffer same = HiddenRows(kernels_, x, plain, plain_up, m, 4);
        ASSERT_EQ(hidden.bytes(), same.bytes());
        EXPECT_EQ(std::memcmp(hidden.data(), same.data(), hidden.bytes()), 0) << m << " " << k;
      }
    }
  }
  EXPECT_GE(fitted, 12);
}

// Rows of one tile, of several, and blocks of inputs that begin with the sums of those before. What
// plain weights give a row does not depend on the others.
TEST_P(CodedKernelTest, AnyNumberOfRowsHasTheBitsOfPlainWeights) {
  constexpr int64_t kOutputs = 69, kMost = 70;
  for (const int64_t k : {301, 512}) {
    const std::vector<uint16_t> words = Words(kOutputs, k, 15);
    const Coded plain(kernels_, words, kOutputs, k, WeightType::kBf16);
    const Coded coded(kernels_, words, kOutputs, k);
    ASSERT_TRUE(CodedMatrixFits(coded.matrix));
    const Activations x(kernels_, random_.Normals(kMost * k), kMost, k);
    const auto multiply = [&](const PackedMatrix& w, int64_t m, int64_t step) {
      std::vector<float> y(static_cast<size_t>(m * kOutputs));
      for (int64_t panel = 0; panel < w.panels(); panel += step) {
        MatmulArgs args;
        args.x = x.memory.data();
        args.x_stride_bytes = x.stride_bytes;
        args.m = m;
        args.w = w;
        args.panel_begin = panel;
        args.panel_end = std::min(panel + step, w.panels());
        args.y = y.data();
        args.y_stride = kOutputs;
        kernels_.ProductsFor(w.type, m).matmul(args);
      }
      return y;
    };
    const std::vector<float> all = multiply(plain.matrix, kMost, 100);
    for (int64_t m = 1; m <= kMost; m += GetParam() == Isa::kScalar && m > 5 ? 5 : 1) {
      const std::vector<float> expected(all.begin(), all.begin() + m * kOutputs);
      EXPECT_TRUE(testing_util::SameBits(multiply(coded.matrix, m, m % 2 == 0 ? 100 : 2), expected))
          << m << " rows of " << k;
    }
  }
}

// Whatever is in a damaged panel, products and rows read nothing beside it.
TEST_P(CodedKernelTest, DamagedPanelsAreHarmless) {
  constexpr int64_t kInputs = 72;
  const Coded whole(kernels_, Words(16, kInputs, 5), 16, kInputs);
  ASSERT_TRUE(CodedMatrixFits(whole.matrix));
  Weights damaged(kernels_, std::vector<float>(16 * kInputs), 16, kInputs, WeightType::kBf16Coded);
  const auto bytes = static_cast<size_t>(whole.matrix.bytes());
  for (int round = 0; round < 200; ++round) {
    std::memcpy(damaged.memory.data(), whole.memory.data(), bytes);
    for (int i = 0; i < 8; ++i) {
      const int64_t end = round % 2 == 0 ? 64 : static_cast<int64_t>(bytes);
      damaged.memory.data()[random_.Uniform(0, end - 1)] =
          static_cast<std::byte>(random_.Uniform(0, 255));
    }
    std::vector<float> row(kInputs);
    kernels_.unpack_row(damaged.matrix, round % 16, row.data());
    for (const int64_t m : {1, 30}) {
      const Activations x(kernels_, std::vector<float>(static_cast<size_t>(m * kInputs), 1.0f), m,
                          kInputs, WeightType::kBf16Coded);
      Multiply(kernels_, x, damaged, m, nullptr, 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, CodedKernelTest, ::testing::ValuesIn(SupportedIsas()), IsaParamName);

}  // namespace
}  // namespace moesaic
