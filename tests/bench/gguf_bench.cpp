// Speed of products with GGUF's blocks on one thread, beside int4, int8 and bf16 weights of the
// same shape in the same rounds. Prints a Markdown table of nanoseconds for 1,000 weights and row.
//
//   gguf_bench [rounds [ROWS...] [TYPE...]]
//
// A TYPE is one of GGUF's, with int8 activations, or with "f32:" before it with f32 ones, or a name
// of another type of weights (w4a16, mxfp4_f32, fp8). MOESAIC_ISA chooses the instruction set; with
// the name of one before a type of GGUF's ("avx512_vnni:Q4_K", "amx:Q4_K") all its products are
// that set's, whatever the number of rows. Every number is the median over rounds; a round runs all
// candidates of a number of rows one after the other, and reads memory beside them, in one place
// and in eight at once, of which the faster counts. Products cycle through more weights than any
// cache holds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "kernels/cpu/gguf_blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/product_choice.h"
#include "tests/bench/kernel_bench_util.h"

namespace moesaic {
namespace {

constexpr int64_t kOutputs = 768;  // of an expert of Qwen3-30B-A3B
constexpr int64_t kInputs = 2048;
constexpr int64_t kWeightBytes = int64_t{96} << 20;

// Blocks are of random bytes whose f16 scales, wherever they are, are small numbers.
void FillBlocks(AlignedBuffer& memory) {
  std::mt19937_64 random(7);
  for (size_t i = 0; i + sizeof(uint64_t) <= memory.bytes(); i += sizeof(uint64_t)) {
    const uint64_t bytes = (random() & 0x0f0f0f0f0f0f0f0f) | 0x2020202020202020;
    std::memcpy(memory.data() + i, &bytes, sizeof(bytes));
  }
}

struct Shape {
  std::string name;
  PackedMatrix matrix;
  std::string instructions;  // empty: the table's choice
};

struct Product {
  Product(const CpuKernels& table, const Shape& shape, int64_t rows)
      : kernels(TableFor(table, shape)),
        matrix(shape.matrix),
        m(rows),
        copies(kWeightBytes / std::max<int64_t>(shape.matrix.bytes(), 1) + 1) {
    weights = AlignedBuffer(static_cast<size_t>(matrix.bytes() * copies));
    if (IsGguf(matrix.type)) {
      FillBlocks(weights);
    } else {
      const std::vector<float> source = Normals(kOutputs * kInputs);
      kernels.pack_panels(source.data(), DType::kF32, kInputs, kOutputs, kInputs, matrix.type, 0,
                          matrix.panels(), weights.data());
      for (int64_t c = 1; c < copies; ++c) {
        std::memcpy(weights.data() + c * matrix.bytes(), weights.data(),
                    static_cast<size_t>(matrix.bytes()));
      }
    }
    const ActivationType type = ActivationTypeOf(kernels.numerics, matrix.type);
    const std::vector<float> x = Normals(m * kInputs);
    stride = ActivationRowBytes(type, kInputs);
    activations = AlignedBuffer(static_cast<size_t>(m * stride));
    kernels.prepare_activations(x.data(), kInputs, m, kInputs, type, activations.data(), stride);
    y.resize(static_cast<size_t>(m * kOutputs));
  }
  void Run() {
    MatmulArgs args;
    args.x = activations.data();
    args.x_stride_bytes = stride;
    args.m = m;
    args.w = matrix;
    args.w.data = weights.data() + next * matrix.bytes();
    args.panel_end = matrix.panels();
    args.y = y.data();
    args.y_stride = kOutputs;
    kernels.ProductsFor(matrix.type, m).matmul(args);
    next = (next + 1) % copies;
  }

  static CpuKernels TableFor(const CpuKernels& table, const Shape& shape) {
    CpuKernels kernels = table;
    const KernelStep steps[] = {{1, shape.instructions}};
    if (!shape.instructions.empty() && !ChooseProducts(shape.matrix.type, steps, kernels)) {
      std::fprintf(stderr, "%s: this CPU has no such products\n", shape.name.c_str());
      std::exit(1);
    }
    return kernels;
  }

  CpuKernels kernels;
  PackedMatrix matrix;
  int64_t m, copies, stride = 0, next = 0;
  AlignedBuffer weights, activations;
  std::vector<float> y;
};

void Bench(int rounds, std::vector<int64_t> row_counts, std::vector<std::string> types) {
  const CpuKernels& kernels = SelectKernels();
  std::vector<Shape> shapes;
  for (const WeightType type : {WeightType::kBf16, WeightType::kInt8, WeightType::kInt4}) {
    shapes.push_back({WeightTypeName(type), {nullptr, type, kOutputs, kInputs}, ""});
  }
  if (types.empty()) {
    types = {"Q8_0",  "Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS",  "IQ4_NL",
             "MXFP4", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "f32:Q4_K"};
  }
  for (const std::string& name : types) {
    const size_t colon = name.find(':');
    const std::string prefix = colon == std::string::npos ? "" : name.substr(0, colon);
    const bool f32 = prefix == "f32";
    const GgufType* const type = FindGgufType(prefix.empty() ? name : name.substr(colon + 1));
    const auto* const other =
        std::find_if(std::begin(kWeightTypes), std::end(kWeightTypes),
                     [&](const WeightTraits& traits) { return name == traits.name; });
    if (type == nullptr && other != std::end(kWeightTypes) && !IsGguf(other->type) &&
        IsOfMatrices(other->type)) {
      shapes.push_back({name, {nullptr, other->type, kOutputs, kInputs}, ""});
      continue;
    }
    if (type == nullptr || (!f32 && type->block_values == 1)) {
      std::fprintf(stderr, "%s: not a type of blocks\n", name.c_str());
      return;
    }
    const WeightType weights = f32 ? WeightType::kGgufF32 : WeightType::kGguf;
    shapes.push_back(
        {name, {nullptr, weights, kOutputs, kInputs, GgufFormOf(*type)}, f32 ? "" : prefix});
  }
  if (row_counts.empty()) row_counts = {1, 4, 16, 64, 512};
  AlignedBuffer memory(static_cast<size_t>(kWeightBytes));
  FillBlocks(memory);
  std::printf("%s, %s, [%ld, %ld]: ns for 1,000 weights and row (GB/s of weights)\n\n| rows |",
              IsaName(kernels.isa), QuantIsaName(kernels.quant_isa), static_cast<long>(kOutputs),
              static_cast<long>(kInputs));
  for (const Shape& shape : shapes) std::printf(" %s |", shape.name.c_str());
  std::printf(" reading, GB/s |\n|---|---|");
  for (size_t i = 0; i < shapes.size(); ++i) std::printf("---|");
  std::printf("\n");
  for (const int64_t m : row_counts) {
    std::vector<std::unique_ptr<Product>> products;
    std::vector<Candidate> candidates;
    for (const Shape& shape : shapes) {
      products.push_back(std::make_unique<Product>(kernels, shape, m));
      candidates.push_back({shape.name, [p = products.back().get()] { p->Run(); }});
    }
    candidates.push_back({"reading", [&] { ReadPeakSequential(memory.data(), kWeightBytes); }});
    candidates.push_back({"reading", [&] { ReadPeak(memory.data(), kWeightBytes); }});
    Measure(candidates, rounds);
    std::printf("| %ld |", static_cast<long>(m));
    for (size_t i = 0; i < shapes.size(); ++i) {
      const double seconds = candidates[i].Median();
      const auto weights = static_cast<double>(kOutputs * kInputs * m);
      std::printf(" %.2f (%.1f) |", seconds * 1e12 / weights,
                  static_cast<double>(shapes[i].matrix.bytes()) / seconds / 1e9);
    }
    const double least = std::min(candidates[shapes.size()].Median(), candidates.back().Median());
    std::printf(" %.1f |\n", static_cast<double>(kWeightBytes) / least / 1e9);
  }
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  std::vector<int64_t> rows;
  int next = 2;
  for (; next < argc && std::atoi(argv[next]) > 0; ++next) rows.push_back(std::atoi(argv[next]));
  moesaic::Bench(argc > 1 ? std::atoi(argv[1]) : 7, rows,
                 {argv + std::min(argc, next), argv + argc});
  return 0;
}
