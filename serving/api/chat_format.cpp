#include "serving/api/chat_format.h"

#include <algorithm>
#include <string>

#include "serving/text/chat_template.h"
#include "serving/text/tokenizer.h"

namespace moesaic {

std::shared_ptr<const ChatFormat> MakeChatFormat(const ChatTemplate* chat_template,
                                                 const Tokenizer& tokenizer,
                                                 std::string_view tool_parser,
                                                 std::string_view reasoning_parser) {
  const std::string text = chat_template == nullptr ? std::string() : chat_template->text();
  auto format = std::make_shared<ChatFormat>();
  format->syntax = FindChatSyntax(text, tool_parser, reasoning_parser);
  if (format->syntax.empty()) return nullptr;
  const std::vector<std::string_view> markers = format->syntax.Markers();
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.IsSpecial(id)) continue;
    const std::string_view token = tokenizer.TokenBytes(id);
    const auto has_token = [token](std::string_view marker) {
      return marker.find(token) != std::string_view::npos;
    };
    if (token.empty() || std::none_of(markers.begin(), markers.end(), has_token)) continue;
    format->special_tokens.push_back(id);
    const auto marker = std::find(markers.begin(), markers.end(), token);
    if (marker != markers.end()) format->control_markers.push_back(*marker);
  }
  return format;
}

bool OpensReasoning(const jinja::MarkedText& prompt, const ReasoningSyntax& reasoning) {
  std::string_view text = prompt.bytes();
  text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  return text.ends_with(reasoning.begin) && !prompt.FromInput(text.size() - 1);
}

}  // namespace moesaic
