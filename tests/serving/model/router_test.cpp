// Routers whose data no fixture has, in a model: what Route makes of a row is what router_spec.h
// says of the row's norm, in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/base/tensor.h"
#include "tests/core/config/made_up_layers.h"
#include "tests/serving/model/choice_in_double.h"
#include "tests/serving/model/model_harness.h"
#include "tests/serving/model/odd_model.h"

namespace moesaic {
namespace {

constexpr const char* kLogitBias = "made_up.{layer}.logit_bias";
constexpr const char* kCorrection = "made_up.{layer}.correction";

// A checkpoint with some tensors that it does not have.
class WithMadeUpBiases : public TensorSource {
 public:
  explicit WithMadeUpBiases(const TensorSource& base) : base_(base) {}

  DType Require(const PlannedTensor& tensor, std::span<const int64_t> shape) const override {
    return From(tensor).Require(tensor, shape);
  }
  void ReadRows(const PlannedTensor& tensor, int64_t row_begin, int64_t row_end,
                int64_t row_elements, std::span<std::byte> destination) const override {
    From(tensor).ReadRows(tensor, row_begin, row_end, row_elements, destination);
  }
  uint64_t Fingerprint() const override { return base_.Fingerprint(); }

 private:
  const TensorSource& From(const PlannedTensor& tensor) const {
    return tensor.name.starts_with("made_up.") ? made_up_ : base_;
  }
  const TensorSource& base_;
  MadeUpTensors made_up_;
};

std::vector<float> TensorFloats(const TensorSource& source, const PlannedTensor& tensor,
                                std::vector<int64_t> shape) {
  const int64_t columns = shape.size() == 1 ? 1 : shape[1];
  const auto count = static_cast<size_t>(shape[0] * columns);
  const DType dtype = source.Require(tensor, shape);
  std::vector<std::byte> raw(count * static_cast<size_t>(DTypeBits(dtype)) / 8);
  source.ReadRows(tensor, 0, shape[0], columns, raw);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = dtype == DType::kF32 ? reinterpret_cast<const float*>(raw.data())[i]
                                     : Bf16ToF32(reinterpret_cast<const uint16_t*>(raw.data())[i]);
  }
  return values;
}

// What each row is on its way into the router, and where it was sent.
class RowsSeen : public RoutingHook {
 public:
  RowsSeen(const Model& model, const ModelConfig& config) : model_(model), config_(config) {}

  void OnRouting(int64_t, const ForwardBatch& batch, std::span<int32_t> experts,
                 std::span<float> weights) override {
    const float* const stream = model_.hidden();
    const auto rows = static_cast<int64_t>(batch.tokens.size());
    streams.emplace_back(stream, stream + rows * config_.hidden_size);
    ids.emplace_back(experts.begin(), experts.end());
    shares.emplace_back(weights.begin(), weights.end());
  }

  // [layers]
  std::vector<std::vector<float>> streams;
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<float>> shares;

 private:
  const Model& model_;
  const ModelConfig& config_;
};

TEST(RouterTest, RoutesAsItsSpecSays) {
  for (const ScoreFunction score : {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid,
                                    ScoreFunction::kSqrtSoftplus, ScoreFunction::kLogit}) {
    for (const int biases : {0, 1, 2, 3}) {
      SCOPED_TRACE(testing::Message()
                   << "score " << static_cast<int>(score) << " biases " << biases);
      HarnessOptions options;
      options.weight_type = WeightType::kF32;
      options.kv_type = WeightType::kF32;
      options.change_config = [&](ModelConfig& config) {
        config.tensors.Set(TensorSlot::kRouterBias, kLogitBias);
        config.tensors.Set(TensorSlot::kRouterCorrection, kCorrection);
        ChangeExperts(config, [&](ExpertsSpec& experts) {
          RouterSpec& router = experts.router;
          router.score = score;
          router.logit_bias = (biases & 1) != 0;
          router.correction_bias = (biases & 2) != 0;
          router.num_groups = 5;
          router.groups_kept = 3;
          router.group_rule = GroupRule::kTopTwoSum;
          // A sum of logits may be near zero.
          router.norm =
              score == ScoreFunction::kLogit ? RouterNorm::kSoftmax : RouterNorm::kSumPlusEps;
          router.norm_eps = 0.25;
          router.scale = 1.5;
        });
      };
      options.wrap_tensors = [](const TensorSource& base) {
        return std::make_unique<WithMadeUpBiases>(base);
      };
      ModelHarness harness(FixtureModel("qwen3_moe_bf16_sharded"), options);
      const ModelConfig& config = harness.config();
      const TensorSource& tensors = harness.tensors();
      const int64_t hidden = config.hidden_size;

      RowsSeen seen(harness.model(), config);
      constexpr int64_t kTokens = 20;
      auto sequence = harness.NewSequence(kTokens);
      harness.Prefill(sequence, PromptOf(3, kTokens, static_cast<int>(config.vocab_size)), kTokens,
                      &seen);

      int64_t compared = 0;
      ASSERT_EQ(std::ssize(seen.streams), config.num_layers());
      for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
        const RouterSpec& router = config.layer(layer).experts().router;
        const auto at = [&](TensorSlot slot) { return config.tensors.At(slot, layer); };
        const std::vector<float> norm =
            TensorFloats(tensors, at(TensorSlot::kPostAttentionNorm), {hidden});
        const std::vector<float> matrix =
            TensorFloats(tensors, at(TensorSlot::kRouter), {router.experts, hidden});
        const std::vector<float> bias =
            TensorFloats(tensors, at(TensorSlot::kRouterBias), {router.experts});
        const std::vector<float> correction =
            TensorFloats(tensors, at(TensorSlot::kRouterCorrection), {router.experts});
        for (int64_t row = 0; row < kTokens; ++row) {
          const float* const x = seen.streams[static_cast<size_t>(layer)].data() + row * hidden;
          double squares = 0;
          for (int64_t i = 0; i < hidden; ++i) squares += static_cast<double>(x[i]) * x[i];
          const double scale =
              1 / std::sqrt(squares / static_cast<double>(hidden) + config.layer(layer).norm.eps);
          std::vector<double> logits(static_cast<size_t>(router.experts));
          for (size_t e = 0; e < logits.size(); ++e) {
            for (size_t i = 0; i < norm.size(); ++i) {
              logits[e] += x[i] * scale * norm[i] * matrix[e * norm.size() + i];
            }
            if (router.logit_bias) logits[e] += bias[e];
          }
          const ExpertChoice expected = ChoiceInDouble(router, logits, correction);
          if (expected.gap < 1e-5) continue;
          ++compared;
          for (int64_t slot = 0; slot < router.top_k; ++slot) {
            const auto pair = static_cast<size_t>(row * router.top_k + slot);
            const auto place = static_cast<size_t>(slot);
            ASSERT_EQ(seen.ids[static_cast<size_t>(layer)][pair], expected.ids[place]);
            ASSERT_NEAR(seen.shares[static_cast<size_t>(layer)][pair], expected.weights[place],
                        1e-5 * std::abs(expected.weights[place]) + 1e-6);
          }
        }
      }
      EXPECT_GT(compared, config.num_layers() * kTokens * 3 / 4);
    }
  }
}

}  // namespace
}  // namespace moesaic
