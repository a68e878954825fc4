// How much memory a matcher of xgrammar's has: its library does not say.
#pragma once

#include <xgrammar/matcher.h>

#include <cstddef>

namespace moesaic {

// Of what grows with its output, without the spare room of vectors. Takes no time worth mention.
size_t GrownBytes(const xgrammar::GrammarMatcher& matcher);

}  // namespace moesaic
