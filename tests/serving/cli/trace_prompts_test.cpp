#include "serving/cli/trace_prompts.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace moesaic {
namespace {

TEST(TracePromptsTest, TakesObjectsAndPlainLines) {
  const std::vector<TracePrompt> prompts = ParseTracePrompts(
      "{\"prompt\":\"a\",\"id\":\"x\",\"domain\":\"d\"}\r\n"
      "\n"
      "{\"turns\":[\"b\",\"c\"],\"question_id\":81,\"category\":\"maths\"}\n"
      "  plain text \n"
      "{\"prompt\":\"\",\"question\":\"q\"}",
      "f.jsonl", "none");
  ASSERT_EQ(prompts.size(), 4u);
  EXPECT_EQ(prompts[0].text, "a");
  EXPECT_EQ(prompts[0].id, "x");
  EXPECT_EQ(prompts[0].domain, "d");
  EXPECT_EQ(prompts[1].text, "b");
  EXPECT_EQ(prompts[1].id, "81");
  EXPECT_EQ(prompts[1].domain, "maths");
  EXPECT_EQ(prompts[2].text, "  plain text ");
  EXPECT_EQ(prompts[2].id, "f.jsonl:4");
  EXPECT_EQ(prompts[2].domain, "none");
  EXPECT_EQ(prompts[3].text, "q");
  EXPECT_TRUE(ParseTracePrompts("", "f", "").empty());
}

TEST(TracePromptsTest, MessagesNameFileAndLine) {
  for (const char* bad : {"x\n{\"answer\":\"a\"}", "x\n{\"prompt\":", "x\n{\"prompt\":[]}"}) {
    try {
      ParseTracePrompts(bad, "f.jsonl", "");
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find("f.jsonl:2:"), 0u) << error.what();
    }
  }
}

}  // namespace
}  // namespace moesaic
