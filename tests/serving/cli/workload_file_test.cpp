#include "serving/cli/workload_file.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace moesaic {
namespace {

Workload ParseLines(const std::string& text) {
  return ParseWorkloadLines(text, "w.jsonl", 128,
                            [](std::string_view t) { return static_cast<int64_t>(t.size()); });
}

std::string WorkloadLinesRefusal(const std::string& text) {
  try {
    ParseLines(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(WorkloadFileTest, ReadsPromptsMessagesAndCounts) {
  const Workload workload = ParseLines(
      "{\"prompt\": \"abcd\", \"max_tokens\": 7}\n"
      "\n"
      "{\"custom_id\": \"a\", \"body\": {\"messages\": [{\"role\": \"user\", \"content\": "
      "\"abc\"}], \"max_completion_tokens\": 9}}\r\n"
      "{\"prompt_tokens\": 1000}");
  ASSERT_EQ(workload.requests.size(), 3u);
  EXPECT_EQ(workload.requests[0].prompt_tokens, 4);
  EXPECT_EQ(workload.requests[0].generated_tokens, 7);
  EXPECT_EQ(workload.requests[1].prompt_tokens, 4);  // with the line's end
  EXPECT_EQ(workload.requests[1].generated_tokens, 9);
  EXPECT_EQ(workload.requests[2].prompt_tokens, 1000);
  EXPECT_EQ(workload.requests[2].generated_tokens, 128);
}

TEST(WorkloadFileTest, BadLinesAreNamed) {
  EXPECT_EQ(WorkloadLinesRefusal("{}"),
            "w.jsonl:1: has neither prompt, messages nor prompt_tokens");
  EXPECT_EQ(WorkloadLinesRefusal("\nnot json"), "w.jsonl:2: is not a JSON object");
  EXPECT_EQ(WorkloadLinesRefusal("{\"prompt\": \"a\", \"max_tokens\": 0}"),
            "w.jsonl:1: max_tokens must be an integer from 1 to 16777216");
  EXPECT_EQ(WorkloadLinesRefusal("{\"body\": 3}"), "w.jsonl:1: body must be an object");
  EXPECT_EQ(WorkloadLinesRefusal("\n"), "w.jsonl: has no requests");
}

}  // namespace
}  // namespace moesaic
