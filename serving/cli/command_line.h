// CommandLine: the arguments of one command, read into its OptionTable: flags, positional
// arguments, environment and configuration file, and the command's help.
//
// Splitting the arguments is all that is left to do beside the table, which checks values, knows
// precedence and finds the nearest name; a parser library would want to do those itself.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/config/option_table.h"
#include "serving/cli/settings.h"

namespace moesaic {

// What main was started with.
struct Invocation {
  std::vector<std::string> arguments;    // after the command's name
  std::vector<std::string> environment;  // "NAME=value"
  std::filesystem::path executable;
};

struct CommandDescription {
  std::string name;         // "bench serve"
  std::string arguments;    // in the usage line: "MODEL [PROMPT]"
  std::string description;  // a paragraph
  std::vector<std::string> examples;
};

class CommandLine {
 public:
  explicit CommandLine(CommandDescription description);
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  OptionTable& table() { return table_; }
  const OptionTable& table() const { return table_; }

  // Adds the settings (see AddSettings) and --config. `settings` outlives this.
  void UseSettings(Settings& settings, SettingScope scope);

  // Reads everything; called once. Returns false when the command is done already: --help or
  // --print-config was asked for and printed. Throws Error(kInvalidArgument, kNotFound).
  bool Parse(const Invocation& invocation);

  // What is left after the flags; the command takes what it wants of it.
  const std::vector<std::string>& positionals() const { return positionals_; }
  // Throws Error(kInvalidArgument) when there are more than `max`.
  void RequireAtMost(size_t max) const;
  // The flags with their values, as they were written: all arguments but the positional ones.
  const std::vector<std::string>& flags() const { return flags_; }
  // Whether a flag (not the environment, not a file) set it.
  bool GivenAsFlag(std::string_view name) const;
  // Problems that are worth a warning once logging is set up.
  const std::vector<std::string>& warnings() const { return warnings_; }

  std::string Help(int width) const;

 private:
  void AddGeneralOptions();
  void ParseArguments(const std::vector<std::string>& arguments);
  size_t ParseFlag(const std::vector<std::string>& arguments, size_t at);
  [[noreturn]] void FailUnknown(const std::string& flag) const;

  CommandDescription description_;
  OptionTable table_;
  bool use_settings_ = false;
  bool help_ = false;
  bool print_config_ = false;
  std::string config_file_;
  std::vector<std::string> positionals_;
  std::vector<std::string> flags_;
  std::vector<std::string> warnings_;
};

// The command's model: the setting `model`, or else the first positional argument, which is then
// removed from `positionals`. Returns it, and sets `options.model` to it. Throws
// Error(kInvalidArgument) when neither is there.
std::string TakeModel(const CommandLine& line, EngineOptions& options,
                      std::vector<std::string>& positionals);

// Directories that presets are looked for in: of the installation and of the source tree.
std::vector<std::filesystem::path> PresetDirectories(const std::filesystem::path& executable);

}  // namespace moesaic
