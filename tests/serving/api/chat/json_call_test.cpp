// Calls whose arguments are JSON: Hermes, DeepSeek, Kimi, Mistral, Granite.
#include <gtest/gtest.h>

#include "tests/serving/api/chat/parse.h"

namespace moesaic {
namespace {

std::string Hermes(const std::string& text, bool complete = true) {
  return ParseAllCuts(OptionsFor("hermes"), {text, complete});
}
std::string Kimi(const std::string& text, bool complete = true) {
  return ParseAllCuts(OptionsFor("kimi_k2"), {text, complete});
}
std::string DeepSeek(const std::string& text, bool complete = true) {
  return ParseAllCuts(OptionsFor("deepseek_v31"), {text, complete});
}
std::string DeepSeekFenced(const std::string& text, bool complete = true) {
  return ParseAllCuts(OptionsFor("deepseek_v3"), {text, complete});
}
std::string Mistral(const std::string& text, bool complete = true) {
  return ParseAllCuts(OptionsFor("mistral"), {text, complete});
}
std::string Granite(const std::string& text, bool complete = true) {
  return ParseAllCuts(OptionsFor("granite"), {text, complete});
}

TEST(HermesTest, ACall) {
  EXPECT_EQ(Hermes("<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n"
                   "</tool_call>"),
            R"(weather:{"city": "Rome"};)");
}

TEST(HermesTest, ContentAndParallelCalls) {
  EXPECT_EQ(Hermes("I look.\n\n<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": 1}}\n"
                   "</tool_call>\n<tool_call>\n{\"name\": \"b\", \"arguments\": {\"y\": 2}}\n"
                   "</tool_call>\n"),
            R"(c(I look.)a:{"x": 1};b:{"y": 2};)");
}

TEST(HermesTest, TextBehindACall) {
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>\n\nDone. \n"),
            "a:{};c(\n\nDone. \n)");
}

// vLLM #28806.
TEST(HermesTest, EmptyArguments) {
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>"), "a:{};");
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"a\"}</tool_call>"), "a:{};");
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"a\", \"arguments\": null}</tool_call>"), "a:{};");
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"a\", \"arguments\": \"\"}</tool_call>"), "a:{};");
}

// vLLM #20824: nested objects; #10395: the first brace; #21544: braces in strings.
TEST(HermesTest, ArgumentsStayAsTheyAre) {
  const std::string arguments =
      R"({"a": {"b": {"c": [1, {"d": "}"}]}}, "s": "{test1,test2", "t": "</tool_call>", "q": "\"}{"})";
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"f\", \"arguments\": " + arguments + "}</tool_call>"),
            "f:" + arguments + ";");
}

TEST(HermesTest, OtherOrdersAndMembers) {
  EXPECT_EQ(
      Hermes(R"(<tool_call>{"arguments": {"x": "y"}, "id": [1, "}"], "name": "f"}</tool_call>)"),
      R"(f:{"x": "y"};)");
  EXPECT_EQ(Hermes(R"(<tool_call>{"name": "f", "parameters": {"x": 1}}</tool_call>)"),
            R"(f:{"x": 1};)");
  EXPECT_EQ(Hermes(R"(<tool_call>{"name": "f", "arguments": "{\"x\": \"a\\nb\"}"}</tool_call>)"),
            R"(f:{"x": "a\nb"};)");
  EXPECT_EQ(Hermes(R"(<tool_call>{"name": "caf\u00e9_\ud83d\ude00", "arguments": {}}</tool_call>)"),
            "caf\xC3\xA9_\xF0\x9F\x98\x80:{};");
}

TEST(HermesTest, CutOff) {
  EXPECT_EQ(Hermes("Yes <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"ab", false),
            R"(c(Yes)f:{"x": "ab)");
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}", false),
            R"(f:{"x": 1};)");
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"f\"", false), "f:");
  // Not known to be a call yet.
  EXPECT_EQ(Hermes("<tool_call>\n{\"na", false), "c(<tool_call>\n{\"na)");
  EXPECT_EQ(Hermes("see <tool_", false), "c(see <tool_)");
}

TEST(HermesTest, WhatIsMissingAtTheEnd) {
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}"), R"(f:{"x": 1};)");
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}</tool_call> so"),
            R"(f:{"x": 1};c( so))");
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1</tool_call>"),
            R"(f:{"x": 1;)");
}

TEST(HermesTest, ATagInProseIsContent) {
  EXPECT_EQ(Hermes("Write `<tool_call>` in front, `</tool_call>` behind."),
            "c(Write `<tool_call>` in front, `</tool_call>` behind.)");
  EXPECT_EQ(Hermes("```\n<tool_call>\n{...}\n</tool_call>\n```"),
            "c(```\n<tool_call>\n{...}\n</tool_call>\n```)");
  EXPECT_EQ(Hermes("<tool_call>\n{\"tool\": \"x\"}\n</tool_call>"),
            "c(<tool_call>\n{\"tool\": \"x\"}\n</tool_call>)");
  EXPECT_EQ(Hermes("a < b <tool <tool_call <tool_calls>"),
            "c(a < b <tool <tool_call <tool_calls>)");
  // By its syntax this is a call, wherever it stands.
  EXPECT_EQ(Hermes("```\n<tool_call>{\"name\": \"f\"}</tool_call>\n```"), "c(```)f:{};c(\n```)");
}

TEST(HermesTest, SpaceStaysWhereThereIsNoCall) {
  EXPECT_EQ(Hermes("\n  a \n b \n\n"), "c(\n  a \n b \n\n)");
  EXPECT_EQ(Hermes(" \n"), "c( \n)");
  EXPECT_EQ(Hermes(""), "");
  EXPECT_EQ(Hermes("\n\n<tool_call>{\"name\": \"f\"}</tool_call>"), "f:{};");
}

TEST(HermesTest, WithoutToolsCallsAreText) {
  ChatParserOptions options = OptionsFor("hermes", "qwen3");
  options.calls = false;
  const std::string call = "<tool_call>{\"name\": \"f\"}</tool_call>";
  EXPECT_EQ(ParseAllCuts(options, {call}), "c(" + call + ")");
}

TEST(KimiTest, SectionsAndIds) {
  EXPECT_EQ(Kimi("I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
                 "<|tool_call_argument_begin|>{\"city\": \"Rome\"}<|tool_call_end|>"
                 "<|tool_call_begin|>functions.b:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
                 "<|tool_calls_section_end|>"),
            R"(c(I look.)weather#functions.weather:0:{"city": "Rome"};b#functions.b:1:{};)");
}

TEST(KimiTest, SpaceAndMissingParts) {
  EXPECT_EQ(Kimi("<|tool_calls_section_begin|> \n <|tool_call_begin|> functions.a:0 "
                 "<|tool_call_argument_begin|> {\"x\": {\"y\": \"<|tool_call_end|>\"}} "
                 "<|tool_call_end|> \n <|tool_calls_section_end|> bye"),
            R"(a#functions.a:0:{"x": {"y": "<|tool_call_end|>"}};c( bye))");
  EXPECT_EQ(Kimi("<|tool_call_begin|>a:7<|tool_call_argument_begin|>{}<|tool_call_end|>"),
            "a#a:7:{};");
  EXPECT_EQ(Kimi("<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0<|tool_call_end|>"
                 "<|tool_calls_section_end|>"),
            "a#functions.a:0:{};");
}

TEST(KimiTest, CutOff) {
  EXPECT_EQ(Kimi("<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0"
                 "<|tool_call_argument_begin|>{\"x\": [1, 2",
                 false),
            R"(a#functions.a:0:{"x": [1, 2)");
  EXPECT_EQ(Kimi("<|tool_calls_section_begin|><|tool_call_begin|>functions.a", false),
            "c(<|tool_calls_section_begin|><|tool_call_begin|>functions.a)");
}

TEST(DeepSeekTest, V31) {
  EXPECT_EQ(DeepSeek("Well<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
                     "{\"city\": \"Rome\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>b<｜tool▁sep｜>{}"
                     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
            R"(c(Well)weather:{"city": "Rome"};b:{};)");
}

TEST(DeepSeekTest, V3WithFences) {
  EXPECT_EQ(
      DeepSeekFenced("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
                     "```json\n{\"city\": \"```\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>"
                     "function<｜tool▁sep｜>b\n```json\n{}\n```<｜tool▁call▁end｜>"
                     "<｜tool▁calls▁end｜>"),
      R"(weather:{"city": "```"};b:{};)");
  EXPECT_EQ(
      DeepSeekFenced("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
                     "```json\n{\"city\": \"Ro",
                     false),
      R"(weather:{"city": "Ro)");
}

TEST(MistralTest, Lists) {
  EXPECT_EQ(Mistral(R"([TOOL_CALLS] [{"name": "a", "arguments": {"x": [1]}}, )"
                    R"({"name": "b", "arguments": {}, "id": "123456789"}])"),
            R"(a:{"x": [1]};b:{};)");
  EXPECT_EQ(Mistral(R"(Well.[TOOL_CALLS]{"name": "a", "arguments": {}})"), "c(Well.)a:{};");
  EXPECT_EQ(Mistral("[TOOL_CALLS] is a token"), "c([TOOL_CALLS] is a token)");
  EXPECT_EQ(Mistral("[TOOL_CALLS][]"), "c([TOOL_CALLS][])");
  EXPECT_EQ(Mistral("[TOOL_CALLS]a [TOOL_CALLS]b [TOOL_CALLS]"),
            "c([TOOL_CALLS]a [TOOL_CALLS]b [TOOL_CALLS])");
}

TEST(GraniteTest, Lists) {
  EXPECT_EQ(
      Granite(R"(<|tool_call|>[{"name": "weather", "arguments": {"city": "Rome", "x": [1]}}, )"
              R"({"name": "b", "arguments": {}}])"),
      R"(weather:{"city": "Rome", "x": [1]};b:{};)");
  // As Granite 3.1 begins it.
  EXPECT_EQ(Granite(R"(I look. <tool_call>[{"name": "a", "arguments": {"x": 1}}])"),
            R"(c(I look.)a:{"x": 1};)");
  EXPECT_EQ(Granite(R"(<|tool_call|> {"arguments": {"x": 1}, "name": "a"})"), R"(a:{"x": 1};)");
}

TEST(GraniteTest, WhatIsNoListIsContent) {
  EXPECT_EQ(Granite("<|tool_call|> is a token"), "c(<|tool_call|> is a token)");
  EXPECT_EQ(Granite("<|tool_call|>[]"), "c(<|tool_call|>[])");
  EXPECT_EQ(Granite(R"(<|tool_call|>weather{"city": 1})"), R"(c(<|tool_call|>weather{"city": 1}))");
}

TEST(GraniteTest, ArgumentsStream) {
  const std::unique_ptr<ChatParser> parser =
      MakeChatParser(std::make_shared<ChatParserOptions>(OptionsFor("granite")));
  ChatEvents events;
  const auto add = [&](std::string_view text) {
    parser->Add(text, {}, events);
    std::string out;
    for (const ChatEvent& event : events.Take()) out += event.text;
    return out;
  };
  EXPECT_EQ(add(R"(<|tool_call|>[{"name": "weather", "arguments": {"city": "R)"),
            R"(weather{"city": "R)");
  EXPECT_EQ(add("ome"), "ome");
  EXPECT_EQ(add("\"}}, {\"na"), "\"}");
  EXPECT_EQ(add(R"(me": "b", "arguments": {)"), "b{");
  EXPECT_EQ(Granite(R"(<|tool_call|>[{"name": "a", "arguments": {"x": "cut)", false),
            R"(a:{"x": "cut)");
}

TEST(MistralTest, NamesInFront) {
  EXPECT_EQ(Mistral(R"([TOOL_CALLS]a[ARGS]{"x": "[ARGS]"}[TOOL_CALLS]b[ARGS]{})"),
            R"(a:{"x": "[ARGS]"};b:{};)");
  EXPECT_EQ(Mistral(R"([TOOL_CALLS]a[CALL_ID]abcdefghi[ARGS]{"x": 1})"),
            R"(a#abcdefghi:{"x": 1};)");
  EXPECT_EQ(Mistral(R"([TOOL_CALLS]a{"x": 1})"), R"(a:{"x": 1};)");
  EXPECT_EQ(Mistral(R"([TOOL_CALLS]a[ARGS])"), "a:{};");
  EXPECT_EQ(Mistral(R"([TOOL_CALLS]a[ARGS]{"x": )", false), R"(a:{"x": )");
}

}  // namespace
}  // namespace moesaic
