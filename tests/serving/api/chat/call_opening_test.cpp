// Calls that are forced: what is put behind the prompt and what the model then writes are together
// a call, in every syntax.
#include "serving/api/chat/call_opening.h"

#include <gtest/gtest.h>

#include "serving/api/chat/chat_parser.h"

namespace moesaic {
namespace call_opening_test {

struct Case {
  const char* calls;
  const char* reasoning;
  const char* named;    // what the model writes behind an opening with a name
  const char* unnamed;  // and behind one without
};

constexpr Case kCases[] = {
    {"hermes", "qwen3", R"({"x": 1}})", R"(f", "arguments": {"x": 1}})"},
    {"qwen3_coder", "qwen3", "<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
     "f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"},
    {"minimax_m2", "minimax_m2",
     "<parameter name=\"x\">1</parameter>\n</invoke>\n</minimax:tool_call>",
     "f\">\n<parameter name=\"x\">1</parameter>\n</invoke>\n</minimax:tool_call>"},
    {"glm45", "glm45", "<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
     "f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"},
    {"deepseek_v3", "deepseek_v3", "{\"x\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "f\n```json\n{\"x\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {"deepseek_v31", "deepseek_r1", "{\"x\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "f<｜tool▁sep｜>{\"x\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {"deepseek_v32", "deepseek_v3",
     "<｜DSML｜parameter name=\"x\" string=\"false\">1</｜DSML｜parameter></｜DSML｜invoke>"
     "</｜DSML｜function_calls>",
     "f\"><｜DSML｜parameter name=\"x\" string=\"false\">1</｜DSML｜parameter></｜DSML｜invoke>"
     "</｜DSML｜function_calls>"},
    {"kimi_k2", "kimi_k2", "{\"x\": 1}<|tool_call_end|><|tool_calls_section_end|>",
     "f:0<|tool_call_argument_begin|>{\"x\": 1}<|tool_call_end|><|tool_calls_section_end|>"},
    {"mistral", "mistral", R"({"x": 1}}])", R"(f", "arguments": {"x": 1}}])"},
    {"granite", "none", R"({"x": 1}}])", R"(f", "arguments": {"x": 1}}])"},
    {"openai", "openai_gptoss", "{\"x\": 1}<|call|>",
     "f <|constrain|>json<|message|>{\"x\": 1}<|call|>"},
};

std::string Joined(const std::vector<OpeningText>& opening) {
  std::string text;
  for (const OpeningText& part : opening) text += part.text;
  return text;
}

// "reasoning|content|name(arguments)" of the texts one after the other.
std::string Parse(const Case& syntax, bool in_reasoning, const std::string& opening,
                  const std::string& answer) {
  auto options = std::make_shared<ChatParserOptions>();
  options->syntax = FindChatSyntax("", syntax.calls, syntax.reasoning);
  options->calls = true;
  options->begins_in_reasoning = in_reasoning;
  const auto parser = MakeChatParser(options);
  ChatEvents events;
  parser->Add(opening, {}, events);
  parser->Add(answer, {}, events);
  parser->Finish(true, events);
  std::string reasoning, content, calls;
  for (const ChatEvent& event : events.Take()) {
    if (event.kind == ChatEvent::Kind::kReasoning) reasoning += event.text;
    if (event.kind == ChatEvent::Kind::kContent) content += event.text;
    if (event.kind == ChatEvent::Kind::kCallBegin) calls += event.text + "(";
    if (event.kind == ChatEvent::Kind::kArguments) calls += event.text;
    if (event.kind == ChatEvent::Kind::kCallEnd) calls += ")";
  }
  return reasoning + "|" + content + "|" + calls;
}

TEST(CallOpeningTest, EverySyntaxGoesOnWithACall) {
  for (const Case& syntax : kCases) {
    const ChatSyntax chat = FindChatSyntax("", syntax.calls, syntax.reasoning);
    for (const bool in_reasoning : {false, true}) {
      if (in_reasoning && chat.reasoning == nullptr) continue;
      const std::string named =
          Joined(CallOpening(chat, {.tool = "f", .in_reasoning = in_reasoning}));
      std::string parsed = Parse(syntax, in_reasoning, named, syntax.named);
      std::erase(parsed, ' ');
      EXPECT_EQ(parsed, R"(||f({"x":1}))") << syntax.calls << " after " << named;
      const std::string opening = Joined(CallOpening(chat, {.in_reasoning = in_reasoning}));
      parsed = Parse(syntax, in_reasoning, opening, syntax.unnamed);
      std::erase(parsed, ' ');
      EXPECT_EQ(parsed, R"(||f({"x":1}))") << syntax.calls << " after " << opening;
    }
  }
}

TEST(CallOpeningTest, OnlyTheNameIsTheClients) {
  const auto opening = CallOpening(FindChatSyntax("", "hermes", "none"), {.tool = "a\"b"});
  ASSERT_EQ(opening.size(), 3u);
  EXPECT_EQ(opening[0].text, "<tool_call>\n{\"name\": \"");
  EXPECT_EQ(opening[1].text, "a\\\"b");
  EXPECT_EQ(opening[2].text, "\", \"arguments\": ");
  EXPECT_FALSE(opening[0].from_input || opening[2].from_input);
  EXPECT_TRUE(opening[1].from_input);
}

TEST(CallOpeningTest, ReasoningThatThePromptOpenedIsEnded) {
  const ChatSyntax chat = FindChatSyntax("", "hermes", "qwen3");
  EXPECT_TRUE(
      Joined(CallOpening(chat, {.in_reasoning = true})).starts_with("\n</think>\n\n<tool_"));
  EXPECT_TRUE(Joined(CallOpening(chat, {})).starts_with("<tool_call>"));
  EXPECT_TRUE(Joined(CallOpening(FindChatSyntax("", "hermes", "deepseek_r1"), {}))
                  .starts_with("<think>\n\n</think>\n\n<tool_call>"));
}

TEST(CallOpeningTest, Forms) {
  const ChatSyntax mistral = FindChatSyntax("", "mistral", "none");
  EXPECT_EQ(Joined(CallOpening(mistral, {.tool = "f", .template_text = "[ARGS]"})),
            "[TOOL_CALLS]f[ARGS]");
  EXPECT_EQ(Joined(CallOpening(mistral, {.template_text = "[ARGS]"})), "[TOOL_CALLS]");
  const ChatSyntax kimi = FindChatSyntax("", "kimi_k2", "none");
  EXPECT_TRUE(Joined(CallOpening(kimi, {.tool = "f", .calls_before = 3}))
                  .ends_with("functions.f:3<|tool_call_argument_begin|>"));
  EXPECT_TRUE(CallOpening(FindChatSyntax("", "none", "qwen3"), {.tool = "f"}).empty());
}

}  // namespace call_opening_test
}  // namespace moesaic
