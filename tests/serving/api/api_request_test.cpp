#include "serving/api/api_request.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "serving/api/api_error.h"

namespace moesaic {
namespace {

// The param of the 400 that `body` gets, "accepted" if it gets none.
template <typename Parse>
std::string ParamOf(Parse parse, const std::string& body) {
  try {
    parse(body, nullptr);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400) << body;
    return error.param().empty() ? error.code() : error.param();
  }
  return "accepted";
}

std::string CompletionParam(const std::string& fields) {
  return ParamOf(ParseCompletionRequest, R"({"prompt":"x",)" + fields + "}");
}
std::string ChatParam(const std::string& fields) {
  return ParamOf(ParseChatRequest,
                 R"({"messages":[{"role":"user","content":"x"}],)" + fields + "}");
}
std::string MessagesParam(const std::string& messages) {
  return ParamOf(ParseChatRequest, R"({"messages":)" + messages + "}");
}
std::string ErrorText(const std::string& body) {
  try {
    ParseCompletionRequest(body);
  } catch (const ApiError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ApiRequestTest, CompletionDefaults) {
  const CompletionRequest request = ParseCompletionRequest(R"({"prompt":"hi"})");
  ASSERT_EQ(request.prompts.size(), 1u);
  EXPECT_EQ(std::get<std::string>(request.prompts[0]), "hi");
  EXPECT_EQ(request.model, "");
  EXPECT_FALSE(request.max_tokens.has_value());
  EXPECT_FALSE(request.sampling.temperature.has_value());
  EXPECT_FALSE(request.sampling.seed.has_value());
  EXPECT_EQ(request.n, 1);
  EXPECT_EQ(request.logprobs, -1);
  EXPECT_EQ(request.prompt_logprobs, -1);
  EXPECT_TRUE(request.skip_special_tokens);
  EXPECT_FALSE(request.stream || request.echo || request.ignore_eos);
  EXPECT_TRUE(request.unknown_fields.empty());
}

TEST(ApiRequestTest, PromptShapes) {
  EXPECT_EQ(ParseCompletionRequest(R"({"prompt":["a","b",""]})").prompts.size(), 3u);
  const auto ids = ParseCompletionRequest(R"({"prompt":[5,0,2147483647]})");
  ASSERT_EQ(ids.prompts.size(), 1u);
  EXPECT_EQ(std::get<std::vector<int32_t>>(ids.prompts[0]),
            (std::vector<int32_t>{5, 0, 2147483647}));
  EXPECT_EQ(ParseCompletionRequest(R"({"prompt":[[1],[2,3]]})").prompts.size(), 2u);
  EXPECT_EQ(ParseCompletionRequest(R"({"prompt":["a",[2,3]]})").prompts.size(), 2u);
  for (const char* bad :
       {"null", "7", "true", "{}", "[]", "[[1],2]", "[1,\"a\"]", "[-1]", "[1.5]", "[2147483648]",
        "[18446744073709551615]", "[1e30]", "[null]", "[[\"a\"]]"}) {
    const std::string param =
        ParamOf(ParseCompletionRequest, std::string(R"({"prompt":)") + bad + "}");
    EXPECT_EQ(param.substr(0, 6), "prompt") << bad;
  }
  EXPECT_EQ(ParamOf(ParseCompletionRequest, "{}"), "prompt");
  EXPECT_EQ(ParamOf(ParseCompletionRequest, "[1]"), "invalid_json");
  EXPECT_EQ(ParamOf(ParseCompletionRequest, "3"), "invalid_json");
}

TEST(ApiRequestTest, WhatLmEvalSends) {
  const CompletionRequest request = ParseCompletionRequest(
      R"({"model":"m","prompt":[[1,2,3],[4,5]],"max_tokens":1,"logprobs":1,"echo":true,"temperature":0,"seed":1234})");
  EXPECT_TRUE(request.echo);
  EXPECT_EQ(request.logprobs, 1);
  EXPECT_EQ(request.prompt_logprobs, 1);
  EXPECT_EQ(request.max_tokens, 1);
  EXPECT_EQ(request.sampling.temperature, 0);
  EXPECT_EQ(request.sampling.seed, 1234u);
  EXPECT_EQ(ParseCompletionRequest(R"({"prompt":"x","max_tokens":0,"echo":true})").max_tokens, 0);
}

TEST(ApiRequestTest, AllSamplingFields) {
  const auto request =
      ParseCompletionRequest(R"({"prompt":"x","temperature":0.5,"top_p":0.25,"top_k":7,
      "min_p":0.1,"repetition_penalty":1.1,"presence_penalty":-2,"frequency_penalty":2,"seed":-1,
      "logit_bias":{"12":-100,"3":5.5},"min_tokens":3,"max_tokens":8.0,"ignore_eos":true,
      "stop_token_ids":[9],"skip_special_tokens":false,"include_stop_str_in_output":true,"n":2,
      "best_of":2,"user":"u","return_token_ids":true,"return_progress":true,"prompt_logprobs":4,"return_routed_experts":true,
      "routed_experts_start_len":2,"return_moesaic":true})");
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 0.25);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_EQ(request.sampling.min_p, 0.1);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.1);
  EXPECT_EQ(request.sampling.presence_penalty, -2);
  EXPECT_EQ(request.sampling.frequency_penalty, 2);
  EXPECT_EQ(request.sampling.seed, ~uint64_t{0});
  EXPECT_EQ(request.sampling.logit_bias,
            (std::vector<std::pair<int32_t, float>>{{12, -100.f}, {3, 5.5f}}));
  EXPECT_EQ(request.min_tokens, 3);
  EXPECT_EQ(request.max_tokens, 8);
  EXPECT_TRUE(request.ignore_eos && request.include_stop_in_output && request.return_token_ids);
  EXPECT_TRUE(request.return_progress);
  EXPECT_FALSE(request.skip_special_tokens);
  EXPECT_EQ(request.stop_token_ids, (std::vector<int32_t>{9}));
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.prompt_logprobs, 4);
  EXPECT_EQ(request.routed_experts, RoutedOutput::Form::kBase64);
  EXPECT_EQ(request.routed_experts_start, 2);
  EXPECT_TRUE(request.return_moesaic);
  EXPECT_TRUE(request.unknown_fields.empty());
  EXPECT_EQ(
      ParseCompletionRequest(R"({"prompt":"x","return_routed_experts":"lists"})").routed_experts,
      RoutedOutput::Form::kLists);
}

TEST(ApiRequestTest, NullMeansAbsent) {
  EXPECT_EQ(CompletionParam(R"("temperature":null,"stop":null,"max_tokens":null,"stream":null,
      "stream_options":null,"logit_bias":null,"seed":null,"n":null,"logprobs":null,"suffix":null)"),
            "accepted");
}

TEST(ApiRequestTest, BadValuesNameTheirField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("return_routed_experts":"yes")", "return_routed_experts"},
      {R"("routed_experts_start_len":-1)", "routed_experts_start_len"},
      {R"("temperature":-0.1)", "temperature"},
      {R"("temperature":"1")", "temperature"},
      {R"("temperature":1e300)", "temperature"},
      {R"("top_p":1.1)", "top_p"},
      {R"("top_k":1.5)", "top_k"},
      {R"("top_k":-2)", "top_k"},
      {R"("min_p":2)", "min_p"},
      {R"("repetition_penalty":0)", "repetition_penalty"},
      {R"("presence_penalty":3)", "presence_penalty"},
      {R"("seed":1.5)", "seed"},
      {R"("seed":1e30)", "seed"},
      {R"("max_tokens":-1)", "max_tokens"},
      {R"("max_tokens":18446744073709551615)", "max_tokens"},
      {R"("max_tokens":1e18)", "max_tokens"},
      {R"("max_tokens":true)", "max_tokens"},
      {R"("n":0)", "n"},
      {R"("n":129)", "n"},
      {R"("n":2,"best_of":3)", "best_of"},
      {R"("logprobs":21)", "logprobs"},
      {R"("logprobs":true)", "logprobs"},
      {R"("stop":1)", "stop"},
      {R"("stop":[1])", "stop"},
      {R"("stop":"")", "stop"},
      {R"("stop":["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"])", "stop"},
      {R"("stream":1)", "stream"},
      {R"("stream_options":{})", "stream_options"},
      {R"("stream":true,"stream_options":[])", "stream_options"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage"},
      {R"("stream":true,"prompt_logprobs":1)", "prompt_logprobs"},
      {R"("suffix":"s")", "suffix"},
      {R"("logit_bias":[])", "logit_bias"},
      {R"("logit_bias":{"x":1})", "logit_bias"},
      {R"("logit_bias":{"1":101})", "logit_bias"},
      {R"("logit_bias":{"1":"a"})", "logit_bias"},
      {R"("logit_bias":{"-1":1})", "logit_bias"},
      {R"("logit_bias":{"99999999999":1})", "logit_bias"},
      {R"("stop_token_ids":[-1])", "stop_token_ids"},
      {R"("model":3)", "model"},
      {R"("echo":"yes")", "echo"},
      {R"("min_tokens":5,"max_tokens":4)", "min_tokens"},
      {R"("response_format":{"type":"yaml"})", "response_format.type"},
      {R"("response_format":"text")", "response_format"},
      {R"("use_beam_search":true)", "use_beam_search"},
  };
  for (const auto& [fields, param] : cases) EXPECT_EQ(CompletionParam(fields), param) << fields;
  EXPECT_EQ(CompletionParam(R"("stop":")" + std::string(1025, 'a') + "\""), "stop");
}

TEST(ApiRequestTest, Priority) {
  EXPECT_EQ(ParseCompletionRequest(R"({"prompt":"x","priority":-7})").priority, -7);
  EXPECT_EQ(ParseCompletionRequest(R"({"prompt":"x"})").priority, std::nullopt);
  EXPECT_EQ(
      ParseChatRequest(R"({"messages":[{"role":"user","content":"x"}],"priority":3})").priority, 3);
  for (const char* wrong : {R"("priority":1.5)", R"("priority":"high")", R"("priority":2147483648)",
                            R"("priority":-2147483649)"}) {
    EXPECT_EQ(CompletionParam(wrong), "priority") << wrong;
    EXPECT_EQ(ChatParam(wrong), "priority") << wrong;
  }
}

TEST(ApiRequestTest, MessagesAreReadable) {
  EXPECT_EQ(ErrorText(R"({"prompt":"x","temperature":-1})"),
            "temperature must be between 0 and 100, it is -1.");
  EXPECT_EQ(ErrorText(R"({"prompt":"x","n":"2"})"), "n must be an integer, it is a string.");
}

// It would leave no token to choose.
TEST(ApiRequestTest, TopPZeroIsRefused) {
  EXPECT_EQ(ParamOf(ParseCompletionRequest, R"({"prompt":"x","top_p":0})"), "top_p");
  EXPECT_NE(ErrorText(R"({"prompt":"x","top_p":0.0})").find("temperature 0"), std::string::npos);
  EXPECT_EQ(ParseCompletionRequest(R"({"prompt":"x","top_p":1e-9})").sampling.top_p, 1e-9);
}

TEST(ApiRequestTest, RolesThatAreNotKnownAreRefused) {
  for (const char* role : {"system", "developer", "user", "assistant", "tool", "function"}) {
    EXPECT_EQ(MessagesParam(fmt::format(R"([{{"role":"{}","content":"a"}}])", role)), "accepted");
  }
  EXPECT_EQ(MessagesParam(R"([{"role":"user","content":"a"},{"role":"User","content":"a"}])"),
            "messages[1].role");
  const ChatRequest request =
      ParseChatRequest(R"({"messages":[{"role":"developer","content":"a"}]})");
  EXPECT_EQ(request.chat.messages[0]["role"], "system");
}

TEST(ApiRequestTest, UnknownFieldsAreKeptForAWarning) {
  const auto request =
      ParseCompletionRequest(R"({"prompt":"x","foo":1,"stream":true,"stream_options":{"bar":2}})");
  EXPECT_EQ(request.unknown_fields, (std::vector<std::string>{"stream_options.bar", "foo"}));
  std::string many = R"({"prompt":"x")";
  for (int i = 0; i < 1000; ++i) many += ",\"u" + std::to_string(i) + "\":0";
  EXPECT_EQ(ParseCompletionRequest(many + "}").unknown_fields.size(), 16u);
}

TEST(ApiRequestTest, ChatDefaults) {
  const ChatRequest request =
      ParseChatRequest(R"({"messages":[{"role":"user","content":"hi"}],"model":"m"})");
  EXPECT_EQ(DumpJson(request.chat.messages), R"([{"role":"user","content":"hi"}])");
  EXPECT_TRUE(request.chat.tools.is_null());
  EXPECT_TRUE(request.chat.add_generation_prompt);
  EXPECT_FALSE(request.chat.continue_final_message);
  EXPECT_EQ(request.logprobs, -1);
}

TEST(ApiRequestTest, ChatLogprobsAndLengths) {
  EXPECT_EQ(
      ParseChatRequest(R"({"messages":[{"role":"user","content":""}],"logprobs":true})").logprobs,
      0);
  EXPECT_EQ(ParseChatRequest(
                R"({"messages":[{"role":"user","content":""}],"logprobs":true,"top_logprobs":20})")
                .logprobs,
            20);
  EXPECT_EQ(ChatParam(R"("top_logprobs":3)"), "top_logprobs");
  EXPECT_EQ(ChatParam(R"("logprobs":true,"top_logprobs":21)"), "top_logprobs");
  EXPECT_EQ(ChatParam(R"("logprobs":1)"), "logprobs");
  EXPECT_EQ(ChatParam(R"("max_tokens":0)"), "max_tokens");
  EXPECT_EQ(ChatParam(R"("max_completion_tokens":-3)"), "max_completion_tokens");
  const ChatRequest both = ParseChatRequest(
      R"({"messages":[{"role":"user","content":""}],"max_tokens":5,"max_completion_tokens":7})");
  EXPECT_EQ(both.max_tokens, 7);
  EXPECT_EQ(both.max_tokens_name, "max_completion_tokens");
}

TEST(ApiRequestTest, MessagesAreChecked) {
  EXPECT_EQ(ParamOf(ParseChatRequest, "{}"), "messages");
  EXPECT_EQ(MessagesParam("[]"), "messages");
  EXPECT_EQ(MessagesParam("{}"), "messages");
  EXPECT_EQ(MessagesParam("\"hi\""), "messages");
  EXPECT_EQ(MessagesParam("[3]"), "messages[0]");
  EXPECT_EQ(MessagesParam(R"([{"content":"x"}])"), "messages[0].role");
  EXPECT_EQ(MessagesParam(R"([{"role":1,"content":"x"}])"), "messages[0].role");
  EXPECT_EQ(MessagesParam(R"([{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(MessagesParam(R"([{"role":"user","content":3}])"), "messages[0].content");
  EXPECT_EQ(
      MessagesParam(
          R"([{"role":"user","content":"a"},{"role":"user","content":[{"type":"image_url","image_url":{}}]}])"),
      "messages[1].content[0].type");
  EXPECT_EQ(MessagesParam(R"([{"role":"user","content":[{"type":"text"}]}])"),
            "messages[0].content[0].text");
}

TEST(ApiRequestTest, ContentPartsAreJoined) {
  const ChatRequest request = ParseChatRequest(
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},"b",{"type":"text","text":""}]}]})");
  EXPECT_EQ(request.chat.messages[0]["content"], "a\nb\n");
}

// As the model wrote them: the template's form is made where the template is known.
TEST(ApiRequestTest, ArgumentsOfToolCallsAreCheckedAndKept) {
  const ChatRequest request = ParseChatRequest(R"({"messages":[{"role":"assistant","content":null,
    "tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":[2]}"}}]},
    {"role":"tool","tool_call_id":"1","content":"ok"}],
    "tools":[{"type":"function","function":{"name":"f"}}],"chat_template_kwargs":{"k":true}})");
  EXPECT_EQ(request.chat.messages[0]["tool_calls"][0]["function"]["arguments"],
            R"({"b":1,"a":[2]})");
  EXPECT_TRUE(request.chat.messages[0]["content"].is_null());  // the template's business
  EXPECT_EQ(request.chat.tools.size(), 1u);
  EXPECT_EQ(request.chat.template_kwargs["k"], true);
  // Damaged text is what a model wrote; an agent sends it back. An array is nobody's.
  for (const char* const text : {R"("{")", R"("[1]")"}) {
    EXPECT_EQ(
        MessagesParam(R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":)" +
                      std::string(text) + "}}]}]"),
        "accepted");
  }
  EXPECT_EQ(
      MessagesParam(
          R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":[1]}}]}])"),
      "messages[0].tool_calls[0].function.arguments");
  EXPECT_EQ(MessagesParam(R"([{"role":"assistant","tool_calls":[3]}])"),
            "messages[0].tool_calls[0]");
  const auto of_arguments = [](const std::string& arguments) {
    return MessagesParam(
        R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":)" +
        DumpJson(arguments) + "}}]}]");
  };
  EXPECT_EQ(of_arguments(R"({"a":)" + std::string(62, '[') + std::string(62, ']') + "}"),
            "accepted");
  EXPECT_EQ(of_arguments(R"({"a":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}"),
            "messages[0].tool_calls[0].function.arguments");
  std::string members = "{";
  for (int i = 0; i < 1024; ++i) members += fmt::format("{}\"k{}\":[]", i > 0 ? "," : "", i);
  EXPECT_EQ(of_arguments(members + "}"), "accepted");
  EXPECT_EQ(of_arguments(members + ",\"one more\":1}"),
            "messages[0].tool_calls[0].function.arguments");
}

TEST(ApiRequestTest, ToolsAndTemplateOptions) {
  EXPECT_EQ(ChatParam(R"("tools":3)"), "tools");
  EXPECT_EQ(ChatParam(R"("tools":[{}])"), "tools[0]");
  EXPECT_EQ(ChatParam(R"("tool_choice":"required")"), "tool_choice");
  EXPECT_EQ(ChatParam(R"("tool_choice":{"type":"function"})"), "tool_choice.function.name");
  EXPECT_EQ(ChatParam(R"("tool_choice":"sometimes")"), "tool_choice");
  EXPECT_EQ(ChatParam(R"("tool_choice":{"type":7})"), "tool_choice.type");
  EXPECT_EQ(ChatParam(R"("tool_choice":7)"), "tool_choice");
  EXPECT_EQ(ChatParam(R"("tools":[{"type":"function","function":{}}],"tool_choice":"auto")"),
            "accepted");
  EXPECT_EQ(ChatParam(R"("chat_template":"{{ x }}")"), "chat_template");
  EXPECT_EQ(ChatParam(R"("chat_template_kwargs":[])"), "chat_template_kwargs");
  EXPECT_EQ(ChatParam(R"("continue_final_message":true,"add_generation_prompt":true)"),
            "continue_final_message");
  const ChatRequest request = ParseChatRequest(
      R"({"messages":[{"role":"assistant","content":"a"}],"continue_final_message":true,
          "tools":[{"type":"function","function":{}}],"tool_choice":"none"})");
  EXPECT_FALSE(request.chat.add_generation_prompt);
  EXPECT_TRUE(request.chat.tools.is_null());
}

constexpr const char* kTwoTools =
    R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}])";

ChatInput WithToolChoice(const std::string& choice) {
  return ParseChatRequest(R"({"messages":[{"role":"user","content":""}],)" +
                          std::string(kTwoTools) + R"(,"tool_choice":)" + choice + "}")
      .chat;
}

TEST(ApiRequestTest, ToolChoice) {
  EXPECT_FALSE(WithToolChoice(R"("auto")").force_call);
  EXPECT_TRUE(WithToolChoice(R"("none")").tools.is_null());
  const ChatInput required = WithToolChoice(R"("required")");
  EXPECT_TRUE(required.force_call);
  EXPECT_EQ(required.forced_tool, "");
  EXPECT_EQ(required.tools.size(), 2u);
  // The other tools stay: the prompt's beginning is that of other requests.
  const ChatInput named = WithToolChoice(R"({"type":"function","function":{"name":"g"}})");
  EXPECT_TRUE(named.force_call);
  EXPECT_EQ(named.forced_tool, "g");
  EXPECT_EQ(named.tools.size(), 2u);
  const std::string allowed = R"({"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[)"
                              R"({"type":"function","function":{"name":"g"}}]}})";
  EXPECT_FALSE(WithToolChoice(allowed).force_call);
  ASSERT_EQ(WithToolChoice(allowed).tools.size(), 1u);
  EXPECT_EQ(WithToolChoice(allowed).tools[0]["function"]["name"], "g");
}

TEST(ApiRequestTest, ToolChoicesThatCannotBe) {
  const auto param = [](const std::string& choice, const std::string& tools = kTwoTools) {
    return ChatParam(tools + R"(,"tool_choice":)" + choice);
  };
  EXPECT_EQ(param(R"("required")", R"("tools":[])"), "tool_choice");
  EXPECT_EQ(param(R"({"type":"function","function":{"name":"h"}})"), "tool_choice");
  EXPECT_EQ(param(R"({"type":"function","function":{}})"), "tool_choice.function.name");
  EXPECT_EQ(param(R"({"type":"function"})"), "tool_choice.function.name");
  EXPECT_EQ(param(R"({"type":"allowed_tools"})"), "tool_choice");
  EXPECT_EQ(param(R"({"type":"allowed_tools","allowed_tools":{"tools":[]}})"),
            "tool_choice.allowed_tools.tools");
  EXPECT_EQ(param(R"({"type":"other"})"), "tool_choice.type");
  EXPECT_EQ(param(R"("some")"), "tool_choice");
  EXPECT_EQ(param("7"), "tool_choice");
}

TEST(ApiRequestTest, Reasoning) {
  const auto kwargs = [](const std::string& fields) {
    return DumpJson(
        ParseChatRequest(R"({"messages":[{"role":"user","content":""}],)" + fields + "}")
            .chat.template_kwargs);
  };
  EXPECT_EQ(kwargs(R"("reasoning_effort":"high")"), R"({"reasoning_effort":"high"})");
  EXPECT_EQ(kwargs(R"("reasoning_effort":"none")"),
            R"({"reasoning_effort":"none","enable_thinking":false,"thinking":false})");
  EXPECT_EQ(kwargs(R"("thinking":{"type":"enabled"})"),
            R"({"enable_thinking":true,"thinking":true})");
  // What the template is told directly counts.
  EXPECT_EQ(kwargs(R"("chat_template_kwargs":{"thinking":1},"thinking":{"type":"disabled"})"),
            R"({"thinking":1,"enable_thinking":false})");
  EXPECT_EQ(ChatParam(R"("reasoning_effort":"huge")"), "reasoning_effort");
  EXPECT_EQ(ChatParam(R"("thinking":{"type":"maybe"})"), "thinking.type");
  EXPECT_EQ(ChatParam(R"("parallel_tool_calls":3)"), "parallel_tool_calls");
  const ChatInput chat =
      ParseChatRequest(R"({"messages":[{"role":"user","content":""}],"parallel_tool_calls":false,
          "separate_reasoning":false,"include_reasoning":false})")
          .chat;
  EXPECT_FALSE(chat.parallel_tool_calls || chat.separate_reasoning || chat.include_reasoning);
}

TEST(ApiRequestTest, ReasoningOfMessages) {
  const ChatRequest request = ParseChatRequest(
      R"({"messages":[{"role":"assistant","content":null,"reasoning_content":"so"}]})");
  EXPECT_EQ(request.chat.messages[0]["reasoning"], "so");
  EXPECT_EQ(request.chat.messages[0]["reasoning_content"], "so");
  EXPECT_EQ(MessagesParam(R"([{"role":"assistant","content":"a","reasoning":7}])"),
            "messages[0].reasoning");
  EXPECT_EQ(MessagesParam(R"([{"role":"assistant","content":null,"reasoning":""}])"),
            "messages[0].content");
}

TEST(ApiRequestTest, StopsOfExactlyTheLimitAreTaken) {
  EXPECT_EQ(CompletionParam(
                R"("stop":["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p"])"),
            "accepted");
  EXPECT_EQ(CompletionParam(R"("stop":")" + std::string(1024, 'a') + "\""), "accepted");
}

// A message quotes the beginning of a value, not a hundred thousand bytes of it.
TEST(ApiRequestTest, MessagesCutWhatTheyQuote) {
  const std::string huge(100'000, 'x');
  const std::string number = "1" + std::string(300, '0');
  for (const std::string& body :
       {R"({"prompt":"a","logit_bias":{")" + huge + R"(":1}})",
        R"({"prompt":"a","response_format":{"type":")" + huge + R"("}})",
        R"({"prompt":"a","max_tokens":)" + number + "}",
        R"({"prompt":"a","temperature":)" + number + "}",
        R"({"prompt":"a","stop":[")" + huge + R"("]})", R"({"prompt":[1,)" + number + "]}",
        R"({"prompt":"a","stop_token_ids":[")" + huge + R"("]})",
        R"({"prompt":"a",")" + huge + R"(":1,")" + huge + R"(":2})", R"({"prompt":")" + huge,
        R"({"prompt":)" + huge + "}", R"({"prompt":"a","n":)" + std::string(100'000, '9') + "}",
        "[\"" + huge + "\"]"}) {
    try {
      ParseCompletionRequest(body);
      ADD_FAILURE() << body.substr(0, 40);
    } catch (const ApiError& error) {
      EXPECT_LT(std::string_view(error.what()).size(), 400u) << body.substr(0, 40);
      EXPECT_LT(error.param().size(), 100u) << body.substr(0, 40);
    }
  }
  for (const std::string& body :
       {R"({"messages":[{"role":"user","content":[{"type":")" + huge + R"("}]}]})",
        R"({"messages":[{"role":"user","content":"a"}],"tools":[],"tool_choice":")" + huge +
            R"("})"}) {
    try {
      ParseChatRequest(body);
      ADD_FAILURE() << body.substr(0, 40);
    } catch (const ApiError& error) {
      EXPECT_LT(std::string_view(error.what()).size(), 400u) << body.substr(0, 40);
    }
  }
  // What quotes without cutting (a template that raises, say) is cut at last.
  EXPECT_LT(std::string_view(BadParam("x", "{}", huge).what()).size(), 2100u);
}

}  // namespace
}  // namespace moesaic
