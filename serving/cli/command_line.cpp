#include "serving/cli/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/config/settings_environment.h"
#include "core/config/settings_yaml.h"
#include "serving/cli/output.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kConfigVariable = "MOESAIC_CONFIG=";

}  // namespace

CommandLine::CommandLine(CommandDescription description) : description_(std::move(description)) {}

void CommandLine::UseSettings(Settings& settings, SettingScope scope) {
  use_settings_ = true;
  AddSettings(settings, scope, table_);
}

void CommandLine::AddGeneralOptions() {
  if (use_settings_) {
    table_.Add({"config", &config_file_, "FILE",
                "Read settings from a YAML file, or from a preset by name. [env MOESAIC_CONFIG]",
                "General"});
    table_.Add({"print-config", &print_config_, "",
                "Print the settings with where each comes from, and stop.", "General"});
  }
  table_.Add({"help", &help_, "", "Show this help.", "General", 'h'});
}

bool CommandLine::Parse(const Invocation& invocation) {
  AddGeneralOptions();  // last, so that they stand last in the help
  ParseArguments(invocation.arguments);
  if (help_) {
    WriteOut(Help(std::min(TerminalWidth(), 110)));
    return false;
  }
  if (!use_settings_) return true;
  warnings_ = ApplyEnvironment(invocation.environment, table_);
  if (config_file_.empty()) {
    for (const std::string& variable : invocation.environment) {
      if (variable.compare(0, kConfigVariable.size(), kConfigVariable) == 0) {
        config_file_ = variable.substr(kConfigVariable.size());
      }
    }
  }
  if (!config_file_.empty()) {
    ApplyConfigFile(config_file_, PresetDirectories(invocation.executable), table_);
  }
  if (print_config_) {
    // As TakeModel will take it.
    if (!positionals_.empty() && table_.Find("model") != nullptr && !GivenAsFlag("model")) {
      table_.Set("model", positionals_.front(), OptionSource::kFlag, "argument");
    }
    WriteOut(DescribeSettings(table_));
    return false;
  }
  return true;
}

void CommandLine::ParseArguments(const std::vector<std::string>& arguments) {
  for (size_t at = 0; at < arguments.size();) {
    const std::string& argument = arguments[at];
    if (argument == "--") {
      positionals_.insert(positionals_.end(), arguments.begin() + static_cast<ptrdiff_t>(at) + 1,
                          arguments.end());
      return;
    }
    // "-" alone is a file name (standard input), "-5" a number.
    if (argument.size() < 2 || argument[0] != '-' || (argument[1] >= '0' && argument[1] <= '9')) {
      positionals_.push_back(argument);
      ++at;
    } else {
      const size_t used = ParseFlag(arguments, at);
      const auto begin = arguments.begin() + static_cast<ptrdiff_t>(at);
      flags_.insert(flags_.end(), begin, begin + static_cast<ptrdiff_t>(used));
      at += used;
    }
  }
}

size_t CommandLine::ParseFlag(const std::vector<std::string>& arguments, size_t at) {
  const std::string& argument = arguments[at];
  const size_t equals = argument.find('=');
  const std::string flag = argument.substr(0, equals);  // as written, for messages
  const Option* option = nullptr;
  std::string name;
  if (flag.compare(0, 2, "--") == 0) {
    name = flag.substr(2);
    option = table_.Find(name);
  } else if (flag.size() == 2) {
    for (const Option& candidate : table_.options()) {
      if (candidate.short_name == flag[1]) option = &candidate;
    }
    if (option != nullptr) name = option->name;
  }
  if (option == nullptr || option->hidden) FailUnknown(flag);
  if (equals != std::string::npos) {
    table_.Set(name, argument.substr(equals + 1), OptionSource::kFlag, flag);
    return 1;
  }
  if (option->is_flag()) {
    table_.Set(name, "true", OptionSource::kFlag, flag);
    return 1;
  }
  if (at + 1 == arguments.size()) {
    Fail(ErrorKind::kInvalidArgument, "{}: a value is missing", flag);
  }
  table_.Set(name, arguments[at + 1], OptionSource::kFlag, flag);
  return 2;
}

void CommandLine::FailUnknown(const std::string& flag) const {
  const std::string name = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
  const Option* hidden = table_.Find(name);
  if (hidden != nullptr) {
    Fail(ErrorKind::kInvalidArgument,
         "{}: `moesaic {}` has no use for this setting; see `moesaic serve --help`", flag,
         description_.name);
  }
  std::vector<std::string> names;
  for (const Option& option : table_.options()) {
    if (!option.hidden) names.push_back(option.name);
  }
  std::string canonical = name;
  std::replace(canonical.begin(), canonical.end(), '_', '-');
  const std::string nearest = NearestOf(canonical, names);
  Fail(ErrorKind::kInvalidArgument, "unknown flag {:.80}{}", flag,
       nearest.empty() ? fmt::format("; `moesaic {} --help` lists them", description_.name)
                       : fmt::format("; did you mean --{}?", nearest));
}

void CommandLine::RequireAtMost(size_t max) const {
  if (positionals_.size() <= max) return;
  Fail(ErrorKind::kInvalidArgument, "unexpected argument '{:.80}'; usage: moesaic {} {} [options]",
       positionals_[max], description_.name, description_.arguments);
}

bool CommandLine::GivenAsFlag(std::string_view name) const {
  return table_.origin(name).compare(0, 1, "-") == 0;
}

std::string CommandLine::Help(int width) const {
  std::string out = fmt::format("Usage: moesaic {}{}{} [options]\n\n", description_.name,
                                description_.arguments.empty() ? "" : " ", description_.arguments);
  for (const std::string& line : WrapText(description_.description, width)) out += line + "\n";
  if (!description_.examples.empty()) {
    out += "\nExamples:\n";
    for (const std::string& example : description_.examples) out += "  " + example + "\n";
  }
  out += table_.Help(width);
  if (use_settings_) {
    out +=
        "\nA flag overrules its environment variable, that overrules the --config file, that the "
        "default.\n";
  }
  return out;
}

std::string TakeModel(const CommandLine& line, EngineOptions& options,
                      std::vector<std::string>& positionals) {
  // --model says it; a model of the environment or a file is only what there is otherwise.
  if (!line.GivenAsFlag("model") && !positionals.empty()) {
    options.model = positionals.front();
    positionals.erase(positionals.begin());
  }
  if (!options.model.empty() || line.GivenAsFlag("model")) return options.model;
  Fail(ErrorKind::kInvalidArgument,
       "no model given: name a directory or an id in the local Hugging Face cache as the first "
       "argument (for example models/sample)");
}

std::vector<fs::path> PresetDirectories(const fs::path& executable) {
  std::vector<fs::path> directories;
  const fs::path bin = executable.parent_path();
  // prefix/bin/moesaic and prefix/share/moesaic/configs, of a wheel
  // prefix/lib/python3.11/site-packages/moesaic.scripts/moesaic; source/build/release/bin and
  // source/configs
  for (const fs::path& candidate :
       {bin / "../share/moesaic/configs", bin / "../../../../share/moesaic/configs",
        bin / "../../../configs", fs::path("configs")}) {
    std::error_code error;
    const fs::path directory = fs::canonical(candidate, error);
    if (!error &&
        std::find(directories.begin(), directories.end(), directory) == directories.end()) {
      directories.push_back(directory);
    }
  }
  return directories;
}

}  // namespace moesaic
