// UTF-8 and the few Unicode facts that tokenizers need: validity, categories, normal forms, case.
//
// Free functions without state; safe from any thread. Unless said otherwise a function expects
// valid UTF-8: tokenizers replace invalid bytes (ReplaceInvalidUtf8) before anything else.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace moesaic {

inline constexpr std::string_view kReplacementCharacterUtf8 = "\xEF\xBF\xBD";  // U+FFFD

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

// The character at `pos`, which moves behind it.
char32_t NextCodePoint(std::string_view text, size_t& pos);
// Where the character that ends at `pos` (> 0) begins.
size_t PreviousCodePointStart(std::string_view text, size_t pos);
void AppendUtf8(char32_t code_point, std::string& out);

bool IsWhitespace(char32_t c);     // the White_Space property
bool IsNumeric(char32_t c);        // general category N
bool IsPunctuation(char32_t c);    // general category P or ASCII punctuation
bool IsMark(char32_t c);           // general category M
bool IsWordCharacter(char32_t c);  // \w of UTS 18: letters, marks, digits, connectors, joiners

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
std::string NormalizeUnicode(std::string_view text, NormalForm form);
// The full default mapping, character by character (no context, no language).
std::string LowercaseUnicode(std::string_view text);

}  // namespace moesaic
