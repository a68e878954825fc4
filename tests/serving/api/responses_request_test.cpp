// What becomes of requests of OpenAI's Responses API.
#include "serving/api/responses_request.h"

#include <gtest/gtest.h>

#include "serving/api/api_error.h"
#include "serving/api/json_text.h"

namespace moesaic {
namespace responses_request_test {

ChatRequest Parse(const std::string& input, const std::string& more = {}) {
  return ParseResponsesRequest(R"({"model":"m","input":)" + input + more + "}");
}

std::string Param(const std::string& body) {
  try {
    ParseResponsesRequest(body);
    return "accepted";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.param();
  }
}

std::string ItemParam(const std::string& item) { return Param(R"({"input":[)" + item + "]}"); }

TEST(ResponsesRequestTest, Text) {
  const ChatRequest request =
      Parse(R"("hi")", R"(,"instructions":"be brief","max_output_tokens":9,"temperature":0.5,
                         "top_p":0.5,"stream":true,"store":true,"include":[],"metadata":{"a":"b"},
                         "reasoning":{"effort":"low","summary":"auto"})");
  EXPECT_EQ(DumpJson(request.chat.messages),
            R"([{"role":"system","content":"be brief"},{"role":"user","content":"hi"}])");
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_TRUE(request.cut_to_context);
  EXPECT_TRUE(request.stream);
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.chat.template_kwargs["reasoning_effort"], "low");
  EXPECT_TRUE(request.unknown_fields.empty());
  EXPECT_EQ(request.response_fields["instructions"], "be brief");
  EXPECT_EQ(request.response_fields["metadata"]["a"], "b");
  EXPECT_EQ(request.response_fields["store"], false);
  EXPECT_EQ(request.response_fields["tool_choice"], "auto");
}

// What the assistant thought, said and called in a row is one message.
TEST(ResponsesRequestTest, Items) {
  const ChatRequest request = Parse(R"([
      {"type":"message","role":"developer","content":[{"type":"input_text","text":"rules"}]},
      {"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
      {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"I look."}]},
      {"type":"function_call","call_id":"c1","name":"f","arguments":"{\"x\":1}"},
      {"type":"custom_tool_call","call_id":"c2","name":"patch","input":"*** Begin"},
      {"type":"function_call_output","call_id":"c1","output":"1"},
      {"type":"custom_tool_call_output","call_id":"c2","output":[{"type":"input_text","text":"ok"}]},
      {"type":"reasoning","id":"rs_2","summary":[{"type":"summary_text","text":"short"}]},
      {"type":"message","role":"assistant","content":"done"},
      {"type":"web_search_call","id":"w"},
      {"role":"user","content":"thanks"}])",
                                    R"(,"instructions":"first")");
  EXPECT_EQ(
      DumpJson(request.chat.messages),
      R"([{"role":"system","content":"first\nrules"},{"role":"user","content":"a\nb"},)"
      R"({"role":"assistant","content":"I look.","reasoning":"hm","tool_calls":[)"
      R"({"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},)"
      R"({"id":"c2","type":"function","function":{"name":"patch","arguments":{"input":"*** Begin"}}}]},)"
      R"({"role":"tool","content":"1","tool_call_id":"c1","name":"f"},)"
      R"({"role":"tool","content":"ok","tool_call_id":"c2","name":"patch"},)"
      R"({"role":"assistant","content":"done","reasoning":"short"},)"
      R"({"role":"user","content":"thanks"}])");
  EXPECT_EQ(request.unknown_fields, (std::vector<std::string>{"input[].type=web_search_call"}));
}

TEST(ResponsesRequestTest, Tools) {
  const ChatRequest request =
      Parse(R"("hi")", R"(,"tools":[{"type":"function","name":"f","description":"d",
          "parameters":{"type":"object"},"strict":false},{"type":"web_search"},
          {"type":"namespace","name":"n"},{"type":"custom","name":"c"}],"parallel_tool_calls":false)");
  ASSERT_EQ(request.chat.tools.size(), 1u);
  EXPECT_EQ(DumpJson(request.chat.tools[0]),
            R"({"type":"function","function":{"name":"f","description":"d",)"
            R"("parameters":{"type":"object"}}})");
  EXPECT_EQ(request.unknown_fields.size(), 3u);
  EXPECT_FALSE(request.chat.parallel_tool_calls);
  EXPECT_EQ(request.response_fields["tools"].size(), 4u);
  const char* tool = R"(,"tools":[{"type":"function","name":"f"}],"tool_choice":)";
  EXPECT_EQ(
      Parse(R"("hi")", std::string(tool) + R"({"type":"function","name":"f"})").chat.forced_tool,
      "f");
  EXPECT_TRUE(Parse(R"("hi")", std::string(tool) + R"("required")").chat.force_call);
  EXPECT_FALSE(Parse(R"("hi")", std::string(tool) + R"({"type":"web_search"})").chat.force_call);
  EXPECT_EQ(Parse(R"("hi")", std::string(tool) +
                                 R"({"type":"allowed_tools","mode":"auto",
                                     "tools":[{"type":"function","name":"f"}]})")
                .chat.tools.size(),
            1u);
}

TEST(ResponsesRequestTest, WhatIsWrongIsNamed) {
  EXPECT_EQ(Param("{}"), "input");
  EXPECT_EQ(Param(R"({"input":[]})"), "input");
  EXPECT_EQ(Param(R"({"input":7})"), "input");
  EXPECT_EQ(Param(R"({"input":"a","previous_response_id":"resp_1"})"), "previous_response_id");
  EXPECT_EQ(Param(R"({"input":"a","conversation":"conv_1"})"), "conversation");
  EXPECT_EQ(Param(R"({"input":"a","background":true})"), "background");
  EXPECT_EQ(Param(R"({"input":"a","text":{"format":{"type":"yaml"}}})"), "text.format.type");
  EXPECT_EQ(Param(R"({"input":"a","top_logprobs":3})"), "top_logprobs");
  EXPECT_EQ(Param(R"({"input":"a","reasoning":{"effort":"huge"}})"), "reasoning.effort");
  EXPECT_EQ(Param(R"({"input":"a","max_output_tokens":0})"), "max_output_tokens");
  EXPECT_EQ(Param(R"({"input":"a","tools":[{"type":"function"}]})"), "tools[0].name");
  EXPECT_EQ(ItemParam("7"), "input[0]");
  EXPECT_EQ(ItemParam(R"({"content":"a"})"), "input[0].role");
  EXPECT_EQ(ItemParam(R"({"role":"tool","content":"a"})"), "input[0].role");
  EXPECT_EQ(ItemParam(R"({"role":"user","content":[{"type":"input_image"}]})"),
            "input[0].content[0].type");
  EXPECT_EQ(ItemParam(R"({"type":"function_call","name":"f"})"), "input[0].call_id");
  EXPECT_EQ(ItemParam(R"({"type":"function_call_output","output":"x"})"), "input[0].call_id");
  EXPECT_EQ(ItemParam(R"({"type":"item_reference","id":"x"})"), "input[0].type");
}

}  // namespace responses_request_test
}  // namespace moesaic
