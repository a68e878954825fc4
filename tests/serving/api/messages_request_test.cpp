// What becomes of requests of Anthropic's Messages API.
#include "serving/api/messages_request.h"

#include <gtest/gtest.h>

#include "serving/api/api_error.h"
#include "serving/api/json_text.h"

namespace moesaic {
namespace messages_request_test {

constexpr const char* kHi = R"([{"role":"user","content":"hi"}])";

std::string Body(const std::string& messages, const std::string& more = {}) {
  return R"({"model":"m","max_tokens":7,"messages":)" + messages + more + "}";
}

Json Messages(const std::string& messages, const std::string& more = {}) {
  return ParseMessagesRequest(Body(messages, more)).chat.messages;
}

// The field that is to blame; "accepted" when there is none.
std::string Param(const std::string& body) {
  try {
    ParseMessagesRequest(body);
    return "accepted";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.param();
  }
}

TEST(MessagesRequestTest, Fields) {
  const ChatRequest request = ParseMessagesRequest(
      Body(kHi, R"(,"stop_sequences":["a","b"],"temperature":0.5,"top_p":0.25,"top_k":5,
                   "stream":true,"metadata":{"user_id":"u"},"cache_control":{"type":"ephemeral"},
                   "context_management":{"edits":[]},"betas":["x"])"));
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_TRUE(request.cut_to_context);
  EXPECT_TRUE(request.stream);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 0.25);
  EXPECT_EQ(request.sampling.top_k, 5);
  EXPECT_EQ(request.unknown_fields, (std::vector<std::string>{"betas"}));
  EXPECT_TRUE(request.chat.tools.is_null());
  EXPECT_TRUE(request.chat.add_generation_prompt);
  EXPECT_EQ(DumpJson(request.chat.messages), kHi);
}

TEST(MessagesRequestTest, SystemText) {
  EXPECT_EQ(DumpJson(Messages(kHi, R"(,"system":"be brief")")[0]),
            R"({"role":"system","content":"be brief"})");
  EXPECT_EQ(Messages(kHi, R"(,"system":[{"type":"text","text":"a","cache_control":{}},
                                        {"type":"text","text":"b"}])")[0]["content"],
            "a\nb");
}

// Its checksum changes with every request: it must not reach the prompt.
TEST(MessagesRequestTest, TheBillingHeaderIsLeftOut) {
  const std::string header = "x-anthropic-billing-header: cc_version=2.1; cch=abc12;";
  EXPECT_EQ(Messages(kHi, R"(,"system":[{"type":"text","text":")" + header +
                              R"("},{"type":"text","text":"b"}])")[0]["content"],
            "b");
  EXPECT_EQ(Messages(kHi, R"(,"system":")" + header + R"(\nb")")[0]["content"], "b");
  EXPECT_EQ(DumpJson(Messages(kHi, R"(,"system":[{"type":"text","text":")" + header + R"("}])")),
            kHi);
  EXPECT_EQ(DumpJson(Messages(R"([{"role":"system","content":")" + header +
                              R"("},{"role":"user","content":"hi"}])")),
            kHi);
}

TEST(MessagesRequestTest, SystemRolesAmongTheMessages) {
  const Json messages = Messages(R"([{"role":"system","content":"b"},{"role":"user","content":"hi"},
      {"role":"system","content":[{"type":"text","text":"c"}]}])",
                                 R"(,"system":"a")");
  EXPECT_EQ(DumpJson(messages),
            R"([{"role":"system","content":"a\nb"},)"
            R"({"role":"user","content":"hi"},{"role":"system","content":"c"}])");
}

TEST(MessagesRequestTest, ToolsInAndOut) {
  const Json messages = Messages(R"([
      {"role":"user","content":"weather?"},
      {"role":"assistant","content":[
         {"type":"thinking","thinking":"hm","signature":"s"},
         {"type":"redacted_thinking","data":"xxx"},
         {"type":"text","text":"I look."},
         {"type":"tool_use","id":"t1","name":"weather","input":{"city":"Rome"}},
         {"type":"tool_use","id":"t2","name":"time","input":{}}]},
      {"role":"user","content":[
         {"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"sun"},
                                                             {"type":"text","text":"warm"}]},
         {"type":"tool_result","tool_use_id":"t2","content":"noon","is_error":false},
         {"type":"tool_result","tool_use_id":"t3"},
         {"type":"text","text":"and?"}]}])");
  ASSERT_EQ(messages.size(), 6u);
  EXPECT_EQ(
      DumpJson(messages[1]),
      R"({"role":"assistant","content":"I look.","reasoning":"hm","tool_calls":[)"
      R"({"id":"t1","type":"function","function":{"name":"weather","arguments":{"city":"Rome"}}},)"
      R"({"id":"t2","type":"function","function":{"name":"time","arguments":{}}}]})");
  EXPECT_EQ(DumpJson(messages[2]),
            R"({"role":"tool","content":"sun\nwarm","tool_call_id":"t1","name":"weather"})");
  EXPECT_EQ(DumpJson(messages[3]),
            R"({"role":"tool","content":"noon","tool_call_id":"t2","name":"time"})");
  EXPECT_EQ(DumpJson(messages[4]), R"({"role":"tool","content":"","tool_call_id":"t3"})");
  EXPECT_EQ(DumpJson(messages[5]), R"({"role":"user","content":"and?"})");
}

TEST(MessagesRequestTest, TextBeforeResults) {
  const Json messages = Messages(R"([
      {"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"weather","input":{}}]},
      {"role":"user","content":[{"type":"text","text":"look"},{"type":"text","text":"here"},
         {"type":"tool_result","tool_use_id":"t1","content":"sun"},
         {"type":"text","text":"and?"}]}])");
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(DumpJson(messages[1]), R"({"role":"user","content":"look\nhere"})");
  EXPECT_EQ(messages[2]["content"], "sun");
  EXPECT_EQ(DumpJson(messages[3]), R"({"role":"user","content":"and?"})");
}

TEST(MessagesRequestTest, Tools) {
  const ChatInput chat = ParseMessagesRequest(Body(kHi, R"(,"tools":[
          {"name":"f","description":"d","input_schema":{"type":"object"}},
          {"type":"custom","name":"g","input_schema":{}},
          {"type":"web_search_20250305","name":"web_search"},
          {"type":"bash_20250124","name":"bash"}],
          "tool_choice":{"type":"auto","disable_parallel_tool_use":true})"))
                             .chat;
  ASSERT_EQ(chat.tools.size(), 2u);
  EXPECT_EQ(DumpJson(chat.tools[0]),
            R"({"type":"function","function":{"name":"f","description":"d",)"
            R"("parameters":{"type":"object"}}})");
  EXPECT_FALSE(chat.parallel_tool_calls);
  EXPECT_TRUE(ParseMessagesRequest(Body(kHi, R"(,"tools":[{"name":"f","input_schema":{}}],
                                                 "tool_choice":{"type":"none"})"))
                  .chat.tools.is_null());
}

TEST(MessagesRequestTest, Thinking) {
  const auto chat = [](const std::string& thinking) {
    return ParseMessagesRequest(Body(kHi, R"(,"thinking":)" + thinking)).chat;
  };
  EXPECT_EQ(DumpJson(chat(R"({"type":"enabled","budget_tokens":2048})").template_kwargs),
            R"({"enable_thinking":true,"thinking":true})");
  EXPECT_EQ(DumpJson(chat(R"({"type":"disabled"})").template_kwargs),
            R"({"enable_thinking":false,"thinking":false})");
  EXPECT_TRUE(chat(R"({"type":"adaptive"})").template_kwargs.empty());
  EXPECT_TRUE(chat(R"({"type":"adaptive"})").include_reasoning);
  EXPECT_FALSE(chat(R"({"type":"enabled","display":"omitted"})").include_reasoning);
  EXPECT_EQ(DumpJson(ParseMessagesRequest(Body(kHi, R"(,"output_config":{"effort":"high"})"))
                         .chat.template_kwargs),
            R"({"reasoning_effort":"high"})");
}

TEST(MessagesRequestTest, AnAnswerThatGoesOn) {
  const ChatInput chat =
      ParseMessagesRequest(
          Body(R"([{"role":"user","content":"hi"},{"role":"assistant","content":"I"}])"))
          .chat;
  EXPECT_TRUE(chat.continue_final_message);
  EXPECT_FALSE(chat.add_generation_prompt);
  const ChatInput calls =
      ParseMessagesRequest(Body(R"([{"role":"user","content":"hi"},{"role":"assistant","content":[
          {"type":"tool_use","id":"t","name":"f","input":{}}]}])"))
          .chat;
  EXPECT_FALSE(calls.continue_final_message);
}

TEST(MessagesRequestTest, WhatIsWrongIsNamed) {
  const auto block = [](const std::string& role, const std::string& json) {
    return Param(Body(R"([{"role":")" + role + R"(","content":[)" + json + "]}]"));
  };
  EXPECT_EQ(Param(R"({"model":"m","messages":[{"role":"user","content":"hi"}]})"), "max_tokens");
  EXPECT_EQ(Param(R"({"max_tokens":1})"), "messages");
  EXPECT_EQ(Param(Body("[]")), "messages");
  EXPECT_EQ(Param(Body("7")), "messages");
  EXPECT_EQ(Param(Body(R"([7])")), "messages[0]");
  EXPECT_EQ(Param(Body(R"([{"role":"tool","content":"x"}])")), "messages[0].role");
  EXPECT_EQ(Param(Body(R"([{"role":"user"}])")), "messages[0].content");
  EXPECT_EQ(Param(Body(R"([{"role":"user","content":7}])")), "messages[0].content");
  EXPECT_EQ(block("user", R"({"type":"image","source":{}})"), "messages[0].content[0].type");
  EXPECT_EQ(block("user", R"({"text":"a"})"), "messages[0].content[0].type");
  EXPECT_EQ(block("user", R"({"type":"text"})"), "messages[0].content[0].text");
  EXPECT_EQ(block("user", R"({"type":"tool_result"})"), "messages[0].content[0].tool_use_id");
  EXPECT_EQ(
      block("user", R"({"type":"tool_result","tool_use_id":"t","content":[{"type":"image"}]})"),
      "messages[0].content[0].content[0].type");
  EXPECT_EQ(block("assistant", R"({"type":"tool_use","id":"t"})"), "messages[0].content[0].name");
  EXPECT_EQ(block("assistant", R"({"type":"tool_use","name":"f","input":"x"})"),
            "messages[0].content[0].input");
  EXPECT_EQ(Param(Body(kHi, R"(,"system":[{"type":"image"}])")), "system[0].type");
  EXPECT_EQ(Param(Body(kHi, R"(,"tools":[{"name":"f"}])")), "tools[0].input_schema");
  EXPECT_EQ(Param(Body(kHi, R"(,"tools":[{"input_schema":{}}])")), "tools[0].name");
  EXPECT_EQ(Param(Body(kHi, R"(,"tool_choice":{"type":"some"})")), "tool_choice.type");
  EXPECT_EQ(Param(Body(kHi, R"(,"thinking":{"type":"some"})")), "thinking.type");
  EXPECT_EQ(Param(Body(kHi, R"(,"stop_sequences":[""])")), "stop_sequences");
  EXPECT_EQ(Param(Body(kHi, R"(,"top_p":0)")), "top_p");
  EXPECT_EQ(Param(Body(kHi, R"(,"output_config":{"format":{"type":"json_schema"}})")),
            "output_config.format.json_schema");
}

TEST(MessagesRequestTest, CountingNeedsNoLimit) {
  EXPECT_FALSE(
      ParseCountTokensRequest(R"({"messages":[{"role":"user","content":"hi"}]})").max_tokens);
}

}  // namespace messages_request_test
}  // namespace moesaic
