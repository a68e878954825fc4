#include "serving/grammar/text_limits.h"

#include <gtest/gtest.h>

#include <string>

#include "core/base/error.h"

namespace moesaic {
namespace {

bool Passes(const std::string& text, const GrammarTextLimits& limits = {}) {
  try {
    CheckGrammarText(text, limits);
  } catch (const Error&) {
    return false;
  }
  return true;
}

TEST(GrammarText, OrdinaryOnesPass) {
  EXPECT_TRUE(Passes(R"(^\d{4}-\d{2}-\d{2}$)"));
  EXPECT_TRUE(Passes("root ::= \"(\" [a-z{}()]+ (\"x\" | root){1,64}\n"));
  EXPECT_TRUE(Passes("a{not a repetition} {1,2"));
  EXPECT_TRUE(Passes(")))"));
}

TEST(GrammarText, RepetitionsMultiply) {
  EXPECT_TRUE(Passes("(a{100}){100}"));
  EXPECT_FALSE(Passes("((a{100}){100}){100}"));
  EXPECT_FALSE(Passes("(abc){20000}"));
  EXPECT_FALSE(Passes("a{1,99999999999999999999}"));
}

TEST(GrammarText, DepthAndLength) {
  EXPECT_TRUE(Passes(std::string(63, '(') + std::string(63, ')')));
  EXPECT_FALSE(Passes(std::string(64, '(')));
  GrammarTextLimits limits;
  limits.max_bytes = 3;
  EXPECT_TRUE(Passes("abc", limits));
  EXPECT_FALSE(Passes("abcd", limits));
}

}  // namespace
}  // namespace moesaic
