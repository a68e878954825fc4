#include <fmt/format.h>

#include <string>

#include "core/base/topology.h"
#include "kernels/cpu/kernels.h"
#include "serving/cli/build_info.h"
#include "serving/cli/commands.h"
#include "serving/cli/output.h"
#include "tracer/cluster_eams.h"

namespace moesaic {

int VersionCommand(const Invocation& invocation) {
  CommandLine line({"version",
                    "",
                    "Show the version, what it was built from, and the instruction set "
                    "that the kernels use on this machine (MOESAIC_ISA forces another).",
                    {}});
  if (!line.Parse(invocation)) return 0;
  line.RequireAtMost(0);
  const BuildInfo& info = GetBuildInfo();
  const CpuKernels& kernels = SelectKernels();
  TextTable table("<<");
  table.Add({"commit", info.git_commit});
  table.Add(
      {"build", fmt::format("{}, {}{}{}", info.build_type, info.compiler,
                            *info.sanitizers != '\0' ? ", sanitizers: " : "", info.sanitizers)});
  table.Add({"kernels", fmt::format("{} ({} activations)", IsaName(kernels.isa),
                                    NumericsClassName(kernels.numerics))});
  table.Add({"processor", ReadTopology().cpu_model});
  std::string libraries = info.libraries;
  if (!ClusteringLibrary().empty()) libraries += ", " + ClusteringLibrary();
  table.Add({"libraries", libraries});
  Print("moesaic {}\n{}", info.version, table.Render());
  return 0;
}

}  // namespace moesaic
