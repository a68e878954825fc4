#include "serving/text/jinja/numbers.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>

#include "serving/text/jinja/raise.h"
#include "serving/text/jinja/text_ops.h"

namespace moesaic::jinja {
namespace {

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  return lower;
}

int DigitOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  return 99;
}

std::string StripSpace(std::string_view text) {
  // The caller has charged for the whole text.
  Budget budget{Limits{}};
  return Strip(MarkedText(std::string(text)), std::nullopt, Side::kBoth, budget).bytes();
}

}  // namespace

std::optional<Integer> ParseInteger(std::string_view text, int base) {
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  const std::string stripped = Lower(StripSpace(text));
  std::string_view digits = stripped;
  bool negative = false;
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) {
    negative = digits[0] == '-';
    digits.remove_prefix(1);
  }
  bool after_prefix = false;
  if (digits.size() > 1 && digits[0] == '0') {
    const int prefix_base = digits[1] == 'x' ? 16 : digits[1] == 'o' ? 8 : digits[1] == 'b' ? 2 : 0;
    if (prefix_base != 0 && (base == 0 || base == prefix_base)) {
      digits.remove_prefix(2);
      base = prefix_base;
      after_prefix = true;
    }
  }
  const bool no_leading_zero = base == 0;
  if (base == 0) base = 10;
  Integer value = 0;
  bool after_digit = after_prefix;  // "0x_1" is fine, "_1" is not
  for (const char c : digits) {
    if (c == '_' && after_digit) {
      after_digit = false;
      continue;
    }
    const int digit = DigitOf(c);
    if (digit >= base) return std::nullopt;
    after_digit = true;
    if (value > ((~(Integer{1} << 127)) - digit) / base) Raise("an integer has more than 127 bits");
    value = value * base + digit;
  }
  if (digits.empty() || !after_digit || (after_prefix && digits == "_")) return std::nullopt;
  if (no_leading_zero && value != 0 && digits[0] == '0') return std::nullopt;
  return negative ? -value : value;
}

std::optional<double> ParseFloat(std::string_view text) {
  const std::string stripped = Lower(StripSpace(text));
  const std::string_view all = stripped;
  const bool has_sign = !all.empty() && (all[0] == '-' || all[0] == '+');
  const double sign = !all.empty() && all[0] == '-' ? -1 : 1;
  const std::string_view word = all.substr(has_sign ? 1 : 0);
  if (word == "inf" || word == "infinity") return sign * std::numeric_limits<double>::infinity();
  if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
  std::string digits(all.substr(0, has_sign ? 1 : 0));
  for (size_t i = 0; i < word.size(); ++i) {
    const auto is_digit = [&word](size_t at) {
      return at < word.size() && word[at] >= '0' && word[at] <= '9';
    };
    if (word[i] == '_') {
      if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) return std::nullopt;
    } else if (is_digit(i) || word[i] == '.' || word[i] == 'e' || word[i] == '+' ||
               word[i] == '-') {
      digits += word[i];
    } else {
      return std::nullopt;  // strtod would also take hexadecimal and nan(...)
    }
  }
  if (digits.empty()) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(digits.c_str(), &end);
  if (end != digits.c_str() + digits.size()) return std::nullopt;
  return value;
}

}  // namespace moesaic::jinja
