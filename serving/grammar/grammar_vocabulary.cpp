#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "serving/grammar/grammar_backend.h"
#include "serving/text/tokenizer.h"

namespace moesaic {

GrammarVocabulary VocabularyOf(const Tokenizer& tokenizer, int64_t rows,
                               std::vector<int32_t> end_tokens) {
  if (!tokenizer.decode_rules().separator.empty()) {
    Fail(ErrorKind::kUnsupported,
         "structured output: this model's tokenizer puts something between tokens");
  }
  std::erase_if(end_tokens, [&](int32_t token) { return token < 0 || token >= rows; });
  if (end_tokens.empty()) {
    Fail(ErrorKind::kUnsupported,
         "structured output: this model has no token that ends a text (eos_token_id)");
  }
  GrammarVocabulary vocabulary;
  vocabulary.rows = rows;
  vocabulary.end_tokens = std::move(end_tokens);
  vocabulary.tokens.resize(
      static_cast<size_t>(std::min<int64_t>(rows, static_cast<int64_t>(tokenizer.vocab_size()))));
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (!tokenizer.IsSpecial(id)) vocabulary.tokens[i] = tokenizer.TokenBytes(id);
  }
  return vocabulary;
}

}  // namespace moesaic
