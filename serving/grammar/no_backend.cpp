#include "serving/grammar/grammar_backend.h"

namespace moesaic {

const char* GrammarBackendName() { return ""; }

std::unique_ptr<GrammarBackend> MakeGrammarBackend(GrammarVocabulary /*vocabulary*/) {
  return nullptr;
}

}  // namespace moesaic
