#include "core/base/units.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "core/base/error.h"

namespace moesaic {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};

constexpr std::array<Unit, 14> kUnits = {{{"", 1},
                                          {"b", 1},
                                          {"k", 1024},
                                          {"kb", 1e3},
                                          {"kib", 1024},
                                          {"m", 1048576},
                                          {"mb", 1e6},
                                          {"mib", 1048576},
                                          {"g", 1073741824},
                                          {"gb", 1e9},
                                          {"gib", 1073741824},
                                          {"t", 1099511627776},
                                          {"tb", 1e12},
                                          {"tib", 1099511627776}}};

// Splits "12.5 MiB" into a number and what follows it; false when there is no number.
bool SplitNumber(std::string_view text, double* number, std::string* rest) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())))
    text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())))
    text.remove_suffix(1);
  const auto result =
      std::from_chars(text.data(), text.data() + text.size(), *number, std::chars_format::fixed);
  if (result.ec != std::errc() || !std::isfinite(*number) || *number < 0) return false;
  text.remove_prefix(static_cast<size_t>(result.ptr - text.data()));
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())))
    text.remove_prefix(1);
  rest->clear();
  for (const char c : text)
    rest->push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  return true;
}

std::string ScaledBy1000(double value, const char* unit) {
  constexpr std::array<const char*, 6> kPrefixes = {"", "k", "M", "G", "T", "P"};
  size_t prefix = 0;
  while (std::abs(value) >= 999.5 && prefix + 1 < kPrefixes.size()) {
    value /= 1000;
    ++prefix;
  }
  const int decimals = prefix == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}{}", value, decimals, kPrefixes[prefix], unit);
}

}  // namespace

std::string FormatBytes(uint64_t bytes) {
  constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kNames[unit]);
}

std::string FormatRate(double bytes_per_s) { return ScaledBy1000(bytes_per_s, "B/s"); }

std::string FormatCount(double count) {
  std::string text = ScaledBy1000(count, "");
  while (text.back() == ' ') text.pop_back();
  return text;
}

uint64_t ParseBytes(std::string_view text, std::string_view what) {
  double number = 0;
  std::string unit_name;
  if (SplitNumber(text, &number, &unit_name)) {
    for (const Unit& unit : kUnits) {
      if (unit.name != unit_name) continue;
      const double bytes = number * unit.bytes;
      if (bytes >= 18e18) break;
      return static_cast<uint64_t>(bytes);
    }
  }
  Fail(ErrorKind::kInvalidArgument, "{}: '{:.80}' is not a size; write for example 512MiB or 4GiB",
       what, text);
}

std::string SizeText(uint64_t bytes) {
  constexpr std::array<const char*, 5> kNames = {"", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes > 0 && bytes % 1024 == 0 && unit + 1 < kNames.size()) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{}{}", bytes, kNames[unit]);
}

double ParsePercent(std::string_view text, std::string_view what) {
  double number = 0;
  std::string unit_name;
  if (!SplitNumber(text, &number, &unit_name) || unit_name != "%") {
    Fail(ErrorKind::kInvalidArgument, "{}: '{:.80}' is not a percentage; write for example 25%",
         what, text);
  }
  if (number > 100) {
    Fail(ErrorKind::kInvalidArgument, "{}: '{:.80}' is more than 100%", what, text);
  }
  return number;
}

uint64_t CheckedMul(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    Fail(ErrorKind::kCorrupt, "{}: {} x {} overflows 64 bits", what, a, b);
  }
  return product;
}

uint64_t CheckedAdd(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    Fail(ErrorKind::kCorrupt, "{}: {} + {} overflows 64 bits", what, a, b);
  }
  return sum;
}

}  // namespace moesaic
