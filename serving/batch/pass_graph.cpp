#include "serving/batch/pass_graph.h"

#include "core/perf/layer_schedules.h"

namespace moesaic {

TaskGraph PassGraph(ScheduleKind schedule, bool device, int groups, int layers) {
  LayerTimes times;
  times.shared_cpu = !device;
  times.micro_batches = groups;
  times.pre_attention_s = 1;
  times.cpu_attention_s = 1;
  times.post_attention_s = 1;
  times.experts = 1;  // all that a layer needs, in the order in which they arrive
  times.expert_s = 1;
  if (device) {
    times.offload_qkv_s = 1;
    times.load_hidden_s = 1;
  }
  return BuildSchedule(schedule, times, layers);
}

}  // namespace moesaic
