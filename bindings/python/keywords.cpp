#include "bindings/python/keywords.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/base/error.h"

namespace moesaic::python {
namespace {

// Of the server's settings, the one that is an engine's, too.
constexpr std::string_view kQueueSetting = "max-queue";

[[noreturn]] void FailUnknown(const std::string& name, const std::string& command,
                              const OptionTable& table) {
  std::vector<std::string> names;
  for (const Option& option : table.options()) {
    if (!option.hidden) names.push_back(option.name);
  }
  const std::string nearest = NearestOf(name, names);
  Fail(ErrorKind::kInvalidArgument, "unknown setting {:.80}{}", KeywordOf(name),
       nearest.empty() ? fmt::format("; `moesaic {} --help` lists them", command)
                       : fmt::format("; did you mean {}?", KeywordOf(nearest)));
}

}  // namespace

std::string KeywordOf(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

void SetKeywords(const Keywords& keywords, const std::string& command, OptionTable& table) {
  for (const auto& [name, text] : keywords) {
    const Option* option = table.Find(name);
    if (option == nullptr) FailUnknown(name, command, table);
    if (option->hidden && option->name != kQueueSetting) {
      Fail(ErrorKind::kInvalidArgument,
           "{}: an engine in Python has no use for this setting of the server", KeywordOf(name));
    }
    table.Set(name, text, OptionSource::kFlag, KeywordOf(name));
  }
}

}  // namespace moesaic::python
