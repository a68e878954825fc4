// SplitDense: a dense part whose mixers, with the state of sequences, are the host's, and all else
// a device's. What it does is dense_part.h's.
//
// The caller copies between the two, on streams of its own: rows that PreAttention has left on the
// device to mixer_rows() before Attend, and what Attend makes of them back before Project. A pass
// that fails can be run again; once the device is lost, and in between what of a pass is left when
// it fails at the end (its logits), the host computes everything.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "core/base/function_ref.h"
#include "serving/model/device_dense.h"
#include "serving/model/host_dense.h"

namespace moesaic {

class SplitDense : public DensePart {
 public:
  // `weights` are loaded. All references must outlive it; others as DeviceDense and HostDense.
  // `limits` are the host's.
  SplitDense(Device& device, const cuda::Kernels& device_kernels, const ModelConfig& config,
             WeightType type, ModelWeights weights, const CpuKernels& kernels, ThreadPool& pool,
             const ModelLimits& limits);

  // Limits of a dense part on a device whose mixers are the host's, given the host's.
  static ModelLimits DeviceLimits(const ModelLimits& limits);

  // On the device, laid out as mixer_rows().
  DeviceSpan projected_on_device() const { return device_.qkv(); }
  DeviceSpan mixed_on_device() const { return device_.attention(); }

  // Between passes: from now on the host computes them.
  void Lose() { lost_ = true; }
  // Whether, since the last call, the device has thrown. Another pass may succeed.
  bool TakeFailure() { return std::exchange(failed_, false); }

  void Begin(const ForwardBatch& batch, const DeviceOperator* experts) override;
  void PreAttention(int64_t layer, RowRange rows, ThreadPool& pool) override;
  void Attend(int64_t layer, SliceRange slices, ThreadPool& pool) override;
  void Project(int64_t layer, RowRange rows, ThreadPool& pool) override;
  void Route(int64_t layer, RowRange rows, int32_t* ids, float* weights, bool host_rows,
             ThreadPool& pool) override;
  ExpertInputs OpenExperts(RowRange rows) override;
  void AddMlp(int64_t layer, RowRange rows, const ExpertOutputs& experts,
              const ExpertOutputs& deferred, ThreadPool& pool) override;
  void End() override;
  void Abandon() override { device_.Abandon(); }
  void Head(std::span<const int32_t> rows, float* logits) override;
  bool has_greedy() const override { return !lost_; }
  void Greedy(std::span<const int32_t> rows, int32_t* tokens) override;
  const float* hidden() const override { return std::as_const(host_).hidden(); }
  MixerRows mixer_rows() const override;
  void PopulateState(ThreadPool& pool) override { host_.PopulateState(pool); }

 private:
  DensePart& Modules() { return lost_ ? static_cast<DensePart&>(host_) : device_; }
  void OnDevice(FunctionRef<void()> module);

  const ModelConfig& config_;
  ForwardBatch batch_;
  // The device's memory holds the rows of both.
  DeviceDense device_;
  HostDense host_;
  bool lost_ = false;
  bool failed_ = false;
};

}  // namespace moesaic
