// Messages of chats in OpenAI's shape, streamed and whole.
#include "serving/api/chat_answer.h"

#include <gtest/gtest.h>

#include "serving/api/json_text.h"
#include "serving/api/openai_output.h"

namespace moesaic {
namespace {

constexpr const char* kTwoCalls =
    "<think>\nI must look.\n</think>\n\nOne moment.\n<tool_call>\n{\"name\": \"weather\", "
    "\"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", "
    "\"arguments\": {}}\n</tool_call>";

AnswerParsing Parsing(const char* calls = "hermes", const char* reasoning = "qwen3") {
  AnswerParsing parsing;
  parsing.parser.syntax = FindChatSyntax("", calls, reasoning);
  parsing.parser.calls = true;
  return parsing;
}

OpenAiOutput Output(const AnswerParsing& parsing) {
  ApiOutputSpec spec;
  spec.dialect = ApiDialect::kChat;
  spec.id = "id-1";
  spec.model = "m";
  spec.prompts = {{0, 1}};
  spec.parsing = std::make_shared<const AnswerParsing>(parsing);
  return OpenAiOutput(std::move(spec), [](int32_t, bool) { return TokenText{"t"}; });
}

OutputDelta TextDelta(std::string text, std::optional<FinishReason> finish = std::nullopt) {
  OutputDelta delta;
  delta.text = std::move(text);
  delta.tokens.resize(1);
  delta.finish = finish;
  return delta;
}

// The choice of a whole answer to `text`.
Json Choice(const AnswerParsing& parsing, const std::string& text,
            FinishReason finish = FinishReason::kStop) {
  OpenAiOutput output = Output(parsing);
  output.Collect(0, TextDelta(text, finish));
  return ParseJson(output.FinalBody())["choices"][0];
}

// The choices of the chunks when `text` comes in pieces of `bytes`.
std::vector<Json> Chunks(const AnswerParsing& parsing, const std::string& text, size_t bytes,
                         FinishReason finish = FinishReason::kStop) {
  OpenAiOutput output = Output(parsing);
  std::string stream;
  for (size_t at = 0; at < text.size(); at += bytes) {
    stream += output.StreamDelta(0, TextDelta(text.substr(at, bytes)));
  }
  stream += output.StreamDelta(0, TextDelta("", finish));
  std::vector<Json> choices;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find("\n\n", at);
    choices.push_back(ParseJson(stream.substr(at + 6, end - at - 6))["choices"][0]);
    at = end + 2;
  }
  return choices;
}

// The message that a client puts together, as OpenAI's does.
Json Joined(const std::vector<Json>& chunks) {
  Json message = {{"content", ""}, {"reasoning", ""}, {"tool_calls", Json::array()}};
  for (const Json& chunk : chunks) {
    const Json& delta = chunk["delta"];
    for (const char* name : {"content", "reasoning"}) {
      message[name] = message[name].get<std::string>() + delta.value(name, "");
    }
    EXPECT_EQ(delta.value("reasoning", ""), delta.value("reasoning_content", ""));
    if (!delta.contains("tool_calls")) continue;
    EXPECT_EQ(delta["tool_calls"].size(), 1u);
    const Json& call = delta["tool_calls"][0];
    const size_t index = call["index"].get<size_t>();
    if (index == message["tool_calls"].size()) {
      EXPECT_EQ(call["type"], "function");
      EXPECT_EQ(call["function"]["arguments"], "");
      message["tool_calls"].push_back(call);
      continue;
    }
    EXPECT_EQ(index + 1, message["tool_calls"].size());
    EXPECT_FALSE(call.contains("id") || call.contains("type") || call["function"].contains("name"));
    Json& arguments = message["tool_calls"][index]["function"]["arguments"];
    arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
  }
  return message;
}

TEST(ChatAnswerTest, AWholeAnswer) {
  const Json choice = Choice(Parsing(), kTwoCalls);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const Json& message = choice["message"];
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["content"], "One moment.");
  EXPECT_EQ(message["reasoning"], "I must look.");
  EXPECT_EQ(message["reasoning_content"], "I must look.");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  const Json& call = message["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"]["name"], "weather");
  EXPECT_EQ(call["function"]["arguments"], R"({"city": "Rome"})");
  EXPECT_EQ(message["tool_calls"][1]["function"]["arguments"], "{}");
  EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
  EXPECT_NE(call["id"], message["tool_calls"][1]["id"]);
}

TEST(ChatAnswerTest, AStreamIsTheSame) {
  for (const size_t bytes : {1, 3, 1000}) {
    const std::vector<Json> chunks = Chunks(Parsing(), kTwoCalls, bytes);
    const Json message = Joined(chunks);
    EXPECT_EQ(message["content"], "One moment.");
    EXPECT_EQ(message["reasoning"], "I must look.");
    ASSERT_EQ(message["tool_calls"].size(), 2u);
    EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], R"({"city": "Rome"})");
    EXPECT_EQ(message["tool_calls"][1]["function"]["name"], "time");
    EXPECT_EQ(message["tool_calls"][1]["function"]["arguments"], "{}");
    EXPECT_EQ(chunks.back()["finish_reason"], "tool_calls");
    for (size_t i = 0; i + 1 < chunks.size(); ++i) {
      EXPECT_TRUE(chunks[i]["finish_reason"].is_null());
    }
  }
}

TEST(ChatAnswerTest, ContentIsNullBesideCallsOnly) {
  const std::string call = R"(<tool_call>{"name": "f"}</tool_call>)";
  EXPECT_TRUE(Choice(Parsing(), call)["message"]["content"].is_null());
  const Json text = Choice(Parsing(), "Hello");
  EXPECT_EQ(text["message"]["content"], "Hello");
  EXPECT_EQ(text["message"].size(), 2u);
  EXPECT_EQ(text["finish_reason"], "stop");
  EXPECT_EQ(Choice(Parsing(), "")["message"]["content"], "");
}

TEST(ChatAnswerTest, ACutCallIsGivenAsFarAsItCame) {
  const std::string cut = R"(<tool_call>{"name": "f", "arguments": {"x": "ab)";
  const Json choice = Choice(Parsing(), cut, FinishReason::kLength);
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"x": "ab)");
  const std::vector<Json> chunks = Chunks(Parsing(), cut, 1, FinishReason::kLength);
  EXPECT_EQ(chunks.back()["finish_reason"], "length");
  EXPECT_EQ(Joined(chunks)["tool_calls"][0]["function"]["arguments"], R"({"x": "ab)");
}

TEST(ChatAnswerTest, CutReasoningIsNoContent) {
  const Json choice = Choice(Parsing(), "<think>so", FinishReason::kLength);
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["message"]["reasoning"], "so");
}

TEST(ChatAnswerTest, OneCallAtATime) {
  AnswerParsing parsing = Parsing();
  parsing.parallel_calls = false;
  OpenAiOutput output = Output(parsing);
  const std::string text = kTwoCalls;
  const size_t first_end = text.find("}}") + 2;
  output.Collect(0, TextDelta(text.substr(0, first_end - 1)));
  EXPECT_FALSE(output.WantsNoMore(0));
  output.Collect(0, TextDelta(text.substr(first_end - 1)));
  EXPECT_TRUE(output.WantsNoMore(0));
  // The engine may have come to its limit meanwhile.
  output.Collect(0, TextDelta("more", FinishReason::kLength));
  const Json choice = ParseJson(output.FinalBody())["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(choice["message"]["content"], "One moment.");
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
}

TEST(ChatAnswerTest, ReasoningMayBeLeftOut) {
  AnswerParsing parsing = Parsing();
  parsing.include_reasoning = false;
  EXPECT_EQ(Choice(parsing, "<think>a</think>b")["message"].dump(),
            R"({"role":"assistant","content":"b"})");
}

TEST(ChatAnswerTest, IdsAreAsTheTemplateTakesThem) {
  const auto id = [](const char* calls, const std::string& text) {
    return Choice(Parsing(calls, "none"), text)["message"]["tool_calls"][0]["id"]
        .get<std::string>();
  };
  const std::string mistral = id("mistral", "[TOOL_CALLS]f[ARGS]{}");
  EXPECT_EQ(mistral.size(), 9u);
  EXPECT_EQ(mistral.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(id("kimi_k2", "<|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{}"),
            "functions.f:3");
}

TEST(ChatAnswerTest, TokensGoWithTheFirstChunkOfADelta) {
  ApiOutputSpec spec;
  spec.dialect = ApiDialect::kChat;
  spec.prompts = {{0, 1}};
  spec.logprobs = 0;
  spec.return_token_ids = true;
  spec.parsing = std::make_shared<const AnswerParsing>(Parsing());
  OpenAiOutput output(std::move(spec), [](int32_t, bool) { return TokenText{"t"}; });
  const std::string stream = output.StreamDelta(0, TextDelta("<think>a</think>b"));
  std::vector<size_t> ids, logprobs;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find("\n\n", at);
    const Json choice = ParseJson(stream.substr(at + 6, end - at - 6))["choices"][0];
    if (choice.contains("token_ids")) ids.push_back(choice["token_ids"].size());
    if (choice["logprobs"].is_object()) logprobs.push_back(choice["logprobs"]["content"].size());
    at = end + 2;
  }
  EXPECT_EQ(ids, (std::vector<size_t>{1, 0}));
  EXPECT_EQ(logprobs, (std::vector<size_t>{1}));
  // What is held back costs no token.
  EXPECT_NE(output.StreamDelta(0, TextDelta("<tool_")).find("token_ids\":[0]"), std::string::npos);
}

// What `tokens` are, in deltas of `per_delta`, of which the text lags `held` bytes behind.
int64_t ReasoningTokens(const AnswerParsing& parsing, const std::vector<std::string>& tokens,
                        size_t per_delta, size_t held) {
  ChatAnswer answer(std::make_shared<const AnswerParsing>(parsing));
  std::string text;
  size_t sent = 0;
  for (size_t i = 0; i < tokens.size(); i += per_delta) {
    OutputDelta delta;
    for (size_t j = i; j < std::min(i + per_delta, tokens.size()); ++j) {
      text += tokens[j];
      delta.tokens.emplace_back();
      delta.token_ends.push_back(text.size());
    }
    const bool last = i + per_delta >= tokens.size();
    if (last) delta.finish = FinishReason::kStop;
    const size_t ready = last ? text.size() : text.size() - std::min(held, text.size() - sent);
    delta.text = text.substr(sent, ready - sent);
    sent = ready;
    answer.Add(delta);
  }
  return answer.reasoning_tokens();
}

// Whatever arrives together: those with a byte between the markers, and those without any text
// there.
TEST(ChatAnswerTest, ReasoningTokensAreCountedOneByOne) {
  struct Case {
    AnswerParsing parsing;
    std::vector<std::string> tokens;
    int64_t expected;
  };
  AnswerParsing begun = Parsing();
  begun.parser.begins_in_reasoning = true;
  AnswerParsing hidden = Parsing();
  hidden.include_reasoning = false;
  AnswerParsing forced = Parsing();
  forced.opening = "<tool_call>\n{\"name\": \"a\", \"arguments\": ";
  AnswerParsing harmony = Parsing("openai", "openai_gptoss");
  const std::vector<std::string> thoughtful = {
      "<think>", "\n", "I", " must", "", "", "\u00e9", ".", "\n", "</think>", "\n\n", "Yes", ""};
  for (const Case& c : std::vector<Case>{
           {Parsing(), thoughtful, 8},
           {hidden, thoughtful, 8},
           {Parsing(), {"<thi", "nk>Wh", "y", "?</", "think>", "No"}, 3},
           {Parsing(), {"No", " thought", "."}, 0},
           {Parsing(), {"<think>", "</think>", "Yes"}, 0},
           {Parsing(), {"<think>", "so", " on"}, 2},
           {begun, {"\n", "So", "</think>", "Yes"}, 2},
           {forced, {"{", "}", "}\n</tool_call>"}, 0},
           {harmony,
            {"<|channel|>", "analysis",  "<|message|>", "One",         " two",
             "<|end|>",     "<|start|>", "assistant",   "<|channel|>", "analysis",
             "<|message|>", "three",     "<|end|>",     "<|start|>",   "assistant",
             "<|channel|>", "final",     "<|message|>", "Four",        "."},
            3},
           // The call in it ends the reasoning; the mention of one does not.
           {Parsing(),
            {"<think>", "a <tool_call> is", " it", "\n", "<tool_call>",
             "{\"name\": \"a\", \"arguments\": {}}", "</tool_call>"},
            3},
       }) {
    for (size_t per_delta = 1; per_delta <= c.tokens.size(); ++per_delta) {
      for (const size_t held : {0, 1, 5, 100}) {
        EXPECT_EQ(ReasoningTokens(c.parsing, c.tokens, per_delta, held), c.expected)
            << c.tokens.front() << c.tokens[1] << " by " << per_delta << ", held " << held;
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
