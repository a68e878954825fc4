#include "core/config/option_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"

namespace moesaic {
namespace {

std::string Canonical(std::string_view name) {
  std::string result(name);
  std::replace(result.begin(), result.end(), '_', '-');
  return result;
}

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

std::string RangeText(const Option& option, bool integer) {
  const bool has_min = option.min > -9.0e15;
  const bool has_max = option.max < 9.0e15;
  const char* kind = integer ? "an integer" : "a number";
  if (has_min && has_max) return fmt::format("{} from {:g} to {:g}", kind, option.min, option.max);
  if (has_min) return fmt::format("{} of at least {:g}", kind, option.min);
  if (has_max) return fmt::format("{} of at most {:g}", kind, option.max);
  return kind;
}

std::string TextOf(const Option& option) {
  return std::visit(
      [](const auto* value) -> std::string {
        using T = std::decay_t<decltype(*value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return *value;
        } else if constexpr (std::is_same_v<T, bool>) {
          return *value ? "true" : "false";
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          return fmt::format("{}", fmt::join(*value, ","));
        } else if constexpr (std::is_same_v<T, double>) {
          return fmt::format("{}", *value);  // all digits: printed settings are read again
        } else {
          return fmt::format("{}", *value);
        }
      },
      option.target);
}

std::string ValueName(const Option& option) {
  if (!option.value_name.empty()) return option.value_name;
  if (std::holds_alternative<int64_t*>(option.target)) return "N";
  if (std::holds_alternative<double*>(option.target)) return "X";
  if (!option.choices.empty()) return fmt::format("{}", fmt::join(option.choices, "|"));
  return "TEXT";
}

// "[default 8000; env MOESAIC_PORT]"
std::string Notes(const Option& option, const std::string& default_text) {
  std::string notes;
  if (!default_text.empty() && !option.is_flag() && !option.quiet_default) {
    notes = fmt::format("default {}", default_text);
  }
  if (option.settable_outside) {
    const bool on_by_default = option.is_flag() && default_text == "true";
    notes += fmt::format("{}env {}{}", notes.empty() ? "" : "; ", option.environment_name(),
                         on_by_default ? "=false" : "");
  }
  return notes.empty() ? "" : fmt::format("[{}]", notes);
}

void AppendListItems(std::string_view text, std::vector<std::string>* list) {
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view item = text.substr(0, comma);
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
    if (!item.empty()) list->emplace_back(item);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
}

}  // namespace

std::string Option::environment_name() const {
  std::string result = "MOESAIC_";
  for (const char c : name) {
    result.push_back(c == '-' ? '_'
                              : static_cast<char>(std::toupper(static_cast<unsigned char>(c))));
  }
  return result;
}

void OptionTable::Add(Option option) {
  const bool is_new = index_.emplace(option.name, options_.size()).second;
  CHECK(is_new);
  State state;
  state.default_text = TextOf(option);
  states_.push_back(std::move(state));
  options_.push_back(std::move(option));
}

void OptionTable::Replace(Option option) {
  const size_t index = IndexOf(option.name);
  states_[index].default_text = TextOf(option);
  options_[index] = std::move(option);
}

OptionTable::Position OptionTable::Locate(std::string_view name) const {
  const std::string canonical = Canonical(name);
  const auto it = index_.find(canonical);
  if (it != index_.end()) return {it->second, true, false};
  if (canonical.compare(0, 3, "no-") != 0) return {};
  const auto positive = index_.find(std::string_view(canonical).substr(3));
  if (positive == index_.end() || !options_[positive->second].is_flag()) return {};
  return {positive->second, true, true};
}

const Option* OptionTable::Find(std::string_view name) const {
  const Position position = Locate(name);
  return position.found ? &options_[position.index] : nullptr;
}

size_t OptionTable::IndexOf(std::string_view name) const {
  const Position position = Locate(name);
  CHECK(position.found);
  return position.index;
}

void OptionTable::Set(std::string_view name, std::string_view text, OptionSource source,
                      const std::string& origin) {
  const Position position = Locate(name);
  CHECK(position.found);
  const Option& option = options_[position.index];
  State& state = states_[position.index];
  if (source > state.source) return;

  const auto refuse = [&](const std::string& expected) {
    Fail(ErrorKind::kInvalidArgument, "{}: expected {}, not '{:.80}'", origin, expected,
         option.secret ? "***" : text);
  };
  const auto check_range = [&](double value, bool integer) {
    if (!(value >= option.min && value <= option.max)) refuse(RangeText(option, integer));
  };
  if (option.check) option.check(text, origin);
  std::visit(
      [&](auto* target) {
        using T = std::decay_t<decltype(*target)>;
        T value{};
        if constexpr (std::is_same_v<T, std::string>) {
          if (!option.choices.empty() && std::find(option.choices.begin(), option.choices.end(),
                                                   text) == option.choices.end()) {
            refuse(fmt::format("one of {}", fmt::join(option.choices, ", ")));
          }
          value = text;
        } else if constexpr (std::is_same_v<T, bool>) {
          if (!ParseBool(text, &value)) refuse("true or false");
          value = value != position.negated;
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          if (source == state.source) value = *target;
          AppendListItems(text, &value);
        } else if constexpr (std::is_same_v<T, double>) {
          if (!ParseWhole(text, &value) || std::isnan(value)) refuse(RangeText(option, false));
          if (!(std::isinf(value) && value > 0 && option.max >= 9.0e15)) check_range(value, false);
        } else {
          if (!ParseWhole(text, &value)) refuse(RangeText(option, true));
          check_range(static_cast<double>(value), true);
        }
        *target = std::move(value);
      },
      option.target);
  state.source = source;
  state.origin = origin;
}

std::string OptionTable::origin(std::string_view name) const {
  return states_[IndexOf(name)].origin;
}

std::string OptionTable::ValueText(std::string_view name) const {
  const Option& option = options_[IndexOf(name)];
  std::string text = TextOf(option);
  return option.secret && !text.empty() ? "***" : text;
}

const std::string& OptionTable::DefaultText(std::string_view name) const {
  return states_[IndexOf(name)].default_text;
}

std::string OptionTable::NearestName(std::string_view name) const {
  std::vector<std::string> names;
  for (const Option& option : options_) names.push_back(option.name);
  return NearestOf(Canonical(name), names);
}

std::string OptionTable::Help(int width) const {
  constexpr int kLeft = 32;  // columns of the flags; a longer one has its help on the next line
  std::vector<std::string> sections;
  for (const Option& option : options_) {
    if (!option.hidden &&
        std::find(sections.begin(), sections.end(), option.section) == sections.end()) {
      sections.push_back(option.section);
    }
  }
  std::string out;
  for (const std::string& section : sections) {
    out += fmt::format("\n{}:\n", section);
    for (size_t i = 0; i < options_.size(); ++i) {
      const Option& option = options_[i];
      if (option.hidden || option.section != section) continue;
      std::string left =
          option.short_name != 0 ? fmt::format("  -{}, ", option.short_name) : std::string("  ");
      const std::string& default_text = states_[i].default_text;
      // A flag that is on by default is shown as what turns it off.
      left += (option.is_flag() && default_text == "true" ? "--no-" : "--") + option.name;
      if (!option.is_flag()) left += fmt::format(" {}", ValueName(option));
      if (static_cast<int>(left.size()) + 2 > kLeft) {
        out += left + "\n";
        left.clear();
      }
      const int right = std::max(20, width - kLeft);
      std::vector<std::string> lines = WrapText(option.help, right);
      const std::string notes = Notes(option, default_text);
      if (!notes.empty()) {
        // Never broken: a name that goes over two lines cannot be copied.
        if (lines.back().size() + 1 + notes.size() <= static_cast<size_t>(right)) {
          lines.back() += fmt::format(" {}", notes);
        } else {
          lines.push_back(notes);
        }
      }
      for (const std::string& line : lines) {
        out += fmt::format("{:<{}}{}\n", left, kLeft, line);
        left.clear();
      }
    }
  }
  return out;
}

int EditDistance(std::string_view a, std::string_view b) {
  // Optimal string alignment: three rows of the table are enough.
  std::vector<int> before(b.size() + 1);
  std::vector<int> last(b.size() + 1);
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string NearestOf(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr size_t kLongestName = 100;  // what is longer is no name that was misspelt
  if (name.size() > kLongestName) return "";
  std::string best;
  int best_distance = 1 + static_cast<int>(name.size()) / 4;
  for (const std::string& candidate : candidates) {
    const int distance = EditDistance(name, candidate);
    if (distance <= best_distance && (best.empty() || distance < best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  if (!best.empty()) return best;
  // "memory" or "num-seqs": part of one name only.
  for (const std::string& candidate : candidates) {
    if (name.size() < 4 || candidate.find(name) == std::string::npos) continue;
    if (!best.empty()) return "";
    best = candidate;
  }
  return best;
}

std::vector<std::string> WrapText(std::string_view text, int width) {
  std::vector<std::string> lines;
  std::string line;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (!line.empty() && line.size() + 1 + word.size() > static_cast<size_t>(width)) {
      lines.push_back(std::move(line));
      line.clear();
    }
    if (!word.empty() && !line.empty()) line += ' ';
    line += word;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (!line.empty() || lines.empty()) lines.push_back(std::move(line));
  return lines;
}

}  // namespace moesaic
