#include "serving/api/prompt_builder.h"

#include <gtest/gtest.h>

#include <string>

#include "core/base/error.h"
#include "serving/api/api_request.h"
#include "serving/text/chat_template.h"

namespace moesaic {
namespace prompt_builder_test {

std::string Render(const char* chat_template, const std::string& messages) {
  ServedModel model;
  model.names = {"m"};
  model.chat_template = std::make_shared<const ChatTemplate>("test", chat_template, "",
                                                             ChatTemplate::SpecialTokens());
  return RenderChat(model, ParseChatRequest(R"({"messages":)" + messages + "}").chat).bytes();
}

constexpr const char* kAnywhere =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
// As Qwen3.5's.
constexpr const char* kFirstOnly =
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}";
constexpr const char* kNever =
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('No system.') }}"
    "{% endif %}{% endfor %}";

// Agents send it in the middle (openai/codex, Claude Code since 2.1.154).
TEST(PromptBuilderTest, SystemTextStandsWhereTheTemplateTakesIt) {
  const std::string late = R"([{"role":"system","content":"a"},{"role":"user","content":"hi"},
      {"role":"system","content":"b"},{"role":"user","content":"so"}])";
  EXPECT_EQ(Render(kAnywhere, late), "[system]a[user]hi[system]b[user]so");
  EXPECT_EQ(Render(kFirstOnly, late), "[system]a\nb[user]hi[user]so");
  EXPECT_EQ(Render(kFirstOnly, R"([{"role":"user","content":"hi"},
                                   {"role":"system","content":"b"}])"),
            "[system]b[user]hi");
  try {
    Render(kNever, late);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("No system."), std::string::npos);
  }
}

}  // namespace prompt_builder_test
}  // namespace moesaic
