// Latent attention on the host, which is computed in its absorbed form, against the formula of its
// heads' keys and values in double precision.
#include "serving/model/latent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "tests/serving/model/mixer_rig.h"

namespace moesaic {
namespace {

using Doubles = DoubleRow;

constexpr int64_t kLatentTokens = 45;
constexpr int64_t kLatentLayer = 1;

ModelConfig LatentModel(int64_t q_rank, int64_t nope, int64_t rope, int64_t value) {
  return ParseModelConfig(
      fmt::format(R"({{"model_type": "deepseek_v3", "vocab_size": 171, "hidden_size": 70,
          "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 5,
          "q_lora_rank": {}, "kv_lora_rank": 22, "qk_nope_head_dim": {}, "qk_rope_head_dim": {},
          "v_head_dim": {}, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 1,
          "topk_group": 1, "max_position_embeddings": 512, "first_k_dense_replace": 0}})",
                  q_rank > 0 ? std::to_string(q_rank) : "null", nope, rope, value),
      "latent_model");
}

class LatentFormula {
 public:
  explicit LatentFormula(const ModelConfig& config)
      : config_(config), spec_(std::get<LatentSpec>(config.layer(kLatentLayer).mixer)) {}

  // Output of each row of a sequence whose normed rows are x.
  std::vector<Doubles> Run(const std::vector<Doubles>& x) const {
    const auto heads = static_cast<size_t>(spec_.heads);
    const auto nope = static_cast<size_t>(spec_.nope_dim);
    const auto rope = static_cast<size_t>(spec_.rope_dim);
    const auto value = static_cast<size_t>(spec_.value_dim);
    const auto rank = static_cast<size_t>(spec_.kv_rank);
    std::vector<Doubles> q;         // [tokens][heads, nope + rope]
    std::vector<Doubles> rotated;   // [tokens][rope]
    std::vector<Doubles> expanded;  // [tokens][heads, nope + value]
    for (size_t t = 0; t < x.size(); ++t) {
      Doubles query = x[t];
      if (spec_.q_rank > 0) {
        query = Times(Tensor(TensorSlot::kQDown, spec_.q_rank, config_.hidden_size), query);
        Norm(TensorSlot::kQDownNorm, query);
      }
      q.push_back(
          Times(Tensor(TensorSlot::kQ, spec_.heads * spec_.query_dim(), std::ssize(query)), query));
      for (size_t h = 0; h < heads; ++h) Rotate(t, q[t].data() + h * (nope + rope) + nope);
      Doubles row =
          Times(Tensor(TensorSlot::kKvDown, spec_.row_width(), config_.hidden_size), x[t]);
      rotated.emplace_back(row.begin() + spec_.kv_rank, row.end());
      Rotate(t, rotated[t].data());
      row.resize(rank);
      Norm(TensorSlot::kKvDownNorm, row);
      expanded.push_back(
          Times(Tensor(TensorSlot::kKvUp, spec_.heads * (spec_.nope_dim + spec_.value_dim),
                       spec_.kv_rank),
                row));
    }
    const Doubles w = Tensor(TensorSlot::kOutput, config_.hidden_size, spec_.output_width());
    std::vector<Doubles> out;
    for (size_t t = 0; t < x.size(); ++t) {
      Doubles mixed(heads * value, 0);
      for (size_t h = 0; h < heads; ++h) {
        const double* const query = q[t].data() + h * (nope + rope);
        Doubles p(t + 1);
        double sum = 0;
        for (size_t s = 0; s <= t; ++s) {
          const double* const key = expanded[s].data() + h * (nope + value);
          double product = 0;
          for (size_t i = 0; i < nope; ++i) product += query[i] * key[i];
          for (size_t i = 0; i < rope; ++i) product += query[nope + i] * rotated[s][i];
          sum += p[s] = std::exp(spec_.scale * product);
        }
        for (size_t s = 0; s <= t; ++s) {
          const double* const of_head = expanded[s].data() + h * (nope + value) + nope;
          for (size_t i = 0; i < value; ++i) mixed[h * value + i] += p[s] / sum * of_head[i];
        }
      }
      out.push_back(Times(w, mixed));
    }
    return out;
  }

 private:
  Doubles Tensor(TensorSlot slot, int64_t rows, int64_t columns) const {
    std::vector<float> values(static_cast<size_t>(rows * columns));
    tensors_.ReadRows(config_.tensors.At(slot, kLatentLayer), 0, rows, columns,
                      std::as_writable_bytes(std::span(values)));
    return {values.begin(), values.end()};
  }

  static Doubles Times(const Doubles& w, const Doubles& x) {
    Doubles y(w.size() / x.size(), 0);
    for (size_t r = 0; r < y.size(); ++r) {
      for (size_t c = 0; c < x.size(); ++c) y[r] += w[r * x.size() + c] * x[c];
    }
    return y;
  }

  void Norm(TensorSlot slot, Doubles& x) const {
    const Doubles weight = Tensor(slot, std::ssize(x), 1);
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + spec_.norm.eps);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= factor * weight[i];
  }

  void Rotate(size_t position, double* x) const {
    const auto half = static_cast<size_t>(spec_.rope_dim / 2);
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) *
                           std::pow(spec_.rope.theta, -2.0 * static_cast<double>(i) /
                                                          static_cast<double>(spec_.rope_dim));
      const double a = x[i];
      const double b = x[i + half];
      x[i] = a * std::cos(angle) - b * std::sin(angle);
      x[i + half] = b * std::cos(angle) + a * std::sin(angle);
    }
  }

  const ModelConfig& config_;
  const LatentSpec& spec_;
  const MadeUpTensors tensors_;
};

double WorstDifference(const std::vector<Doubles>& got, const std::vector<Doubles>& expected) {
  EXPECT_EQ(got.size(), expected.size());
  double worst = 0;
  for (size_t t = 0; t < std::min(got.size(), expected.size()); ++t) {
    for (size_t i = 0; i < got[t].size(); ++i) {
      worst = std::max(worst, std::abs(got[t][i] - expected[t][i]));
    }
  }
  return worst;
}

TEST(LatentTest, IsTheFormula) {
  // q_rank, nope, rope, value; values wider than the latent, and heads of whole panels.
  const std::array<std::array<int64_t, 4>, 3> cases = {
      {{0, 10, 6, 14}, {20, 12, 4, 26}, {36, 24, 8, 16}}};
  for (const auto& [q_rank, nope, rope, value] : cases) {
    const ModelConfig config = LatentModel(q_rank, nope, rope, value);
    const std::vector<Doubles> x = MadeUpRows(kLatentTokens, config.hidden_size, 31);
    const std::vector<Doubles> expected = LatentFormula(config).Run(x);
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
      if (!IsaSupported(isa)) continue;
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(fmt::format("{} q_rank={} threads={}", IsaName(isa), q_rank, threads));
        const std::vector<Doubles> got = RunMixer<Latent>(config, *config.FindMixer<LatentSpec>(),
                                                          kLatentLayer, isa, threads, x);
        EXPECT_LT(WorstDifference(got, expected), 2e-5);
      }
    }
  }
}

// Chunks of the context begin at multiples of 256: a token there attends to itself, too, whether it
// is the last one of a prompt's step or decoded.
TEST(LatentTest, IsTheFormulaWhereAChunkBegins) {
  static_assert(kAttentionChunkTokens == 256);
  const ModelConfig config = LatentModel(20, 12, 4, 26);
  const std::vector<Doubles> x = MadeUpRows(258, config.hidden_size, 31);
  const std::vector<Doubles> expected = LatentFormula(config).Run(x);
  const std::vector<std::vector<int64_t>> cuts = {{32, 32, 32, 32, 32, 32, 32, 31, 1, 1, 1},
                                                  {32, 32, 32, 32, 32, 32, 32, 26, 7, 1}};
  for (const std::vector<int64_t>& steps : cuts) {
    SCOPED_TRACE(steps.size());
    const std::vector<Doubles> got = RunMixer<Latent>(config, *config.FindMixer<LatentSpec>(),
                                                      kLatentLayer, Isa::kAvx2, 2, x, steps);
    EXPECT_LT(WorstDifference(got, expected), 2e-5);
  }
}

}  // namespace
}  // namespace moesaic
