#include "serving/engine/output_constraint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "serving/engine/mask_ahead.h"

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
  bool complete() const override { return at_ == word_.size(); }
  bool ended() const override { return ended_; }
  size_t bytes() const override { return 0; }

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

// "<c>" begins a call, whose rest is "abc".
std::shared_ptr<OutputConstraint> Calls() {
  auto constraint = std::make_shared<OutputConstraint>();
  constraint->calls = {{"<c>", false, std::make_shared<WordGrammar>("abc")}};
  constraint->reasoning_begin = "<t>";
  constraint->reasoning_end = "</t>";
  return constraint;
}

TEST(HeldCalls, OnlyACallIsHeldAndTheNextOneToo) {
  ConstraintState state(Calls());
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(state.free());
    EXPECT_EQ(Allowed(state).size(), kRows);
    EXPECT_EQ(Allowed(state, {kEnd}).size(), kRows - 1);
    state.Append(5, "text <", false);
    state.Append(6, "c", false);
    EXPECT_TRUE(state.free());
    state.Append(7, ">", false);
    for (const int32_t token : {0, 1, 2}) {
      EXPECT_FALSE(state.free());
      EXPECT_EQ(Allowed(state), Tokens{token});
      state.Append(token, "", false);
    }
    EXPECT_FALSE(state.ended());
  }
}

TEST(HeldCalls, ATokenMayGoOnInTheCallOrBesideIt) {
  ConstraintState state(Calls());
  state.Append(5, "<c>ab", false);
  EXPECT_EQ(Allowed(state), Tokens{2});
  ConstraintState other(Calls());
  other.Append(5, "<c>x <c>abc", false);  // the first is none, the second is whole
  EXPECT_TRUE(other.free());
  EXPECT_EQ(Allowed(other).size(), kRows);
  other.Append(5, "<c>", false);
  EXPECT_EQ(Allowed(other), Tokens{0});
}

TEST(HeldCalls, ReasoningOnlyMentionsThemButForTokensOfControl) {
  auto constraint = Calls();
  ConstraintState state(constraint);
  state.Append(5, "<t> <c>", false);
  EXPECT_TRUE(state.free());
  state.Append(5, "</t><c>", false);
  EXPECT_EQ(Allowed(state), Tokens{0});
  constraint = Calls();
  constraint->begins_in_reasoning = true;
  ConstraintState begun(constraint);
  begun.Append(5, "<c>", false);
  EXPECT_TRUE(begun.free());
  constraint->calls[0].also_in_reasoning = true;
  ConstraintState control(constraint);
  control.Append(5, "<c>", false);
  EXPECT_EQ(Allowed(control), Tokens{0});
}

TEST(HeldCalls, WhereACallEndsTheOutputOnlyTheEndMayFollow) {
  auto constraint = Calls();
  constraint->call_ends_output = true;
  ConstraintState state(constraint);
  state.Append(5, "<c>", false);
  for (const int32_t token : {0, 1, 2, kEnd}) {
    EXPECT_EQ(Allowed(state), Tokens{token});
    state.Append(token, "", false);
  }
  EXPECT_TRUE(state.ended());
}

TEST(HeldCalls, InPlaceOfAFormat) {
  auto constraint = Abc();
  constraint->releasing_tokens = {kCall};
  constraint->calls = {{"<call>", true, std::make_shared<WordGrammar>("de")}};
  ConstraintState state(constraint);
  EXPECT_EQ(Allowed(state), (Tokens{0, kCall}));
  state.Append(kCall, "<call>", false);
  EXPECT_EQ(Allowed(state), Tokens{3});
  state.Append(3, "d", false);
  state.Append(4, "e", false);
  EXPECT_TRUE(state.free());
}

TEST(MaskAhead, MasksThatAnotherThreadMakesAreTheSame) {
  MaskMaker maker;
  for (int round = 0; round < 200; ++round) {
    std::vector<ConstraintState> states;
    states.reserve(3);
    for (int i = 0; i < 3; ++i) states.emplace_back(Abc());
    for (const int32_t token : {0, 1, 2, kEnd}) {
      for (ConstraintState& state : states) maker.Queue(state.NextMask());
      // One is taken back untouched, one is queued twice; the others are made here or there.
      maker.Queue(states[1].NextMask());
      for (size_t i = round % 2 == 0 ? 0 : 1; i < states.size(); ++i) {
        ASSERT_EQ(Allowed(states[i]), Tokens{token});
      }
      for (ConstraintState& state : states) state.Append(token, "", false);
    }
    for (const ConstraintState& state : states) ASSERT_TRUE(state.ended());
  }
}

TEST(MaskAhead, AMatchMayGoWhileItsMaskIsMade) {
  MaskMaker maker;
  for (int i = 0; i < 200; ++i) maker.Queue(ConstraintState(Abc()).NextMask());
}

TEST(MaskAhead, WhyThereIsNoneIsToldWhereItIsWanted) {
  class Failing final : public GrammarMatch {
   public:
    void Fill(std::span<int32_t> /*words*/) override { Fail(ErrorKind::kInternal, "no mask"); }
    bool Accept(int32_t /*token*/) override { return true; }
    bool AcceptText(std::string_view /*text*/) override { return true; }
    bool complete() const override { return false; }
    bool ended() const override { return false; }
    size_t bytes() const override { return 0; }
  };
  class FailingGrammar final : public Grammar {
   public:
    std::unique_ptr<GrammarMatch> Start() const override { return std::make_unique<Failing>(); }
    size_t bytes() const override { return 0; }
    int64_t vocab_size() const override { return kRows; }
    std::span<const int32_t> end_tokens() const override { return kEnds; }
  };
  MaskMaker maker;
  auto constraint = std::make_shared<OutputConstraint>();
  constraint->grammar = std::make_shared<FailingGrammar>();
  ConstraintState state(constraint);
  for (int i = 0; i < 50; ++i) {
    maker.Queue(state.NextMask());
    EXPECT_THROW(Allowed(state), Error);
  }
}

}  // namespace
}  // namespace moesaic
