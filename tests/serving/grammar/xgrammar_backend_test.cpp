// xgrammar's library behind GrammarBackend: what a grammar accepts, of a vocabulary of single bytes
// and a few longer tokens.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "serving/grammar/grammar_backend.h"

namespace moesaic {
namespace {

using Kind = GrammarPart::Kind;

constexpr int32_t kEnd = 128;
constexpr int32_t kControl = 129;  // of no text
constexpr int32_t kWord = 130;     // "ab"
constexpr int64_t kRows = 140;     // more than tokens

class XgrammarTest : public testing::Test {
 protected:
  XgrammarTest() {
    GrammarVocabulary vocabulary;
    for (int c = 0; c < 128; ++c) vocabulary.tokens.emplace_back(1, static_cast<char>(c));
    vocabulary.tokens[0].clear();
    vocabulary.tokens.insert(vocabulary.tokens.end(), {"", "", "ab"});
    vocabulary.rows = kRows;
    vocabulary.end_tokens = {kEnd};
    backend_ = MakeGrammarBackend(std::move(vocabulary));
  }

  std::vector<int32_t> Allowed(GrammarMatch& match) {
    std::vector<int32_t> words((kRows + 31) / 32);
    match.Fill(words);
    std::vector<int32_t> tokens;
    for (int32_t token = 0; token < kRows; ++token) {
      if ((static_cast<uint32_t>(words[static_cast<size_t>(token) / 32]) >> (token % 32) & 1) != 0)
        tokens.push_back(token);
    }
    return tokens;
  }

  // Whether the text, byte by byte, is one of the grammar's, whole.
  bool Accepts(const Grammar& grammar, std::string_view text) {
    const auto match = grammar.Start();
    for (const char c : text) {
      const auto token = static_cast<int32_t>(c);
      const std::vector<int32_t> allowed = Allowed(*match);
      const bool may = std::find(allowed.begin(), allowed.end(), token) != allowed.end();
      EXPECT_EQ(match->Accept(token), may) << text;
      if (!may) return false;
    }
    return match->Accept(kEnd) && match->ended();
  }

  bool Accepts(GrammarPart part, std::string_view text) {
    return Accepts(*backend_->Compile(SpecOf(std::move(part))), text);
  }

  std::unique_ptr<GrammarBackend> backend_;
};

TEST_F(XgrammarTest, TextsWithQuotesAndEscapes) {
  const std::string text = "a \"b\"\\n\n\t{}[]\x01";
  EXPECT_TRUE(Accepts({.kind = Kind::kText, .text = text}, text));
  EXPECT_FALSE(Accepts({.kind = Kind::kText, .text = text}, "a \"b\""));
}

TEST_F(XgrammarTest, Schemas) {
  const GrammarPart part = {
      .kind = Kind::kJsonSchema,
      .text = R"({"type":"object","properties":{"a":{"type":"integer","minimum":5}},)"
              R"("required":["a"],"additionalProperties":false})"};
  EXPECT_TRUE(Accepts(part, R"({"a": 12})"));
  EXPECT_TRUE(Accepts(part, "{\n  \"a\":7}"));
  EXPECT_FALSE(Accepts(part, R"({"a": 4})"));
  EXPECT_FALSE(Accepts(part, R"({"b": 12})"));
  EXPECT_FALSE(Accepts(part, "{" + std::string(200, ' ') + R"("a": 12})"));
}

TEST_F(XgrammarTest, ExpressionsAndGrammars) {
  EXPECT_TRUE(Accepts({.kind = Kind::kRegex, .text = "[a-c]{2}(x|yz)?"}, "cayz"));
  EXPECT_FALSE(Accepts({.kind = Kind::kRegex, .text = "[a-c]{2}"}, "ad"));
  // A rule that begins with itself.
  EXPECT_TRUE(Accepts({.kind = Kind::kEbnf, .text = "root ::= root \"a\" | \"b\""}, "baaa"));
}

TEST_F(XgrammarTest, PartsFollowEachOtherAndAlternativesExclude) {
  GrammarSpec spec;
  spec.alternatives = {
      {{.kind = Kind::kText, .text = "n="}, {.kind = Kind::kRegex, .text = "[0-9]"}},
      {{.kind = Kind::kText, .text = "none"}}};
  const auto grammar = backend_->Compile(spec);
  EXPECT_TRUE(Accepts(*grammar, "n=4"));
  EXPECT_TRUE(Accepts(*grammar, "none"));
  EXPECT_FALSE(Accepts(*grammar, "n=none"));
}

TEST_F(XgrammarTest, TokensOfControlComeWhereTheyAreNamedOnly) {
  GrammarSpec spec;
  spec.alternatives = {
      {{.kind = Kind::kText, .text = "a"}, {.kind = Kind::kToken, .token = kControl}}};
  const auto match = backend_->Compile(spec)->Start();
  EXPECT_EQ(Allowed(*match), std::vector<int32_t>{'a'});
  EXPECT_TRUE(match->Accept('a'));
  EXPECT_EQ(Allowed(*match), std::vector<int32_t>{kControl});
  EXPECT_TRUE(match->Accept(kControl));
  EXPECT_EQ(Allowed(*match), std::vector<int32_t>{kEnd});

  const auto any = backend_->Compile(SpecOf({.kind = Kind::kRegex, .text = "[^x]+"}))->Start();
  for (const int32_t token : Allowed(*any)) {
    EXPECT_TRUE(token < kEnd || token == kWord) << token;
  }
}

// In the text between tags neither.
TEST_F(XgrammarTest, TokensOfControlAreNoTextOfStructuralTags) {
  const char* const tag =
      R"({"type":"structural_tag","format":{"type":"tag","begin":"<","content":{"type":"any_text"},"end":">"}})";
  const auto match =
      backend_->Compile(SpecOf({.kind = Kind::kStructuralTag, .text = tag}))->Start();
  EXPECT_TRUE(match->Accept('<'));
  for (const int32_t token : Allowed(*match)) {
    EXPECT_TRUE((token > 0 && token < kEnd) || token == kWord) << token;
  }
  const char* const named = R"({"type":"structural_tag","format":{"type":"token","token":129}})";
  const auto token =
      backend_->Compile(SpecOf({.kind = Kind::kStructuralTag, .text = named}))->Start();
  EXPECT_EQ(Allowed(*token), std::vector<int32_t>{kControl});
}

TEST_F(XgrammarTest, WhatIsWrongOrDroppedIsAnError) {
  const std::vector<GrammarPart> parts = {
      {.kind = Kind::kEbnf, .text = "root := 1"},
      {.kind = Kind::kEbnf, .text = "root ::= nobody"},
      {.kind = Kind::kRegex, .text = "(?=a)b"},
      {.kind = Kind::kStructuralTag, .text = "{}"},
      // It would warn and go on without multipleOf.
      {.kind = Kind::kJsonSchema, .text = R"({"type":"number","multipleOf":3})"},
      {.kind = Kind::kEbnf, .text = "root ::= " + std::string(5000, '(')},
  };
  for (const GrammarPart& part : parts) {
    EXPECT_THROW(backend_->Compile(SpecOf(part)), Error) << part.text.substr(0, 40);
  }
  EXPECT_TRUE(Accepts({.kind = Kind::kText, .text = "x"}, "x"));  // nothing is left of them
}

TEST_F(XgrammarTest, MatchesOfOneGrammarAreApart) {
  const auto grammar = backend_->Compile(SpecOf({.kind = Kind::kText, .text = "xy"}));
  const auto first = grammar->Start();
  const auto second = grammar->Start();
  EXPECT_TRUE(first->Accept('x'));
  EXPECT_FALSE(first->Accept('x'));
  EXPECT_TRUE(second->AcceptText("xy"));
  EXPECT_TRUE(first->Accept('y'));
  EXPECT_GT(grammar->bytes(), 0u);
  EXPECT_EQ(grammar->vocab_size(), kRows);
}

}  // namespace
}  // namespace moesaic
