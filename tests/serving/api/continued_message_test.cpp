#include "serving/api/continued_message.h"

#include <gtest/gtest.h>

#include "serving/api/api_error.h"

namespace moesaic {
namespace {

std::string Cut(const std::string& prompt, const std::string& content) {
  const Json messages = Json::array({Json{{"role", "assistant"}, {"content", content}}});
  return CutAfterFinalMessage(jinja::MarkedText(prompt), messages).bytes();
}

TEST(ContinuedMessageTest, CutsBehindTheLastContent) {
  EXPECT_EQ(Cut("[user]hey[assistant]hey<end>", "hey"), "[user]hey[assistant]hey");
  EXPECT_EQ(Cut("[a]so <end>", "so "), "[a]so ");  // the template kept the space
  EXPECT_EQ(Cut("[a]so<end>", " so "), "[a]so");   // the template trimmed it
  EXPECT_EQ(Cut("[a] so<end>", " so"), "[a] so");
}

TEST(ContinuedMessageTest, TheTemplatesOwnTextIsNotTheContent) {
  jinja::MarkedText prompt("[a]");
  prompt.Append("<end>", true);
  prompt.Append("<end>", false);
  const Json messages = Json::array({Json{{"role", "assistant"}, {"content", "<end>"}}});
  const jinja::MarkedText cut = CutAfterFinalMessage(prompt, messages);
  EXPECT_EQ(cut.bytes(), "[a]<end>");
  EXPECT_TRUE(cut.FromInput(3));
}

TEST(ContinuedMessageTest, RefusesWhatIsNotThere) {
  EXPECT_THROW(Cut("[a]<end>", "x"), ApiError);
  EXPECT_THROW(Cut("[a]<end>", ""), ApiError);
  EXPECT_THROW(Cut("[a] <end>", "  "), ApiError);
  for (const Json& message :
       {Json{{"role", "assistant"}, {"content", nullptr}}, Json{{"role", "assistant"}}}) {
    EXPECT_THROW(CutAfterFinalMessage(jinja::MarkedText("[a]"), Json::array({message})), ApiError);
  }
}

}  // namespace
}  // namespace moesaic
