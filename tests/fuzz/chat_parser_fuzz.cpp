// A model's output: no parser loses its way in it, and what it says does not depend on how the text
// is cut. The first byte chooses the syntax, the second what the request wants.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/check.h"
#include "serving/api/chat/chat_parser.h"

namespace {

using moesaic::ChatEvent;

struct Names {
  const char* calls;
  const char* reasoning;
};
constexpr std::array<Names, 13> kSyntaxes = {{{"hermes", "qwen3"},
                                              {"qwen3_coder", "qwen3"},
                                              {"minimax_m2", "minimax_m2"},
                                              {"glm45", "glm45"},
                                              {"deepseek_v3", "deepseek_v3"},
                                              {"deepseek_v31", "deepseek_r1"},
                                              {"deepseek_v32", "deepseek_v3"},
                                              {"deepseek_v4", "none"},
                                              {"kimi_k2", "kimi_k2"},
                                              {"mistral", "mistral"},
                                              {"openai", "openai_gptoss"},
                                              {"none", "qwen3"},
                                              {"granite", "none"}}};

// Events with text that follows text of the same kind joined.
std::vector<ChatEvent> Parse(const moesaic::ChatParserOptions& options, std::string_view text,
                             bool complete, size_t piece) {
  const auto parser =
      moesaic::MakeChatParser(std::make_shared<moesaic::ChatParserOptions>(options));
  moesaic::ChatEvents events;
  std::vector<ChatEvent> joined;
  const auto take = [&] {
    for (ChatEvent& event : events.Take()) {
      const bool more = !joined.empty() && joined.back().kind == event.kind &&
                        event.kind != ChatEvent::Kind::kCallBegin &&
                        event.kind != ChatEvent::Kind::kCallEnd;
      if (more) {
        joined.back().text += event.text;
      } else {
        joined.push_back(std::move(event));
      }
    }
  };
  for (size_t at = 0; at < text.size(); at += piece) {
    parser->Add(text.substr(at, piece), {}, events);
    take();
  }
  parser->Finish(complete, events);
  take();
  return joined;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const Names names = kSyntaxes[data[0] % kSyntaxes.size()];
  const uint8_t wants = data[1];
  moesaic::ChatParserOptions options;
  options.syntax = moesaic::FindChatSyntax("", names.calls, names.reasoning);
  static const moesaic::ToolSchemas tools(moesaic::Json::parse(
      R"([{"function": {"name": "f", "parameters": {"properties": {"s": {"type": "string"},
          "i": {"type": "integer"}, "o": {"type": "object"}, "n": {"type": ["string", "null"]}}}}}])"));
  options.tools = tools;
  options.calls = (wants & 1) != 0;
  options.reasoning = (wants & 2) != 0;
  options.begins_in_reasoning = (wants & 4) != 0;
  const bool complete = (wants & 8) != 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::vector<ChatEvent> whole = Parse(options, text, complete, text.size() + 1);
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, size_t{1} + wants}) {
    CHECK(Parse(options, text, complete, piece) == whole);
  }
  size_t calls = 0;
  bool open = false;
  for (const ChatEvent& event : whole) {
    switch (event.kind) {
      case ChatEvent::Kind::kCallBegin:
        CHECK(options.calls && !event.text.empty());
        CHECK_EQ(event.call, calls++);
        open = true;
        break;
      case ChatEvent::Kind::kArguments:
      case ChatEvent::Kind::kCallEnd:
        CHECK(open && event.call + 1 == calls);
        open = event.kind == ChatEvent::Kind::kArguments;
        break;
      default:
        CHECK(!event.text.empty());
    }
  }
  return 0;
}
