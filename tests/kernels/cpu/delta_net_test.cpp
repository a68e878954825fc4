// The kernels of linear attention against double precision, and their bits over instruction sets
// and over how tokens are cut.
#include "kernels/cpu/delta_net.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using testing_util::Random;

class DeltaNetKernelsTest : public ::testing::TestWithParam<Isa> {
 protected:
  const CpuKernels& kernels_ = KernelsFor(GetParam());
  Random random_;
};

INSTANTIATE_TEST_SUITE_P(Isas, DeltaNetKernelsTest,
                         ::testing::ValuesIn(testing_util::SupportedIsas()),
                         testing_util::IsaParamName);

// A head's tokens, with room between their rows.
struct Head {
  Head(Random& random, int64_t tokens, int64_t key_dim, int64_t value_dim, bool by_channel)
      : state(static_cast<size_t>(DeltaStateFloats(key_dim, value_dim))),
        out(static_cast<size_t>(tokens * (value_dim + 3)), -7.0f) {
    const int64_t width = std::max(key_dim, value_dim) + 5;
    const float scale = 1.0f / std::sqrt(static_cast<float>(key_dim));
    q = random.Normals(tokens * width, scale);
    k = random.Normals(tokens * width, scale);
    v = random.Normals(tokens * width);
    decay = random.Normals(tokens * (by_channel ? key_dim : 1));
    for (float& x : decay) x = 1.0f / (1.0f + std::exp(-3.0f - x));
    beta = random.Normals(tokens);
    for (float& x : beta) x = 1.0f / (1.0f + std::exp(-x));
    args.tokens = tokens;
    args.key_dim = key_dim;
    args.value_dim = value_dim;
    args.q = q.data();
    args.k = k.data();
    args.v = v.data();
    args.stride = width;
    args.decay = decay.data();
    args.decay_stride = by_channel ? key_dim : 1;
    args.decay_step = by_channel ? 1 : 0;
    args.beta = beta.data();
    args.state = state.data();
    args.out = out.data();
    args.out_stride = value_dim + 3;
  }

  DeltaRuleArgs Part(int64_t first, int64_t tokens) const {
    DeltaRuleArgs part = args;
    part.tokens = tokens;
    part.q += first * part.stride;
    part.k += first * part.stride;
    part.v += first * part.stride;
    part.decay += first * part.decay_stride;
    part.beta += first;
    part.out += first * part.out_stride;
    part.from = first > 0 ? part.state : nullptr;
    return part;
  }

  // What is read for each token, by the formula.
  std::vector<std::vector<double>> Formula() const {
    const auto dk = static_cast<size_t>(args.key_dim);
    const auto dv = static_cast<size_t>(args.value_dim);
    std::vector<double> s(dk * dv, 0.0);
    std::vector<std::vector<double>> read;
    for (int64_t t = 0; t < args.tokens; ++t) {
      const float* const key = args.k + t * args.stride;
      const float* const query = args.q + t * args.stride;
      for (size_t i = 0; i < dk; ++i) {
        const double keep =
            args.decay[t * args.decay_stride + static_cast<int64_t>(i) * args.decay_step];
        for (size_t j = 0; j < dv; ++j) s[i * dv + j] *= keep;
      }
      std::vector<double> of_token(dv, 0.0);
      for (size_t j = 0; j < dv; ++j) {
        double known = 0;
        for (size_t i = 0; i < dk; ++i) known += s[i * dv + j] * key[i];
        const double delta =
            args.beta[t] * (args.v[t * args.stride + static_cast<int64_t>(j)] - known);
        for (size_t i = 0; i < dk; ++i) {
          s[i * dv + j] += key[i] * delta;
          of_token[j] += s[i * dv + j] * query[i];
        }
      }
      read.push_back(std::move(of_token));
    }
    return read;
  }

  std::vector<float> q, k, v, decay, beta, state, out;
  DeltaRuleArgs args;
};

TEST_P(DeltaNetKernelsTest, DeltaRuleIsTheFormula) {
  SCOPED_TRACE(testing_util::TestSeed());
  for (const bool by_channel : {false, true}) {
    for (const int64_t key_dim : {1, 18, 128}) {
      for (const int64_t value_dim : {5, 16, 33, 128}) {
        Head head(random_, 23, key_dim, value_dim, by_channel);
        std::fill(head.state.begin(), head.state.end(), 99.0f);  // a sequence that begins
        kernels_.delta_rule(head.args);
        const std::vector<std::vector<double>> expected = head.Formula();
        for (size_t t = 0; t < expected.size(); ++t) {
          const float* const out = head.out.data() + static_cast<int64_t>(t) * head.args.out_stride;
          for (size_t j = 0; j < expected[t].size(); ++j) {
            ASSERT_NEAR(static_cast<double>(out[j]), expected[t][j], 2e-5)
                << key_dim << " x " << value_dim << ", token " << t << ", channels " << by_channel;
          }
          for (int64_t j = value_dim; j < head.args.out_stride; ++j) ASSERT_EQ(out[j], -7.0f);
        }
      }
    }
  }
}

TEST_P(DeltaNetKernelsTest, DeltaRuleHasTheBitsOfTheScalarOneHoweverTokensAreCut) {
  SCOPED_TRACE(testing_util::TestSeed());
  for (const int64_t value_dim : {7, 48, 128}) {
    Head head(random_, 19, 34, value_dim, false);
    KernelsFor(Isa::kScalar).delta_rule(head.args);
    const std::vector<float> expected = head.out;
    const std::vector<float> state = head.state;
    for (const int64_t cut : {1, 5, 19}) {
      std::fill(head.out.begin(), head.out.end(), -7.0f);
      std::fill(head.state.begin(), head.state.end(), 3.0f);
      for (int64_t t = 0; t < head.args.tokens; t += cut) {
        kernels_.delta_rule(head.Part(t, std::min(cut, head.args.tokens - t)));
      }
      EXPECT_EQ(head.out, expected) << value_dim << " in " << cut;
      EXPECT_EQ(head.state, state) << value_dim << " in " << cut;
    }
    // From one slot into another, which leaves the first as it is.
    kernels_.delta_rule(head.Part(0, 11));
    const std::vector<float> before = head.state;
    std::vector<float> other(state.size(), 5.0f);
    DeltaRuleArgs rest = head.Part(11, 8);
    rest.from = head.state.data();
    rest.state = other.data();
    kernels_.delta_rule(rest);
    EXPECT_EQ(other, state);
    EXPECT_EQ(head.state, before);
    EXPECT_EQ(head.out, expected);
  }
}

TEST_P(DeltaNetKernelsTest, CausalConvIsTheFormulaHoweverTokensAreCut) {
  SCOPED_TRACE(testing_util::TestSeed());
  for (const int64_t width : {2, 3, 4}) {
    for (const int64_t channels : {3, 16, 37}) {
      const int64_t tokens = 13;
      const int64_t stride = channels + 2;
      const std::vector<float> inputs = random_.Normals(tokens * stride);
      const std::vector<float> weight = random_.Normals(width * channels);
      for (const int64_t cut : {1, 2, 6, 13}) {
        std::vector<float> x = inputs;
        std::vector<float> past(static_cast<size_t>((width - 1) * channels), 8.0f);
        for (int64_t t = 0; t < tokens; t += cut) {
          kernels_.causal_conv({.tokens = std::min(cut, tokens - t),
                                .channels = channels,
                                .width = width,
                                .x = x.data() + t * stride,
                                .stride = stride,
                                .weight = weight.data(),
                                .weight_stride = channels,
                                .from = t > 0 ? past.data() : nullptr,
                                .to = past.data(),
                                .past_stride = channels});
        }
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t c = 0; c < stride; ++c) {
            const float seen = x[static_cast<size_t>(t * stride + c)];
            if (c >= channels) {
              ASSERT_EQ(seen, inputs[static_cast<size_t>(t * stride + c)]);
              continue;
            }
            double sum = 0;
            for (int64_t j = 0; j < width; ++j) {
              const int64_t at = t - width + 1 + j;
              if (at < 0) continue;
              sum += static_cast<double>(weight[static_cast<size_t>(j * channels + c)]) *
                     inputs[static_cast<size_t>(at * stride + c)];
            }
            ASSERT_NEAR(static_cast<double>(seen), sum / (1 + std::exp(-sum)), 1e-5)
                << "width " << width << " cut " << cut << " token " << t << " channel " << c;
          }
        }
        for (int64_t j = 0; j + 1 < width; ++j) {
          for (int64_t c = 0; c < channels; ++c) {
            ASSERT_EQ(past[static_cast<size_t>(j * channels + c)],
                      inputs[static_cast<size_t>((tokens - width + 1 + j) * stride + c)]);
          }
        }
      }
    }
  }
}

TEST_P(DeltaNetKernelsTest, GateRowMultipliesWithSigmoidOrSilu) {
  SCOPED_TRACE(testing_util::TestSeed());
  for (const int64_t n : {1, 16, 45}) {
    const std::vector<float> gate = random_.Normals(n, 3.0f);
    const std::vector<float> x = random_.Normals(n);
    for (const RowGate kind : {RowGate::kSigmoid, RowGate::kSilu}) {
      std::vector<float> y = x;
      y.push_back(11.0f);
      kernels_.gate_row(kind, gate.data(), n, y.data());
      for (size_t i = 0; i < x.size(); ++i) {
        const double g = gate[i];
        const double factor = (kind == RowGate::kSilu ? g : 1.0) / (1 + std::exp(-g));
        ASSERT_NEAR(static_cast<double>(y[i]), factor * x[i], 2e-6);
      }
      ASSERT_EQ(y.back(), 11.0f);
    }
  }
}

}  // namespace
}  // namespace moesaic
