// PassRunner: a forward pass of a Model as the tasks of a schedule, on the lanes of a TaskExecutor:
// the launch orders that the planner predicts (core/perf/layer_schedules), with the model's modules
// as the tasks' bodies.
//
// The data mover (StreamingExperts) brings experts in the order in which layers run, beside the
// graph: it starts a copy whenever a buffer is free, in packets, so the graph has no tasks for
// weights. Attention runs on the CPU pool. Without a device everything computes there, task after
// task in launch order, and copies nothing.
//
// Thread contract: one thread (the engine's) calls Run. All arguments outlive it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "core/base/clock.h"
#include "core/base/thread_pool.h"
#include "core/device/device_buffer.h"
#include "core/device/stream.h"
#include "core/perf/execution_plan.h"
#include "core/perf/layer_graph.h"
#include "serving/batch/streaming_experts.h"
#include "serving/batch/task_executor.h"
#include "serving/batch/timeline.h"
#include "serving/model/model.h"

namespace moesaic {

// The device that computes all but attention and the experts of other devices.
struct DenseDevice {
  ThreadPool* pool = nullptr;  // its threads or, where its kernels compute, those beside them
  DeviceSpan qkv;              // rows as Model::mixer_rows().projected
  DeviceSpan attention;        // rows as Model::mixer_rows().mixed
  Stream* in = nullptr;        // none of the two carries anything else
  Stream* out = nullptr;
  bool lost = false;  // its threads go on, in host memory
};

class PassRunner {
 public:
  // `experts`: of all places; the first computes where the dense modules do. `device` (which may be
  // lost between passes) and `timeline` may be null.
  PassRunner(Model& model, ThreadPool& pool, std::span<StreamingExperts* const> experts,
             const DenseDevice* device, ScheduleKind schedule, Timeline* timeline);

  // Runs all layers; as Model::Forward. `groups`: consecutive slices, none left out, no group
  // empty: the micro-batches of paged weights and module batching; overlapped runs the first two.
  // `hook` (may be null) sees the routing of one group after the other.
  StepStats Run(const ForwardBatch& batch, std::span<const SliceRange> groups,
                RoutingHook* hook = nullptr);

 private:
  void RunTask(const Task& task);
  bool on_device() const { return device_ != nullptr && !device_->lost; }
  void PreAttention(int layer, RowRange rows);
  void Attention(int layer, SliceRange slices);
  void PostAttention(int layer, RowRange rows);
  void Mlp(int layer, RowRange rows);
  void CopyIn(int layer, RowRange rows);
  void CopyOut(int layer, RowRange rows);
  const TaskGraph& GraphOf(int groups);
  void Log(Activity activity, int64_t begin_ns, int layer, uint64_t bytes, int16_t lane);

  Model& model_;
  ThreadPool& pool_;
  const std::vector<StreamingExperts*> experts_;
  const DenseDevice* const device_;
  ThreadPool& dense_pool_;
  const ScheduleKind schedule_;
  Timeline* const timeline_;
  const SteadyClock clock_;
  std::map<int, TaskGraph> graphs_;  // by the number of groups

  // Of the running pass.
  std::span<const SliceRange> groups_;
  RowRange all_rows_;
  RoutingHook* hook_ = nullptr;
  std::array<StepStats, kNumResources> stats_;  // each written by its lane alone

  TaskExecutor executor_;
};

}  // namespace moesaic
