// Translation of the regular expressions in tokenizer.json, which are meant for Oniguruma with its
// Ruby syntax, into PCRE2's syntax (to be compiled with UTF, UCP and MULTILINE).
//
// The two agree on most patterns; what differs in meaning is rewritten: \s, \w and \b (other
// character sets), \h and \v, (?m) (dot matches newline), \uXXXX, {,n}, long property names, script
// properties, nested classes and intersections. What cannot be expressed is refused.
#pragma once

#include <string>
#include <string_view>

namespace moesaic {

// `where` begins the message of an Error(kUnsupported or kCorrupt).
std::string TranslateOnigurumaToPcre2(std::string_view pattern, std::string_view where);

}  // namespace moesaic
