#include "serving/api/keep_alive.h"

#include <charconv>
#include <cmath>
#include <utility>

namespace moesaic {
namespace {

constexpr double kLongestSeconds = 100.0 * 365 * 86400;

KeepAlive FromSeconds(double seconds) {
  if (seconds < 0 || seconds > kLongestSeconds) return kKeepForEver;
  return std::chrono::duration_cast<KeepAlive>(std::chrono::duration<double>(seconds));
}

// Of a unit that `text` begins with, which is taken off it; 0: of none.
double TakeUnit(std::string_view& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"ns", 1e-9}, {"us", 1e-6}, {"µs", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}};
  for (const auto& [unit, seconds] : kUnits) {
    if (!text.starts_with(unit)) continue;
    text.remove_prefix(unit.size());
    return seconds;
  }
  return 0;
}

}  // namespace

std::optional<KeepAlive> ParseGoDuration(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text == "0") return KeepAlive(0);
  if (text.empty()) return std::nullopt;
  double total = 0;
  while (!text.empty()) {
    double number = 0;
    if (text[0] != '.' && (text[0] < '0' || text[0] > '9')) return std::nullopt;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
    if (error != std::errc()) return std::nullopt;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    const double unit = TakeUnit(text);
    if (unit == 0) return std::nullopt;
    total += number * unit;
  }
  return FromSeconds(negative && total > 0 ? -total : total);
}

std::optional<KeepAlive> ReadKeepAlive(RequestFields& fields) {
  const auto ttl = fields.Int("ttl", 0, INT32_MAX);
  const Json* const value = fields.Find("keep_alive");
  if (value == nullptr) {
    if (!ttl) return std::nullopt;
    return FromSeconds(static_cast<double>(*ttl));
  }
  if (value->is_number()) {
    const double seconds = value->get<double>();
    if (std::isfinite(seconds)) return FromSeconds(seconds);
  } else if (value->is_string()) {
    if (const auto duration = ParseGoDuration(value->get<std::string>())) return duration;
  }
  throw BadParam("keep_alive",
                 "keep_alive must be a number of seconds or a duration like \"10m\"; 0 unloads the "
                 "model, a negative one keeps it.");
}

}  // namespace moesaic
