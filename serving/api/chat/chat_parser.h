// ChatParser: turns a model's output, as it comes, into reasoning, content and calls of tools.
//
// The events do not depend on how the text is cut into pieces. Nothing is lost: what is no call and
// no reasoning after all comes out as content. One object per answer, owned and used by one thread.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "serving/api/chat/chat_event.h"
#include "serving/api/chat/chat_syntax.h"
#include "serving/api/chat/tool_schema.h"

namespace moesaic {

class ChatParser {
 public:
  virtual ~ChatParser() = default;
  // `control_offsets`: where single tokens of control begin, in bytes from the answer's beginning.
  virtual void Add(std::string_view text, std::span<const size_t> control_offsets,
                   ChatEvents& events) = 0;
  // `complete`: the model has ended its answer; else it was cut off.
  virtual void Finish(bool complete, ChatEvents& events) = 0;
};

struct ChatParserOptions {
  ChatSyntax syntax;
  ToolSchemas tools;
  bool calls = false;                // the request has tools; else calls are text
  bool reasoning = true;             // else it is part of the content
  bool begins_in_reasoning = false;  // the prompt has opened it
  // Markers that count only at control_offsets: tokens of control, which no model spells out but
  // to write about them.
  std::vector<std::string_view> control_markers;
};

// The options are shared by all choices of a request.
std::unique_ptr<ChatParser> MakeChatParser(std::shared_ptr<const ChatParserOptions> options);

}  // namespace moesaic
