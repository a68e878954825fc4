// GrammarBackend: compiles grammars for one vocabulary. There is one, xgrammar's library, where the
// build has it (MOESAIC_GRAMMAR); no other file knows it.
//
// Thread contract: Compile may be called by several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serving/grammar/grammar.h"
#include "serving/grammar/grammar_spec.h"

namespace moesaic {

class Tokenizer;

class GrammarBackend {
 public:
  virtual ~GrammarBackend() = default;
  // Throws Error: kInvalidArgument for a source that is wrong, or of which something would be
  // dropped.
  virtual std::shared_ptr<const Grammar> Compile(const GrammarSpec& spec) = 0;
  // Of memory, about: its tables of the vocabulary, without grammars.
  virtual size_t bytes() const = 0;
};

struct GrammarVocabulary {
  std::vector<std::string> tokens;  // their bytes; empty: never part of a text
  int64_t rows = 0;                 // of the logits, at least as many
  std::vector<int32_t> end_tokens;  // at least one
};

// Special tokens are no part of a text. Throws Error(kUnsupported) where texts are not the tokens'
// bytes one behind the other, or nothing ends a text.
GrammarVocabulary VocabularyOf(const Tokenizer& tokenizer, int64_t rows,
                               std::vector<int32_t> end_tokens);

// What the build has; empty: nothing, and MakeGrammarBackend returns null.
const char* GrammarBackendName();
std::unique_ptr<GrammarBackend> MakeGrammarBackend(GrammarVocabulary vocabulary);

}  // namespace moesaic
