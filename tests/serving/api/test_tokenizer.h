// Tokenizers for tests of the protocol. ByteTokenizer: every byte is a token, ids from 256 are
// special tokens. ListedTokenizer: tokens as they are listed, to be looked up only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/text/tokenizer.h"

namespace moesaic {

struct ListedToken {
  std::string bytes;
  bool special = false;
};

// Bytes by themselves are called "byte" and their id.
inline TokenTable TableOf(const std::vector<ListedToken>& tokens) {
  TokenTable table;
  for (const ListedToken& token : tokens) {
    const auto id = static_cast<int32_t>(table.entries.size());
    TokenTable::Entry entry;
    entry.bytes = token.bytes;
    entry.content = token.bytes.size() == 1 ? "byte" + std::to_string(id) : token.bytes;
    entry.special = token.special;
    entry.known = true;
    table.ids.Add(entry.content, id);
    table.entries.push_back(std::move(entry));
  }
  return table;
}
inline std::vector<ListedToken> AllBytes() {
  std::vector<ListedToken> tokens;
  tokens.reserve(256);
  for (int c = 0; c < 256; ++c) tokens.push_back({std::string(1, static_cast<char>(c))});
  return tokens;
}

class ListedTokenizer : public Tokenizer {
 public:
  explicit ListedTokenizer(const std::vector<ListedToken>& tokens)
      : Tokenizer(TableOf(tokens), DecodeRules(), {}) {}
  std::vector<int32_t> EncodeSegments(std::span<const TextSegment>, bool) const override {
    return {};
  }
};

class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int32_t kEnd = 256;  // "<end>"

  ByteTokenizer() : Tokenizer(MakeTable(), DecodeRules(), {{}, kEnd, {}, {}}) {}

  std::vector<int32_t> EncodeSegments(std::span<const TextSegment> segments,
                                      bool add_special_tokens) const override {
    std::vector<int32_t> ids;
    if (add_special_tokens) ids.push_back(kEnd);
    for (const TextSegment& segment : segments) {
      std::string_view text = segment.text;
      while (!text.empty()) {
        if (segment.parse_special && text.substr(0, 5) == "<end>") {
          ids.push_back(kEnd);
          text.remove_prefix(5);
        } else {
          ids.push_back(static_cast<unsigned char>(text[0]));
          text.remove_prefix(1);
        }
      }
    }
    return ids;
  }

 private:
  static TokenTable MakeTable() {
    std::vector<ListedToken> tokens = AllBytes();
    tokens.push_back({"<end>", true});
    return TableOf(tokens);
  }
};

}  // namespace moesaic
