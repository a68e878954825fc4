#include "serving/api/chat_answer.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "serving/api/random_id.h"

namespace moesaic {

ChatAnswer::ChatAnswer(std::shared_ptr<const AnswerParsing> parsing)
    : parsing_(std::move(parsing)),
      parser_(parsing_ == nullptr ? nullptr
                                  : MakeChatParser(std::shared_ptr<const ChatParserOptions>(
                                        parsing_, &parsing_->parser))) {
  if (parser_ == nullptr || parsing_->opening.empty()) return;
  // Its markers are tokens of control, where these exist.
  std::vector<size_t> control;
  const std::string_view opening = parsing_->opening;
  for (const std::string_view marker : parsing_->parser.control_markers) {
    for (size_t at = opening.find(marker); at != opening.npos; at = opening.find(marker, at + 1)) {
      control.push_back(at);
    }
  }
  std::sort(control.begin(), control.end());
  parser_->Add(opening, control, events_);
}

std::vector<ChatEvent> ChatAnswer::Add(const OutputDelta& output) {
  if (parser_ == nullptr) {
    events_.Content(output.text);
  } else if (!satisfied_) {
    std::vector<size_t> offsets = output.special_offsets;
    for (size_t& offset : offsets) offset += parsing_->opening.size();
    for (const size_t end : output.token_ends) {
      token_ends_.push_back(parsing_->opening.size() + end);
    }
    parser_->Add(output.text, offsets, events_);
    if (output.finish) parser_->Finish(*output.finish == FinishReason::kStop, events_);
  }
  std::vector<ChatEvent> taken;
  for (ChatEvent& event : events_.Take()) {
    if (satisfied_) break;
    if (event.kind == ChatEvent::Kind::kReasoning && !parsing_->include_reasoning) continue;
    Take(event);
    taken.push_back(std::move(event));
  }
  return taken;
}

void ChatAnswer::Take(ChatEvent& event) {
  switch (event.kind) {
    case ChatEvent::Kind::kReasoning:
      return AddText(AnswerItem::Kind::kReasoning, event.text);
    case ChatEvent::Kind::kContent:
      return AddText(AnswerItem::Kind::kContent, event.text);
    case ChatEvent::Kind::kCallBegin:
      has_calls_ = true;
      if (event.id.empty()) event.id = MakeCallId();
      items_.push_back({AnswerItem::Kind::kCall, {}, event.id, event.text});
      return;
    case ChatEvent::Kind::kArguments:
      items_.back().text += event.text;
      return;
    case ChatEvent::Kind::kCallEnd:
      satisfied_ = !parsing_->parallel_calls;
  }
}

void ChatAnswer::AddText(AnswerItem::Kind kind, const std::string& text) {
  if (items_.empty() || items_.back().kind != kind) items_.push_back({kind, {}, {}, {}});
  items_.back().text += text;
}

std::string ChatAnswer::Text(AnswerItem::Kind kind) const {
  std::string text;
  for (const AnswerItem& item : items_) {
    if (item.kind == kind) text += item.text;
  }
  return text;
}

// A token counts that has a byte in reasoning; one without any text where it stands within.
int64_t ChatAnswer::reasoning_tokens() const {
  const std::vector<TextSpan>& spans = events_.reasoning_spans();
  int64_t count = 0;
  size_t begin = parsing_ == nullptr ? 0 : parsing_->opening.size();
  auto span = spans.begin();
  for (const size_t end : token_ends_) {
    while (span != spans.end() && span->end <= begin) ++span;
    if (span == spans.end()) break;
    if (std::max(end, begin + 1) > span->begin) ++count;
    begin = end;
  }
  return count;
}

std::string ChatAnswer::MakeCallId() const {
  constexpr size_t kShortIdBytes = 9;
  const CallSyntax* syntax = parsing_->parser.syntax.calls;
  if (syntax == nullptr || !syntax->short_ids) return MakeRandomId(parsing_->call_id_prefix);
  return MakeRandomId("").substr(0, kShortIdBytes);
}

}  // namespace moesaic
