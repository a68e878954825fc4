#include "serving/simulate/arrival_file.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <optional>

#include "core/base/error.h"

namespace moesaic {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 24;
constexpr double kMostSeconds = 1e12;  // in nanoseconds they still count exactly enough

// The whole text as a number.
template <typename Number>
std::optional<Number> NumberOf(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::vector<std::string_view> Cells(std::string_view line) {
  std::vector<std::string_view> cells;
  while (true) {
    const size_t comma = line.find(',');
    cells.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return cells;
    line.remove_prefix(comma + 1);
  }
}

// "2023-11-16 18:15:46.6805900" in seconds since some day.
std::optional<double> TimestampOf(std::string_view text) {
  constexpr std::string_view kForm = "dddd-dd-dd dd:dd:dd";
  if (text.size() < kForm.size()) return std::nullopt;
  for (size_t i = 0; i < kForm.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (kForm[i] == 'd' ? !digit : text[i] != kForm[i] && !(i == 10 && text[i] == 'T')) {
      return std::nullopt;
    }
  }
  const auto part = [&](size_t at, size_t count) { return *NumberOf<int>(text.substr(at, count)); };
  const std::chrono::year_month_day day{std::chrono::year(part(0, 4)),
                                        std::chrono::month(static_cast<unsigned>(part(5, 2))),
                                        std::chrono::day(static_cast<unsigned>(part(8, 2)))};
  const std::optional<double> seconds = NumberOf<double>(text.substr(17));
  const int hour = part(11, 2);
  const int minute = part(14, 2);
  if (!day.ok() || hour > 23 || minute > 59 || !seconds || !(*seconds >= 0 && *seconds < 61)) {
    return std::nullopt;
  }
  const auto days = std::chrono::sys_days(day).time_since_epoch().count();
  return 86400.0 * static_cast<double>(days) + 3600 * hour + 60 * minute + *seconds;
}

struct Columns {
  std::optional<size_t> seconds, timestamp, prompt, answer, model;
};

Columns ColumnsOf(std::string_view header, const std::string& name) {
  Columns columns;
  const std::vector<std::string_view> cells = Cells(header);
  for (size_t i = 0; i < cells.size(); ++i) {
    if (cells[i] == "seconds") columns.seconds = i;
    if (cells[i] == "TIMESTAMP") columns.timestamp = i;
    if (cells[i] == "prompt_tokens" || cells[i] == "ContextTokens") columns.prompt = i;
    if (cells[i] == "answer_tokens" || cells[i] == "GeneratedTokens") columns.answer = i;
    if (cells[i] == "model") columns.model = i;
  }
  const bool timed = columns.seconds || columns.timestamp;
  if (!timed || !columns.prompt || !columns.answer) {
    Fail(ErrorKind::kCorrupt,
         "{}:1: the header has to name the columns 'seconds' (or 'TIMESTAMP'), 'prompt_tokens' (or "
         "'ContextTokens') and 'answer_tokens' (or 'GeneratedTokens')",
         name);
  }
  return columns;
}

}  // namespace

std::vector<Arrival> ParseArrivals(std::string_view text, const std::string& name) {
  std::vector<Arrival> arrivals;
  std::optional<Columns> columns;
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    if (!columns) {
      columns = ColumnsOf(line, name);
      continue;
    }
    const std::vector<std::string_view> cells = Cells(line);
    const auto cell = [&](size_t column) {
      if (column >= cells.size()) {
        Fail(ErrorKind::kCorrupt, "{}:{}: has {} columns, which are too few", name, number,
             cells.size());
      }
      return cells[column];
    };
    const auto tokens = [&](size_t column) {
      const std::optional<int64_t> count = NumberOf<int64_t>(cell(column));
      if (!count || *count < 0 || *count > kMostTokens) {
        Fail(ErrorKind::kCorrupt, "{}:{}: '{}' is no number of tokens from 0 to {}", name, number,
             cell(column), kMostTokens);
      }
      return std::max<int64_t>(1, *count);
    };
    Arrival arrival;
    const std::string_view time = cell(columns->seconds ? *columns->seconds : *columns->timestamp);
    const std::optional<double> at = columns->seconds ? NumberOf<double>(time) : TimestampOf(time);
    if (!at || !std::isfinite(*at) || std::abs(*at) > kMostSeconds) {
      Fail(ErrorKind::kCorrupt, "{}:{}: '{}' is no time", name, number, time);
    }
    arrival.at_s = *at;
    arrival.prompt_tokens = tokens(*columns->prompt);
    arrival.answer_tokens = tokens(*columns->answer);
    if (columns->model) {
      const std::optional<int64_t> model = NumberOf<int64_t>(cell(*columns->model));
      if (!model || *model < 0) {
        Fail(ErrorKind::kCorrupt, "{}:{}: '{}' is no number of a model", name, number,
             cell(*columns->model));
      }
      arrival.model = *model;
    }
    arrivals.push_back(arrival);
  }
  if (arrivals.empty()) Fail(ErrorKind::kInvalidArgument, "{}: has no requests", name);
  std::stable_sort(arrivals.begin(), arrivals.end(),
                   [](const Arrival& a, const Arrival& b) { return a.at_s < b.at_s; });
  const double first = arrivals.front().at_s;
  for (Arrival& arrival : arrivals) arrival.at_s -= first;
  return arrivals;
}

}  // namespace moesaic
