// RoutingRecorder: writes the routing of an engine's requests to a trace file (`--record-trace`).
//
// Owned and used by the engine's thread. A file that cannot be written ends the recording with a
// message in the log, not the serving. Positions that are computed again (after a preemption) are
// recorded once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/function_ref.h"
#include "core/config/model_config.h"
#include "serving/engine/engine.h"
#include "serving/engine/scheduler.h"
#include "serving/engine/step_sampler.h"
#include "tracer/routing.h"
#include "tracer/trace_writer.h"

namespace moesaic {

class RoutingRecorder {
 public:
  // Throws Error when the file cannot be created or holds something else.
  RoutingRecorder(const std::filesystem::path& file, const ModelConfig& config,
                  std::string_view model, int64_t max_step_rows);

  void BeginStep(int64_t rows);
  void Observe(const Routing& routing);
  void EndStep(std::span<const ScheduledSlice> plan, const StepRows& rows);
  void EndRequest(RequestId request);

 private:
  struct Recorded {
    int64_t sequence = 0;
    int64_t next_position = 0;
  };

  void Guard(FunctionRef<void()> write);

  std::unique_ptr<RoutingTraceWriter> writer_;  // null: the recording has ended
  std::vector<int32_t> trace_layer_;  // [num_layers] the trace's layer, -1 for a dense one
  std::unordered_map<RequestId, Recorded> requests_;
  std::vector<TraceStepSlice> slices_;
};

}  // namespace moesaic
