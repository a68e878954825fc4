// MeasureModules: the ModuleCosts of one model on this machine. It runs the first layers of the
// model with the engine's own parts (Model, StreamingExperts, ThreadPool, kernels) on batches of
// different shapes, fits a line to each module, and measures the way from disk into slots by itself
// and while computing goes on.
//
// Blocking, some seconds and as long as routing takes (at most about 40, more only where four
// layers take longer to read); owns its threads and ends them. Neighbours lower what it sees.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/thread_layout.h"
#include "core/config/model_config.h"
#include "core/io/expert_source.h"
#include "core/perf/module_costs.h"
#include "kernels/cpu/kernels.h"
#include "serving/batch/streaming_experts.h"
#include "serving/model/tensor_source.h"

namespace moesaic {

struct ModuleProfilerInputs {
  const ModelConfig& config;
  const TensorSource& tensors;
  const ExpertSource& experts;
  CpuKernels kernels;  // as the job has them
  WeightType weight_type = WeightType::kBf16;
  WeightType kv_type = WeightType::kBf16;
  int threads = 1;
  ThreadLayout thread_layout = {};
  StreamingOptions streaming =
      {};  // how experts are read; slots, buffers and timeline are chosen here
  // Prompts like those of the job, for what its routing looks like; empty: random tokens.
  std::vector<std::vector<int32_t>> sample_prompts = {};
  uint64_t memory_bytes = 0;  // that may be taken
  double seconds = 3;         // of measuring; the largest batches are left out when time is up
  std::function<void(std::string_view stage)> progress = [](std::string_view) {};
};

// All that the costs depend on: machine, dimensions, types, kernels, threads, and how and from
// where experts are read. Read sizes that were left open (0) stay open in the key.
std::string ModuleCostsKey(const ModuleProfilerInputs& inputs, const HostDescription& host);

// Throws Error: kResourceExhausted when not even the smallest batch fits, and what reading throws.
ModuleCosts MeasureModules(const ModuleProfilerInputs& inputs, const HostDescription& host);

}  // namespace moesaic
