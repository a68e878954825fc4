// Which weights are coded, and that the others stay as they are.
#include "serving/model/coded_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "kernels/cpu/isas.h"
#include "serving/model/expert_sources.h"
#include "serving/model/weights.h"
#include "tests/serving/model/model_harness.h"
#include "tests/serving/model/odd_model.h"

namespace moesaic {
namespace {

constexpr auto kCoded = WeightType::kBf16Coded;

// Tensors of another source, but for one whose values have 40 exponents.
class WithManyExponents : public TensorSource {
 public:
  WithManyExponents(const TensorSource& base, std::string name)
      : base_(base), name_(std::move(name)) {}
  DType Require(const PlannedTensor& tensor, std::span<const int64_t> shape) const override {
    const DType dtype = base_.Require(tensor, shape);
    return tensor.name == name_ ? DType::kF32 : dtype;
  }
  void ReadRows(const PlannedTensor& tensor, int64_t row_begin, int64_t row_end,
                int64_t row_elements, std::span<std::byte> destination) const override {
    if (tensor.name != name_) {
      return base_.ReadRows(tensor, row_begin, row_end, row_elements, destination);
    }
    auto* const out = reinterpret_cast<float*>(destination.data());
    for (int64_t i = 0; i < (row_end - row_begin) * row_elements; ++i) {
      out[i] = std::ldexp(i % 3 == 0 ? -1.25f : 1.0f, static_cast<int>(i * 7 % 40) - 43);
    }
  }
  uint64_t Fingerprint() const override { return 2; }

 private:
  const TensorSource& base_;
  const std::string name_;
};

TEST(CodedWeightsTest, MatricesThatDoNotFitStayPlain) {
  const MadeUpTensors made_up;
  const CpuKernels& kernels = KernelsFor(Isa::kScalar);
  ThreadPool pool(2);
  ModelConfig config = OddModel();
  const uint64_t plain_bytes = ModelWeights::Bytes(config, WeightType::kBf16);
  FindUncodedTensors(made_up, kernels, pool, config);
  EXPECT_TRUE(config.uncoded_tensors.empty());
  const uint64_t all_coded = ModelWeights::Bytes(config, kCoded);
  EXPECT_LT(all_coded, plain_bytes);

  // Gate and up are of one product, and so of one type.
  const WithManyExponents source(made_up, "model.layers.0.mlp.up_proj.weight");
  FindUncodedTensors(source, kernels, pool, config);
  EXPECT_EQ(config.uncoded_tensors, std::set<std::string>{"model.layers.0.mlp.up_proj.weight"});
  const ModelWeights coded = ModelWeights::Load(config, kCoded, source, kernels, pool);
  EXPECT_EQ(coded.memory().size(), ModelWeights::Bytes(config, kCoded));
  EXPECT_GT(coded.memory().size(), all_coded);
  EXPECT_EQ(coded.layers[0].gate.type, WeightType::kBf16);
  EXPECT_EQ(coded.layers[0].up.type, WeightType::kBf16);
  EXPECT_EQ(coded.layers[0].down.type, kCoded);
  EXPECT_EQ(coded.layers[1].gate.type, kCoded);
  EXPECT_EQ(coded.embedding.type, kCoded);
  EXPECT_EQ(coded.head.type, kCoded);
  const ModelWeights plain = ModelWeights::Load(config, WeightType::kBf16, source, kernels, pool);
  const auto same = [&](const PackedMatrix& a, const PackedMatrix& b) {
    std::vector<float> x(static_cast<size_t>(a.k)), y(x.size());
    for (int64_t row = 0; row < a.n; ++row) {
      kernels.unpack_row(a, row, x.data());
      kernels.unpack_row(b, row, y.data());
      ASSERT_EQ(std::memcmp(x.data(), y.data(), x.size() * sizeof(float)), 0) << row;
    }
  };
  same(coded.embedding, plain.embedding);
  same(coded.head, plain.head);
  for (size_t l = 0; l < coded.layers.size(); ++l) {
    same(coded.layers[l].up, plain.layers[l].up);
    same(coded.layers[l].down, plain.layers[l].down);
  }
}

TEST(CodedWeightsTest, OneExpertThatDoesNotFitLeavesAllPlain) {
  const MadeUpTensors made_up;
  const CpuKernels& kernels = KernelsFor(Isa::kScalar);
  ThreadPool pool(2);
  ModelConfig config = OddModel();
  EXPECT_TRUE(ExpertsCanBeCoded(config, made_up, kernels, pool));
  EXPECT_EQ(ExpertWeightType(config, kCoded), kCoded);
  EXPECT_EQ(ExpertWeightType(config, WeightType::kInt8), WeightType::kInt8);
  const WithManyExponents source(made_up, "model.layers.2.mlp.experts.4.down_proj.weight");
  EXPECT_FALSE(ExpertsCanBeCoded(config, source, kernels, pool));

  ExpertPacker packer(config, kCoded, source, kernels);
  AlignedBuffer slot(packer.layout().slot_bytes);
  ExpertId id;
  id.layer = 2;
  id.index = 3;
  packer.Pack(id, slot.span());
  id.index = 4;
  EXPECT_THROW(packer.Pack(id, slot.span()), UncodableExpert);

  const uint64_t coded_bytes = packer.layout().blob_bytes;
  config.coded_experts = false;
  EXPECT_EQ(ExpertWeightType(config, kCoded), WeightType::kBf16);
  EXPECT_GT(MakeCpuExpertLayout(config, kCoded).blob_bytes, coded_bytes);
  // And a store of coded experts beside a dense part that is not.
  config.coded_experts = true;
  EXPECT_EQ(MakeCpuExpertLayout(config, WeightType::kBf16).blob_bytes, coded_bytes);
}

// With a matrix that is coded, one that is not, and experts that come and go.
TEST(CodedWeightsTest, LogitsAreThoseOfPlainWeights) {
  for (const Isa isa : SupportedIsas()) {
    if (KernelsFor(isa).coded.matmul == nullptr || isa == Isa::kScalar) continue;
    std::vector<float> expected;
    for (const WeightType type : {WeightType::kBf16, kCoded}) {
      HarnessOptions options;
      options.isa = isa;
      options.threads = 2;
      options.weight_type = type;
      options.expert_slots = type == kCoded ? 40 : 0;
      options.wrap_tensors = [](const TensorSource& base) {
        return std::make_unique<WithManyExponents>(base, "model.layers.3.self_attn.o_proj.weight");
      };
      ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options);
      if (type == kCoded) {
        EXPECT_EQ(model.config().uncoded_tensors.size(), 1u);
        EXPECT_EQ(model.config().coded_experts, true);
      }
      auto sequence = model.NewSequence(40);
      const std::vector<float> logits = model.Prefill(sequence, PromptOf(5, 30, 4096), 13);
      if (expected.empty()) expected = logits;
      ASSERT_EQ(logits.size(), expected.size());
      EXPECT_EQ(std::memcmp(logits.data(), expected.data(), logits.size() * sizeof(float)), 0)
          << IsaName(isa);
    }
  }
}

}  // namespace
}  // namespace moesaic
