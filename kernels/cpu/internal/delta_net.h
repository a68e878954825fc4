// Linear attention by the gated delta rule (kernels/cpu/delta_net.h). Included after Vec16 and
// math.h.
#pragma once

#include "kernels/cpu/delta_net.h"
#include "kernels/cpu/internal/math.h"

namespace moesaic {
namespace {

// All lanes where that is known, which masks are slow for.
MOESAIC_INLINE Vec16 LoadLanes(const float* p, int64_t lanes) {
  return lanes == kLanes ? Load(p) : LoadFirst(p, lanes);
}
MOESAIC_INLINE void StoreLanes(float* p, int64_t lanes, Vec16 a) {
  if (lanes == kLanes) return Store(p, a);
  StoreFirst(p, lanes, a);
}

// Some panels of a head through all tokens, so that a prompt's tokens find them in the first-level
// cache. A token reads them twice: the second time they are there.
template <int kPanels>
MOESAIC_INLINE void DeltaPanels(const DeltaRuleArgs& args, int64_t panel) {
  const int64_t keys = args.key_dim;
  const int64_t panel_floats = keys * kLanes;
  const int64_t first = panel * kLanes;
  // Of the last panel's lanes some may be missing.
  const int64_t lanes = MinOf(args.value_dim - first - (kPanels - 1) * kLanes, kLanes);
  const auto lanes_of = [lanes](int p) { return p + 1 < kPanels ? kLanes : lanes; };
  float* const state = args.state + panel * panel_floats;
  const float* from = args.from + panel * panel_floats;
  for (int64_t t = 0; t < args.tokens; ++t) {
    const float* const q = args.q + t * args.stride;
    const float* const k = args.k + t * args.stride;
    const float* const v = args.v + t * args.stride + first;
    const float* const decay = args.decay + t * args.decay_stride;
    Vec16 delta[kPanels];
    MOESAIC_UNROLL
    for (int p = 0; p < kPanels; ++p) delta[p] = Zero();
    for (int64_t i = 0; i < keys; ++i) {
      const Vec16 key = Set(k[i] * decay[i * args.decay_step]);
      MOESAIC_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        delta[p] = Fma(Load(from + p * panel_floats + i * kLanes), key, delta[p]);
      }
    }
    const Vec16 beta = Set(args.beta[t]);
    Vec16 out[kPanels];
    MOESAIC_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      delta[p] = Mul(beta, Sub(LoadLanes(v + p * kLanes, lanes_of(p)), delta[p]));
      out[p] = Zero();
    }
    for (int64_t i = 0; i < keys; ++i) {
      const Vec16 key = Set(k[i]);
      const Vec16 query = Set(q[i]);
      const Vec16 keep = Set(decay[i * args.decay_step]);
      MOESAIC_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        const int64_t at = p * panel_floats + i * kLanes;
        const Vec16 now = Fma(key, delta[p], Mul(keep, Load(from + at)));
        Store(state + at, now);
        out[p] = Fma(now, query, out[p]);
      }
    }
    MOESAIC_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      StoreLanes(args.out + t * args.out_stride + first + p * kLanes, lanes_of(p), out[p]);
    }
    from = state;
  }
}

inline void DeltaRule(const DeltaRuleArgs& given) {
  DeltaRuleArgs args = given;
  const int64_t panels = CeilDiv(args.value_dim, kLanes);
  if (args.from == nullptr) {
    for (int64_t i = 0; i < panels * args.key_dim; ++i) Store(args.state + i * kLanes, Zero());
    args.from = args.state;
  }
  int64_t panel = 0;
  for (; panel + kDeltaPanels <= panels; panel += kDeltaPanels)
    DeltaPanels<kDeltaPanels>(args, panel);
  for (; panel < panels; ++panel) DeltaPanels<1>(args, panel);
}

// Sixteen channels, or the first `lanes` of them, through all tokens.
template <int kWidth>
MOESAIC_INLINE void ConvolveLanes(const CausalConvArgs& args, int64_t channel, int64_t lanes) {
  Vec16 weight[kWidth];
  Vec16 inputs[kWidth];  // the oldest first
  MOESAIC_UNROLL
  for (int j = 0; j < kWidth; ++j) {
    weight[j] = LoadLanes(args.weight + j * args.weight_stride + channel, lanes);
    inputs[j] = Zero();
    if (j + 1 < kWidth && args.from != nullptr) {
      inputs[j] = LoadLanes(args.from + j * args.past_stride + channel, lanes);
    }
  }
  for (int64_t t = 0; t < args.tokens; ++t) {
    float* const x = args.x + t * args.stride + channel;
    inputs[kWidth - 1] = LoadLanes(x, lanes);
    Vec16 sum = Zero();
    MOESAIC_UNROLL
    for (int j = 0; j < kWidth; ++j) sum = Fma(weight[j], inputs[j], sum);
    StoreLanes(x, lanes, Silu(sum));
    MOESAIC_UNROLL
    for (int j = 0; j + 1 < kWidth; ++j) inputs[j] = inputs[j + 1];
  }
  MOESAIC_UNROLL
  for (int j = 0; j + 1 < kWidth; ++j) {
    StoreLanes(args.to + j * args.past_stride + channel, lanes, inputs[j]);
  }
}

template <int kWidth>
MOESAIC_INLINE void Convolve(const CausalConvArgs& args) {
  int64_t c = 0;
  for (; c + kLanes <= args.channels; c += kLanes) ConvolveLanes<kWidth>(args, c, kLanes);
  if (c < args.channels) ConvolveLanes<kWidth>(args, c, args.channels - c);
}

inline void CausalConv(const CausalConvArgs& args) {
  if (args.width == 2) return Convolve<2>(args);
  if (args.width == 3) return Convolve<3>(args);
  Convolve<4>(args);
}

inline void GateRow(RowGate kind, const float* gate, int64_t n, float* y) {
  const Vec16 one = Set(1.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t lanes = MinOf(n - i, kLanes);
    const Vec16 x = LoadLanes(gate + i, lanes);
    const Vec16 factor = kind == RowGate::kSilu ? Silu(x) : Div(one, Add(one, Exp(Sub(Zero(), x))));
    StoreLanes(y + i, lanes, Mul(LoadLanes(y + i, lanes), factor));
  }
}

}  // namespace
}  // namespace moesaic
