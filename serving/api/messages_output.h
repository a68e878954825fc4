// MessagesOutput: answers in the shapes of Anthropic's Messages API: content blocks of text,
// thinking and tool_use, plain or as the events that build them.
#pragma once

#include <string>
#include <string_view>

#include "serving/api/api_output.h"

namespace moesaic {

// {"type":"error","error":{"type","message"}}
std::string MessagesErrorBody(const ApiError& error);
// The status that Anthropic's clients know for it: 529 where there is no room now.
int MessagesErrorStatus(const ApiError& error);

class MessagesOutput : public ApiOutput {
 public:
  MessagesOutput(ApiOutputSpec spec, TokenSpeller spell);

  std::string StreamEnd() override;
  std::string StreamQuiet() override;  // "ping"
  std::string StreamError(const ApiError& error) override;
  std::string FinalBody() override;

 private:
  std::string Render(size_t choice, const OutputDelta& delta, bool first) override;
  // message_start, once.
  std::string Begin();
  std::string OpenBlock(AnswerItem::Kind kind, Json block);
  std::string CloseBlock();
  std::string BlockDelta(std::string_view type, const char* member, const std::string& text) const;
  std::string RenderEvent(const ChatEvent& event);

  Json MessageJson() const;
  Json UsageJson() const;
  // stop_reason and stop_sequence.
  void SetStop(const OutputDelta& delta, Json& json) const;

  bool begun_ = false;
  bool block_open_ = false;
  AnswerItem::Kind block_kind_ = AnswerItem::Kind::kContent;
  size_t blocks_ = 0;  // begun
  OutputDelta last_;   // how it ended; streams only
};

}  // namespace moesaic
