// The choice of an instruction set by rows: never another bit, and what is chosen runs.
#include "kernels/cpu/product_choice.h"

#include "kernels/cpu/moe.h"
#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using testing_util::Activations;
using testing_util::Random;
using testing_util::SameBits;
using testing_util::Weights;

constexpr WeightType kAllTypes[] = {WeightType::kBf16, WeightType::kF32, WeightType::kInt8,
                                    WeightType::kInt4};

class ProductChoiceTest : public ::testing::TestWithParam<Isa> {
 protected:
  const CpuKernels& kernels_ = KernelsFor(GetParam());
  Random random_;
};

TEST_P(ProductChoiceTest, OptionsGiveTheBitsOfTheTable) {
  constexpr int64_t kN = 70, kK = 130;
  for (const WeightType type : kAllTypes) {
    const std::vector<ProductOption> options = ProductOptions(kernels_, type);
    ASSERT_FALSE(options.empty());
    bool own = false;
    for (const int64_t m : {1, 5, 20}) {
      const Activations x(kernels_, random_.Normals(m * kK), m, kK, type);
      const Weights w(kernels_, random_.Normals(kN * kK), kN, kK, type);
      const std::vector<float> expected = Multiply(kernels_, x, w, m, nullptr, 100);
      for (const ProductOption& option : options) {
        CpuKernels table = kernels_;
        (IsQuantized(type) ? table.quant_matmul : table.matmul) = option.products.matmul;
        own |= table.quant_matmul == kernels_.quant_matmul && table.matmul == kernels_.matmul;
        EXPECT_TRUE(SameBits(Multiply(table, x, w, m, nullptr, 100), expected))
            << WeightTypeName(type) << " " << option.instructions << " m=" << m;
      }
    }
    EXPECT_TRUE(own) << WeightTypeName(type);
  }
}

TEST_P(ProductChoiceTest, TakesTheStepOfItsRows) {
  for (const WeightType type : kAllTypes) {
    const std::vector<ProductOption> options = ProductOptions(kernels_, type);
    CpuKernels table = kernels_;
    const KernelStep steps[] = {{1, options.back().instructions},
                                {4, options.front().instructions},
                                {9, options.back().instructions}};
    ASSERT_TRUE(ChooseProducts(type, steps, table));
    for (const int64_t rows : {1, 3, 4, 8, 9, 1000}) {
      const ProductOption& expected = rows >= 4 && rows < 9 ? options.front() : options.back();
      EXPECT_EQ(table.ProductsFor(type, rows).matmul, expected.products.matmul) << rows;
      EXPECT_EQ(table.ProductsFor(type, rows).gate_up, expected.products.gate_up) << rows;
    }
    // The other types are left alone, and products chosen by hand end a choice.
    const WeightType other = type == WeightType::kBf16 ? WeightType::kF32 : WeightType::kBf16;
    EXPECT_EQ(table.ProductsFor(other, 5).matmul, kernels_.matmul);
    EXPECT_EQ(WithQuantIsa(table, QuantIsa::kScalar).ProductsFor(WeightType::kInt8, 5).matmul,
              WithQuantIsa(kernels_, QuantIsa::kScalar).quant_matmul);
  }
}

TEST_P(ProductChoiceTest, RefusesStepsThatMakeNoSense) {
  const char* const own = ProductOptions(kernels_, WeightType::kInt8).front().instructions;
  const std::vector<std::vector<KernelStep>> refused = {
      {{1, "sse9"}},           {{2, own}},
      {{1, own}, {1, own}},    {{1, own}, {8, own}, {4, own}},
      {{1, own}, {2, "amx9"}}, std::vector<KernelStep>(kMaxProductSteps + 1, {1, own})};
  for (const auto& steps : refused) {
    CpuKernels table = kernels_;
    EXPECT_FALSE(ChooseProducts(WeightType::kInt8, steps, table));
    EXPECT_EQ(table.ProductsFor(WeightType::kInt8, 3).matmul,
              kernels_.ProductsFor(WeightType::kInt8, 3).matmul);
  }
}

// A profile may come from another start of the program, with another table.
TEST_P(ProductChoiceTest, LeavesOutChoicesOfOtherTables) {
  const char* const own = ProductOptions(kernels_, WeightType::kInt8).front().instructions;
  const std::vector<KernelChoice> choices = {
      {"no class", "int8", {{1, own}}, "", ""},
      {NumericsClassName(kernels_.numerics), "int4", {{1, "sse9"}}, "", ""},
      {NumericsClassName(kernels_.numerics), "int8", {{1, own}}, "", ""}};
  const CpuKernels table = WithChoices(kernels_, choices);
  const auto count = [&](WeightType type) {
    return table.product_steps[static_cast<size_t>(type)].count;
  };
  EXPECT_EQ(count(WeightType::kInt8), 1);
  EXPECT_EQ(count(WeightType::kInt4),
            kernels_.product_steps[static_cast<size_t>(WeightType::kInt4)].count);
  EXPECT_EQ(count(WeightType::kBf16),
            kernels_.product_steps[static_cast<size_t>(WeightType::kBf16)].count);
}

INSTANTIATE_TEST_SUITE_P(, ProductChoiceTest, ::testing::ValuesIn(testing_util::SupportedIsas()),
                         testing_util::IsaParamName);

// A product is run by the step of its own rows.
TEST(ProductChoiceRunTest, ProductsOfAPoolTakeTheirStep) {
  static CpuKernels base = KernelsFor(Isa::kScalar);
  static int few = 0;
  static int many = 0;
  CpuKernels table = base;
  ProductSteps& steps = table.product_steps[static_cast<size_t>(WeightType::kF32)];
  steps.count = 2;
  steps.steps[0] = {1, "few", {[](const MatmulArgs& args) { ++few, base.matmul(args); }, nullptr}};
  steps.steps[1] = {
      6, "many", {[](const MatmulArgs& args) { ++many, base.matmul(args); }, nullptr}};
  constexpr int64_t kN = 16, kK = 8;
  Random random;
  ThreadPool pool(1);
  for (const int64_t m : {1, 5, 6, 30}) {
    few = many = 0;
    const Activations x(table, random.Normals(m * kK), m, kK, WeightType::kF32);
    const Weights w(table, random.Normals(kN * kK), kN, kK, WeightType::kF32);
    std::vector<float> y(m * kN);
    ParallelMatmul(pool, table,
                   {.x = x.memory.data(),
                    .x_stride_bytes = x.stride_bytes,
                    .m = m,
                    .w = w.matrix,
                    .y = y.data(),
                    .y_stride = kN});
    EXPECT_EQ(few > 0, m < 6);
    EXPECT_EQ(many > 0, m >= 6);
    EXPECT_TRUE(SameBits(y, Multiply(base, x, w, m, nullptr, 100)));
  }
}

}  // namespace
}  // namespace moesaic
