// A recorded trace as a page: what it is drawn from, and that nothing of a file leaves its place.

#include "serving/cli/trace_page.h"

#include <gtest/gtest.h>

#include <string>

#include "serving/api/live_json.h"
#include "serving/http/page.h"

namespace moesaic {
namespace {

// Two layers of four experts, top 2: token t of sequence s uses experts s and (s + t + 1) % 4 of
// the first layer, 0 and 3 of the second.
RoutingTrace MadeUp(int sequences, int tokens) {
  RoutingTrace trace;
  trace.header.model = "made up";
  trace.header.phase = "mixed";
  trace.header.num_layers = 2;
  trace.header.first_layer = 1;
  trace.header.num_experts = 4;
  trace.header.top_k = 2;
  for (int s = 0; s < sequences; ++s) {
    TraceSequence& sequence = trace.sequences.emplace_back();
    sequence.id = "</script><script>alert(" + std::to_string(s) + ")";
    sequence.prefill_tokens = 1;
    for (int t = 0; t < tokens; ++t) {
      for (const int expert : {s % 4, (s + t + 1) % 4, 0, 3}) {
        sequence.experts.push_back(static_cast<uint16_t>(expert));
      }
    }
  }
  return trace;
}

std::string Plane(const std::string& bytes) {
  return Base64({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

TEST(TracePageTest, Data) {
  const Json data = TracePageData(MadeUp(2, 2), "a.trace");
  EXPECT_EQ(data["file"], "a.trace");
  EXPECT_EQ(data["layers"], Json::array({1, 2}));
  EXPECT_EQ(data["experts"], 4);
  EXPECT_EQ(data["tokens"], 4);
  EXPECT_EQ(data["all_sequences"], 2);
  ASSERT_EQ(data["windows"].size(), 4u);  // a token each: they are few
  EXPECT_EQ(data["windows"][1]["use"], Plane(std::string("\xff\0\xff\0\xff\0\0\xff", 8)));
  ASSERT_EQ(data["sequences"].size(), 2u);
  EXPECT_EQ(data["sequences"][0]["prompt_tokens"], 1);
  EXPECT_EQ(data["sequences"][0]["output_tokens"], 1);
  // Half of the tokens: 255 times the root of 1/2.
  EXPECT_EQ(data["sequences"][0]["use"], Plane(std::string("\xff\xb4\xb4\0\xff\0\0\xff", 8)));
}

TEST(TracePageTest, BoundedWhateverTheTrace) {
  const Json data = TracePageData(MadeUp(100, 31), "a.trace");
  EXPECT_EQ(data["sequences"].size(), kTraceSequences);
  EXPECT_EQ(data["all_sequences"], 100);
  EXPECT_LE(data["windows"].size(), static_cast<size_t>(kTraceWindows));
  int64_t tokens = 0;
  for (const Json& window : data["windows"]) tokens += window["tokens"].get<int64_t>();
  EXPECT_EQ(tokens, 3100);
  const Json empty = TracePageData(MadeUp(0, 0), "a.trace");
  EXPECT_EQ(empty["windows"].size(), 0u);
}

TEST(TracePageTest, OneTextThatRunsNothingOfTheFile) {
  const std::string page = TracePage(MadeUp(1, 1), "<b>.trace");
  EXPECT_NE(page.find(PagePolicy()), std::string::npos);
  // What is of the file is data, without anything that could be taken for a tag.
  EXPECT_NE(page.find("alert(0)"), std::string::npos);
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(page.find("<b>.trace"), std::string::npos);
  const size_t begin = page.find("id=\"recorded\">") + 14;
  const Json data = Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  EXPECT_EQ(data["sequences"][0]["id"], "</script><script>alert(0)");
  EXPECT_EQ(data["file"], "<b>.trace");
}

}  // namespace
}  // namespace moesaic
