#include "core/config/settings_environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

namespace moesaic {
namespace {

constexpr std::string_view kPrefix = "MOESAIC_";
// Variables with the prefix that are no settings (kernels/cpu reads the first, the command line the
// second).
constexpr std::array<std::string_view, 2> kOtherVariables = {"MOESAIC_ISA", "MOESAIC_CONFIG"};

}  // namespace

std::vector<std::string> ApplyEnvironment(const std::vector<std::string>& environment,
                                          OptionTable& table) {
  std::vector<std::string> warnings;
  std::map<std::string, std::string, std::less<>> settings;  // variable -> setting
  std::vector<std::string> variables;
  for (const Option& option : table.options()) {
    if (!option.settable_outside) continue;
    settings.emplace(option.environment_name(), option.name);
    variables.push_back(option.environment_name());
  }
  for (const std::string& entry : environment) {
    if (entry.compare(0, kPrefix.size(), kPrefix) != 0) continue;
    const size_t equals = std::min(entry.find('='), entry.size());
    const std::string variable = entry.substr(0, equals);
    const std::string value = entry.substr(std::min(equals + 1, entry.size()));
    const auto setting = settings.find(variable);
    if (setting != settings.end()) {
      if (setting->second == "port" && value.find("://") != std::string::npos) {
        warnings.push_back(
            fmt::format("{}={} looks like the variable that Kubernetes makes for a service called "
                        "moesaic and is ignored",
                        variable, value));
      } else {
        table.Set(setting->second, value, OptionSource::kEnvironment, variable);
      }
      continue;
    }
    if (std::find(kOtherVariables.begin(), kOtherVariables.end(), variable) !=
        kOtherVariables.end()) {
      continue;
    }
    // The shared prefix makes any two names look alike; one or two slips are what a typo has.
    const std::string nearest = NearestOf(variable, variables);
    if (!nearest.empty() && EditDistance(variable, nearest) <= 2) {
      warnings.push_back(
          fmt::format("environment variable {} is not a setting and is ignored; did you mean {}?",
                      variable, nearest));
    }
  }
  return warnings;
}

}  // namespace moesaic
