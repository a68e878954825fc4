// Settings as YAML: one mapping, each key a setting's name. Files give settings; settings are
// printed as a file that gives the same ones.
//
// Functions of their arguments.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/option_table.h"

namespace moesaic {

// Sets what a YAML file says. `name` is the file in messages. Throws Error(kInvalidArgument) that
// names file, line and key, and for an unknown key the nearest name, or else `where_listed`.
void ApplyConfigText(std::string_view yaml, const std::string& name, OptionTable& table,
                     std::string_view where_listed = "`moesaic serve --help` lists them");
// The same for a file that is one list of mappings, `key: [{...}, {...}]`: the settings of each go
// to the table that `next` returns for it, which is told the mapping's place ("models.yaml:3").
// Throws also for an empty list.
void ApplyConfigList(std::string_view yaml, const std::string& name, std::string_view key,
                     const std::function<OptionTable&(const std::string& place)>& next,
                     std::string_view where_listed);
// `file` is a path, or the name of a preset in one of `preset_directories` ("small-memory"). Throws
// also Error(kNotFound).
void ApplyConfigFile(const std::string& file,
                     const std::vector<std::filesystem::path>& preset_directories,
                     OptionTable& table);

// The settings as a YAML file that gives the same ones, but for secrets, with the origin of each
// value.
std::string DescribeSettings(const OptionTable& table);

}  // namespace moesaic
