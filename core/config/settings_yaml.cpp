#include "core/config/settings_yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <set>
#include <system_error>

#include "core/base/comma_list.h"
#include "core/base/error.h"
#include "core/base/file.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;

// A scalar that YAML reads as this text and nothing else.
std::string YamlScalar(std::string_view text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("._/%-").find(c) != std::string_view::npos;
  });
  const bool has_letter_or_digit =
      std::any_of(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) != 0; });
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  // A leading % would be a directive.
  if (plain && has_letter_or_digit && lower != "null" && text.front() != '%') {
    return std::string(text);
  }
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (byte < 0x20 || byte == 0x7f) {
      quoted += fmt::format("\\x{:02x}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

// The items of a list option's text, which has commas between them, as a YAML list.
std::string YamlList(std::string_view text) {
  std::string list;
  while (!text.empty()) {
    list += (list.empty() ? "" : ", ") + YamlScalar(TakeItem(text));
  }
  return "[" + list + "]";
}

YAML::Node ParseYaml(std::string_view yaml, const std::string& name) {
  try {
    return YAML::Load(std::string(yaml));
  } catch (const YAML::Exception& error) {
    Fail(ErrorKind::kInvalidArgument, "{}:{}: not YAML: {}", name, error.mark.line + 1, error.msg);
  }
}

void ApplyMapping(const YAML::Node& mapping, const std::string& name, std::string_view where_listed,
                  OptionTable& table) {
  std::set<std::string> seen;
  for (const auto& entry : mapping) {
    const int line = entry.first.Mark().line + 1;
    if (!entry.first.IsScalar()) {
      Fail(ErrorKind::kInvalidArgument, "{}:{}: a key must be the name of a setting", name, line);
    }
    const std::string key = entry.first.Scalar();
    const Option* option = table.Find(key);
    if (option == nullptr || !option->settable_outside) {
      const std::string nearest = table.NearestName(key);
      Fail(ErrorKind::kInvalidArgument, "{}:{}: unknown setting '{:.80}'{}", name, line, key,
           nearest.empty() ? fmt::format("; {}", where_listed)
                           : fmt::format("; did you mean '{}'?", nearest));
    }
    if (!seen.insert(option->name).second) {
      Fail(ErrorKind::kInvalidArgument, "{}:{}: '{}' is given twice", name, line, option->name);
    }
    const std::string origin = fmt::format("{}:{}: {}", name, line, key);
    const YAML::Node& value = entry.second;
    if (value.IsScalar()) {
      table.Set(key, value.Scalar(), OptionSource::kFile, origin);
    } else if (value.IsSequence() && option->is_list()) {
      for (const auto& item : value) {
        if (!item.IsScalar()) {
          Fail(ErrorKind::kInvalidArgument, "{}: expected a list of plain values", origin);
        }
        table.Set(key, item.Scalar(), OptionSource::kFile, origin);
      }
    } else {
      Fail(ErrorKind::kInvalidArgument, "{}: expected {}, not {}", origin,
           option->is_list() ? "a value or a list of values" : "one value",
           value.IsNull()       ? "nothing"
           : value.IsSequence() ? "a list"
                                : "a mapping");
    }
  }
}

}  // namespace

void ApplyConfigText(std::string_view yaml, const std::string& name, OptionTable& table,
                     std::string_view where_listed) {
  const YAML::Node root = ParseYaml(yaml, name);
  if (root.IsNull()) return;
  if (!root.IsMap()) {
    Fail(ErrorKind::kInvalidArgument,
         "{}: expected one mapping of settings, for example `threads: 8`", name);
  }
  ApplyMapping(root, name, where_listed, table);
}

void ApplyConfigList(std::string_view yaml, const std::string& name, std::string_view key,
                     const std::function<OptionTable&(const std::string& place)>& next,
                     std::string_view where_listed) {
  const YAML::Node root = ParseYaml(yaml, name);
  const bool is_list = root.IsMap() && root.size() == 1 && root.begin()->first.IsScalar() &&
                       root.begin()->first.Scalar() == key && root.begin()->second.IsSequence() &&
                       root.begin()->second.size() > 0;
  if (!is_list) {
    Fail(ErrorKind::kInvalidArgument,
         "{}: expected one key, `{}:`, with a list that has at least one mapping of settings", name,
         key);
  }
  const YAML::Node list = root.begin()->second;  // an iterator's arrow holds its own only so long
  for (const auto& item : list) {
    const std::string place = fmt::format("{}:{}", name, item.Mark().line + 1);
    if (!item.IsMap()) {
      Fail(ErrorKind::kInvalidArgument, "{}: an item of `{}` must be a mapping of settings", place,
           key);
    }
    ApplyMapping(item, name, where_listed, next(place));
  }
}

void ApplyConfigFile(const std::string& file, const std::vector<fs::path>& preset_directories,
                     OptionTable& table) {
  fs::path path = file;
  std::error_code error;
  if (!fs::exists(path, error) && file.find('/') == std::string::npos) {
    for (const fs::path& directory : preset_directories) {
      for (const char* extension : {"", ".yaml"}) {
        const fs::path candidate = directory / (file + extension);
        if (fs::is_regular_file(candidate, error) && !fs::exists(path, error)) path = candidate;
      }
    }
  }
  if (!fs::exists(path, error)) {
    std::vector<std::string> presets;
    for (const fs::path& directory : preset_directories) {
      for (const auto& entry : fs::directory_iterator(directory, error)) {
        if (entry.path().extension() == ".yaml") presets.push_back(entry.path().stem().string());
      }
    }
    std::sort(presets.begin(), presets.end());
    presets.erase(std::unique(presets.begin(), presets.end()), presets.end());
    std::string list;
    for (const std::string& preset : presets) list += (list.empty() ? "" : ", ") + preset;
    Fail(ErrorKind::kNotFound, "--config {:.300}: no such file{}", file,
         list.empty() ? "" : "; presets: " + list);
  }
  ApplyConfigText(ReadTextFile(path, kMaxConfigBytes), path.string(), table);
}

std::string DescribeSettings(const OptionTable& table) {
  std::string out;
  std::string section;
  for (const Option& option : table.options()) {
    if (!option.settable_outside || option.hidden) continue;
    if (option.section != section) {
      section = option.section;
      out += fmt::format("{}# {}\n", out.empty() ? "" : "\n", section);
    }
    const std::string text = table.ValueText(option.name);
    const std::string value = option.is_list() ? YamlList(text) : YamlScalar(text);
    out += fmt::format("{:<48} # {}\n", option.name + ": " + value, table.origin(option.name));
  }
  return out;
}

}  // namespace moesaic
