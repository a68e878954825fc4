// How long a model may think: when its thinking is ended, and when it is left alone.
#include "serving/engine/thinking_budget.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

std::shared_ptr<ThinkingLimit> Limit(int32_t tokens, bool begun = false) {
  auto limit = std::make_shared<ThinkingLimit>();
  limit->max_tokens = tokens;
  limit->begun = begun;
  limit->begin = "<think>";
  limit->end = "</think>";
  limit->end_tokens = {7, 8};
  return limit;
}

// After how many of these tokens the end is forced; -1: never. All of it is forced then, and
// nothing more.
int ForcedAfter(const std::shared_ptr<ThinkingLimit>& limit,
                const std::vector<std::string>& tokens) {
  ThinkingBudget budget(limit);
  int given = 0;
  for (const std::string& token : tokens) {
    if (budget.Forced()) break;
    budget.Append(token);
    ++given;
  }
  if (!budget.Forced()) return -1;
  for (const int32_t token : limit->end_tokens) {
    EXPECT_EQ(budget.Forced(), token);
    budget.Append("anything");
  }
  EXPECT_FALSE(budget.Forced());
  budget.Append("<think>");
  EXPECT_FALSE(budget.Forced());
  return given;
}

TEST(ThinkingBudgetTest, ThinkingThatIsTooLongIsEnded) {
  const std::vector<std::string> tokens = {"<th", "ink>", "\n", "a", "b", "c", "d", "e"};
  EXPECT_EQ(ForcedAfter(Limit(5), tokens), 5);
  EXPECT_EQ(ForcedAfter(Limit(8), tokens), 8);
  EXPECT_EQ(ForcedAfter(Limit(9), tokens), -1);
  // It ends as soon as it is known to have begun.
  EXPECT_EQ(ForcedAfter(Limit(0), tokens), 2);
  EXPECT_EQ(ForcedAfter(Limit(1), {"\n", " <think>", "a"}), 2);
}

TEST(ThinkingBudgetTest, ThinkingThatThePromptOpened) {
  EXPECT_EQ(ForcedAfter(Limit(2, true), {"a", "b", "c"}), 2);
  EXPECT_EQ(ForcedAfter(Limit(0, true), {"a"}), 0);
}

TEST(ThinkingBudgetTest, ThinkingThatEndsInTime) {
  const std::vector<std::string> tokens = {"<think>", "a", "b</th", "ink>", "x", "y", "z"};
  EXPECT_EQ(ForcedAfter(Limit(4), tokens), -1);
  EXPECT_EQ(ForcedAfter(Limit(3), tokens), 3);
  EXPECT_EQ(ForcedAfter(Limit(2, true), {"</thi", "nk>", "x", "y"}), -1);
  EXPECT_EQ(ForcedAfter(Limit(2, true), {"a long thought</thi", "nk>", "x", "y"}), -1);
  EXPECT_EQ(ForcedAfter(Limit(1), {"<think></think>", "x", "y"}), -1);
}

TEST(ThinkingBudgetTest, AnAnswerWithoutThinking) {
  EXPECT_EQ(ForcedAfter(Limit(1), {"Yes", "<think>", "a", "b"}), -1);
  EXPECT_EQ(ForcedAfter(Limit(1), {"<thank>", "a", "b"}), -1);
  EXPECT_EQ(ForcedAfter(Limit(1), {"", "", "", ""}), -1);
}

}  // namespace
}  // namespace moesaic
