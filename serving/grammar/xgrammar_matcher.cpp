// In place of xgrammar's grammar_matcher.cc, which it includes: what a matcher keeps is its private
// affair, and no header has it. A part of the library's target (cmake/MoesaicGrammar.cmake).
#include <grammar_matcher.cc>  // in angle brackets: it is no file of ours

#include "serving/grammar/xgrammar_matcher.h"

namespace moesaic {
namespace {

// Protected members, for who derives from it.
struct Parser : xgrammar::EarleyParser {
  static size_t Bytes(const xgrammar::EarleyParser& parser) {
    return MemorySize(parser.*(&Parser::rule_id_to_completable_states_)) +
           MemorySize(parser.*(&Parser::scanable_state_history_));
  }
};

}  // namespace

size_t GrownBytes(const xgrammar::GrammarMatcher& matcher) {
  return Parser::Bytes(*matcher.operator->());
}

}  // namespace moesaic
