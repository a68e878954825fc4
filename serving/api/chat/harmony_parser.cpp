#include "serving/api/chat/harmony_parser.h"

#include <utility>

namespace moesaic {
namespace {

using Match = TextCursor::Match;

constexpr size_t kMaxHeaderBytes = 1024;
constexpr std::string_view kStart = "<|start|>";
constexpr std::string_view kChannel = "<|channel|>";
constexpr std::string_view kConstrain = "<|constrain|>";
constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kRecipient = "to=";

// The word behind `marker` in a message's header.
std::string_view WordBehind(std::string_view header, std::string_view marker) {
  const size_t at = header.find(marker);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = header.substr(at + marker.size());
  return rest.substr(0, rest.find_first_of(" \t\r\n<"));
}

}  // namespace

HarmonyParser::HarmonyParser(std::shared_ptr<const ChatParserOptions> options)
    : options_(std::move(options)), cursor_(options_->control_markers) {}

void HarmonyParser::Add(std::string_view text, std::span<const size_t> control_offsets,
                        ChatEvents& events) {
  cursor_.Append(text, control_offsets);
  Run(events);
}

void HarmonyParser::Run(ChatEvents& events) {
  while (Step(events)) {
  }
}

bool HarmonyParser::Step(ChatEvents& events) {
  if (at_ == At::kBetween) {
    // The prompt may have begun the header, or the whole message.
    if (!cursor_.SkipSpace()) return false;
    bool maybe = false;
    for (const std::string_view begin : {kStart, kChannel, kConstrain, kMessage, kRecipient}) {
      const Match match = cursor_.At(begin);
      if (match == Match::kYes) {
        at_ = At::kHeader;
        return true;
      }
      maybe = maybe || match == Match::kMaybe;
    }
    if (maybe) return false;
    BeginMessage({}, events);
    return true;
  }
  if (at_ == At::kHeader) {
    constexpr std::array<std::string_view, 4> kEnds = {kMessage, "<|end|>", "<|call|>",
                                                       "<|return|>"};
    const TextCursor::Found found = cursor_.Find(kEnds);
    if (found.before.size() > kMaxHeaderBytes) {
      BeginMessage({}, events);
      return true;
    }
    if (!found.found) return false;
    cursor_.Skip(found.before.size() + kEnds[found.marker].size());
    if (found.marker == 0) {
      BeginMessage(found.before, events);
    } else {
      at_ = At::kBetween;
    }
    return true;
  }
  constexpr std::array<std::string_view, 5> kEnds = {"<|end|>", "<|call|>", "<|return|>", kStart,
                                                     kChannel};
  const TextCursor::Found found = cursor_.Find(kEnds);
  Say(found.before, events);
  cursor_.Skip(found.before.size());
  if (!found.found) return false;
  // Where the end was forgotten the next header follows at once.
  if (found.marker < 3) cursor_.Skip(kEnds[found.marker].size());
  EndMessage(events);
  return true;
}

void HarmonyParser::BeginMessage(std::string_view header, ChatEvents& events) {
  constexpr std::string_view kFunctions = "functions.";
  at_ = At::kMessage;
  message_begun_ = false;
  const std::string_view channel = WordBehind(header, kChannel);
  std::string_view recipient = WordBehind(header, kRecipient);
  const bool function = recipient.starts_with(kFunctions);
  if (function) recipient.remove_prefix(kFunctions.size());
  if (options_->calls && IsToolName(recipient) && (function || options_->tools.Has(recipient))) {
    kind_ = Kind::kCall;
    events.BeginCall(std::string(recipient));
  } else if (options_->reasoning && (channel == "analysis" || (!recipient.empty() && !function))) {
    // The model's own tools (python, browser) are part of its thoughts where nobody has them.
    kind_ = Kind::kReasoning;
  } else {
    kind_ = Kind::kContent;
  }
}

void HarmonyParser::Say(std::string_view text, ChatEvents& events) {
  if (text.empty()) return;
  const bool first = !message_begun_;
  message_begun_ = true;
  switch (kind_) {
    case Kind::kCall:
      return events.Arguments(text);
    case Kind::kReasoning:
      if (first && any_reasoning_) events.Reasoning("\n");
      any_reasoning_ = true;
      events.ReasoningAt(cursor_.position(), cursor_.position() + text.size());
      return events.Reasoning(text);
    case Kind::kContent:
      if (first && any_content_) events.Content("\n");
      any_content_ = true;
      return events.Content(text);
  }
}

void HarmonyParser::EndMessage(ChatEvents& events) {
  at_ = At::kBetween;
  if (kind_ != Kind::kCall) return;
  if (!message_begun_) events.Arguments("{}");
  events.EndCall();
}

void HarmonyParser::Finish(bool complete, ChatEvents& events) {
  cursor_.End();
  Run(events);
  if (at_ == At::kMessage && complete) EndMessage(events);
}

}  // namespace moesaic
