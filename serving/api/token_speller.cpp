#include "serving/api/token_speller.h"

#include <fmt/format.h>

#include "serving/text/tokenizer.h"
#include "serving/text/unicode.h"

namespace moesaic {

std::string TokenString(std::string_view bytes) {
  if (IsValidUtf8(bytes)) return std::string(bytes);
  std::string out = "bytes:";
  for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

TokenSpeller MakeTokenSpeller(const Tokenizer& tokenizer, bool skip_special_tokens) {
  return [&tokenizer, skip_special_tokens](int32_t token, bool at_start) -> TokenText {
    const bool special = tokenizer.IsSpecial(token);
    std::string_view bytes =
        at_start ? tokenizer.FirstTokenBytes(token) : tokenizer.TokenBytes(token);
    const DecodeRules& rules = tokenizer.decode_rules();
    for (int32_t i = 0;
         at_start && !special && i < rules.strip_left && bytes.starts_with(rules.strip_character);
         ++i) {
      bytes.remove_prefix(rules.strip_character.size());
    }
    return {std::string(bytes), !(special && skip_special_tokens)};
  };
}

}  // namespace moesaic
