// HeldGrammar: a compiled grammar whose memory, and that of its matches and their masks, is counted
// (grammar_memory.h).
#pragma once

#include <memory>

#include "serving/grammar/grammar.h"
#include "serving/grammar/grammar_memory.h"

namespace moesaic {

// `part` has the grammar's bytes. A match throws Error(kResourceExhausted) where there is no room
// for it any more, when it starts and later.
std::shared_ptr<const Grammar> HoldGrammar(std::shared_ptr<const Grammar> grammar,
                                           std::shared_ptr<GrammarMemory> memory,
                                           GrammarMemory::Part part);

}  // namespace moesaic
