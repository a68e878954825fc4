// TaggedParser: reasoning and calls between tags, with content around them. What stands within a
// call is a CallBody's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serving/api/chat/chat_parser.h"
#include "serving/api/chat/text_cursor.h"

namespace moesaic {

class TaggedParser : public ChatParser {
 public:
  explicit TaggedParser(std::shared_ptr<const ChatParserOptions> options);
  void Add(std::string_view text, std::span<const size_t> control_offsets,
           ChatEvents& events) override;
  void Finish(bool complete, ChatEvents& events) override;

 private:
  enum class At { kBegin, kReasoning, kContent, kSection, kCall, kAfterCall };

  // Text that goes out without the space at its ends.
  struct Trimmed {
    bool begun = false;
    std::string space;  // may be its end
    // What of `text` can go out.
    std::string Take(std::string_view text);
  };

  void Run(ChatEvents& events);
  bool Step(ChatEvents& events);  // false: the text is used up
  bool ReadBegin(ChatEvents& events);
  bool ReadReasoning(ChatEvents& events);
  bool ReadContent(ChatEvents& events);
  bool ReadSection(ChatEvents& events);
  bool ReadCall(ChatEvents& events);
  bool ReadAfterCall();

  void BeginCalls(std::string_view marker, ChatEvents& events);
  void BeginBody(std::string_view marker, ChatEvents& events);
  void NoCall(ChatEvents& events);
  // `text` stands at `position`.
  void Reason(std::string_view text, size_t position, ChatEvents& events);
  void Say(std::string_view text, ChatEvents& events);

  const std::shared_ptr<const ChatParserOptions> options_;
  const CallSyntax* const calls_;           // null: none are wanted
  const ReasoningSyntax* const reasoning_;  // null: none is wanted
  std::vector<std::string_view> call_begins_;
  std::vector<std::string_view> reasoning_ends_;  // its end, and what begins calls
  TextCursor cursor_;
  At at_ = At::kBegin;
  bool from_reasoning_ = false;  // calls began in reasoning
  bool in_section_ = false;
  size_t calls_before_ = 0;
  std::unique_ptr<CallBody> body_;
  Trimmed thought_;
  bool line_begins_ = true;  // in reasoning
  Trimmed content_;
  bool content_may_end_in_space_ = true;
};

}  // namespace moesaic
