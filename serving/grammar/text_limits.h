// CheckGrammarText: whether a client's regular expression or grammar is small enough to be
// compiled: its length, how deep its brackets are nested, and what its repetitions multiply to.
#pragma once

#include <cstddef>
#include <string_view>

namespace moesaic {

struct GrammarTextLimits {
  size_t max_bytes = 64 << 10;
  size_t max_depth = 64;
  // Characters and references once every {m,n} is written out. xgrammar takes about 100 bytes for
  // each.
  double max_atoms = 50'000;
};

// Throws Error(kInvalidArgument).
void CheckGrammarText(std::string_view text, const GrammarTextLimits& limits = {});

}  // namespace moesaic
