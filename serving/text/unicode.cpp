#include "serving/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "core/base/check.h"
#include "core/base/error.h"

namespace moesaic {
namespace {

// Length of the prefix that is ASCII, found eight bytes at a time.
size_t AsciiPrefix(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080ull) != 0) break;
  }
  while (i < text.size() && static_cast<unsigned char>(text[i]) < 0x80) ++i;
  return i;
}

struct Range {
  char32_t first;
  char32_t last;
};

template <size_t N>
bool InRanges(const Range (&ranges)[N], char32_t code_point) {
  return std::any_of(std::begin(ranges), std::end(ranges), [code_point](const Range& range) {
    return code_point >= range.first && code_point <= range.last;
  });
}

// Numeric_Type=Digit that is not a decimal digit.
constexpr Range kDigits[] = {
    {0xb2, 0xb3},       {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},
    {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
    {0x2474, 0x247c},   {0x2488, 0x2490},   {0x24ea, 0x24ea},   {0x24f5, 0x24fd},
    {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},   {0x278a, 0x2792},
    {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a}};
// Other_Uppercase and Other_Lowercase of PropList.txt: cased, though not Lu or Ll.
constexpr Range kOtherUpper[] = {
    {0x2160, 0x216f}, {0x24b6, 0x24cf}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};
constexpr Range kOtherLower[] = {
    {0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},     {0x2c0, 0x2c1},    {0x2e0, 0x2e4},
    {0x345, 0x345},     {0x37a, 0x37a},     {0x1d2c, 0x1d6a},   {0x1d78, 0x1d78},  {0x1d9b, 0x1dbf},
    {0x2071, 0x2071},   {0x207f, 0x207f},   {0x2090, 0x209c},   {0x2170, 0x217f},  {0x24d0, 0x24e9},
    {0x2c7c, 0x2c7d},   {0xa69c, 0xa69d},   {0xa770, 0xa770},   {0xa7f8, 0xa7f9},  {0xab5c, 0xab5f},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba}};

// Nothing (Cn) for kInvalidByte.
utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

std::string MapUnicode(std::string_view text, utf8proc_option_t options) {
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped, options);
  if (length < 0) {
    Fail(ErrorKind::kInternal, "Unicode normalisation of {} bytes failed: {}", text.size(),
         utf8proc_errmsg(length));
  }
  std::string result(reinterpret_cast<const char*>(mapped), static_cast<size_t>(length));
  std::free(mapped);
  return result;
}

// True for a character that NFC leaves alone whatever stands around it, marks after it apart:
// a starter without decomposition that never composes with what precedes it. Conservative.
bool IsInertStarter(char32_t c) {
  if (c < 0x300) return true;
  if (c >= 0x1100 && c <= 0x11FF) return false;  // Hangul jamo compose backwards
  const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  if (property->combining_class != 0) return false;
  if (c >= 0xAC00 && c <= 0xD7A3) return true;  // decomposes and recomposes by arithmetic
  if (property->decomp_seqindex != UINT16_MAX && property->decomp_type == 0) return false;
  return !IsMark(c);
}

// NFC of the stretches that need it, the rest copied: most text is in NFC already, and the general
// routine costs ten times the tokenizer's own work.
std::string NormalizeNfc(std::string_view text) {
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  std::string result;
  result.reserve(text.size());
  size_t copied = 0;   // text[0, copied) is in `result`
  size_t starter = 0;  // where the last inert starter begins
  size_t pos = AsciiPrefix(text);
  if (pos == text.size()) return std::string(text);
  if (pos > 0) starter = pos - 1;
  while (pos < text.size()) {
    const size_t begin = pos;
    const char32_t c = NextCodePoint(text, pos);
    if (IsInertStarter(c)) {
      starter = begin;
      continue;
    }
    // Normalise from the starter before this character up to the next inert one.
    size_t end = pos;
    size_t after = pos;
    while (end < text.size()) {
      const char32_t next = NextCodePoint(text, after);
      if (IsInertStarter(next)) break;
      end = after;
    }
    const size_t from = begin == 0 ? 0 : starter;
    result.append(text.substr(copied, from - copied));
    result += MapUnicode(text.substr(from, end - from), kOptions);
    copied = end;
    starter = end;
    pos = end;
  }
  result.append(text.substr(copied));
  return result;
}

}  // namespace

Utf8Unit ScanUtf8(std::string_view text, size_t pos) {
  using Kind = Utf8Unit::Kind;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[pos + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Kind::kCharacter, 1};
  size_t length = 0;
  unsigned char second_min = 0x80;
  unsigned char second_max = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) second_min = 0xA0;  // no overlong forms
    if (lead == 0xED) second_max = 0x9F;  // no surrogates
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) second_min = 0x90;
    if (lead == 0xF4) second_max = 0x8F;  // nothing above U+10FFFF
  } else {
    return {Kind::kInvalid, 1};
  }
  const size_t available = text.size() - pos;
  for (size_t i = 1; i < length; ++i) {
    if (i == available) return {Kind::kTruncated, i};
    const unsigned char low = i == 1 ? second_min : 0x80;
    const unsigned char high = i == 1 ? second_max : 0xBF;
    if (byte(i) < low || byte(i) > high) return {Kind::kInvalid, i};
  }
  return {Kind::kCharacter, length};
}

bool IsValidUtf8(std::string_view text) {
  size_t pos = 0;
  while (true) {
    pos += AsciiPrefix(text.substr(pos));
    if (pos == text.size()) return true;
    const Utf8Unit unit = ScanUtf8(text, pos);
    if (unit.kind != Utf8Unit::Kind::kCharacter) return false;
    pos += unit.length_bytes;
  }
}

void AppendReplacingInvalid(std::string_view text, std::string& out) {
  size_t copied = 0;
  size_t pos = 0;
  while (pos < text.size()) {
    const Utf8Unit unit = ScanUtf8(text, pos);
    if (unit.kind != Utf8Unit::Kind::kCharacter) {
      out.append(text.substr(copied, pos - copied));
      out.append(kReplacementCharacterUtf8);
      copied = pos + unit.length_bytes;
    }
    pos += unit.length_bytes;
  }
  out.append(text.substr(copied));
}

CodePoint DecodeAt(std::string_view text, size_t offset) {
  utf8proc_int32_t value = -1;
  const auto length = utf8proc_iterate(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + offset,
      static_cast<utf8proc_ssize_t>(std::min<size_t>(text.size() - offset, 4)), &value);
  if (length < 1) return {kInvalidByte, 1};
  return {static_cast<char32_t>(value), static_cast<size_t>(length)};
}

CodePoint DecodeBefore(std::string_view text, size_t end) {
  for (size_t length = 1; length <= 4 && length <= end; ++length) {
    if ((static_cast<unsigned char>(text[end - length]) & 0xC0) == 0x80) continue;
    const CodePoint result = DecodeAt(text, end - length);
    if (result.length_bytes == length) return result;
    break;
  }
  return {kInvalidByte, 1};
}

size_t CountCharacters(std::string_view text) {
  size_t count = 0;
  for (size_t i = 0; i < text.size(); ++count) {
    i += static_cast<unsigned char>(text[i]) < 0x80 ? 1 : DecodeAt(text, i).length_bytes;
  }
  return count;
}

size_t CharacterOffset(std::string_view text, size_t index) {
  size_t i = 0;
  for (; index > 0 && i < text.size(); --index) {
    i += static_cast<unsigned char>(text[i]) < 0x80 ? 1 : DecodeAt(text, i).length_bytes;
  }
  return i;
}

char32_t NextCodePoint(std::string_view text, size_t& pos) {
  const auto byte = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[pos + i]));
  };
  const char32_t lead = byte(0);
  if (lead < 0x80) {
    pos += 1;
    return lead;
  }
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  CHECK_LE(pos + length, text.size());
  char32_t c = lead & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) c = (c << 6) | (byte(i) & 0x3F);
  pos += length;
  return c;
}

size_t PreviousCodePointStart(std::string_view text, size_t pos) {
  CHECK_GT(pos, 0u);
  do {
    --pos;
  } while (pos > 0 && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80);
  return pos;
}

void AppendUtf8(char32_t c, std::string& out) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

bool IsNumeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  }
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool IsMark(char32_t c) {
  if (c < 0x300) return false;
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

bool IsWordCharacter(char32_t c) {
  if (c < 0x80) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }
  if (c == 0x200C || c == 0x200D) return true;
  // The symbols with the property Other_Alphabetic: circled and squared letters.
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
      (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189)) {
    return true;
  }
  const utf8proc_category_t category = Category(c);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC;
}

bool IsWhitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsSpace(char32_t c) { return IsWhitespace(c) || (c >= 0x1C && c <= 0x1F); }

bool IsLineBreak(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool IsAlpha(char32_t c) {
  const auto category = Category(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool IsDecimal(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_ND; }

bool IsDigit(char32_t c) { return IsDecimal(c) || InRanges(kDigits, c); }

bool IsUpper(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LU || InRanges(kOtherUpper, c); }

bool IsLower(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LL || InRanges(kOtherLower, c); }

bool IsTitle(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LT; }

bool IsCased(char32_t c) { return IsUpper(c) || IsLower(c) || IsTitle(c); }

bool IsPrintable(char32_t c) {
  if (c == ' ') return true;
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

std::string NormalizeUnicode(std::string_view text, NormalForm form) {
  int options = UTF8PROC_STABLE;
  switch (form) {
    case NormalForm::kNfc:
      return NormalizeNfc(text);
    case NormalForm::kNfd:
      options |= UTF8PROC_DECOMPOSE;
      break;
    case NormalForm::kNfkc:
      options |= UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
      break;
    case NormalForm::kNfkd:
      options |= UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
      break;
  }
  if (AsciiPrefix(text) == text.size()) return std::string(text);
  return MapUnicode(text, static_cast<utf8proc_option_t>(options));
}

}  // namespace moesaic
