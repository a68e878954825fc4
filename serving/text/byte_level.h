// The byte-level alphabet: GPT-2's one-to-one map between the 256 bytes and 256 printable
// characters, in which byte-level vocabularies are written ("Ġthe" is " the").
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace moesaic {

// Appends the characters that stand for `bytes`.
void AppendByteLevel(std::string_view bytes, std::string& out);
// The bytes that `token` (valid UTF-8) stands for, or nothing when a character is not of the
// alphabet.
std::optional<std::string> DecodeByteLevel(std::string_view token);

}  // namespace moesaic
