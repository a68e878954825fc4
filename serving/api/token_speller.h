// TokenSpeller: how an answer spells single tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace moesaic {

class Tokenizer;

struct TokenText {
  std::string bytes;  // a special token's are its name
  bool shown = true;  // false: a special token that is left out of the text
};
// `at_start`: nothing is shown before the token, where some tokenizers drop a space.
using TokenSpeller = std::function<TokenText(int32_t token, bool at_start)>;

// What JSON shows for a token: its text, or "bytes:\xe2\x80" when it is not whole UTF-8 (as OpenAI
// does).
std::string TokenString(std::string_view bytes);

// Holds a reference to the tokenizer.
TokenSpeller MakeTokenSpeller(const Tokenizer& tokenizer, bool skip_special_tokens);

}  // namespace moesaic
