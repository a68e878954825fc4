// A schema's `pattern` for the content of a JSON string, spelt so that xgrammar 0.2.8 writes JSON.
// It leaves out of a pattern what a string has only escaped, but not in repetitions of many times,
// nor where the pattern has a character beyond ASCII, nor where nothing would be left of it. Its
// own lengths of strings let control characters through.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moesaic {

// The texts that match all of `pattern` and need no escape in a JSON string. Throws
// Error(kInvalidArgument): for what is no expression, for assertions, and where a single character
// could only come escaped.
std::string JsonStringPattern(std::string_view pattern);

// Likewise of any text of so many characters; `most` negative: no bound.
std::string JsonStringOfLength(int64_t least, int64_t most);

}  // namespace moesaic
