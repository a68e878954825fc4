#include "serving/http/json_scalar.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>

#include "serving/text/unicode.h"

namespace moesaic {
namespace {

constexpr size_t kNoPosition = std::string_view::npos;

int JsonHexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The code unit of "\uXXXX" at `pos`, or -1.
int32_t CodeUnit(std::string_view content, size_t pos) {
  if (content.size() < pos + 6 || content[pos] != '\\' || content[pos + 1] != 'u') return -1;
  int32_t unit = 0;
  for (size_t i = pos + 2; i < pos + 6; ++i) {
    const int digit = JsonHexDigit(content[i]);
    if (digit < 0) return -1;
    unit = unit * 16 + digit;
  }
  return unit;
}

bool IsHighSurrogate(int32_t unit) { return unit >= 0xD800 && unit < 0xDC00; }
bool IsLowSurrogate(int32_t unit) { return unit >= 0xDC00 && unit < 0xE000; }

// Of "\uXXXX" or a pair of them: the length in the text, 0 when it is wrong.
size_t ReadUnicodeEscape(std::string_view content, size_t pos, char32_t& code_point) {
  const int32_t unit = CodeUnit(content, pos);
  if (unit < 0 || IsLowSurrogate(unit)) return 0;
  code_point = static_cast<char32_t>(unit);
  if (!IsHighSurrogate(unit)) return 6;
  const int32_t low = CodeUnit(content, pos + 6);
  if (!IsLowSurrogate(low)) return 0;
  code_point =
      0x10000 + (static_cast<char32_t>(unit - 0xD800) << 10) + static_cast<char32_t>(low - 0xDC00);
  return 12;
}

// What "\c" stands for, or 0.
char SimpleEscape(char c) {
  switch (c) {
    case '"':
    case '\\':
    case '/':
      return c;
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    default:
      return 0;
  }
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

size_t SkipDigits(std::string_view text, size_t pos) {
  while (pos < text.size() && IsDigit(text[pos])) ++pos;
  return pos;
}

}  // namespace

size_t FindBadEscape(std::string_view content, bool& escaped) {
  size_t pos = content.empty() ? kNoPosition : content.find('\\');
  escaped = pos != kNoPosition;
  char32_t code_point = 0;
  for (; pos != kNoPosition; pos = content.find('\\', pos)) {
    if (pos + 1 == content.size()) return pos;
    if (SimpleEscape(content[pos + 1]) != 0) {
      pos += 2;
      continue;
    }
    const size_t length = ReadUnicodeEscape(content, pos, code_point);
    if (length == 0) return pos;
    pos += length;
  }
  return kNoPosition;
}

void AppendUnescaped(std::string_view content, std::string& out) {
  size_t done = 0;
  char32_t code_point = 0;
  for (size_t pos = content.find('\\'); pos != kNoPosition; pos = content.find('\\', done)) {
    out.append(content, done, pos - done);
    if (const char simple = SimpleEscape(content[pos + 1])) {
      out += simple;
      done = pos + 2;
    } else {
      done = pos + ReadUnicodeEscape(content, pos, code_point);
      AppendUtf8(code_point, out);
    }
  }
  out.append(content, done);
}

NumberScan ScanNumber(std::string_view text, size_t pos) {
  constexpr size_t kDigitsOfAnyDouble = 308;
  NumberScan scan;
  const auto wrong_at = [&](size_t end) {
    scan.end = end;
    return scan;
  };
  if (pos < text.size() && text[pos] == '-') ++pos;
  const size_t first = pos;
  pos = SkipDigits(text, pos);
  if (pos == first) return wrong_at(pos);
  if (text[first] == '0' && pos > first + 1) return wrong_at(first + 1);
  scan.maybe_huge = pos - first > kDigitsOfAnyDouble;
  if (pos < text.size() && text[pos] == '.') {
    const size_t fraction = pos + 1;
    pos = SkipDigits(text, fraction);
    if (pos == fraction) return wrong_at(pos);
    scan.integer = false;
  }
  if (pos < text.size() && (text[pos] == 'e' || text[pos] == 'E')) {
    size_t exponent = pos + 1;
    if (exponent < text.size() && (text[exponent] == '+' || text[exponent] == '-')) ++exponent;
    pos = SkipDigits(text, exponent);
    if (pos == exponent) return wrong_at(pos);
    scan.integer = false;
    scan.maybe_huge = true;
  }
  scan.end = pos;
  scan.valid = true;
  return scan;
}

Json NumberValue(std::string_view number, bool integer) {
  const char* const begin = number.data();
  const char* const end = begin + number.size();
  if (integer) {
    if (number[0] == '-') {
      int64_t value = 0;
      if (std::from_chars(begin, end, value).ec == std::errc()) return value;
    } else {
      uint64_t value = 0;
      if (std::from_chars(begin, end, value).ec == std::errc()) return value;
    }
  }
  double value = 0;
  if (std::from_chars(begin, end, value).ec == std::errc()) return value;
  // Out of range, either way: from_chars does not say which, and a number too small is 0 or nearly.
  return std::strtod(std::string(number).c_str(), nullptr);
}

}  // namespace moesaic
