#include "serving/api/chat/chat_syntax.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "core/base/error.h"

namespace moesaic {
namespace {

std::string TemplateFile(const std::string& name) {
  std::ifstream file(std::string(MOESAIC_TEST_DATA_DIR) + "/chat_templates/" + name);
  EXPECT_TRUE(file.good()) << name;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool Same(const ChatSyntax& syntax, const char* calls, const char* reasoning) {
  const ChatSyntax named = FindChatSyntax("", calls, reasoning);
  return syntax.calls == named.calls && syntax.reasoning == named.reasoning &&
         syntax.channels == named.channels;
}

TEST(ChatSyntaxTest, TemplatesSayIt) {
  EXPECT_TRUE(Same(FindChatSyntax(TemplateFile("qwen2_5.jinja")), "hermes", "none"));
  EXPECT_TRUE(Same(FindChatSyntax(TemplateFile("qwen3.jinja")), "hermes", "qwen3"));
  EXPECT_TRUE(Same(FindChatSyntax(TemplateFile("mistral_v0_3.jinja")), "mistral", "none"));
  EXPECT_TRUE(Same(FindChatSyntax(TemplateFile("deepseek_v3.jinja")), "deepseek_v3", "none"));
  EXPECT_TRUE(Same(FindChatSyntax(TemplateFile("gpt_oss.jinja")), "openai", "openai_gptoss"));
  EXPECT_TRUE(Same(FindChatSyntax(TemplateFile("deepseek_v3_2.jinja")), "deepseek_v32", "qwen3"));
  EXPECT_TRUE(Same(FindChatSyntax(TemplateFile("glm4_7.jinja")), "glm47", "glm45"));
  EXPECT_TRUE(Same(FindChatSyntax(TemplateFile("glm5.jinja")), "glm47", "glm45"));
  EXPECT_TRUE(Same(FindChatSyntax(TemplateFile("qwen3_5.jinja")), "qwen3_coder", "qwen3"));
  for (const char* plain : {"chatml.jinja", "qwen2.jinja", "olmoe.jinja", "deepseek_v2.jinja",
                            "dbrx.jinja", "ernie4_5.jinja"}) {
    EXPECT_TRUE(FindChatSyntax(TemplateFile(plain)).empty()) << plain;
  }
}

// The same model_type has both of these.
TEST(ChatSyntaxTest, QwenCoderIsNotHermes) {
  EXPECT_TRUE(Same(FindChatSyntax("<tool_call>\\n<function=' + name + '>\\n<parameter="),
                   "qwen3_coder", "none"));
  EXPECT_TRUE(Same(FindChatSyntax("<tool_call>\\n{\"name\": "), "hermes", "none"));
}

TEST(ChatSyntaxTest, SignsOfTheOthers) {
  EXPECT_TRUE(Same(FindChatSyntax("<tool_call>{{ name }}\n<arg_key>{{ k }}</arg_key> </think>"),
                   "glm45", "glm45"));
  EXPECT_TRUE(Same(FindChatSyntax("<|tool_calls_section_begin|>"), "kimi_k2", "none"));
  EXPECT_TRUE(Same(FindChatSyntax("<minimax:tool_call> <think></think>"), "minimax_m2", "qwen3"));
  EXPECT_TRUE(
      Same(FindChatSyntax("<｜tool▁calls▁begin｜> </think>"), "deepseek_v31", "deepseek_v3"));
  EXPECT_TRUE(
      Same(FindChatSyntax("{% set dsml = '｜DSML｜' %} function_calls"), "deepseek_v32", "none"));
  EXPECT_TRUE(
      Same(FindChatSyntax("{% set dsml = '｜DSML｜' %} tool_calls"), "deepseek_v4", "none"));
  EXPECT_TRUE(Same(FindChatSyntax("[TOOL_CALLS] [THINK]"), "mistral", "mistral"));
  EXPECT_TRUE(
      Same(FindChatSyntax("respond with <|tool_call|> and a JSON list"), "granite", "none"));
}

TEST(ChatSyntaxTest, NamesOverrideTheTemplate) {
  const std::string qwen3 = TemplateFile("qwen3.jinja");
  EXPECT_TRUE(FindChatSyntax(qwen3, "none", "none").empty());
  EXPECT_TRUE(Same(FindChatSyntax(qwen3, "kimi_k2", "deepseek_r1"), "kimi_k2", "deepseek_r1"));
  EXPECT_TRUE(Same(FindChatSyntax(qwen3, "auto", "none"), "hermes", "none"));
}

TEST(ChatSyntaxTest, UnknownNamesAreToldWithTheKnownOnes) {
  for (const bool tools : {true, false}) {
    try {
      FindChatSyntax("", tools ? "hermess" : "auto", tools ? "auto" : "qwen33");
      ADD_FAILURE();
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(what.find(tools ? "--tool-call-parser hermess" : "--reasoning-parser qwen33"),
                std::string::npos);
      EXPECT_NE(what.find(tools ? "qwen3_coder" : "deepseek_r1"), std::string::npos);
    }
  }
}

TEST(ChatSyntaxTest, MarkersAreWhatMustBeShown) {
  const auto has = [](const ChatSyntax& syntax, std::string_view marker) {
    const std::vector<std::string_view> markers = syntax.Markers();
    return std::find(markers.begin(), markers.end(), marker) != markers.end();
  };
  EXPECT_TRUE(has(FindChatSyntax("", "kimi_k2", "qwen3"), "<|tool_call_argument_begin|>"));
  EXPECT_TRUE(has(FindChatSyntax("", "kimi_k2", "qwen3"), "</think>"));
  EXPECT_TRUE(has(FindChatSyntax("", "openai"), "<|constrain|>"));
  EXPECT_TRUE(has(FindChatSyntax("", "mistral", "none"), "[ARGS]"));
  EXPECT_FALSE(has(FindChatSyntax("", "deepseek_v3", "none"), "\n"));
}

}  // namespace
}  // namespace moesaic
