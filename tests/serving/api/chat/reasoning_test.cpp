// Reasoning between tags, alone and with calls, and harmony's channels.
#include <gtest/gtest.h>

#include "tests/serving/api/chat/parse.h"

namespace moesaic {
namespace {

std::string Think(const std::string& text, bool complete = true) {
  return ParseAllCuts(OptionsFor("hermes", "qwen3"), {text, complete});
}
std::string Inside(const std::string& text, bool complete = true) {
  ChatParserOptions options = OptionsFor("hermes", "qwen3");
  options.begins_in_reasoning = true;
  return ParseAllCuts(options, {text, complete});
}
std::string Harmony(const std::string& text, bool complete = true) {
  return ParseAllCuts(OptionsFor("openai", "openai_gptoss"), {text, complete});
}

constexpr const char* kCall = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";

TEST(ReasoningTest, ComesFirst) {
  EXPECT_EQ(Think("<think>\nWell, \n so.\n</think>\n\nHello\n"), "r(Well, \n so.)c(Hello\n)");
  EXPECT_EQ(Think("\n<think>a</think>b"), "r(a)c(b)");
  EXPECT_EQ(Think("<think>\n\n</think>\n\nHello"), "c(Hello)");
  EXPECT_EQ(Think("Hello <think>a</think>"), "c(Hello <think>a</think>)");
  EXPECT_EQ(Think(" Hello"), "c( Hello)");
  EXPECT_EQ(Think("<thin"), "c(<thin)");
  EXPECT_EQ(Think("<think>a</think> \n"), "r(a)");
  EXPECT_EQ(Think("<think>a</think>b</think>"), "r(a)c(b</think>)");
}

TEST(ReasoningTest, ThePromptMayHaveBegunIt) {
  EXPECT_EQ(Inside("\nWell.\n</think>\n\nHello"), "r(Well.)c(Hello)");
  EXPECT_EQ(Inside("<think>Well.</think>Hello"), "r(Well.)c(Hello)");
  EXPECT_EQ(Inside("</think>Hello"), "c(Hello)");
  EXPECT_EQ(ParseAllCuts(OptionsFor("none", "deepseek_r1"), {"Well.</think>Hello"}),
            "r(Well.)c(Hello)");
}

TEST(ReasoningTest, WithoutItsEnd) {
  EXPECT_EQ(Think("<think>Well", false), "r(Well)");
  EXPECT_EQ(Think("<think>Well </thi", false), "r(Well </thi)");
  EXPECT_EQ(Inside("Well"), "r(Well)");
  // A call ends it, if it begins a line.
  EXPECT_EQ(Inside(std::string("I call.\n") + kCall), "r(I call.)f:{};");
  EXPECT_EQ(Inside(std::string("I call.\n") + kCall + "\nDone."), "r(I call.)f:{};c(Done.)");
  EXPECT_EQ(Inside(std::string("I write ") + kCall + " soon.</think>Hello"),
            "r(I write " + std::string(kCall) + " soon.)c(Hello)");
  EXPECT_EQ(Inside("It is\n<tool_call> I need.</think>Hello"),
            "r(It is\n<tool_call> I need.)c(Hello)");
}

TEST(ReasoningTest, ThenCalls) {
  EXPECT_EQ(Think(std::string("<think>a</think>\n\n") + kCall), "r(a)f:{};");
  EXPECT_EQ(Think(std::string("<think>a</think>\n\nWell.\n") + kCall), "r(a)c(Well.)f:{};");
}

TEST(ReasoningTest, WithoutAParserItIsContent) {
  EXPECT_EQ(ParseAllCuts(OptionsFor("hermes"), {"<think>a</think>b"}), "c(<think>a</think>b)");
  ChatParserOptions options = OptionsFor("hermes", "qwen3");
  options.reasoning = false;
  EXPECT_EQ(ParseAllCuts(options, {"<think>a</think>b"}), "c(<think>a</think>b)");
}

TEST(ReasoningTest, MistralsTags) {
  EXPECT_EQ(ParseAllCuts(OptionsFor("mistral", "mistral"),
                         {"[THINK]a[/THINK]b[TOOL_CALLS]f[ARGS]{\"x\": 1}"}),
            R"(r(a)c(b)f:{"x": 1};)");
}

// Where a tag is a token of control only that token counts, so that a model can write about it.
TEST(ReasoningTest, TokensOfControl) {
  ChatParserOptions options = OptionsFor("mistral");
  options.control_markers = {"[TOOL_CALLS]"};
  const std::string text = "[TOOL_CALLS]a{} and [TOOL_CALLS]b{}";
  for (const size_t at : {size_t{0}, text.rfind('[')}) {
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      const std::unique_ptr<ChatParser> parser =
          MakeChatParser(std::make_shared<ChatParserOptions>(options));
      ChatEvents events;
      std::string content;
      const auto take = [&] {
        for (const ChatEvent& event : events.Take()) content += event.text;
      };
      const size_t offsets[] = {at};
      const bool in_first = at < cut;
      parser->Add(text.substr(0, cut), std::span(offsets, in_first ? 1 : 0), events);
      take();
      parser->Add(text.substr(cut), std::span(offsets, in_first ? 0 : 1), events);
      parser->Finish(true, events);
      take();
      EXPECT_EQ(content, at == 0 ? "a{} and [TOOL_CALLS]b{}" : "[TOOL_CALLS]a{} andb{}") << cut;
      EXPECT_EQ(events.calls(), 1u);
    }
  }
}

TEST(HarmonyTest, Channels) {
  EXPECT_EQ(Harmony("<|channel|>analysis<|message|>Think. <|end|><|start|>assistant<|channel|>final"
                    "<|message|>Hello<|return|>"),
            "r(Think. )c(Hello)");
  EXPECT_EQ(Harmony("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis"
                    "<|message|>b<|end|><|start|>assistant<|channel|>final<|message|>c"),
            "r(a\nb)c(c)");
  EXPECT_EQ(Harmony("<|channel|>commentary<|message|>I will call.<|end|><|start|>assistant"
                    "<|channel|>final<|message|>Done"),
            "c(I will call.\nDone)");
}

TEST(HarmonyTest, Calls) {
  EXPECT_EQ(
      Harmony("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary "
              "to=functions.weather <|constrain|>json<|message|>{\"city\": \"Rome\"}<|call|>"),
      R"(r(a)weather:{"city": "Rome"};)");
  EXPECT_EQ(Harmony("<|start|>assistant to=functions.any<|channel|>commentary json<|message|>"
                    "<|call|>"),
            "any:{};");
  EXPECT_EQ(Harmony(" to=functions.any<|channel|>commentary<|message|>{}"), "any:{};");
  EXPECT_EQ(Harmony("<|channel|>commentary to=functions.any<|message|>{\"x\": ", false),
            R"(any:{"x": )");
  EXPECT_EQ(Harmony("<|channel|>analysis to=python code<|message|>1+1<|call|>"), "r(1+1)");
  EXPECT_EQ(Harmony("<|channel|>analysis to=weather code<|message|>{}<|call|>"), "weather:{};");
}

TEST(HarmonyTest, WhatIsForgottenOrCut) {
  EXPECT_EQ(Harmony("Hello"), "c(Hello)");
  EXPECT_EQ(Harmony("<|message|>Hello<|return|>"), "c(Hello)");
  EXPECT_EQ(Harmony("<|channel|>analysis<|message|>a<|channel|>final<|message|>b"), "r(a)c(b)");
  EXPECT_EQ(Harmony("<|channel|>analy", false), "");
  EXPECT_EQ(Harmony("<|channel|>analysis<|message|>a<|en", false), "r(a<|en)");
  EXPECT_EQ(Harmony("<|channel|>analysis<|end|><|channel|>final<|message|>b"), "c(b)");
}

TEST(HarmonyTest, WithoutToolsOrReasoning) {
  ChatParserOptions options = OptionsFor("openai", "openai_gptoss");
  options.calls = false;
  options.reasoning = false;
  EXPECT_EQ(ParseAllCuts(options, {"<|channel|>analysis<|message|>a<|end|><|start|>assistant"
                                   "<|channel|>final<|message|>b"}),
            "c(a\nb)");
}

}  // namespace
}  // namespace moesaic
