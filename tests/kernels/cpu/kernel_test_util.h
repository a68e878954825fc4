// Helpers of the kernel tests: random inputs, packed weights, double-precision references.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/tensor.h"
#include "kernels/cpu/isas.h"
#include "kernels/cpu/kernels.h"

namespace moesaic::testing_util {

inline std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (const Isa isa : AllIsas()) {
    if (IsaSupported(isa)) isas.push_back(isa);
  }
  return isas;
}

inline std::vector<QuantIsa> SupportedQuantIsas() {
  std::vector<QuantIsa> isas;
  for (const QuantIsa isa : AllQuantIsas()) {
    if (QuantIsaSupported(isa)) isas.push_back(isa);
  }
  return isas;
}

inline std::string IsaParamName(const ::testing::TestParamInfo<Isa>& info) {
  return IsaName(info.param);
}

// MOESAIC_TEST_SEED repeats a failure that printed its seed.
inline uint64_t TestSeed() {
  const char* seed = std::getenv("MOESAIC_TEST_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : 20240607;
}

class Random {
 public:
  Random() : engine_(TestSeed()) {}
  float Normal() { return normal_(engine_); }
  int64_t Uniform(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  std::vector<float> Normals(int64_t n, float scale = 1.0f) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) v = scale * Normal();
    return values;
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
};

inline float RoundToBf16(float v) { return Bf16ToF32(F32ToBf16(v)); }

// A weight matrix in f32, packed; `values` are what the packed form holds.
struct Weights {
  Weights(const CpuKernels& kernels, std::vector<float> source, int64_t n, int64_t k,
          WeightType type)
      : values(std::move(source)),
        memory(static_cast<size_t>(PackedMatrix::Bytes(type, n, k)) + 64),
        matrix{memory.data(), type, n, k} {
    kernels.pack_panels(values.data(), DType::kF32, k, n, k, type, 0, matrix.panels(),
                        memory.data());
    if (type == WeightType::kBf16) {
      for (float& v : values) v = RoundToBf16(v);
    } else if (type != WeightType::kF32) {
      for (int64_t row = 0; row < n; ++row) kernels.unpack_row(matrix, row, &values[row * k]);
    }
  }
  std::vector<float> values;  // [n, k]
  AlignedBuffer memory;
  PackedMatrix matrix;
};

// A row of int8 activations.
struct QuantRow {
  QuantRow(const std::byte* row, int64_t k)
      : values(reinterpret_cast<const int8_t*>(row)),
        scales(reinterpret_cast<const ActivationScale*>(row + ActivationScalesOffset(k))) {}
  const int8_t* values;           // [groups * kQuantGroup]
  const ActivationScale* scales;  // [groups]
};

// Bytes of a row of int8 activations that mean something.
inline int64_t QuantRowBytes(int64_t k) {
  const int64_t values = ActivationScalesOffset(k);
  return values + values / kQuantGroup * static_cast<int64_t>(sizeof(ActivationScale));
}

// Activation rows; `values` are what the rows hold.
struct Activations {
  Activations(const CpuKernels& kernels, std::vector<float> source, int64_t rows, int64_t k,
              WeightType weights = WeightType::kBf16)
      : values(std::move(source)),
        type(ActivationTypeOf(kernels.numerics, weights)),
        stride_bytes(ActivationRowBytes(type, k)),
        memory(static_cast<size_t>(rows * stride_bytes) + 64) {
    kernels.prepare_activations(values.data(), k, rows, k, type, memory.data(), stride_bytes);
    if (type == ActivationType::kBf16) {
      for (float& v : values) v = RoundToBf16(v);
    } else if (type == ActivationType::kInt8 || type == ActivationType::kInt8Sums) {
      for (int64_t i = 0; i < rows * k; ++i) {
        const QuantRow row(memory.data() + i / k * stride_bytes, k);
        values[i] = static_cast<float>(row.values[i % k]) * row.scales[i % k / kQuantGroup].scale;
      }
    }
  }
  std::vector<float> values;  // [rows, k]
  ActivationType type;
  int64_t stride_bytes;
  AlignedBuffer memory;
};

// The rows of silu(x gate^T) * (x up^T), as they lie: [m, ActivationRowBytes(x.type, n)], computed
// `panel_step` panels at a time; rows: of x, null for all in order.
inline AlignedBuffer HiddenRows(const CpuKernels& kernels, const Activations& x,
                                const Weights& gate, const Weights& up, int64_t m,
                                int64_t panel_step, const int32_t* rows = nullptr) {
  const int64_t stride = ActivationRowBytes(x.type, gate.matrix.n);
  AlignedBuffer h(static_cast<size_t>(m * stride));
  std::memset(h.data(), 0xff, h.bytes());  // NaN: padding must be overwritten
  for (int64_t panel = 0; panel < gate.matrix.panels(); panel += panel_step) {
    GateUpArgs args;
    args.x = x.memory.data();
    args.x_stride_bytes = x.stride_bytes;
    args.x_rows = rows;
    args.m = m;
    args.gate = gate.matrix;
    args.up = up.matrix;
    args.panel_begin = panel;
    args.panel_end = std::min(panel + panel_step, gate.matrix.panels());
    args.h = h.data();
    args.h_stride_bytes = stride;
    kernels.TableProducts(gate.matrix.type).gate_up(args);
  }
  return h;
}

constexpr float kUntouched = 12345.0f;

// x w^T [m, n], computed `panel_step` panels at a time.
inline std::vector<float> Multiply(const CpuKernels& kernels, const Activations& x,
                                   const Weights& w, int64_t m, const float* bias,
                                   int64_t panel_step) {
  const int64_t n = w.matrix.n;
  std::vector<float> y(static_cast<size_t>(m * n), kUntouched);
  for (int64_t panel = 0; panel < w.matrix.panels(); panel += panel_step) {
    MatmulArgs args;
    args.x = x.memory.data();
    args.x_stride_bytes = x.stride_bytes;
    args.m = m;
    args.w = w.matrix;
    args.panel_begin = panel;
    args.panel_end = std::min(panel + panel_step, w.matrix.panels());
    args.bias = bias;
    args.y = y.data();
    args.y_stride = n;
    kernels.TableProducts(w.matrix.type).matmul(args);
  }
  return y;
}

struct Dot {
  double sum = 0.0;
  double magnitude = 0.0;  // sum of |x w|: what rounding errors are relative to
};

inline Dot DotOf(const float* x, const float* w, int64_t k) {
  Dot dot;
  for (int64_t i = 0; i < k; ++i) {
    const double product = static_cast<double>(x[i]) * static_cast<double>(w[i]);
    dot.sum += product;
    dot.magnitude += std::abs(product);
  }
  return dot;
}

// The bound of a sum of k rounded products in one chain: k ulps of the magnitude.
inline double DotTolerance(const Dot& dot, int64_t k) {
  return dot.magnitude * static_cast<double>(k + 1) * std::ldexp(1.0, -24) + 1e-30;
}

inline uint32_t Bits(float v) { return __builtin_bit_cast(uint32_t, v); }

// Equal bits, any two NaN being equal.
inline ::testing::AssertionResult SameBits(const std::vector<float>& a,
                                           const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (Bits(a[i]) != Bits(b[i])) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

// Of weights whose values are floats and f32 activations: products and rows of gate and up have the
// bits of those with the same weights in f32. `draw(n, k)` gives values.
template <class Draw>
void ExpectProductsOfF32(const CpuKernels& kernels, WeightType type, Random& random, Draw draw) {
  const CpuKernels& scalar = KernelsFor(Isa::kScalar);
  for (const int64_t k : {7, 32, 70, 200, 416}) {
    for (const int64_t m : {1, 2, 3, 5, 12, 13, 40, 100}) {
      constexpr int64_t kOutputs = 149;
      const std::vector<float> bias = random.Normals(kOutputs);
      const Weights weights(kernels, draw(kOutputs, k), kOutputs, k, type);
      const Weights up(kernels, draw(kOutputs, k), kOutputs, k, type);
      const Weights same(scalar, weights.values, kOutputs, k, WeightType::kF32);
      const Weights same_up(scalar, up.values, kOutputs, k, WeightType::kF32);
      const std::vector<float> values = random.Normals(m * k);
      const Activations x(kernels, values, m, k, type);
      const Activations same_x(scalar, values, m, k, WeightType::kF32);
      ASSERT_EQ(x.type, ActivationType::kF32);
      const std::vector<float> expected = Multiply(scalar, same_x, same, m, bias.data(), 3);
      for (const int64_t step : {1, 3, 10}) {
        EXPECT_TRUE(SameBits(Multiply(kernels, x, weights, m, bias.data(), step), expected))
            << m << " rows of " << k << ", " << step << " panels";
      }
      const AlignedBuffer hidden = HiddenRows(kernels, x, weights, up, m, 4);
      const AlignedBuffer same_hidden = HiddenRows(scalar, same_x, same, same_up, m, 4);
      ASSERT_EQ(hidden.bytes(), same_hidden.bytes());
      EXPECT_EQ(std::memcmp(hidden.data(), same_hidden.data(), hidden.bytes()), 0) << m << " " << k;
    }
  }
}

}  // namespace moesaic::testing_util
