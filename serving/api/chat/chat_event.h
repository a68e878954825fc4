// ChatEvent: what a model's output means as it comes: reasoning, content, calls of tools.
// ChatEvents: collects them; pieces of the same text that follow each other become one.
//
// Owned and used by one thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moesaic {

struct ChatEvent {
  enum class Kind {
    kReasoning,
    kContent,
    kCallBegin,  // `text` is the tool's name
    kArguments,  // more of the call's JSON
    kCallEnd,    // the arguments are whole
  };
  Kind kind = Kind::kContent;
  std::string text;
  std::string id;   // of kCallBegin, where the model's syntax has one; else empty
  size_t call = 0;  // of the last three kinds: counts from 0

  bool operator==(const ChatEvent&) const = default;
};

struct TextSpan {
  size_t begin = 0;
  size_t end = 0;
};

class ChatEvents {
 public:
  void Reasoning(std::string_view text) { AddText(ChatEvent::Kind::kReasoning, text); }
  // Where reasoning stands, in bytes from the beginning of the model's text, space included that is
  // no part of the event. In ascending order.
  void ReasoningAt(size_t begin, size_t end) {
    if (!spans_.empty() && spans_.back().end == begin) {
      spans_.back().end = end;
    } else if (begin < end) {
      spans_.push_back({begin, end});
    }
  }
  void Content(std::string_view text) { AddText(ChatEvent::Kind::kContent, text); }
  void BeginCall(std::string name, std::string id = {}) {
    ++calls_;
    events_.push_back({ChatEvent::Kind::kCallBegin, std::move(name), std::move(id), calls_ - 1});
  }
  // Of the call that was begun last.
  void Arguments(std::string_view text) { AddText(ChatEvent::Kind::kArguments, text, calls_ - 1); }
  void EndCall() { events_.push_back({ChatEvent::Kind::kCallEnd, {}, {}, calls_ - 1}); }

  size_t calls() const { return calls_; }  // begun in all
  const std::vector<TextSpan>& reasoning_spans() const { return spans_; }
  std::vector<ChatEvent> Take() { return std::exchange(events_, {}); }

 private:
  void AddText(ChatEvent::Kind kind, std::string_view text, size_t call = 0) {
    if (text.empty()) return;
    if (events_.empty() || events_.back().kind != kind) {
      events_.push_back({kind, std::string(text), {}, call});
    } else {
      events_.back().text += text;
    }
  }

  std::vector<ChatEvent> events_;
  size_t calls_ = 0;
  std::vector<TextSpan> spans_;
};

}  // namespace moesaic
