// What the tests of mixers with keys and values in blocks share: made-up rows, and a run of a mixer
// with the made-up weights of odd_model.h over them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/config/kv_groups.h"
#include "serving/model/host_mixer.h"
#include "serving/model/host_rows.h"
#include "serving/model/weights.h"
#include "tests/serving/model/odd_model.h"

namespace moesaic {

using DoubleRow = std::vector<double>;

// [rows][hidden] values between -1 and 1 that an f32 holds, `step` apart from row to row.
inline std::vector<DoubleRow> MadeUpRows(int64_t rows, int64_t hidden, int64_t step) {
  std::vector<DoubleRow> x;
  for (int64_t row = 0; row < rows; ++row) {
    DoubleRow values;
    for (int64_t i = 0; i < hidden; ++i) {
      values.push_back(static_cast<float>(std::sin(static_cast<double>(row * step + i * i))));
    }
    x.push_back(values);
  }
  return x;
}

// The layer's output for a sequence of these normed rows, in steps of so many, at most 32 each: a
// prompt in three chunks, then decode; over blocks that do not follow each other.
template <typename Mixer, typename Spec>
std::vector<DoubleRow> RunMixer(const ModelConfig& config, const Spec& spec, int64_t layer, Isa isa,
                                int threads, const std::vector<DoubleRow>& x,
                                const std::vector<int64_t>& steps = {3, 19, 20, 1, 1, 1}) {
  ThreadPool pool(threads);
  const CpuKernels& kernels = KernelsFor(isa);
  ModelLimits limits;
  limits.max_batch_tokens = 32;
  const int64_t used_blocks = (std::ssize(x) + kKvBlockTokens - 1) / kKvBlockTokens;
  limits.max_context_tokens = used_blocks * kKvBlockTokens;
  limits.num_kv_blocks = 2 * used_blocks * static_cast<int64_t>(KvGroupsOf(config).count());
  limits.kv_type = WeightType::kF32;
  const ModelWeights weights =
      ModelWeights::Load(config, WeightType::kF32, MadeUpTensors(), kernels, pool);
  const MixerWidths widths = WidthsOf(spec);
  HostActivations activations(kernels, limits.max_batch_tokens,
                              std::max(config.hidden_size, widths.input));
  Mixer mixer(config, weights, kernels, limits, pool.threads(), activations);
  HostMixer::Rows rows;
  rows.projected_stride = PaddedFloats(widths.projected);
  rows.mixed_stride = PaddedFloats(widths.mixed);
  AlignedBuffer projected = ZeroedFloats(limits.max_batch_tokens * rows.projected_stride);
  AlignedBuffer mixed = ZeroedFloats(limits.max_batch_tokens * rows.mixed_stride);
  rows.projected = projected.as<float>();
  rows.mixed = mixed.as<float>();
  const int64_t stride = PaddedFloats(config.hidden_size);
  AlignedBuffer normed = ZeroedFloats(limits.max_batch_tokens * stride);
  std::vector<int32_t> blocks;
  blocks.reserve(static_cast<size_t>(used_blocks));
  for (int64_t block = 0; block < used_blocks; ++block) {
    blocks.push_back(static_cast<int32_t>(2 * (used_blocks - block) - 1));
  }
  std::vector<DoubleRow> out;
  for (const int64_t count : steps) {
    const auto start = std::ssize(out);
    const std::vector<int32_t> tokens(static_cast<size_t>(count), 0);
    const SequenceSlice slice = {.num_tokens = count, .start_position = start, .blocks = blocks};
    const RowRange all = {0, count};
    for (int64_t row = 0; row < count; ++row) {
      const DoubleRow& values = x[static_cast<size_t>(start + row)];
      std::copy(values.begin(), values.end(), normed.as<float>() + row * stride);
    }
    mixer.Begin({tokens, {&slice, 1}});
    mixer.PreAttention(layer, all, normed.as<float>(), stride, rows, pool);
    mixer.Attend(layer, {0, 1}, rows, pool);
    std::vector<float> y(static_cast<size_t>(count * config.hidden_size));
    mixer.Project(layer, all, rows, y.data(), pool);
    for (auto row = y.begin(); row != y.end(); row += config.hidden_size) {
      out.emplace_back(row, row + config.hidden_size);
    }
  }
  return out;
}

}  // namespace moesaic
