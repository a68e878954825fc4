#include "serving/model/split_dense.h"

#include <array>

#include "core/base/error.h"
#include "core/base/logging.h"
#include "kernels/cuda/kernels.h"
#include "serving/model/device_rows.h"

namespace moesaic {
namespace {

std::array<Device*, 1> Only(Device& device) { return {&device}; }

}  // namespace

ModelLimits SplitDense::DeviceLimits(const ModelLimits& limits) {
  ModelLimits of_device = limits;
  of_device.host_attention = true;
  of_device.num_kv_blocks = 0;
  of_device.kv_type = WeightType::kBf16;  // the kind of keys and values is the CPU's business
  return of_device;
}

SplitDense::SplitDense(Device& device, const cuda::Kernels& device_kernels,
                       const ModelConfig& config, WeightType type, ModelWeights weights,
                       const CpuKernels& kernels, ThreadPool& pool, const ModelLimits& limits)
    : config_(config),
      device_(Only(device), device_kernels, config, type, weights, DeviceLimits(limits)),
      host_(config, std::move(weights), kernels, pool, limits,
            reinterpret_cast<float*>(device_.host_qkv().data()), config.attention().qkv_width()) {}

// Also after a failure, of which every module that waits for the device tells.
void SplitDense::OnDevice(FunctionRef<void()> module) {
  try {
    module();
  } catch (const Error&) {
    failed_ = failed_ || !lost_;
    throw;
  }
}

void SplitDense::Begin(const ForwardBatch& batch, const DeviceOperator* experts) {
  batch_ = batch;
  if (lost_) {
    host_.Begin(batch, experts);
    return;
  }
  host_.BeginMixers(batch);
  device_.Abandon();  // what an earlier pass that failed has left behind
  device_.Begin(batch, nullptr);
}

void SplitDense::PreAttention(int64_t layer, RowRange rows, ThreadPool& pool) {
  OnDevice([&] { Modules().PreAttention(layer, rows, pool); });
}

void SplitDense::Attend(int64_t layer, SliceRange slices, ThreadPool& pool) {
  if (lost_) {
    host_.Attend(layer, slices, pool);
    return;
  }
  host_.AttendForDevice(layer, slices, pool);
  const HostMixer::Rows at = host_.rows();
  const RowRange rows = RowsOf(batch_, slices);
  const int64_t width = config_.layer(layer).attention().q_width();
  RoundRows(pool, {at.mixed + rows.begin * at.mixed_stride, at.mixed_stride, rows.count()}, width,
            reinterpret_cast<uint16_t*>(device_.host_attention().data()) +
                rows.begin * cuda::ActivationStride(width));
}

DensePart::MixerRows SplitDense::mixer_rows() const {
  MixerRows rows = host_.mixer_rows();
  if (lost_) return rows;
  rows.mixed = device_.host_attention().data();
  rows.mixed_row_bytes = SentRowBytes(1, config_.attention().q_width());
  return rows;
}

void SplitDense::Project(int64_t layer, RowRange rows, ThreadPool& pool) {
  Modules().Project(layer, rows, pool);
}

void SplitDense::Route(int64_t layer, RowRange rows, int32_t* ids, float* weights, bool host_rows,
                       ThreadPool& pool) {
  OnDevice([&] { Modules().Route(layer, rows, ids, weights, host_rows, pool); });
}

ExpertInputs SplitDense::OpenExperts(RowRange rows) { return Modules().OpenExperts(rows); }

void SplitDense::AddMlp(int64_t layer, RowRange rows, const ExpertOutputs& experts,
                        const ExpertOutputs& deferred, ThreadPool& pool) {
  Modules().AddMlp(layer, rows, experts, deferred, pool);
}

void SplitDense::End() {
  if (lost_) return;
  OnDevice([&] { device_.BringHidden(host_.hidden()); });
}

void SplitDense::Head(std::span<const int32_t> rows, float* logits) {
  try {
    Modules().Head(rows, logits);
  } catch (const Error& error) {
    if (lost_) throw;
    LogWarn("the host computes the logits of a pass: {}", error.what());
    host_.Head(rows, logits);
  }
}

void SplitDense::Greedy(std::span<const int32_t> rows, int32_t* tokens) {
  try {
    Modules().Greedy(rows, tokens);
  } catch (const Error& error) {
    if (lost_) throw;
    LogWarn("the host computes the logits of a pass: {}", error.what());
    host_.Greedy(rows, tokens);
  }
}

}  // namespace moesaic
