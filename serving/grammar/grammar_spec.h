// GrammarSpec: the source of a grammar, as plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moesaic {

struct GrammarPart {
  enum class Kind {
    kText,           // exactly this
    kToken,          // one token of control
    kJsonSchema,     // JSON of a schema that CheckSchema has passed
    kRegex,          // the whole text matches it
    kEbnf,           // the rule `root` (GBNF)
    kStructuralTag,  // xgrammar's own description, in JSON
  };

  Kind kind = Kind::kText;
  std::string text = {};
  int32_t token = -1;
};

struct GrammarSpec {
  // One of these; each is its parts one behind the other.
  std::vector<std::vector<GrammarPart>> alternatives;

  // The same for equal specs only.
  std::string Key() const;
  size_t bytes() const;  // of source text
};

GrammarSpec SpecOf(GrammarPart part);

}  // namespace moesaic
