// ByteTokenizer: every byte is a token; ids from 256 are special tokens. For tests of the protocol.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "serving/text/tokenizer.h"

namespace moesaic {

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
    TokenTable table;
    for (int i = 0; i <= kEnd; ++i) {
      TokenTable::Entry entry;
      entry.content = i == kEnd ? "<end>" : "byte" + std::to_string(i);
      entry.bytes = i == kEnd ? "<end>" : std::string(1, static_cast<char>(i));
      entry.special = i == kEnd;
      entry.known = true;
      table.entries.push_back(std::move(entry));
    }
    return table;
  }
};

}  // namespace moesaic
