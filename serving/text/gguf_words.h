// How texts are cut into words by the name that a GGUF file gives (tokenizer.ggml.pre). Internal
// to serving/text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace moesaic {

// The rules as tokenizer.json writes them.
struct GgufWords {
  nlohmann::json normalizer;
  nlohmann::json pre_tokenizer;
  bool ignore_merges = false;  // a word that is a token is that token, whatever the merges say
  bool add_bos = false;        // where the file does not say
};

// `where` stands for the place in messages. Throws Error(kUnsupported) for a name whose rules are
// not known: guessed ones would give other tokens than the model was trained with.
GgufWords FindGgufWords(std::string_view pre, std::string_view where);

}  // namespace moesaic
