#include "core/config/option.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <memory>
#include <type_traits>

#include "core/base/comma_list.h"
#include "core/base/error.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

constexpr double kLeast = -9.0e15;  // bounds that say nothing
constexpr double kMost = 9.0e15;

template <typename T>
bool ParseWhole(std::string_view text, T* value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), *value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

bool ParseBool(std::string_view text, bool* value) {
  std::string lower;
  for (const char c : text) {
    lower.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  }
  for (const char* yes : {"true", "yes", "on", "1"}) {
    if (lower == yes) return *value = true;
  }
  for (const char* no : {"false", "no", "off", "0"}) {
    if (lower == no) return !(*value = false);
  }
  return false;
}

std::string RangeText(const char* kind, double min, double max) {
  const bool has_min = min > kLeast;
  const bool has_max = max < kMost;
  if (has_min && has_max) return fmt::format("{} from {:g} to {:g}", kind, min, max);
  if (has_min) return fmt::format("{} of at least {:g}", kind, min);
  if (has_max) return fmt::format("{} of at most {:g}", kind, max);
  return kind;
}

[[noreturn]] void Refuse(std::string_view what, const std::string& expected,
                         std::string_view text) {
  Fail(ErrorKind::kInvalidArgument, "{}: expected {}, not '{:.80}'", what, expected, text);
}

double ParseReal(std::string_view text, std::string_view what, double min, double max) {
  double value = 0;
  const bool parsed = ParseWhole(text, &value) && !std::isnan(value);
  const bool unbounded = parsed && std::isinf(value) && value > 0 && max >= kMost;
  if (!parsed || (!unbounded && !(value >= min && value <= max))) {
    Refuse(what, RangeText("a number", min, max), text);
  }
  return value;
}

template <typename T>
T ParseInteger(std::string_view text, std::string_view what, double min, double max) {
  T value{};
  if (!ParseWhole(text, &value) || !(static_cast<double>(value) >= min) ||
      !(static_cast<double>(value) <= max)) {
    Refuse(what, RangeText("an integer", min, max), text);
  }
  return value;
}

void AppendListItems(std::string_view text, std::vector<std::string>* list) {
  while (!text.empty()) {
    std::string_view item = TakeItem(text);
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
    if (!item.empty()) list->emplace_back(item);
  }
}

const std::vector<std::string>& ChoicesOf(const Option& option) {
  const auto* converted = std::get_if<ConvertedValue>(&option.target);
  return converted != nullptr ? converted->choices : option.choices;
}

// One for each type of target.
struct TextOf {
  std::string operator()(const std::string* value) const { return *value; }
  std::string operator()(const std::filesystem::path* value) const { return value->string(); }
  std::string operator()(const bool* value) const { return *value ? "true" : "false"; }
  std::string operator()(const MemorySize* value) const { return value->text(); }
  std::string operator()(const std::vector<std::string>* value) const {
    return fmt::format("{}", fmt::join(*value, ","));
  }
  std::string operator()(const std::chrono::milliseconds* value) const {
    return fmt::format("{}", static_cast<double>(value->count()) / 1e3);
  }
  std::string operator()(const ConvertedValue& value) const { return value.default_text; }
  // Numbers, with all digits: printed settings are read again.
  template <typename T>
  std::string operator()(const T* value) const {
    return fmt::format("{}", *value);
  }
};

struct Assigner {
  const Option& option;
  const GivenText& given;
  const std::string_view shown;  // the text in messages

  std::string operator()(std::string* value) const {
    *value = given.text;
    return *value;
  }
  std::string operator()(std::filesystem::path* value) const {
    *value = given.text;
    return value->string();
  }
  std::string operator()(bool* value) const {
    bool parsed = false;
    if (!ParseBool(given.text, &parsed)) Refuse(given.what, "true or false", shown);
    *value = parsed != given.negated;
    return TextOf()(value);
  }
  std::string operator()(std::vector<std::string>* value) const {
    std::vector<std::string> items;
    if (given.append) items = *value;
    AppendListItems(given.text, &items);
    *value = std::move(items);
    return TextOf()(value);
  }
  std::string operator()(MemorySize* value) const {
    *value = MemorySize::Parse(given.text, given.what);
    return value->text();
  }
  std::string operator()(double* value) const {
    *value = ParseReal(given.text, given.what, option.min, option.max);
    return TextOf()(value);
  }
  std::string operator()(std::chrono::milliseconds* value) const {
    const double seconds = ParseReal(given.text, given.what, option.min, option.max);
    *value = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
    return TextOf()(&seconds);
  }
  std::string operator()(const ConvertedValue& value) const {
    return value.assign(given.text, given.what);
  }
  template <typename T>
  std::string operator()(T* value) const {
    static_assert(std::is_integral_v<T>);
    *value = ParseInteger<T>(given.text, given.what, option.min, option.max);
    return TextOf()(value);
  }
};

}  // namespace

std::string Option::environment_name() const {
  std::string result = "MOESAIC_";
  for (const char c : name) {
    result.push_back(c == '-' ? '_'
                              : static_cast<char>(std::toupper(static_cast<unsigned char>(c))));
  }
  return result;
}

ConvertedValue SizeInBytes(uint64_t* bytes) {
  return {.default_text = SizeText(*bytes),
          .assign =
              [bytes](std::string_view text, std::string_view what) {
                *bytes = ParseBytes(text, what);
                return std::string(text);
              },
          .value_name = "SIZE"};
}

ConvertedValue InUnits(double* value, double unit, double min, double max) {
  return {.default_text = fmt::format("{}", *value / unit),
          .assign =
              [=](std::string_view text, std::string_view what) {
                const double written = ParseReal(text, what, min, max);
                *value = unit * written;
                return fmt::format("{}", written);
              },
          .value_name = "X"};
}

std::string OptionText(const Option& option) { return std::visit(TextOf(), option.target); }

std::string AssignOption(const Option& option, const GivenText& given) {
  const std::string_view shown = option.secret ? "***" : given.text;
  if (option.check) option.check(given.text, given.what);
  const std::vector<std::string>& choices = ChoicesOf(option);
  if (!choices.empty() && std::find(choices.begin(), choices.end(), given.text) == choices.end()) {
    Refuse(given.what, fmt::format("one of {}", fmt::join(choices, ", ")), shown);
  }
  return std::visit(Assigner{option, given, shown}, option.target);
}

std::string OptionValueName(const Option& option) {
  if (!option.value_name.empty()) return option.value_name;
  const auto* converted = std::get_if<ConvertedValue>(&option.target);
  if (converted != nullptr && !converted->value_name.empty()) return converted->value_name;
  const std::vector<std::string>& choices = ChoicesOf(option);
  if (!choices.empty()) return fmt::format("{}", fmt::join(choices, "|"));
  return std::visit(
      [](const auto& target) -> std::string {
        using T = std::remove_pointer_t<std::decay_t<decltype(target)>>;
        if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::chrono::milliseconds>) {
          return "X";
        } else if constexpr (std::is_same_v<T, MemorySize>) {
          return "SIZE";
        } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
          return "N";
        } else {
          return "TEXT";
        }
      },
      option.target);
}

}  // namespace moesaic
