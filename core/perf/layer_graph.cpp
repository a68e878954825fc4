#include "core/perf/layer_graph.h"

#include <algorithm>

#include "core/base/check.h"

namespace moesaic {

const char* TaskKindName(TaskKind kind) {
  switch (kind) {
    case TaskKind::kPreAttention:
      return "pre-attention";
    case TaskKind::kOffloadQkv:
      return "QKV to host";
    case TaskKind::kCpuAttention:
      return "CPU attention";
    case TaskKind::kLoadHidden:
      return "hidden to device";
    case TaskKind::kLoadKv:
      return "KV to device";
    case TaskKind::kDeviceAttention:
      return "device attention";
    case TaskKind::kPostAttention:
      return "post-attention";
    case TaskKind::kExpert:
      return "experts";
    case TaskKind::kWeights:
      return "weight copy";
  }
  return "?";
}

int TaskGraph::Add(TaskKind kind, int layer, int index, Resource resource, double seconds,
                   std::initializer_list<int> after) {
  return Launch({kind, layer, index, resource, seconds}, {after.begin(), after.size()});
}

int TaskGraph::Add(TaskKind kind, int layer, int index, Resource resource, double seconds,
                   const std::vector<int>& after) {
  return Launch({kind, layer, index, resource, seconds}, after);
}

int TaskGraph::Launch(Task task, std::span<const int> after) {
  CHECK_GE(task.seconds, 0);
  task.after_begin = after_.size();
  for (const int before : after) {
    if (before == kNone) continue;
    task.start_s = std::max(task.start_s, tasks_.at(static_cast<size_t>(before)).end_s);
    after_.push_back(before);
  }
  task.after_end = after_.size();
  const bool pooled = shared_cpu_ && task.resource == Resource::kCpu;
  double& free_at_s = free_at_s_[static_cast<int>(pooled ? Resource::kDevice : task.resource)];
  task.start_s = std::max(task.start_s, free_at_s);
  task.end_s = task.start_s + task.seconds;
  free_at_s = task.end_s;
  makespan_s_ = std::max(makespan_s_, task.end_s);
  tasks_.push_back(task);
  return static_cast<int>(tasks_.size()) - 1;
}

}  // namespace moesaic
