// The character properties that Python's str methods use, over UTF-8. Pure functions.
//
// Bytes that are no valid UTF-8 count as one character each and map to themselves, so that no
// input can be lost or read past its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moesaic::jinja {

struct CodePoint {
  int32_t value;        // -1 for an invalid byte
  size_t length_bytes;  // >= 1
};

// The character at `offset`, which is below text.size().
CodePoint DecodeAt(std::string_view text, size_t offset);
// The character that ends at `end`, which is above 0.
CodePoint DecodeBefore(std::string_view text, size_t end);
void AppendUtf8(int32_t code_point, std::string& out);
size_t CountCharacters(std::string_view text);
// Byte offset of character `index`; text.size() when there are not that many.
size_t CharacterOffset(std::string_view text, size_t index);

bool IsSpace(int32_t code_point);      // str.isspace
bool IsLineBreak(int32_t code_point);  // the line boundaries of str.splitlines
bool IsAlpha(int32_t code_point);      // str.isalpha
bool IsDecimal(int32_t code_point);    // str.isdecimal
bool IsDigit(int32_t code_point);      // str.isdigit: also superscripts and circled digits
bool IsNumeric(int32_t code_point);    // str.isnumeric, by general category
bool IsUpper(int32_t code_point);
bool IsLower(int32_t code_point);
bool IsTitle(int32_t code_point);
bool IsCased(int32_t code_point);
bool IsPrintable(int32_t code_point);  // str.isprintable: what repr() leaves alone

// Full case mappings (one character can become three).
void AppendUpper(int32_t code_point, std::string& out);
void AppendTitle(int32_t code_point, std::string& out);
void AppendLower(int32_t code_point, std::string& out);

}  // namespace moesaic::jinja
