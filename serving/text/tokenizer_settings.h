// TokenizerSettings: what the small files beside a tokenizer say about it (tokenizer_config.json,
// special_tokens_map.json, added_tokens.json).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "serving/text/added_tokens.h"
#include "serving/text/tokenizer.h"

namespace moesaic {

struct TokenizerSettings {
  std::string tokenizer_class;  // "Qwen2Tokenizer", ...; empty when unknown
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<std::string> unk_token;
  std::optional<std::string> pad_token;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<bool> legacy;            // SentencePiece: a space before every stretch of text
  std::vector<AddedToken> added_tokens;  // with ids
};

// Files that do not exist are passed over.
TokenizerSettings LoadTokenizerSettings(const std::filesystem::path& model_dir);

// The roles that `settings` names, looked up among the tokens. A name that is no token is ignored:
// published configurations have such (the model never sees it).
SpecialTokenIds FindSpecialIds(const TokenizerSettings& settings, const Vocabulary& ids);

// A whole file; Error(kIo, kNotFound) names it. Refuses more than 512 MiB.
std::string ReadTextFile(const std::filesystem::path& path);

}  // namespace moesaic
