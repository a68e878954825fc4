// A batch job on a Ray cluster, which the Python package runs (moesaic/ray/batch.py).
#pragma once

#include <cstdint>
#include <string>

#include "serving/cli/command_line.h"

namespace moesaic {

// What `moesaic batch --ray` is told beside the job.
struct RayFlags {
  std::string address;  // empty: on this machine
  int64_t actors = 0;
  int64_t cpus = 0;
  std::string speeds;
};

void AddRayFlags(RayFlags& flags, OptionTable& table);

// Becomes `python3 -m moesaic.ray.batch` with the arguments of the line; does not return. Python
// is the one beside the command (of the environment that it was installed into), else that of the
// PATH. Throws Error(kNotFound) when there is none.
[[noreturn]] void ExecRayBatch(const Invocation& invocation, const CommandLine& line);

}  // namespace moesaic
