// HarmonyParser: gpt-oss's messages with channels. What is on the channel "analysis" is reasoning,
// what is sent to a function is a call, the rest is content.
//
//   <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary
//   to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "serving/api/chat/chat_parser.h"
#include "serving/api/chat/text_cursor.h"

namespace moesaic {

class HarmonyParser : public ChatParser {
 public:
  static constexpr std::array<std::string_view, 7> kMarkers = {
      "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>",
      "<|end|>",   "<|call|>",    "<|return|>"};

  explicit HarmonyParser(std::shared_ptr<const ChatParserOptions> options);
  void Add(std::string_view text, std::span<const size_t> control_offsets,
           ChatEvents& events) override;
  void Finish(bool complete, ChatEvents& events) override;

 private:
  enum class At { kBetween, kHeader, kMessage };
  enum class Kind { kReasoning, kContent, kCall };

  void Run(ChatEvents& events);
  bool Step(ChatEvents& events);  // false: the text is used up
  void BeginMessage(std::string_view header, ChatEvents& events);
  void Say(std::string_view text, ChatEvents& events);
  void EndMessage(ChatEvents& events);

  const std::shared_ptr<const ChatParserOptions> options_;
  TextCursor cursor_;
  At at_ = At::kBetween;
  Kind kind_ = Kind::kContent;
  bool message_begun_ = false;  // it has text
  bool any_reasoning_ = false;
  bool any_content_ = false;
};

}  // namespace moesaic
