// Tokenizer: text to token ids and back, of one model.
//
// Immutable after loading; every method may be called by several threads at once. The owner is
// whoever loaded it (the engine); everything else holds a reference.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "serving/text/vocabulary.h"

namespace moesaic {

struct EncodeOptions {
  bool add_special_tokens = true;  // what the model wants around a text (a BOS token)
  bool parse_special = true;       // "<|im_end|>" in the text is the special token, not characters
};

// A span of a prompt. Template text may name special tokens; in what users wrote they are text.
struct TextSegment {
  std::string_view text;
  bool parse_special = false;
};

// The ids of tokens with a role, where the model's files name them.
struct SpecialTokenIds {
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  std::optional<int32_t> unk;
  std::optional<int32_t> pad;
};

// Everything known of the tokens, by id.
struct TokenTable {
  struct Entry {
    std::string content;   // as the vocabulary writes it ("Ġthe"); empty where there is no token
    std::string bytes;     // what it adds to a text (" the")
    bool special = false;  // left out by Decode(skip_special)
    bool known = false;
  };
  std::vector<Entry> entries;
  Vocabulary ids;                                        // content -> id
  std::unordered_map<int32_t, std::string> first_bytes;  // where a text's first token differs
};

// What decoding does besides joining the bytes of the tokens.
struct DecodeRules {
  std::string separator;        // between tokens; " " where the file names no decoder
  std::string strip_character;  // one character, taken off the whole text's ends:
  int32_t strip_left = 0;       // at most so many at the front,
  int32_t strip_right = 0;      // and at the back
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Invalid UTF-8 counts as U+FFFD. Throws Error(kInvalidArgument) for a text that cannot be
  // encoded (it makes the pre-tokenizer's pattern exceed its limits, or is longer than 1 GiB).
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Encodes the segments' joined text. A border between segments is no border between words;
  // special tokens are found only where they lie wholly in parse_special text.
  virtual std::vector<int32_t> EncodeSegments(std::span<const TextSegment> segments,
                                              bool add_special_tokens) const = 0;

  // The text of whole `ids`, as valid UTF-8: invalid bytes become U+FFFD. Ids without a token add
  // nothing.
  std::string Decode(std::span<const int32_t> ids, bool skip_special = true) const;

  // What the token adds to a text: any bytes, not always whole characters. Empty for ids without a
  // token (models often have more rows than tokens).
  std::string_view TokenBytes(int32_t id) const;
  // The same for a text's first token, which may lose a leading space mark.
  std::string_view FirstTokenBytes(int32_t id) const;

  int32_t vocab_size() const { return static_cast<int32_t>(table_.entries.size()); }
  // The token as the vocabulary writes it; empty for ids without a token.
  std::string_view IdToToken(int32_t id) const;
  std::optional<int32_t> TokenToId(std::string_view token) const;
  bool IsSpecial(int32_t id) const;

  const SpecialTokenIds& special_ids() const { return special_ids_; }
  const DecodeRules& decode_rules() const { return rules_; }

 protected:
  Tokenizer(TokenTable table, DecodeRules rules, SpecialTokenIds special_ids);

 private:
  const TokenTable::Entry* Find(int32_t id) const {
    if (id < 0 || static_cast<size_t>(id) >= table_.entries.size()) return nullptr;
    return &table_.entries[static_cast<size_t>(id)];
  }

  const TokenTable table_;
  const DecodeRules rules_;
  const SpecialTokenIds special_ids_;
};

// Loads the tokenizer of a GGUF model (core/io/gguf.h), or of a directory: tokenizer.json, else
// tokenizer.model (SentencePiece), with tokenizer_config.json, special_tokens_map.json and
// added_tokens.json where they exist. Throws Error that names the file and the place in it.
std::unique_ptr<Tokenizer> LoadTokenizer(const std::filesystem::path& model_dir);

}  // namespace moesaic
