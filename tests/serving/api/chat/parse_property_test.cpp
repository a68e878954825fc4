// For every syntax: what a parser says of a text does not depend on how the text is cut, and events
// are in order, whatever the text is.
#include <gtest/gtest.h>

#include <random>

#include "tests/serving/api/chat/parse.h"

namespace moesaic {
namespace {

constexpr int kTexts = 150;

struct Parsers {
  const char* calls;
  const char* reasoning;
};

class ParsePropertyTest : public ::testing::TestWithParam<Parsers> {};

// Texts of markers, of what may stand between them, and of their parts.
std::string RandomText(const ChatSyntax& syntax, std::mt19937& random) {
  static const std::vector<std::string> kPieces = {"{\"name\": \"f\", \"arguments\": {\"x\": 1}}",
                                                   "{\"name\": \"f\", \"arguments\": ",
                                                   "{\"a\": [1, \"}\"]}",
                                                   "{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   "\"",
                                                   "\\",
                                                   "name",
                                                   "weather",
                                                   "functions.f:0",
                                                   "city",
                                                   "days",
                                                   "5",
                                                   "true",
                                                   ">",
                                                   "\">",
                                                   "\" string=\"true\">",
                                                   "<",
                                                   "</",
                                                   "```json",
                                                   "```",
                                                   "\n",
                                                   " ",
                                                   "text",
                                                   "\xC3\xA9",
                                                   "to=functions.f ",
                                                   "final",
                                                   "analysis"};
  const std::vector<std::string_view> markers = syntax.Markers();
  std::string text;
  const size_t pieces = 1 + random() % 14;
  for (size_t i = 0; i < pieces; ++i) {
    if (markers.empty() || random() % 2 == 0) {
      text += kPieces[random() % kPieces.size()];
      continue;
    }
    std::string_view marker = markers[random() % markers.size()];
    if (random() % 8 == 0) marker = marker.substr(0, random() % marker.size());
    text += marker;
  }
  return text;
}

TEST_P(ParsePropertyTest, CutsChangeNothing) {
  std::mt19937 random(20261125);
  for (int i = 0; i < kTexts; ++i) {
    ChatParserOptions options = OptionsFor(GetParam().calls, GetParam().reasoning);
    options.begins_in_reasoning = random() % 2 == 0;
    const Output output{RandomText(options.syntax, random), random() % 2 == 0};
    ParseAllCuts(options, output);
    ASSERT_FALSE(HasFailure()) << "text: " << output.text << "\ncomplete: " << output.complete;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ParsePropertyTest,
    ::testing::Values(Parsers{"hermes", "qwen3"}, Parsers{"qwen3_coder", "qwen3"},
                      Parsers{"minimax_m2", "minimax_m2"}, Parsers{"glm45", "glm45"},
                      Parsers{"deepseek_v3", "deepseek_v3"}, Parsers{"deepseek_v31", "deepseek_r1"},
                      Parsers{"deepseek_v32", "deepseek_v3"}, Parsers{"deepseek_v4", "none"},
                      Parsers{"kimi_k2", "kimi_k2"}, Parsers{"mistral", "mistral"},
                      Parsers{"granite", "none"}, Parsers{"openai", "openai_gptoss"}),
    [](const auto& parsers) { return std::string(parsers.param.calls); });

}  // namespace
}  // namespace moesaic
