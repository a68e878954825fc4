// Attention with grouped queries on the host against its formula in double precision: projections,
// norms, clipping, rotation, windows, keys and values in blocks, and the output projection.
#include "serving/model/grouped_query.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "tests/core/config/made_up_layers.h"
#include "tests/serving/model/mixer_rig.h"

namespace moesaic {
namespace {

using Vec = DoubleRow;

constexpr int64_t kTokens = 45;
constexpr int64_t kLayer = 2;

class Formula {
 public:
  explicit Formula(const ModelConfig& config)
      : config_(config), spec_(config.layer(kLayer).attention()) {}

  // Output of each row of a sequence whose normed rows are x.
  std::vector<Vec> Run(const std::vector<Vec>& x) const {
    const auto d = static_cast<size_t>(spec_.head_dim);
    const auto heads = static_cast<size_t>(spec_.heads);
    const auto group = static_cast<size_t>(spec_.group());
    std::vector<Vec> q;
    std::vector<Vec> k;
    std::vector<Vec> v;
    for (size_t t = 0; t < x.size(); ++t) {
      q.push_back(Projected(TensorSlot::kQ, TensorSlot::kQBias, spec_.q_width(), x[t]));
      k.push_back(Projected(TensorSlot::kK, TensorSlot::kKBias, spec_.kv_width(), x[t]));
      v.push_back(Projected(TensorSlot::kV, TensorSlot::kVBias, spec_.kv_width(), x[t]));
      NormAndClip(TensorSlot::kQNorm, q[t]);
      NormAndClip(TensorSlot::kKNorm, k[t]);
      if (spec_.clip_qkv > 0) Clip(v[t]);
      Rotate(t, q[t]);
      Rotate(t, k[t]);
    }
    std::vector<Vec> out;
    const Vec w = Tensor(TensorSlot::kOutput, config_.hidden_size, spec_.q_width());
    for (size_t t = 0; t < x.size(); ++t) {
      Vec mixed(heads * d, 0);
      const size_t first = spec_.window > 0 && t + 1 > static_cast<size_t>(spec_.window)
                               ? t + 1 - static_cast<size_t>(spec_.window)
                               : 0;
      for (size_t h = 0; h < heads; ++h) {
        Vec p(t + 1 - first);
        double sum = 0;
        for (size_t s = first; s <= t; ++s) {
          double product = 0;
          for (size_t i = 0; i < d; ++i) product += q[t][h * d + i] * k[s][h / group * d + i];
          sum += p[s - first] = std::exp(spec_.scale * product);
        }
        for (size_t s = first; s <= t; ++s) {
          for (size_t i = 0; i < d; ++i) {
            mixed[h * d + i] += p[s - first] / sum * v[s][h / group * d + i];
          }
        }
      }
      out.push_back(Times(w, mixed));
    }
    return out;
  }

 private:
  Vec Tensor(TensorSlot slot, int64_t rows, int64_t columns) const {
    const auto count = static_cast<size_t>(rows * columns);
    std::vector<float> values(count);
    tensors_.ReadRows(config_.tensors.At(slot, kLayer), 0, rows, columns,
                      std::as_writable_bytes(std::span(values)));
    return {values.begin(), values.end()};
  }

  static Vec Times(const Vec& w, const Vec& x) {
    Vec y(w.size() / x.size(), 0);
    for (size_t r = 0; r < y.size(); ++r) {
      for (size_t c = 0; c < x.size(); ++c) y[r] += w[r * x.size() + c] * x[c];
    }
    return y;
  }

  Vec Projected(TensorSlot slot, TensorSlot bias, int64_t width, const Vec& x) const {
    Vec y = Times(Tensor(slot, width, config_.hidden_size), x);
    if (!spec_.qkv_bias) return y;
    const Vec b = Tensor(bias, width, 1);
    for (size_t i = 0; i < y.size(); ++i) y[i] += b[i];
    return y;
  }

  void Clip(Vec& x) const {
    for (double& value : x) value = std::clamp(value, -spec_.clip_qkv, spec_.clip_qkv);
  }

  void NormAndClip(TensorSlot slot, Vec& x) const {
    if (spec_.qk_norm != QkNorm::kNone) {
      const bool whole = spec_.qk_norm == QkNorm::kProjection;
      const size_t n = whole ? x.size() : static_cast<size_t>(spec_.head_dim);
      const Vec weight = Tensor(slot, static_cast<int64_t>(n), 1);
      for (size_t first = 0; first < x.size(); first += n) {
        double squares = 0;
        for (size_t i = 0; i < n; ++i) squares += x[first + i] * x[first + i];
        const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + spec_.norm.eps);
        for (size_t i = 0; i < n; ++i) x[first + i] *= factor * weight[i];
      }
    }
    if (spec_.clip_qkv > 0) Clip(x);
  }

  // Halves of the rotated values of each head.
  void Rotate(size_t position, Vec& x) const {
    const auto half = static_cast<size_t>(spec_.rotary_dim / 2);
    for (size_t head = 0; head < x.size(); head += static_cast<size_t>(spec_.head_dim)) {
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) *
                             std::pow(spec_.rope.theta, -2.0 * static_cast<double>(i) /
                                                            static_cast<double>(spec_.rotary_dim));
        const double a = x[head + i];
        const double b = x[head + i + half];
        x[head + i] = a * std::cos(angle) - b * std::sin(angle);
        x[head + i + half] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }

  const ModelConfig& config_;
  const GroupedQuerySpec& spec_;
  const MadeUpTensors tensors_;
};

TEST(GroupedQueryTest, IsTheFormula) {
  struct Case {
    const char* what;
    void (*change)(GroupedQuerySpec& spec);
  };
  const std::array cases = {
      Case{"a window", [](GroupedQuerySpec& spec) { spec.window = 18; }},
      Case{"all of the context", [](GroupedQuerySpec& spec) { spec.window = 0; }},
      Case{"a norm for each head", [](GroupedQuerySpec& spec) { spec.qk_norm = QkNorm::kPerHead; }},
      Case{"a norm over all heads",
           [](GroupedQuerySpec& spec) { spec.qk_norm = QkNorm::kProjection; }},
      Case{"biases, clipping, another scale",
           [](GroupedQuerySpec& spec) {
             spec.qkv_bias = true;
             spec.clip_qkv = 0.75;
             spec.scale = 0.4;
           }},
      Case{"a part of each head rotated, one KV head",
           [](GroupedQuerySpec& spec) {
             spec.rotary_dim = 10;
             spec.kv_heads = 1;
             spec.heads = 3;
           }},
  };
  for (const Case& test : cases) {
    ModelConfig config = OddModel();
    ChangeAttention(config, test.change);
    const std::vector<Vec> x = MadeUpRows(kTokens, config.hidden_size, 31);
    const std::vector<Vec> expected = Formula(config).Run(x);
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
      if (!IsaSupported(isa)) continue;
      SCOPED_TRACE(std::string(test.what) + ", " + IsaName(isa));
      const std::vector<Vec> seen =
          RunMixer<GroupedQuery>(config, config.attention(), kLayer, isa, 2, x);
      ASSERT_EQ(seen.size(), expected.size());
      double worst = 0;
      double largest = 0;
      for (size_t t = 0; t < seen.size(); ++t) {
        for (size_t i = 0; i < seen[t].size(); ++i) {
          worst = std::max(worst, std::abs(seen[t][i] - expected[t][i]));
          largest = std::max(largest, std::abs(expected[t][i]));
        }
      }
      EXPECT_LE(worst, 5e-6 * largest);
    }
  }
}

}  // namespace
}  // namespace moesaic
