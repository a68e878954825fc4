// TokenDecoder: the "decoder" of tokenizer.json, split into what happens to each token and what
// happens to the joined text (DecodeRules). Used while loading.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/json_fields.h"
#include "serving/text/normalizer.h"
#include "serving/text/regex.h"
#include "serving/text/tokenizer.h"

namespace moesaic {

class TokenDecoder {
 public:
  // No decoder: tokens are joined with spaces.
  TokenDecoder() { rules_.separator = " "; }
  explicit TokenDecoder(const JsonFields& node);

  const DecodeRules& rules() const { return rules_; }
  // True when a text's first token decodes in its own way.
  bool first_differs() const;

  // The bytes that a token adds to a text. `added`: the token is an added one, whose content is
  // text already and no writing of bytes.
  std::string Bytes(std::string_view content, bool added, bool first, RegexScratch& scratch) const;

 private:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Metaspace {
    std::string replacement;
    bool drop_at_first;
  };
  struct Replace {
    TextPattern pattern;
    std::string content;
  };
  struct Strip {
    std::string character;
    int32_t left;
    int32_t right;
  };
  using Step = std::variant<ByteLevel, ByteFallback, Metaspace, Replace, Strip>;

  void AddStep(const JsonFields& node);

  std::vector<Step> steps_;
  DecodeRules rules_;
  bool fused_ = false;  // a Fuse has been seen: later steps see the whole text
};

}  // namespace moesaic
