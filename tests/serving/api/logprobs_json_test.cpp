#include "serving/api/logprobs_json.h"

#include <gtest/gtest.h>

#include <limits>

namespace moesaic {
namespace {

// Token 1 is "a", 2 and 3 are the two bytes of "é", 4 is " b" (at the start "b"), 5 spells like 1,
// 9 is special and not shown.
TokenText SpellWord(int32_t token, bool at_start) {
  switch (token) {
    case 1:
    case 5:
      return {"a"};
    case 2:
      return {"\xC3"};
    case 3:
      return {"\xA9"};
    case 4:
      return {at_start ? "b" : " b"};
    case 9:
      return {"<end>", false};
    default:
      return {""};
  }
}

GeneratedToken Token(int32_t id, float logprob, std::vector<TokenLogprob> top = {}) {
  return GeneratedToken{id, logprob, std::move(top)};
}

TEST(LogprobsJsonTest, TokensThatAreNotTextAreSpeltInHex) {
  EXPECT_EQ(TokenString("\xC3\xA9"), "\xC3\xA9");
  EXPECT_EQ(TokenString("\xC3"), "bytes:\\xc3");
  EXPECT_EQ(TokenString("a\xFF"), "bytes:\\x61\\xff");
}

TEST(LogprobsJsonTest, OffsetsCountCharacters) {
  OffsetCounter offsets;
  EXPECT_EQ(offsets.Next("\xC3\xA9"), 0);
  EXPECT_EQ(offsets.Next("ab"), 1);
  EXPECT_EQ(offsets.Next(""), 3);
  EXPECT_EQ(offsets.Next("\xF0\x9F"), 3);  // an emoji in two tokens
  EXPECT_EQ(offsets.Next("\x98\x80"), 3);
  EXPECT_EQ(offsets.Next("c"), 4);
}

TEST(LogprobsJsonTest, CompletionLogprobs) {
  const TokenSpeller spell = SpellWord;
  OffsetCounter offsets;
  CompletionLogprobs logprobs(offsets, spell, 2);
  logprobs.AddPrompt(1, std::vector{Token(2, -0.5f, {{4, -0.25f}, {2, -0.5f}, {1, -3.f}})}, 0);
  logprobs.Add(Token(3, -std::numeric_limits<float>::infinity(), {{1, -1.f}, {5, -2.f}}));
  EXPECT_EQ(
      DumpJson(logprobs.Take()),
      R"({"tokens":["a","bytes:\\xc3","bytes:\\xa9"],"token_logprobs":[null,-0.5,-9999.0],)"
      R"("top_logprobs":[null,{" b":-0.25,"bytes:\\xc3":-0.5},{"a":-1.0,"bytes:\\xa9":-9999.0}],)"
      R"("text_offset":[0,1,1]})");
}

TEST(LogprobsJsonTest, TheChosenTokenIsAmongTheTop) {
  const TokenSpeller spell = SpellWord;
  OffsetCounter offsets(10);
  CompletionLogprobs logprobs(offsets, spell, 0);
  logprobs.Add(Token(4, -2.f, {{1, -0.5f}}));
  const Json json = logprobs.Take();
  EXPECT_EQ(DumpJson(json["top_logprobs"]), R"([{" b":-2.0}])");
  EXPECT_EQ(DumpJson(json["text_offset"]), "[10]");
}

TEST(LogprobsJsonTest, SpecialTokensInLogprobs) {
  const TokenSpeller spell = SpellWord;
  OffsetCounter offsets;
  CompletionLogprobs logprobs(offsets, spell, 0);
  // The first one was added by the tokenizer and is not in the echoed text, the third was written
  // there.
  logprobs.AddPrompt(9, std::vector{Token(4, -1.f), Token(9, -1.f), Token(4, -1.f)}, 1);
  logprobs.Add(Token(9, -1.f));  // generated: left out of the text
  logprobs.Add(Token(1, -1.f));
  const Json json = logprobs.Take();
  EXPECT_EQ(DumpJson(json["tokens"]), R"(["<end>","b","<end>"," b","<end>","a"])");
  EXPECT_EQ(DumpJson(json["text_offset"]), "[0,0,1,6,8,8]");
}

TEST(LogprobsJsonTest, ChatLogprobs) {
  const std::vector<GeneratedToken> tokens = {Token(2, -0.5f, {{2, -0.5f}, {1, -1.f}})};
  EXPECT_EQ(
      DumpJson(ChatLogprobs(tokens, 1, SpellWord)),
      R"({"content":[{"token":"bytes:\\xc3","logprob":-0.5,"bytes":[195],)"
      R"("top_logprobs":[{"token":"bytes:\\xc3","logprob":-0.5,"bytes":[195]}]}],"refusal":null})");
}

TEST(LogprobsJsonTest, PromptLogprobs) {
  const std::vector<GeneratedToken> tokens = {Token(4, -2.f, {{1, -0.5f}}),
                                              Token(1, -1.f, {{1, -1.f}})};
  EXPECT_EQ(DumpJson(PromptLogprobs(tokens, 1, SpellWord)),
            R"([null,{"1":{"logprob":-0.5,"rank":1,"decoded_token":"a"},)"
            R"("4":{"logprob":-2.0,"rank":null,"decoded_token":" b"}},)"
            R"({"1":{"logprob":-1.0,"rank":1,"decoded_token":"a"}}])");
}

}  // namespace
}  // namespace moesaic
