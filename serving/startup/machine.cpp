#include "serving/startup/machine.h"

#include <string_view>

namespace moesaic {
namespace {

std::string Variable(std::span<const std::string> environment, std::string_view name) {
  for (const std::string& entry : environment) {
    if (entry.size() > name.size() && entry.compare(0, name.size(), name) == 0 &&
        entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
  }
  return "";
}

}  // namespace

Machine ReadMachine(std::span<const std::string> environment) {
  Machine machine;
  machine.topology = ReadTopology();
  const std::filesystem::path file = ProfilePath(environment);
  machine.profile = LoadProfileFor(DescribeHost(machine.topology), file, &machine.why_no_profile);
  machine.module_costs = file.parent_path() / "module-costs";
  machine.isa_forced = !Variable(environment, "MOESAIC_ISA").empty();
  return machine;
}

std::filesystem::path ProfilePath(std::span<const std::string> environment) {
  return DefaultProfilePath(Variable(environment, "XDG_CACHE_HOME"), Variable(environment, "HOME"));
}

}  // namespace moesaic
