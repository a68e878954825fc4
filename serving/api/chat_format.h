// ChatFormat: how a served model writes its answers to chats, and which of its tokenizer's special
// tokens belong to that.
//
// Immutable once made; shared by all requests to the model.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "serving/api/chat/chat_syntax.h"
#include "serving/text/jinja/marked_text.h"

namespace moesaic {

class ChatTemplate;
class Tokenizer;

struct ChatFormat {
  ChatSyntax syntax;
  // Parts of the syntax: they are shown in answers that are parsed.
  std::vector<int32_t> special_tokens;
  // Markers that are one of these, whole.
  std::vector<std::string_view> control_markers;
};

// `tool_parser`, `reasoning_parser`: as FindChatSyntax takes them. Null: answers are only text.
// Throws Error(kInvalidArgument) for names that there are not.
std::shared_ptr<const ChatFormat> MakeChatFormat(const ChatTemplate* chat_template,
                                                 const Tokenizer& tokenizer,
                                                 std::string_view tool_parser,
                                                 std::string_view reasoning_parser);

// The prompt ends within reasoning, by what the template (not the client) has written.
bool OpensReasoning(const jinja::MarkedText& prompt, const ReasoningSyntax& reasoning);

}  // namespace moesaic
