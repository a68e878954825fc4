// Row kernels: activations, norms, rotary embedding, softmax. Included after Vec16 and math.h.
#pragma once

#include "kernels/cpu/internal/math.h"
#include "kernels/cpu/internal/quantize.h"

namespace moesaic {
namespace {

template <ActivationType kType>
MOESAIC_INLINE void PrepareFloatRow(const float* from, int64_t k, std::byte* to) {
  constexpr int64_t kElementBytes = kType == ActivationType::kF32 ? 4 : 2;
  const auto store = [to](int64_t i, Vec16 value) {
    if constexpr (kType == ActivationType::kF32) {
      Store(to + i * kElementBytes, value);
    } else {
      StoreBf16(to + i * kElementBytes, value);
    }
  };
  const int64_t row_bytes = ActivationRowBytes(kType, k);
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) store(i, Load(from + i));
  for (; i * kElementBytes < row_bytes; i += kLanes) {
    store(i, i < k ? LoadFirst(from + i, k - i) : Zero());
  }
}

inline void PrepareActivations(const float* x, int64_t x_stride, int64_t rows, int64_t k,
                               ActivationType type, std::byte* out, int64_t out_stride_bytes) {
  for (int64_t row = 0; row < rows; ++row, x += x_stride, out += out_stride_bytes) {
    if (type == ActivationType::kF32) {
      PrepareFloatRow<ActivationType::kF32>(x, k, out);
    } else if (type == ActivationType::kInt8) {
      QuantizeRow(x, k, out);
    } else if (type == ActivationType::kInt8Sums) {
      QuantizeRow(x, k, out);
      for (int64_t group = 0; group < CeilDiv(k, kQuantGroup); ++group) SumGroup(out, k, group);
    } else {
      PrepareFloatRow<ActivationType::kBf16>(x, k, out);
    }
  }
}

// Sum of squares in 64 fixed accumulators: four vectors, so that the chain of multiply-adds is
// short.
inline void RmsNorm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  Vec16 sums[4] = {Zero(), Zero(), Zero(), Zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    MOESAIC_UNROLL
    for (int j = 0; j < 4; ++j) {
      const Vec16 v = Load(x + i + j * kLanes);
      sums[j] = Fma(v, v, sums[j]);
    }
  }
  for (int j = 0; i < n; i += kLanes, ++j) {
    const Vec16 v = LoadFirst(x + i, MinOf(n - i, kLanes));
    sums[j] = Fma(v, v, sums[j]);
  }
  const float sum = SumLanes(Add(Add(sums[0], sums[1]), Add(sums[2], sums[3])));
  const float scale = 1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + eps);
  const Vec16 scales = Set(scale);
  for (i = 0; i + kLanes <= n; i += kLanes) {
    Store(out + i, Mul(Mul(Load(x + i), scales), Load(weight + i)));
  }
  if (i < n) {
    const int64_t tail = n - i;
    StoreFirst(out + i, tail,
               Mul(Mul(LoadFirst(x + i, tail), scales), LoadFirst(weight + i, tail)));
  }
}

// Sums in four accumulators, as above. The squares are of differences from the mean: rows whose
// mean is far from zero keep their digits.
inline void LayerNorm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  Vec16 sums[4] = {Zero(), Zero(), Zero(), Zero()};
  for (int64_t i = 0, j = 0; i < n; i += kLanes, j = (j + 1) % 4) {
    sums[j] = Add(sums[j], LoadFirst(x + i, MinOf(n - i, kLanes)));
  }
  const float sum = SumLanes(Add(Add(sums[0], sums[1]), Add(sums[2], sums[3])));
  alignas(64) float means[kLanes];
  Store(means, Set(sum / static_cast<float>(n)));
  for (Vec16& squares : sums) squares = Zero();
  for (int64_t i = 0, j = 0; i < n; i += kLanes, j = (j + 1) % 4) {
    const int64_t lanes = MinOf(n - i, kLanes);
    const Vec16 difference = Sub(LoadFirst(x + i, lanes), LoadFirst(means, lanes));
    sums[j] = Fma(difference, difference, sums[j]);
  }
  const float squares = SumLanes(Add(Add(sums[0], sums[1]), Add(sums[2], sums[3])));
  const Vec16 scales = Set(1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps));
  const Vec16 mean = Load(means);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t lanes = MinOf(n - i, kLanes);
    const Vec16 difference = Sub(LoadFirst(x + i, lanes), mean);
    StoreFirst(out + i, lanes, Mul(Mul(difference, scales), LoadFirst(weight + i, lanes)));
  }
}

inline void Rope(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t lanes = MinOf(half - i, kLanes);
    const Vec16 a = LoadFirst(x + i, lanes);
    const Vec16 b = LoadFirst(x + half + i, lanes);
    const Vec16 c = LoadFirst(cos + i, lanes);
    const Vec16 s = LoadFirst(sin + i, lanes);
    StoreFirst(x + i, lanes, Fms(a, c, Mul(b, s)));
    StoreFirst(x + half + i, lanes, Fma(b, c, Mul(a, s)));
  }
}

inline void Axpy(float a, const float* x, int64_t n, float* y) {
  const Vec16 factor = Set(a);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(y + i, Fma(factor, Load(x + i), Load(y + i)));
  if (i < n) {
    const int64_t tail = n - i;
    StoreFirst(y + i, tail, Fma(factor, LoadFirst(x + i, tail), LoadFirst(y + i, tail)));
  }
}

inline void Softmax(const float* x, int64_t n, float* out) {
  const Vec16 sum = Set(SumExp(x, n, ExpShift(MaxOfRow(x, n)), out));
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t lanes = MinOf(n - i, kLanes);
    StoreFirst(out + i, lanes, Div(LoadFirst(out + i, lanes), sum));
  }
}

inline float LogSumExp(const float* x, int64_t n) {
  const float shift = ExpShift(MaxOfRow(x, n));
  return static_cast<float>(static_cast<double>(shift) +
                            Log(static_cast<double>(SumExp(x, n, shift, nullptr))));
}

}  // namespace
}  // namespace moesaic
