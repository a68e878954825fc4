// ChatAnswer: the message of one choice of a chat, as it comes: what is new of it for a stream, and
// all of it at the end. How either is written is the dialect's (api_output.h).
//
// One object per choice, owned and used by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serving/api/chat/chat_parser.h"
#include "serving/engine/request.h"

namespace moesaic {

// How an answer's text becomes a message.
struct AnswerParsing {
  ChatParserOptions parser;
  bool parallel_calls = true;  // false: the answer ends with its first call
  bool include_reasoning = true;
  // What of the answer stands in the prompt already: a call that was forced.
  std::string opening;
  std::string call_id_prefix = "call_";  // of calls to which the model gives no id
};

// A part of a message.
struct AnswerItem {
  enum class Kind { kReasoning, kContent, kCall };

  Kind kind = Kind::kContent;
  std::string text;  // of a call: its arguments, JSON as the model wrote it
  std::string id;    // of a call
  std::string name;  // of a call: the tool's
};

class ChatAnswer {
 public:
  // Null: the text is the content.
  explicit ChatAnswer(std::shared_ptr<const AnswerParsing> parsing);

  // More output, the last one with its reason. Returns what is new: calls have their ids, and
  // reasoning is only there if it is wanted.
  std::vector<ChatEvent> Add(const OutputDelta& output);

  // All of it so far, in order.
  const std::vector<AnswerItem>& items() const { return items_; }
  // The texts of this kind, joined.
  std::string Text(AnswerItem::Kind kind) const;
  bool has_calls() const { return has_calls_; }
  // The tokens so far that reasoning is written with, the markers around it not counted.
  int64_t reasoning_tokens() const;
  // Nothing more is wanted: the first call is whole, and there may be no other.
  bool satisfied() const { return satisfied_; }

 private:
  void Take(ChatEvent& event);
  void AddText(AnswerItem::Kind kind, const std::string& text);
  std::string MakeCallId() const;

  const std::shared_ptr<const AnswerParsing> parsing_;
  std::unique_ptr<ChatParser> parser_;  // null: the text is the content
  ChatEvents events_;
  std::vector<AnswerItem> items_;
  bool has_calls_ = false;
  std::vector<size_t> token_ends_;  // of all tokens, where the text is taken apart
  bool satisfied_ = false;
};

}  // namespace moesaic
