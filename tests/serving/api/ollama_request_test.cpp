// What becomes of requests of Ollama's API.
#include "serving/api/ollama_request.h"

#include <gtest/gtest.h>

#include "serving/api/api_error.h"
#include "serving/api/json_text.h"

namespace moesaic {
namespace ollama_request_test {

ChatRequest Chat(const std::string& messages, const std::string& more = {}) {
  return ParseOllamaChatRequest(R"({"model":"m","messages":)" + messages + more + "}");
}

constexpr const char* kHi = R"([{"role":"user","content":"hi"}])";

std::string ChatParam(const std::string& body) {
  try {
    ParseOllamaChatRequest(body);
    return "accepted";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.param();
  }
}

std::string GenerateParam(const std::string& fields) {
  try {
    ParseOllamaGenerateRequest("{" + fields + "}");
    return "accepted";
  } catch (const ApiError& error) {
    return error.param();
  }
}

TEST(OllamaRequestTest, Fields) {
  const ChatRequest request = Chat(kHi, R"(,"options":{"num_predict":5,"temperature":0.5,"top_k":3,
      "repeat_penalty":1.5,"seed":7,"stop":["a"],"num_ctx":4096,"mirostat":1},"keep_alive":"5m",
      "format":"")");
  EXPECT_EQ(request.model, "m");
  EXPECT_TRUE(request.stream);  // unless told otherwise
  EXPECT_TRUE(request.cut_to_context);
  EXPECT_EQ(request.max_tokens, 5);
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_k, 3);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(request.sampling.seed, 7u);
  EXPECT_EQ(request.stop, std::vector<std::string>{"a"});
  EXPECT_EQ(request.unknown_fields, std::vector<std::string>{"options.mirostat"});
  EXPECT_FALSE(Chat(kHi, R"(,"stream":false)").stream);
  EXPECT_FALSE(Chat(kHi, R"(,"options":{"num_predict":-1})").max_tokens);
  EXPECT_EQ(WithoutLatestTag("a:latest"), "a");
  EXPECT_EQ(WithoutLatestTag("a:7b"), "a:7b");
}

// Ids are made up where there are none: some templates insist on them.
TEST(OllamaRequestTest, Tools) {
  const ChatRequest request = Chat(R"([
      {"role":"user","content":"?"},
      {"role":"assistant","content":"","thinking":"hm","tool_calls":[
          {"function":{"name":"f","arguments":{"x":1}}},{"function":{"name":"g"}},
          {"function":{"name":"f","arguments":{"x":2}}}]},
      {"role":"tool","tool_name":"g","content":"G"},
      {"role":"tool","tool_name":"f","content":"F1"},
      {"role":"tool","content":"F2"}])",
                                   R"(,"tools":[{"type":"function","function":{"name":"f"}}])");
  const Json& messages = request.chat.messages;
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[1]["reasoning"], "hm");
  EXPECT_EQ(messages[1]["tool_calls"][2]["id"], "call_3");
  EXPECT_EQ(DumpJson(messages[2]),
            R"({"role":"tool","content":"G","tool_call_id":"call_2","name":"g"})");
  EXPECT_EQ(messages[3]["tool_call_id"], "call_1");
  EXPECT_EQ(messages[4]["tool_call_id"], "call_3");
  EXPECT_EQ(request.chat.tools.size(), 1u);
}

TEST(OllamaRequestTest, Thinking) {
  EXPECT_EQ(DumpJson(Chat(kHi, R"(,"think":false)").chat.template_kwargs),
            R"({"enable_thinking":false,"thinking":false})");
  EXPECT_EQ(DumpJson(Chat(kHi, R"(,"think":"high")").chat.template_kwargs),
            R"({"reasoning_effort":"high"})");
}

TEST(OllamaRequestTest, Generate) {
  const auto request =
      ParseOllamaGenerateRequest(R"({"model":"m","prompt":"p","system":"s","think":true})");
  EXPECT_EQ(DumpJson(std::get<ChatRequest>(request).chat.messages),
            R"([{"role":"system","content":"s"},{"role":"user","content":"p"}])");
  const auto raw = ParseOllamaGenerateRequest(
      R"({"model":"m","prompt":"p","raw":true,"stream":false,"options":{"num_predict":3}})");
  EXPECT_EQ(std::get<std::string>(std::get<CompletionRequest>(raw).prompts[0]), "p");
  EXPECT_EQ(std::get<CompletionRequest>(raw).max_tokens, 3);
  EXPECT_FALSE(std::get<CompletionRequest>(raw).stream);
}

TEST(OllamaRequestTest, WhatIsWrongIsNamed) {
  const auto param = [](const std::string& more) {
    return ChatParam(R"({"messages":)" + std::string(kHi) + more + "}");
  };
  const auto message = [](const std::string& json) {
    return ChatParam(R"({"messages":[)" + json + "]}");
  };
  EXPECT_EQ(ChatParam("{}"), "messages");
  EXPECT_EQ(ChatParam(R"({"messages":[]})"), "messages");
  EXPECT_EQ(param(R"(,"format":"yaml")"), "format");
  EXPECT_EQ(param(R"(,"format":{"not":{}})"), "format");
  EXPECT_EQ(param(R"(,"logprobs":true)"), "logprobs");
  EXPECT_EQ(param(R"(,"options":{"top_p":0})"), "top_p");
  EXPECT_EQ(param(R"(,"think":"huge")"), "think");
  EXPECT_EQ(param(R"(,"tools":[{}])"), "tools[0].function");
  EXPECT_EQ(message(R"({"role":"u","content":""})"), "messages[0].role");
  EXPECT_EQ(message(R"({"role":"user","content":"a","images":["x"]})"), "messages[0].images");
  EXPECT_EQ(message(R"({"role":"assistant","tool_calls":[{}]})"),
            "messages[0].tool_calls[0].function");
  EXPECT_EQ(
      message(R"({"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"x"}}]})"),
      "messages[0].tool_calls[0].function.arguments");
  EXPECT_EQ(GenerateParam(R"("prompt":"")"), "prompt");
  EXPECT_EQ(GenerateParam(R"("prompt":"a","suffix":"b")"), "suffix");
  EXPECT_EQ(GenerateParam(R"("prompt":"a","context":[1])"), "context");
  EXPECT_EQ(GenerateParam(R"("prompt":"a","suffix":"","context":[],"template":"")"), "accepted");
}

}  // namespace ollama_request_test
}  // namespace moesaic
