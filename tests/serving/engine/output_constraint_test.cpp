#include "serving/engine/output_constraint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace moesaic {
namespace {

// Tokens: 0..9 are the letters 'a'..'j'; 10 ends a text; 11 begins thinking; 12 calls; 13 is of no
// text. The grammar: "abc", then the end.
constexpr int32_t kEnd = 10;
constexpr int32_t kThink = 11;
constexpr int32_t kCall = 12;
constexpr size_t kRows = 40;  // more than one word, the last one not whole
const std::vector<int32_t> kEnds = {kEnd};

class WordMatch final : public GrammarMatch {
 public:
  explicit WordMatch(std::string word) : word_(std::move(word)) {}
  void Fill(std::span<int32_t> words) override {
    for (int32_t& word : words) word = 0;
    if (at_ < word_.size() && word_[at_] == '!') return;  // nothing may come
    words[0] = at_ < word_.size() ? 1 << (word_[at_] - 'a') : 1 << kEnd;
    words[1] = ~0xff;  // of rows that there are not
  }
  bool Accept(int32_t token) override {
    if (at_ == word_.size()) return ended_ = token == kEnd;
    if (token != word_[at_] - 'a') return false;
    ++at_;
    return true;
  }
  bool AcceptText(std::string_view text) override {
    if (word_.compare(at_, text.size(), text) != 0) return false;
    at_ += text.size();
    return true;
  }
  bool ended() const override { return ended_; }

 private:
  std::string word_;
  size_t at_ = 0;
  bool ended_ = false;
};

class WordGrammar final : public Grammar {
 public:
  explicit WordGrammar(std::string word) : word_(std::move(word)) {}
  std::unique_ptr<GrammarMatch> Start() const override {
    return std::make_unique<WordMatch>(word_);
  }
  size_t bytes() const override { return 0; }
  int64_t vocab_size() const override { return kRows; }
  std::span<const int32_t> end_tokens() const override { return kEnds; }

 private:
  std::string word_;
};

std::shared_ptr<OutputConstraint> Abc() {
  auto constraint = std::make_shared<OutputConstraint>();
  constraint->grammar = std::make_shared<WordGrammar>("abc");
  return constraint;
}

std::vector<int32_t> Allowed(ConstraintState& state, std::vector<int32_t> forbidden = {}) {
  std::vector<float> logits(kRows, 1.0f);
  state.Mask(forbidden, logits);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < kRows; ++i) {
    if (std::isfinite(logits[i])) tokens.push_back(static_cast<int32_t>(i));
  }
  return tokens;
}

using Tokens = std::vector<int32_t>;

TEST(OutputConstraint, OnlyTheGrammarsTokensUntilItEnds) {
  ConstraintState state(Abc());
  for (const int32_t token : {0, 1, 2, kEnd}) {
    EXPECT_EQ(Allowed(state), Tokens{token});
    EXPECT_FALSE(state.ended());
    state.Append(token, "", false);
  }
  EXPECT_TRUE(state.ended());
}

TEST(OutputConstraint, AnEndThatIsForbiddenComesWhereNothingElseMay) {
  ConstraintState state(Abc());
  EXPECT_EQ(Allowed(state, {kEnd, -1, 1000}), Tokens{0});
  for (const int32_t token : {0, 1, 2}) state.Append(token, "", false);
  EXPECT_EQ(Allowed(state, {kEnd}), Tokens{kEnd});
}

TEST(OutputConstraint, ATokenThatDoesNotFitFails) {
  ConstraintState state(Abc());
  EXPECT_THROW(state.Append(1, "b", false), Error);
}

TEST(OutputConstraint, WhereNothingMayComeItFails) {
  auto constraint = Abc();
  constraint->grammar = std::make_shared<WordGrammar>("a!");
  ConstraintState state(constraint);
  state.Append(0, "a", false);
  EXPECT_THROW(Allowed(state), Error);
}

TEST(OutputConstraint, WhatComesBeforeIsFreeButForTheEnd) {
  auto constraint = Abc();
  constraint->begins_behind = "</t>";
  ConstraintState state(constraint);
  EXPECT_EQ(Allowed(state).size(), kRows - 1);
  state.Append(5, "hmm </", false);
  EXPECT_EQ(Allowed(state).size(), kRows - 1);
  state.Append(6, "t>\n\n", false);
  EXPECT_EQ(Allowed(state), Tokens{0});
}

TEST(OutputConstraint, ATokenMayGoOnBehindTheMarker) {
  auto constraint = Abc();
  constraint->begins_behind = "</t>";
  ConstraintState state(constraint);
  state.Append(6, "</t>\nab", false);
  EXPECT_EQ(Allowed(state), Tokens{2});
  ConstraintState other(constraint);
  EXPECT_THROW(other.Append(6, "</t>\nx", false), Error);
}

TEST(OutputConstraint, TokensThatABudgetForcesAreNotTheGrammars) {
  auto constraint = Abc();
  constraint->begins_behind = "</t>";
  ConstraintState state(constraint);
  state.Append(6, "</t>", true);
  state.Append(7, "\n\n", true);
  EXPECT_EQ(Allowed(state), Tokens{0});
}

TEST(OutputConstraint, MayThinkFirstButOnce) {
  auto constraint = Abc();
  constraint->thinking_tokens = {kThink};
  constraint->thinking_end = "</t>";
  ConstraintState state(constraint);
  EXPECT_EQ(Allowed(state), (Tokens{0, kThink}));
  state.Append(kThink, "<t>", false);
  EXPECT_EQ(Allowed(state).size(), kRows - 1);
  state.Append(3, "x</t>", false);
  EXPECT_EQ(Allowed(state), Tokens{0});
}

TEST(OutputConstraint, ACallReleasesTheRest) {
  auto constraint = Abc();
  constraint->releasing_tokens = {kCall};
  ConstraintState state(constraint);
  EXPECT_EQ(Allowed(state), (Tokens{0, kCall}));
  state.Append(kCall, "<call>", false);
  EXPECT_EQ(Allowed(state).size(), kRows);
  EXPECT_EQ(Allowed(state, {kEnd}).size(), kRows - 1);
  state.Append(9, "j", false);
  EXPECT_FALSE(state.ended());
}

}  // namespace
}  // namespace moesaic
