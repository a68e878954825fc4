// SimulationJob: what `moesaic simulate` is asked and what it answers, for the command and for the
// Python module: options by name, a trace served by them, the result as JSON. Several traces are a
// SharedSimulationJob's.
//
// Owned and used by one thread; the table that its options are in may not outlive it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/config/option_table.h"
#include "serving/cli/shared_simulation_job.h"
#include "serving/simulate/simulator.h"

namespace moesaic {

class SimulationJob {
 public:
  // Adds the options, bound to this, to the table; called once.
  void AddOptions(OptionTable& table);
  // Serves the trace, or the traces. `table` tells which options were given. Throws Error as its
  // readers do, and kInvalidArgument for options that contradict the trace.
  nlohmann::ordered_json Run(const OptionTable& table);

 private:
  nlohmann::ordered_json RunShared(const OptionTable& table);

  SimulationOptions options_;
  SharedSimulationJob shared_;
  std::vector<std::string> trace_files_;
  std::string train_file_;
  std::string machine_;
  std::string model_;
  std::string slots_ = "25%";
  std::string miss_ = "fetch";
  int64_t hold_out_ = 0;
  int64_t train_passes_ = 1;
  int64_t devices_ = 1;
  int64_t look_ahead_ = options_.prefetch.look_ahead;
  std::string layer_us_ = "1000";
  double copy_us_ = 1000;
  double host_us_ = 0;
  double min_gain_ = options_.prefetch.min_gain;
  double keep_ = options_.prefetch.keep_per_iteration;
  bool no_cache_ = false;
};

}  // namespace moesaic
