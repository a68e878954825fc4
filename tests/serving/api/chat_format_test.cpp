#include "serving/api/chat_format.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "serving/text/chat_template.h"
#include "tests/serving/api/test_tokenizer.h"

namespace moesaic {
namespace {

ChatTemplate TemplateOf(const std::string& source) { return ChatTemplate("t", source, "", {}); }

// Tokens of control as DeepSeek's tokenizer has them: whole markers, and a part of others.
class ControlTokenizer : public ListedTokenizer {
 public:
  ControlTokenizer()
      : ListedTokenizer({{"<think>", true},
                         {"[TOOL_CALLS]", true},
                         {"<end>", true},
                         {"｜DSML｜", true},
                         {"text"}}) {}
};

TEST(ChatFormatTest, OfTheTemplate) {
  const ByteTokenizer tokenizer;
  const ChatTemplate hermes = TemplateOf("<tool_call>");
  EXPECT_EQ(MakeChatFormat(nullptr, tokenizer, "auto", "auto"), nullptr);
  EXPECT_EQ(MakeChatFormat(&hermes, tokenizer, "none", "auto"), nullptr);
  const auto format = MakeChatFormat(&hermes, tokenizer, "auto", "auto");
  ASSERT_NE(format, nullptr);
  EXPECT_EQ(format->syntax.calls, FindChatSyntax("", "hermes").calls);
  EXPECT_TRUE(format->special_tokens.empty());
  EXPECT_THROW(MakeChatFormat(&hermes, tokenizer, "other", "auto"), Error);
}

TEST(ChatFormatTest, SpecialTokensOfTheSyntax) {
  const ControlTokenizer tokenizer;
  const auto mistral = MakeChatFormat(nullptr, tokenizer, "mistral", "none");
  EXPECT_EQ(mistral->special_tokens, (std::vector<int32_t>{1}));
  EXPECT_EQ(mistral->control_markers, (std::vector<std::string_view>{"[TOOL_CALLS]"}));
  const auto dsml = MakeChatFormat(nullptr, tokenizer, "deepseek_v32", "deepseek_v3");
  EXPECT_EQ(dsml->special_tokens, (std::vector<int32_t>{0, 3}));
  EXPECT_EQ(dsml->control_markers, (std::vector<std::string_view>{"<think>"}));
}

TEST(ChatFormatTest, PromptsThatOpenReasoning) {
  const ReasoningSyntax& think = *FindChatSyntax("", "none", "qwen3").reasoning;
  jinja::MarkedText prompt("<user>");
  prompt.Append("hi <think>", true);
  EXPECT_FALSE(OpensReasoning(prompt, think));
  prompt.Append("<assistant><think>\n", false);
  EXPECT_TRUE(OpensReasoning(prompt, think));
  prompt.Append("\n</think>\n\n", false);
  EXPECT_FALSE(OpensReasoning(prompt, think));
  EXPECT_FALSE(OpensReasoning(jinja::MarkedText(""), think));
}

}  // namespace
}  // namespace moesaic
