#include "serving/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace moesaic {
namespace {

// 1 / theta^(2i / d), i < d / 2
std::vector<double> PlainFrequencies(double theta, int64_t rotary_dim) {
  std::vector<double> inverse(static_cast<size_t>(rotary_dim / 2));
  for (size_t i = 0; i < inverse.size(); ++i) {
    inverse[i] =
        1.0 / std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
  }
  return inverse;
}

// YaRN, arXiv 2309.00071, section 3.2: dimensions that turn often keep their frequency
// (extrapolation), slow ones are interpolated, a linear ramp between.
void ApplyYarn(const RopeConfig& rope, int64_t rotary_dim, int64_t max_position,
               std::vector<double>& inverse, double& attention_factor) {
  const double d = static_cast<double>(rotary_dim);
  const double original = static_cast<double>(
      rope.original_max_position > 0 ? rope.original_max_position : max_position);
  const auto correction_dim = [&](double rotations) {
    return d * std::log(original / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rope.theta));
  };
  double low = correction_dim(rope.beta_fast);
  double high = correction_dim(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, d - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inverse.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inverse[i] = inverse[i] / rope.factor * ramp + inverse[i] * (1.0 - ramp);
  }
  const auto mscale = [&](double scale) {
    return rope.factor <= 1.0 ? 1.0 : 0.1 * scale * std::log(rope.factor) + 1.0;
  };
  if (rope.attention_factor > 0.0) {
    attention_factor = rope.attention_factor;
  } else if (rope.mscale > 0.0 && rope.mscale_all_dim > 0.0) {
    attention_factor = mscale(rope.mscale) / mscale(rope.mscale_all_dim);
  } else {
    attention_factor = mscale(1.0);
  }
}

// Llama 3.1: wavelengths beyond the original context are scaled by `factor`, short ones kept, a
// smooth blend between.
void ApplyLlama3(const RopeConfig& rope, int64_t max_position, std::vector<double>& inverse) {
  const double original = static_cast<double>(
      rope.original_max_position > 0 ? rope.original_max_position : max_position);
  const double low_wavelength = original / rope.low_freq_factor;
  const double high_wavelength = original / rope.high_freq_factor;
  for (double& frequency : inverse) {
    const double wavelength = 2.0 * std::numbers::pi / frequency;
    if (wavelength > low_wavelength) {
      frequency /= rope.factor;
    } else if (wavelength >= high_wavelength) {
      const double smooth = (original / wavelength - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
      frequency = (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
    }
  }
}

}  // namespace

RopeFrequencies ComputeRopeFrequencies(const RopeConfig& rope, int64_t rotary_dim,
                                       int64_t max_position, int64_t sequence_tokens) {
  double theta = rope.theta;
  if (rope.kind == RopeKind::kDynamicNtk) {
    const double original = static_cast<double>(max_position);
    const double length = std::max(static_cast<double>(sequence_tokens), original);
    const double d = static_cast<double>(rotary_dim);
    theta *= std::pow(rope.factor * length / original - (rope.factor - 1.0), d / (d - 2.0));
  }
  std::vector<double> inverse = PlainFrequencies(theta, rotary_dim);
  RopeFrequencies result;
  switch (rope.kind) {
    case RopeKind::kDefault:
    case RopeKind::kDynamicNtk:
      break;
    case RopeKind::kLinear:
      for (double& frequency : inverse) frequency /= rope.factor;
      break;
    case RopeKind::kYarn:
      ApplyYarn(rope, rotary_dim, max_position, inverse, result.attention_factor);
      break;
    case RopeKind::kLlama3:
      ApplyLlama3(rope, max_position, inverse);
      break;
  }
  result.inverse.assign(inverse.begin(), inverse.end());
  return result;
}

RopeTable::RopeTable(const GroupedQuerySpec& attention, int64_t max_position,
                     int64_t max_context_tokens)
    : head_dim_(attention.head_dim), half_(attention.rotary_dim / 2) {
  const auto frequencies_of = [&](int64_t sequence_tokens) {
    return ComputeRopeFrequencies(attention.rope, attention.rotary_dim, max_position,
                                  sequence_tokens);
  };
  RopeFrequencies frequencies = frequencies_of(1);
  cos_.resize(static_cast<size_t>(max_context_tokens * half_));
  sin_.resize(cos_.size());
  const bool dynamic = attention.rope.kind == RopeKind::kDynamicNtk;
  for (int64_t position = 0; position < max_context_tokens; ++position) {
    if (dynamic && position >= max_position) frequencies = frequencies_of(position + 1);
    for (int64_t i = 0; i < half_; ++i) {
      const float angle =
          static_cast<float>(position) * frequencies.inverse[static_cast<size_t>(i)];
      const size_t at = static_cast<size_t>(position * half_ + i);
      cos_[at] =
          static_cast<float>(std::cos(static_cast<double>(angle)) * frequencies.attention_factor);
      sin_[at] =
          static_cast<float>(std::sin(static_cast<double>(angle)) * frequencies.attention_factor);
    }
  }
}

void RopeTable::Rotate(const CpuKernels& kernels, int64_t position, int64_t heads, float* x) const {
  for (int64_t head = 0; head < heads; ++head) {
    kernels.rope(x + head * head_dim_, cos(position), sin(position), half_);
  }
}

}  // namespace moesaic
