// UTF-8 and the facts about characters that tokenizers and chat templates need: validity,
// categories, normal forms, case. The tables are utf8proc's; Python's str methods, where they are
// named, differ from Unicode's properties.
//
// Free functions without state; safe from any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace moesaic {

inline constexpr std::string_view kReplacementCharacterUtf8 = "\xEF\xBF\xBD";  // U+FFFD

// --- any bytes

// What stands at a position of a byte string that may be invalid.
struct Utf8Unit {
  enum class Kind {
    kCharacter,  // a whole character of `length_bytes`
    kInvalid,    // a maximal ill-formed part (Unicode 15, table 3-8): one U+FFFD stands for it
    kTruncated,  // the text ends within a character that is right so far
  };
  Kind kind;
  size_t length_bytes;
};
Utf8Unit ScanUtf8(std::string_view text, size_t pos);  // pos < text.size()

bool IsValidUtf8(std::string_view text);
// Appends `text` to `out`; each maximal ill-formed part becomes U+FFFD, as Python's
// bytes.decode(errors="replace") does.
void AppendReplacingInvalid(std::string_view text, std::string& out);

// A byte that is no part of a character counts as one that has none of the properties below, so
// that no input can be lost or read past its end.
inline constexpr char32_t kInvalidByte = 0xFFFFFFFF;
struct CodePoint {
  char32_t value;       // or kInvalidByte
  size_t length_bytes;  // >= 1
};
CodePoint DecodeAt(std::string_view text, size_t offset);   // offset < text.size()
CodePoint DecodeBefore(std::string_view text, size_t end);  // the one that ends at `end`, > 0
size_t CountCharacters(std::string_view text);
// Byte offset of character `index`; text.size() when there are not that many.
size_t CharacterOffset(std::string_view text, size_t index);

// --- valid UTF-8: what tokenizers see, who replace invalid bytes before anything else

// The character at `pos`, which moves behind it.
char32_t NextCodePoint(std::string_view text, size_t& pos);
// Where the character that ends at `pos` (> 0) begins.
size_t PreviousCodePointStart(std::string_view text, size_t pos);
void AppendUtf8(char32_t code_point, std::string& out);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
std::string NormalizeUnicode(std::string_view text, NormalForm form);
// The full default mapping, character by character (no context, no language).
std::string LowercaseUnicode(std::string_view text);

// --- characters

bool IsNumeric(char32_t c);        // general category N; str.isnumeric but for ideographs
bool IsPunctuation(char32_t c);    // general category P or ASCII punctuation
bool IsMark(char32_t c);           // general category M
bool IsWordCharacter(char32_t c);  // \w of UTS 18: letters, marks, digits, connectors, joiners

bool IsWhitespace(char32_t c);  // the White_Space property
bool IsSpace(char32_t c);       // str.isspace: White_Space and U+001C to U+001F
bool IsLineBreak(char32_t c);   // the line boundaries of str.splitlines
bool IsAlpha(char32_t c);       // str.isalpha
bool IsDecimal(char32_t c);     // str.isdecimal
bool IsDigit(char32_t c);       // str.isdigit: also superscripts and circled digits
bool IsPrintable(char32_t c);   // str.isprintable: what repr() leaves alone
bool IsUpper(char32_t c);
bool IsLower(char32_t c);
bool IsTitle(char32_t c);
bool IsCased(char32_t c);

// Full case mappings (one character can become three).
void AppendUpper(char32_t code_point, std::string& out);
void AppendTitle(char32_t code_point, std::string& out);
void AppendLower(char32_t code_point, std::string& out);

}  // namespace moesaic
