#include "serving/text/jinja/format_spec.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "serving/text/jinja/format.h"
#include "serving/text/jinja/raise.h"
#include "serving/text/jinja/text_ops.h"
#include "serving/text/unicode.h"

namespace moesaic::jinja {
namespace {

std::string Group(const std::string& digits, char separator, size_t size) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  std::string result;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % size == 0) result += separator;
    result += digits[i];
  }
  return result + digits.substr(whole);
}

MarkedText PadTo(const MarkedText& text, const FormatSpec& spec, char default_align,
                 Budget& budget) {
  const char align = spec.align == '\0' ? default_align : spec.align;
  const auto width = static_cast<size_t>(spec.width);
  if (align == '^') {  // format() puts the odd character on the right
    const size_t length = CountCharacters(text.bytes());
    const size_t left = length < width ? (width - length) / 2 : 0;
    return Pad(Pad(text, length + left, spec.fill, Side::kRight, budget), width, spec.fill,
               Side::kLeft, budget);
  }
  return Pad(text, width, spec.fill, align == '<' ? Side::kLeft : Side::kRight, budget);
}

}  // namespace

std::string IntegerDigits(Integer magnitude, const FormatSpec& spec) {
  std::string digits;
  switch (spec.type) {
    case 'x':
      digits = fmt::format("{:x}", magnitude);
      break;
    case 'X':
      digits = fmt::format("{:X}", magnitude);
      break;
    case 'o':
      digits = fmt::format("{:o}", magnitude);
      break;
    case 'b':
      digits = fmt::format("{:b}", magnitude);
      break;
    case '\0':
    case 'd':
    case 'i':
    case 'u':
    case 'n':
      digits = IntegerRepr(magnitude);
      break;
    default:
      Raise("an integer cannot be formatted as '{}'", spec.type);
  }
  const bool decimal = spec.type != 'x' && spec.type != 'X' && spec.type != 'o' && spec.type != 'b';
  return spec.grouping == '\0' ? digits : Group(digits, spec.grouping, decimal ? 3 : 4);
}

std::string FloatDigits(double magnitude, const FormatSpec& spec) {
  if (std::isnan(magnitude) || std::isinf(magnitude)) {
    const bool upper = spec.type == 'E' || spec.type == 'F' || spec.type == 'G';
    return std::string(std::isnan(magnitude) ? (upper ? "NAN" : "nan") : (upper ? "INF" : "inf")) +
           (spec.type == '%' ? "%" : "");
  }
  std::string digits;
  if (spec.type == '\0' && spec.precision < 0) {
    digits = FloatRepr(magnitude);
  } else {
    char type = spec.type == '%' ? 'f' : spec.type == '\0' || spec.type == 'n' ? 'g' : spec.type;
    const int precision = std::min(spec.precision < 0 ? 6 : spec.precision, 400);
    const std::string format = fmt::format("%{}.*{}", spec.alternate ? "#" : "", type);
    char buffer[1024];  // a double has at most 309 digits before the point
    const double scaled = spec.type == '%' ? magnitude * 100 : magnitude;
    const int length = std::snprintf(buffer, sizeof(buffer), format.c_str(), precision, scaled);
    digits.assign(buffer, static_cast<size_t>(length));
    const bool whole = digits.find_first_of(".e") == std::string::npos;
    if (spec.type == '\0' && whole) digits += ".0";
    if (spec.type == '%') digits += '%';
  }
  return spec.grouping == '\0' ? digits : Group(digits, spec.grouping, 3);
}

MarkedText LayOutNumber(bool negative, std::string_view prefix, const std::string& digits,
                        const FormatSpec& spec, Budget& budget) {
  std::string head = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  head += prefix;
  if (spec.align == '=' || (spec.align == '\0' && spec.zero)) {
    const size_t width = static_cast<size_t>(spec.width);
    const std::string fill = spec.zero && spec.align == '\0' ? "0" : spec.fill;
    MarkedText result(head);
    const size_t rest = width > head.size() ? width - head.size() : 0;
    result.Append(Pad(MarkedText(digits), rest, fill, Side::kRight, budget));
    return result;
  }
  return PadTo(MarkedText(head + digits), spec, '>', budget);
}

MarkedText LayOutText(const MarkedText& text, const FormatSpec& spec, Budget& budget) {
  if (spec.align == '=') Raise("'=' aligns numbers only");
  budget.ChargeBytes(text.size_bytes());
  if (spec.precision < 0) return PadTo(text, spec, '<', budget);
  const size_t end = CharacterOffset(text.bytes(), static_cast<size_t>(spec.precision));
  return PadTo(text.Slice(0, end), spec, '<', budget);
}

}  // namespace moesaic::jinja
