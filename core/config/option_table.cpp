#include "core/config/option_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace moesaic {
namespace {

std::string Canonical(std::string_view name) {
  std::string result(name);
  std::replace(result.begin(), result.end(), '_', '-');
  return result;
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

}  // namespace

void OptionTable::Add(Option option) {
  const bool is_new = index_.emplace(option.name, options_.size()).second;
  CHECK(is_new);
  State state;
  state.text = state.default_text = OptionText(option);
  states_.push_back(std::move(state));
  options_.push_back(std::move(option));
}

void OptionTable::Replace(Option option) {
  const size_t index = IndexOf(option.name);
  states_[index].text = states_[index].default_text = OptionText(option);
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

  state.text = AssignOption(
      option, {text, origin, position.negated, source == state.source && option.is_list()});
  state.source = source;
  state.origin = origin;
}

std::string OptionTable::origin(std::string_view name) const {
  return states_[IndexOf(name)].origin;
}

std::string OptionTable::ValueText(std::string_view name) const {
  const size_t index = IndexOf(name);
  const std::string& text = states_[index].text;
  return options_[index].secret && !text.empty() ? "***" : text;
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
      if (!option.is_flag()) left += fmt::format(" {}", OptionValueName(option));
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
