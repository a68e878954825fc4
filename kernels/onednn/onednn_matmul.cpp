#include "kernels/onednn/onednn_matmul.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <random>
#include <vector>

#include "core/base/error.h"
#include "core/base/tensor.h"

namespace moesaic {
namespace {

using Tag = dnnl::memory::format_tag;

dnnl::memory::data_type TypeOf(WeightType type) {
  return type == WeightType::kBf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

}  // namespace

struct OneDnnMatmul::State {
  struct Product {
    dnnl::matmul primitive;
    dnnl::memory weights;
    dnnl::memory::desc x, y;
  };

  WeightType type;
  int64_t n, k;
  std::vector<std::byte> source;  // [n, k]
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<int64_t, Product> products;  // by rows
};

OneDnnMatmul::OneDnnMatmul(WeightType type, int64_t n, int64_t k, const void* weights)
    : state_(new State{.type = type, .n = n, .k = k, .source = {}, .products = {}}) {
  const int64_t bytes = n * k * (type == WeightType::kBf16 ? 2 : 4);
  state_->source.resize(static_cast<size_t>(bytes));
  std::memcpy(state_->source.data(), weights, state_->source.size());
}

OneDnnMatmul::~OneDnnMatmul() = default;

void OneDnnMatmul::Prepare(int64_t m) {
  State& s = *state_;
  if (s.products.count(m) != 0) return;
  try {
    const auto type = TypeOf(s.type);
    // oneDNN wants the right-hand matrix as [k, n]; a [n, k] matrix is that with tag `ba`.
    const dnnl::memory::desc plain({s.k, s.n}, type, Tag::ba);
    const dnnl::memory::desc any({s.k, s.n}, type, Tag::any);
    State::Product product;
    product.x = dnnl::memory::desc({m, s.k}, type, Tag::ab);
    product.y = dnnl::memory::desc({m, s.n}, dnnl::memory::data_type::f32, Tag::ab);
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(product.x, any, product.y),
                                                   s.engine);
    product.primitive = dnnl::matmul(description);
    product.weights = dnnl::memory(description.weights_desc(), s.engine);
    dnnl::memory from(plain, s.engine, s.source.data());
    dnnl::reorder(from, product.weights).execute(s.stream, from, product.weights);
    s.stream.wait();
    s.products.emplace(m, std::move(product));
  } catch (const dnnl::error& e) {
    Fail(ErrorKind::kUnsupported, "oneDNN has no {} product of {} x {} x {} on this CPU: {}",
         s.type == WeightType::kBf16 ? "bf16" : "f32", m, s.n, s.k, e.what());
  }
}

void OneDnnMatmul::Run(int64_t m, const void* x, float* y) {
  Prepare(m);
  State& s = *state_;
  State::Product& product = s.products.at(m);
  product.primitive.execute(
      s.stream, {{DNNL_ARG_SRC, dnnl::memory(product.x, s.engine, const_cast<void*>(x))},
                 {DNNL_ARG_WEIGHTS, product.weights},
                 {DNNL_ARG_DST, dnnl::memory(product.y, s.engine, y)}});
  s.stream.wait();
}

bool OneDnnSupports(WeightType type) {
  constexpr int64_t kSide = 16;
  const std::vector<float> zeros(kSide * kSide);
  try {
    OneDnnMatmul(type, kSide, kSide, zeros.data()).Prepare(1);
    return true;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kUnsupported) throw;
    return false;
  }
}

void SetOneDnnThreads(int threads) {
  // Debian's oneDNN brings libgomp with it; this target does not link an OpenMP runtime of its own.
  using SetThreads = void (*)(int);
  if (auto set = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) {
    set(threads);
  }
}

bool RowInvariant(int64_t n, int64_t k, DenseProduct multiply) {
  constexpr int64_t kHeights[] = {1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64, 65, 512};
  constexpr int64_t kMaxRows = 512;
  std::mt19937_64 random(static_cast<uint64_t>(n * 1000003 + k));
  std::normal_distribution<float> normal;
  std::vector<float> row(static_cast<size_t>(k));
  for (float& v : row) v = Bf16ToF32(F32ToBf16(normal(random)));
  // Equal rows: then every row of every product has to be the same.
  std::vector<float> x(static_cast<size_t>(kMaxRows * k));
  for (int64_t r = 0; r < kMaxRows; ++r) std::copy(row.begin(), row.end(), x.begin() + r * k);
  std::vector<float> expected(static_cast<size_t>(n));
  std::vector<float> y(static_cast<size_t>(kMaxRows * n));
  multiply(1, x.data(), expected.data());
  for (const int64_t m : kHeights) {
    multiply(m, x.data(), y.data());
    for (int64_t r = 0; r < m; ++r) {
      if (std::memcmp(&y[static_cast<size_t>(r * n)], expected.data(),
                      static_cast<size_t>(n) * sizeof(float)) != 0) {
        return false;
      }
    }
  }
  return true;
}

bool OneDnnRowInvariant(WeightType type, int64_t n, int64_t k) {
  std::mt19937_64 random(static_cast<uint64_t>(n + k));
  std::normal_distribution<float> normal;
  std::vector<float> weights(static_cast<size_t>(n * k));
  for (float& v : weights) v = normal(random);
  std::vector<uint16_t> rounded(weights.size());
  std::transform(weights.begin(), weights.end(), rounded.begin(), F32ToBf16);
  const bool bf16 = type == WeightType::kBf16;
  OneDnnMatmul matmul(type, n, k, bf16 ? static_cast<const void*>(rounded.data()) : weights.data());
  std::vector<uint16_t> x_bf16;
  return RowInvariant(n, k, [&](int64_t m, const float* x, float* y) {
    if (!bf16) return matmul.Run(m, x, y);
    x_bf16.assign(static_cast<size_t>(m * k), 0);
    std::transform(x, x + m * k, x_bf16.begin(), F32ToBf16);
    matmul.Run(m, x_bf16.data(), y);
  });
}

}  // namespace moesaic
