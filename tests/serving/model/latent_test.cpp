// Latent attention on the host, which is computed in its absorbed form, against the formula of its
// heads' keys and values in double precision.
#include "serving/model/latent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
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

// The same with an indexer that chooses so many positions.
ModelConfig IndexedModel(const std::string& type, int64_t top_k, int64_t heads, int64_t dim,
                         int64_t rope) {
  return ParseModelConfig(fmt::format(R"({{"model_type": "{}", "vocab_size": 171, "hidden_size": 70,
          "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 5,
          "q_lora_rank": 20, "kv_lora_rank": 22, "qk_nope_head_dim": 12, "qk_rope_head_dim": {},
          "v_head_dim": 14, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 1,
          "topk_group": 1, "max_position_embeddings": 512, "first_k_dense_replace": 0,
          "index_topk": {}, "index_n_heads": {}, "index_head_dim": {}}})",
                                      type, rope, top_k, heads, dim),
                          "indexed_model");
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
    std::vector<Doubles> q;           // [tokens][heads, nope + rope]
    std::vector<Doubles> rotated;     // [tokens][rope]
    std::vector<Doubles> expanded;    // [tokens][heads, nope + value]
    std::vector<Doubles> index_keys;  // [tokens][dim]
    std::vector<std::vector<size_t>> chosen;
    for (size_t t = 0; t < x.size(); ++t) {
      Doubles query = x[t];
      if (spec_.q_rank > 0) {
        query = Times(Tensor(TensorSlot::kQDown, spec_.q_rank, config_.hidden_size), query);
        Norm(TensorSlot::kQDownNorm, query);
      }
      if (spec_.top_k > 0) {
        index_keys.push_back(IndexKey(t, x[t]));
        chosen.push_back(Chosen(t, x[t], query, index_keys));
      } else {
        chosen.emplace_back(t + 1);
        std::iota(chosen.back().begin(), chosen.back().end(), size_t{0});
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
        for (const size_t s : chosen[t]) {
          const double* const key = expanded[s].data() + h * (nope + value);
          double product = 0;
          for (size_t i = 0; i < nope; ++i) product += query[i] * key[i];
          for (size_t i = 0; i < rope; ++i) product += query[nope + i] * rotated[s][i];
          sum += p[s] = std::exp(spec_.scale * product);
        }
        for (const size_t s : chosen[t]) {
          const double* const of_head = expanded[s].data() + h * (nope + value) + nope;
          for (size_t i = 0; i < value; ++i) mixed[h * value + i] += p[s] / sum * of_head[i];
        }
      }
      out.push_back(Times(w, mixed));
    }
    return out;
  }

 private:
  Doubles IndexKey(size_t t, const Doubles& x) const {
    const int64_t dim = spec_.indexer.dim;
    Doubles key = Times(Tensor(TensorSlot::kIndexK, dim, config_.hidden_size), x);
    const Doubles weight = Tensor(TensorSlot::kIndexKNorm, dim, 1);
    const Doubles bias = Tensor(TensorSlot::kIndexKNormBias, dim, 1);
    double mean = 0;
    for (const double value : key) mean += value / static_cast<double>(dim);
    double variance = 0;
    for (const double value : key) {
      variance += (value - mean) * (value - mean) / static_cast<double>(dim);
    }
    for (size_t i = 0; i < key.size(); ++i) {
      key[i] = (key[i] - mean) / std::sqrt(variance + 1e-6) * weight[i] + bias[i];
    }
    RotateIndex(t, key.data());
    return key;
  }

  // By scores, as transformers has them; of equal ones the lower position.
  std::vector<size_t> Chosen(size_t t, const Doubles& x, const Doubles& query,
                             const std::vector<Doubles>& keys) const {
    const auto heads = static_cast<size_t>(spec_.indexer.heads);
    const auto dim = static_cast<size_t>(spec_.indexer.dim);
    Doubles q = Times(
        Tensor(TensorSlot::kIndexQ, spec_.indexer.heads * spec_.indexer.dim, std::ssize(query)),
        query);
    for (size_t h = 0; h < heads; ++h) RotateIndex(t, q.data() + h * dim);
    const Doubles weights =
        Times(Tensor(TensorSlot::kIndexHeads, spec_.indexer.heads, config_.hidden_size), x);
    Doubles scores(t + 1, 0);
    for (size_t s = 0; s <= t; ++s) {
      for (size_t h = 0; h < heads; ++h) {
        double product = 0;
        for (size_t i = 0; i < dim; ++i) product += q[h * dim + i] * keys[s][i];
        scores[s] += weights[h] / std::sqrt(static_cast<double>(heads)) *
                     std::max(0.0, product / std::sqrt(static_cast<double>(dim)));
      }
    }
    std::vector<size_t> order(t + 1);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    const auto k = static_cast<size_t>(spec_.top_k);
    if (order.size() <= k) return order;
    // Or f32 could choose otherwise. Zeros are equal, and many where heads are few.
    if (scores[order[k - 1]] != 0 || scores[order[k]] != 0) {
      EXPECT_GT(scores[order[k - 1]] - scores[order[k]], 1e-6) << t;
    }
    order.resize(k);
    return order;
  }

  // DeepSeek-V3.2 rotates halves together, GLM-5 neighbours.
  void RotateIndex(size_t t, double* x) const {
    if (config_.model_type == "deepseek_v32") return Rotate(t, x);
    const Doubles pairs(x, x + spec_.rope_dim);
    const size_t half = pairs.size() / 2;
    for (size_t i = 0; i < half; ++i) {
      x[i] = pairs[2 * i];
      x[i + half] = pairs[2 * i + 1];
    }
    Rotate(t, x);
  }

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

// Fewer positions than a chunk, and more; prompts cut where choosing begins, and elsewhere.
TEST(LatentTest, IsTheFormulaOfChosenPositions) {
  struct Case {
    const char* type;
    int64_t top_k, heads, dim, rope;
    int64_t tokens;
    std::vector<int64_t> steps;
  };
  const std::vector<Case> cases = {
      {"deepseek_v32", 11, 3, 10, 4, 45, {3, 19, 20, 1, 1, 1}},
      {"deepseek_v32", 20, 9, 17, 6, 45, {20, 2, 20, 1, 1, 1}},
      {"glm_moe_dsa", 11, 8, 16, 8, 45, {3, 19, 20, 1, 1, 1}},
      {"glm_moe_dsa", 270, 4, 8, 6, 300, {32, 32, 32, 32, 32, 32, 32, 32, 20, 22, 1, 1}},
  };
  for (const Case& c : cases) {
    const ModelConfig config = IndexedModel(c.type, c.top_k, c.heads, c.dim, c.rope);
    const std::vector<Doubles> x = MadeUpRows(c.tokens, config.hidden_size, 31);
    const std::vector<Doubles> expected = LatentFormula(config).Run(x);
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
      if (!IsaSupported(isa) || (isa == Isa::kScalar && c.tokens > 100)) continue;
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(fmt::format("{} {} of {} threads={}", IsaName(isa), c.type, c.top_k, threads));
        const std::vector<Doubles> got = RunMixer<Latent>(config, *config.FindMixer<LatentSpec>(),
                                                          kLatentLayer, isa, threads, x, c.steps);
        EXPECT_LT(WorstDifference(got, expected), 2e-5);
      }
    }
  }
}

// As many positions as there are: the bits of a model without an indexer.
TEST(LatentTest, ChoosingAllIsChoosingNone) {
  const std::vector<int64_t> steps = {30, 15, 1};
  const auto run = [&](int64_t top_k) {
    const ModelConfig config = IndexedModel("deepseek_v32", top_k, 4, 8, 6);
    return RunMixer<Latent>(config, *config.FindMixer<LatentSpec>(), kLatentLayer, Isa::kAvx2, 2,
                            MadeUpRows(46, config.hidden_size, 31), steps);
  };
  EXPECT_EQ(run(46), run(2048));
  EXPECT_NE(run(45), run(2048));
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
