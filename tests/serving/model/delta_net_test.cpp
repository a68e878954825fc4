// Linear attention on the host against its formula in double precision: projections, convolution,
// norms, decays, the recurrence, the gate and the output projection, over slots of state.
#include "serving/model/delta_net.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/serving/model/mixer_rig.h"

namespace moesaic {
namespace {

using Row = DoubleRow;

constexpr int64_t kDeltaTokens = 45;
constexpr int64_t kDeltaLayer = 2;

// Sizes that nothing divides. MadeUpTensors make them of names, so that each has one of its own.
ModelConfig OddDeltaModel() {
  ModelConfig config = ParseModelConfig(R"({
    "model_type": "qwen3_next", "vocab_size": 71, "hidden_size": 52, "num_hidden_layers": 4,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 18,
    "linear_value_head_dim": 21, "linear_conv_kernel_dim": 3, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8
  })",
                                        "odd_delta_model");
  for (const auto& [slot, name] : {std::pair(TensorSlot::kDeltaQ, "q {layer}"),
                                   {TensorSlot::kDeltaK, "k {layer}"},
                                   {TensorSlot::kDeltaV, "v {layer}"},
                                   {TensorSlot::kDeltaGate, "z {layer}"},
                                   {TensorSlot::kDeltaBeta, "b {layer}"},
                                   {TensorSlot::kDeltaStep, "a {layer}"}}) {
    config.tensors.Set(slot, name);
  }
  return config;
}

class DeltaFormula {
 public:
  explicit DeltaFormula(const ModelConfig& config)
      : config_(config), spec_(*config.FindMixer<DeltaNetSpec>()) {}

  // Output of each row of a sequence whose normed rows are x.
  std::vector<Row> Run(const std::vector<Row>& x) const {
    std::vector<Row> q = Convolved(TensorSlot::kDeltaQ, 0, spec_.key_width(), x);
    std::vector<Row> k = Convolved(TensorSlot::kDeltaK, spec_.key_width(), spec_.key_width(), x);
    const std::vector<Row> v =
        Convolved(TensorSlot::kDeltaV, 2 * spec_.key_width(), spec_.value_width(), x);
    for (size_t t = 0; t < x.size(); ++t) {
      Normalise(q[t], 1 / std::sqrt(static_cast<double>(spec_.key_dim)));
      Normalise(k[t], 1);
    }
    const Row decay = Tensor(TensorSlot::kDeltaDecay, spec_.value_heads, 1);
    const Row bias = Tensor(TensorSlot::kDeltaStepBias, spec_.value_heads, 1);
    const Row norm = Tensor(TensorSlot::kDeltaNorm, spec_.value_dim, 1);
    const Row output = Tensor(TensorSlot::kDeltaOutput, config_.hidden_size, spec_.value_width());
    const auto dk = static_cast<size_t>(spec_.key_dim);
    const auto dv = static_cast<size_t>(spec_.value_dim);
    std::vector<Row> states(static_cast<size_t>(spec_.value_heads), Row(dk * dv, 0));
    std::vector<Row> out;
    for (size_t t = 0; t < x.size(); ++t) {
      const Row z = Projected(TensorSlot::kDeltaGate, spec_.value_width(), x[t]);
      const Row b = Projected(TensorSlot::kDeltaBeta, spec_.value_heads, x[t]);
      const Row a = Projected(TensorSlot::kDeltaStep, spec_.value_heads, x[t]);
      Row mixed(states.size() * dv);
      for (size_t h = 0; h < states.size(); ++h) {
        Row& s = states[h];
        const double* const key = k[t].data() + h / static_cast<size_t>(spec_.group()) * dk;
        const double* const query = q[t].data() + h / static_cast<size_t>(spec_.group()) * dk;
        const double keep = std::exp(-std::exp(decay[h]) * std::log1p(std::exp(a[h] + bias[h])));
        const double beta = 1 / (1 + std::exp(-b[h]));
        double squares = 0;
        for (size_t j = 0; j < dv; ++j) {
          double known = 0;
          for (size_t i = 0; i < dk; ++i) known += (s[i * dv + j] *= keep) * key[i];
          const double delta = beta * (v[t][h * dv + j] - known);
          double& read = mixed[h * dv + j];
          for (size_t i = 0; i < dk; ++i) read += (s[i * dv + j] += key[i] * delta) * query[i];
          squares += read * read;
        }
        const double factor = 1 / std::sqrt(squares / static_cast<double>(dv) + spec_.norm.eps);
        for (size_t j = 0; j < dv; ++j) {
          const double gate = z[h * dv + j];
          mixed[h * dv + j] *= factor * norm[j] * gate / (1 + std::exp(-gate));
        }
      }
      out.push_back(Times(output, mixed));
    }
    return out;
  }

 private:
  Row Tensor(TensorSlot slot, int64_t rows, int64_t columns) const {
    std::vector<float> values(static_cast<size_t>(rows * columns));
    tensors_.ReadRows(config_.tensors.At(slot, kDeltaLayer), 0, rows, columns,
                      std::as_writable_bytes(std::span(values)));
    return {values.begin(), values.end()};
  }

  static Row Times(const Row& w, const Row& x) {
    Row y(w.size() / x.size(), 0);
    for (size_t r = 0; r < y.size(); ++r) {
      for (size_t c = 0; c < x.size(); ++c) y[r] += w[r * x.size() + c] * x[c];
    }
    return y;
  }

  Row Projected(TensorSlot slot, int64_t width, const Row& x) const {
    return Times(Tensor(slot, width, config_.hidden_size), x);
  }

  // Channels from `first` on.
  std::vector<Row> Convolved(TensorSlot slot, int64_t first, int64_t width,
                             const std::vector<Row>& x) const {
    const Row weight = Tensor(TensorSlot::kDeltaConv, spec_.channels(), spec_.conv_width);
    std::vector<Row> inputs;
    for (const Row& row : x) inputs.push_back(Projected(slot, width, row));
    std::vector<Row> out = inputs;
    const auto taps = static_cast<size_t>(spec_.conv_width);
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t c = 0; c < out[t].size(); ++c) {
        double sum = 0;
        for (size_t j = 0; j < taps; ++j) {
          if (t + j + 1 < taps) continue;  // before the sequence
          sum += weight[(static_cast<size_t>(first) + c) * taps + j] * inputs[t + j + 1 - taps][c];
        }
        out[t][c] = sum / (1 + std::exp(-sum));
      }
    }
    return out;
  }

  void Normalise(Row& x, double scale) const {
    const auto dk = static_cast<size_t>(spec_.key_dim);
    for (size_t head = 0; head < x.size(); head += dk) {
      double squares = 0;
      for (size_t i = 0; i < dk; ++i) squares += x[head + i] * x[head + i];
      for (size_t i = 0; i < dk; ++i) x[head + i] *= scale / std::sqrt(squares + 1e-6);
    }
  }

  const ModelConfig& config_;
  const DeltaNetSpec& spec_;
  const MadeUpTensors tensors_;
};

// A step of a sequence, and the slots that it goes through.
struct Step {
  int64_t tokens = 0;
  SequenceState state;
};

class DeltaRig {
 public:
  DeltaRig(const ModelConfig& config, Isa isa)
      : config_(config),
        kernels_(KernelsFor(isa)),
        weights_(ModelWeights::Load(config, WeightType::kF32, MadeUpTensors(), kernels_, pool_)),
        activations_(
            kernels_, kRows,
            std::max(config.hidden_size, config.FindMixer<DeltaNetSpec>()->value_width())) {
    limits_.max_batch_tokens = kRows;
    limits_.num_state_slots = 4;
    mixer_ = std::make_unique<DeltaNet>(config, weights_, kernels_, limits_, pool_.threads(),
                                        activations_);
    const MixerWidths widths = WidthsOf(*config.FindMixer<DeltaNetSpec>());
    rows_.projected_stride = PaddedFloats(widths.projected);
    rows_.mixed_stride = PaddedFloats(widths.mixed);
    projected_ = ZeroedFloats(kRows * rows_.projected_stride);
    mixed_ = ZeroedFloats(kRows * rows_.mixed_stride);
    rows_.projected = projected_.as<float>();
    rows_.mixed = mixed_.as<float>();
  }

  // Appends the rows that follow those of `out`.
  void Run(const std::vector<Row>& x, const Step& step, std::vector<Row>& out) {
    const auto start = std::ssize(out);
    const int64_t stride = PaddedFloats(config_.hidden_size);
    AlignedBuffer normed = ZeroedFloats(kRows * stride);
    for (int64_t row = 0; row < step.tokens; ++row) {
      const Row& values = x[static_cast<size_t>(start + row)];
      std::copy(values.begin(), values.end(), normed.as<float>() + row * stride);
    }
    const std::vector<int32_t> tokens(static_cast<size_t>(step.tokens), 0);
    SequenceSlice slice;
    slice.num_tokens = step.tokens;
    slice.start_position = start;
    slice.state = step.state;
    const RowRange all = {0, step.tokens};
    mixer_->Begin({tokens, {&slice, 1}});
    mixer_->PreAttention(kDeltaLayer, all, normed.as<float>(), stride, rows_, pool_);
    mixer_->Attend(kDeltaLayer, {0, 1}, rows_, pool_);
    std::vector<float> y(static_cast<size_t>(step.tokens * config_.hidden_size));
    mixer_->Project(kDeltaLayer, all, rows_, y.data(), pool_);
    for (auto row = y.begin(); row != y.end(); row += config_.hidden_size) {
      out.emplace_back(row, row + config_.hidden_size);
    }
  }

 private:
  static constexpr int64_t kRows = 48;

  const ModelConfig& config_;
  const CpuKernels& kernels_;
  ThreadPool pool_{2};
  const ModelWeights weights_;
  ModelLimits limits_;
  HostActivations activations_;
  std::unique_ptr<DeltaNet> mixer_;
  HostMixer::Rows rows_;
  AlignedBuffer projected_;
  AlignedBuffer mixed_;
};

// A prompt in three chunks, then decode.
const std::vector<Step> kInPlace = {{3, {.slot = 2, .from = -1}}, {19, {.slot = 2, .from = 2}},
                                    {20, {.slot = 2, .from = 2}}, {1, {.slot = 2, .from = 2}},
                                    {1, {.slot = 2, .from = 2}},  {1, {.slot = 2, .from = 2}}};

TEST(DeltaNetTest, IsTheFormula) {
  const ModelConfig config = OddDeltaModel();
  const std::vector<Row> x = MadeUpRows(kDeltaTokens, config.hidden_size, 17);
  const std::vector<Row> expected = DeltaFormula(config).Run(x);
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (!IsaSupported(isa)) continue;
    SCOPED_TRACE(IsaName(isa));
    DeltaRig rig(config, isa);
    std::vector<Row> seen;
    for (const Step& step : kInPlace) rig.Run(x, step, seen);
    ASSERT_EQ(seen.size(), expected.size());
    double worst = 0;
    double largest = 0;
    for (size_t t = 0; t < seen.size(); ++t) {
      for (size_t i = 0; i < seen[t].size(); ++i) {
        worst = std::max(worst, std::abs(seen[t][i] - expected[t][i]));
        largest = std::max(largest, std::abs(expected[t][i]));
      }
    }
    EXPECT_GT(largest, 0.1);
    EXPECT_LE(worst, 5e-6 * largest);
  }
}

// States that are kept on the way and gone on from have the bits of those that are carried on.
TEST(DeltaNetTest, SnapshotsAndOtherSlotsHaveTheSameBits) {
  const ModelConfig config = OddDeltaModel();
  const std::vector<Row> x = MadeUpRows(kDeltaTokens, config.hidden_size, 17);
  DeltaRig rig(config, Isa::kScalar);
  std::vector<Row> expected;
  for (const Step& step : kInPlace) rig.Run(x, step, expected);

  std::vector<Row> seen;
  rig.Run(x, {40, {.slot = 0, .from = -1, .snapshot = 1, .snapshot_tokens = 32}}, seen);
  rig.Run(x, {5, {.slot = 3, .from = 0}}, seen);
  EXPECT_EQ(seen, expected);
  // Another sequence with the same beginning.
  std::vector<Row> again(expected.begin(), expected.begin() + 32);
  rig.Run(x, {13, {.slot = 3, .from = 1}}, again);
  EXPECT_EQ(again, expected);
}

}  // namespace
}  // namespace moesaic
