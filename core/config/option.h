// Option: one named, documented value of a variable, whatever it is set from: a flag, the
// environment, a YAML file. Its target is the variable itself, of the type in which it is used;
// what the built-in types do not cover is a ConvertedValue.
//
// Plain data and functions of their arguments. The variable is the caller's and outlives the
// option.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/check.h"
#include "core/base/memory_size.h"
#include "core/base/named.h"

namespace moesaic {

// A variable of any type, with what turns text into its value.
struct ConvertedValue {
  std::string default_text;  // what the variable holds now
  // Returns the new value as text. Throws Error(kInvalidArgument) that begins with `what` for a
  // text that is not acceptable.
  std::function<std::string(std::string_view text, std::string_view what)> assign;
  std::vector<std::string> choices = {};  // the accepted texts; empty: `assign` decides
  std::string value_name = "";            // in the help; empty: the choices, or TEXT
};

struct Option {
  // A list is given by commas or repetition, milliseconds in seconds. A bool is a flag without
  // value.
  using Target = std::variant<std::string*, std::filesystem::path*, int*, int64_t*, uint16_t*,
                              uint32_t*, uint64_t*, double*, std::chrono::milliseconds*, bool*,
                              std::vector<std::string>*, MemorySize*, ConvertedValue>;

  std::string name;  // "max-num-seqs": the flag without dashes and the YAML key
  Target target;
  std::string value_name = "";            // in the help: "N", "SIZE"; empty: chosen from the type
  std::string help = "";                  // one or two sentences, without the default
  std::string section = "";               // heading in the help
  char short_name = 0;                    // -o
  std::vector<std::string> choices = {};  // strings: the accepted values
  double min = -9.0e15;                   // numbers
  double max = 9.0e15;
  // Throws Error(kInvalidArgument) for a text that is not acceptable; `what` is for its message.
  std::function<void(std::string_view text, std::string_view what)> check = {};
  bool settable_outside = false;  // also by environment and file
  bool secret = false;            // never shown
  bool quiet_default = false;     // the help leaves the default out: it only stands for "not given"
  bool hidden = false;            // neither a flag of this command nor in its help

  bool is_flag() const { return std::holds_alternative<bool*>(target); }
  bool is_list() const { return std::holds_alternative<std::vector<std::string>*>(target); }
  std::string environment_name() const;  // "MOESAIC_MAX_NUM_SEQS"
};

// Bytes, written as ParseBytes reads them.
ConvertedValue SizeInBytes(uint64_t* bytes);
// A number that is written in other units than it is kept in: `value` is `unit` times as large.
ConvertedValue InUnits(double* value, double unit, double min, double max);

// One of `names` (a list of Named<T>): the accepted texts are the names, in their order.
template <typename T, typename List>
ConvertedValue OneOf(T* value, const List& names) {
  ConvertedValue converted;
  std::vector<T> values;
  for (const auto& entry : names) {
    converted.choices.emplace_back(entry.name);
    values.push_back(entry.value);
    if (entry.value == *value) converted.default_text = entry.name;
  }
  CHECK(!converted.default_text.empty());
  converted.assign = [value, choices = converted.choices, values = std::move(values)](
                         std::string_view text, std::string_view) {
    for (size_t i = 0; i < choices.size(); ++i) {
      if (choices[i] == text) *value = values[i];
    }
    return std::string(text);
  };
  return converted;
}

// As OneOf, with "auto" before the names: no value.
template <typename T, typename List>
ConvertedValue AutoOrOneOf(std::optional<T>* value, const List& names) {
  std::vector<Named<std::optional<T>>> all = {{"auto", std::nullopt}};
  for (const auto& entry : names) all.push_back({entry.name, entry.value});
  return OneOf(value, all);
}

// The value that the variable holds, as text ("" for an empty one).
std::string OptionText(const Option& option);

struct GivenText {
  std::string_view text;
  std::string_view what;  // for messages: "--threads", "serve.yaml:12: threads"
  bool negated = false;   // of a flag: "no-" stood before its name
  bool append = false;    // to a list, instead of in its place
};
// Converts, checks and assigns; returns the new value as text. Throws Error(kInvalidArgument) that
// says what is expected, and leaves the variable as it was.
std::string AssignOption(const Option& option, const GivenText& given);

// What stands for the value in the help: "N", "SIZE", "fetch|host|auto".
std::string OptionValueName(const Option& option);

}  // namespace moesaic
