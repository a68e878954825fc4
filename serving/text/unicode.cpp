#include "serving/text/unicode.h"

#include <utf8proc.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

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
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (c >> 6)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | (c >> 12)));
    out.push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | (c >> 18)));
    out.push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

bool IsWhitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
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

std::string LowercaseUnicode(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  size_t pos = 0;
  while (pos < text.size()) {
    const char32_t c = NextCodePoint(text, pos);
    if (c == 0x130) {  // the only character whose lower case is two characters: i and a dot above
      result += "i\xCC\x87";
      continue;
    }
    AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), result);
  }
  return result;
}

}  // namespace moesaic
