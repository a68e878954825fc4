// ChatAnswer: the message of one choice of a chat, as it comes: what is new of it for a stream, and
// all of it at the end.
//
// One object per choice, owned and used by one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "serving/api/chat/chat_parser.h"
#include "serving/engine/request.h"

namespace moesaic {

// How an answer's text becomes a message.
struct AnswerParsing {
  ChatParserOptions parser;
  bool parallel_calls = true;  // false: the answer ends with its first call
  bool include_reasoning = true;
};

class ChatAnswer {
 public:
  // Null: the text is the content.
  explicit ChatAnswer(std::shared_ptr<const AnswerParsing> parsing);

  // More output, the last one with its reason. Returns the `delta`s of a stream's chunks.
  std::vector<Json> Add(const OutputDelta& output);
  // {"role", "content", ...} of all output so far.
  Json Message() const;

  bool has_calls() const { return !calls_.empty(); }
  // Nothing more is wanted: the first call is whole, and there may be no other.
  bool satisfied() const { return satisfied_; }

 private:
  struct ToolCall {
    std::string id;
    std::string name;
    std::string arguments;
  };

  std::vector<Json> Take(std::vector<ChatEvent> events);
  std::string MakeCallId() const;

  const std::shared_ptr<const AnswerParsing> parsing_;
  std::unique_ptr<ChatParser> parser_;  // null: the text is the content
  ChatEvents events_;
  std::string content_;
  std::string reasoning_;
  std::vector<ToolCall> calls_;
  bool satisfied_ = false;
};

}  // namespace moesaic
