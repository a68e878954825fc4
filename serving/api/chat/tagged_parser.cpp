#include "serving/api/chat/tagged_parser.h"

#include <algorithm>
#include <utility>

namespace moesaic {

TaggedParser::TaggedParser(std::shared_ptr<const ChatParserOptions> options)
    : options_(std::move(options)),
      calls_(options_->calls ? options_->syntax.calls : nullptr),
      reasoning_(options_->reasoning ? options_->syntax.reasoning : nullptr),
      cursor_(options_->control_markers) {
  if (calls_ != nullptr) call_begins_ = calls_->Begins();
  // Content keeps the space at its beginning, but for that behind reasoning.
  content_.begun = true;
  if (reasoning_ == nullptr) {
    at_ = At::kContent;
    return;
  }
  reasoning_ends_ = {reasoning_->end};
  reasoning_ends_.insert(reasoning_ends_.end(), call_begins_.begin(), call_begins_.end());
  cursor_.BeginRecord();
}

void TaggedParser::Add(std::string_view text, std::span<const size_t> control_offsets,
                       ChatEvents& events) {
  cursor_.Append(text, control_offsets);
  Run(events);
}

void TaggedParser::Run(ChatEvents& events) {
  while (Step(events)) {
  }
}

bool TaggedParser::Step(ChatEvents& events) {
  switch (at_) {
    case At::kBegin:
      return ReadBegin(events);
    case At::kReasoning:
      return ReadReasoning(events);
    case At::kContent:
      return ReadContent(events);
    case At::kSection:
      return ReadSection(events);
    case At::kCall:
      return ReadCall(events);
    case At::kAfterCall:
      break;
  }
  return ReadAfterCall();
}

// Reasoning comes first or not at all.
bool TaggedParser::ReadBegin(ChatEvents& events) {
  if (!cursor_.SkipSpace()) return false;
  const TextCursor::Match match = cursor_.At(reasoning_->begin);
  if (match == TextCursor::Match::kMaybe) return false;
  const size_t begin = cursor_.position();
  const std::string space = cursor_.TakeRecord();
  if (match == TextCursor::Match::kYes) {
    cursor_.Skip(reasoning_->begin.size());
    at_ = At::kReasoning;
  } else if (options_->begins_in_reasoning || reasoning_->always) {
    events.ReasoningAt(begin - space.size(), begin);
    at_ = At::kReasoning;
  } else {
    at_ = At::kContent;
    Say(space, events);
  }
  return true;
}

bool TaggedParser::ReadReasoning(ChatEvents& events) {
  const TextCursor::Found found = cursor_.Find(reasoning_ends_);
  Reason(found.before, cursor_.position(), events);
  cursor_.Skip(found.before.size());
  if (!found.found) return false;
  const std::string_view marker = reasoning_ends_[found.marker];
  if (found.marker == 0) {
    cursor_.Skip(marker.size());
    content_.begun = false;
    at_ = At::kContent;
  } else if (line_begins_ || cursor_.IsControl(marker)) {
    // Its end was forgotten; in the middle of a line it is only mentioned.
    from_reasoning_ = true;
    BeginCalls(marker, events);
  } else {
    Reason(marker.substr(0, 1), cursor_.position(), events);
    cursor_.Skip(1);
  }
  return true;
}

bool TaggedParser::ReadContent(ChatEvents& events) {
  const TextCursor::Found found = cursor_.Find(call_begins_);
  Say(found.before, events);
  cursor_.Skip(found.before.size());
  if (!found.found) return false;
  from_reasoning_ = false;
  BeginCalls(call_begins_[found.marker], events);
  return true;
}

void TaggedParser::BeginCalls(std::string_view marker, ChatEvents& events) {
  in_section_ = marker == calls_->section_begin;
  if (!in_section_) return BeginBody(marker, events);
  cursor_.BeginRecord();
  calls_before_ = events.calls();
  cursor_.Skip(marker.size());
  at_ = At::kSection;
}

// What is read of a call is kept until it is known to be one.
void TaggedParser::BeginBody(std::string_view marker, ChatEvents& events) {
  if (!cursor_.recording()) cursor_.BeginRecord();
  calls_before_ = events.calls();
  // The tag of a body is read by the body.
  if (marker != calls_->parameters.open) cursor_.Skip(marker.size());
  body_ = calls_->MakeBody(options_->tools);
  at_ = At::kCall;
}

bool TaggedParser::ReadSection(ChatEvents& events) {
  if (!cursor_.SkipSpace()) return false;
  const std::string_view begin =
      calls_->call_begin.empty() ? calls_->parameters.open : calls_->call_begin;
  const TextCursor::Match call = cursor_.At(begin);
  const TextCursor::Match end = cursor_.At(calls_->section_end);
  if (call == TextCursor::Match::kYes) {
    BeginBody(begin, events);
  } else if (end == TextCursor::Match::kYes) {
    cursor_.Skip(calls_->section_end.size());
    cursor_.TakeRecord();
    in_section_ = false;
    at_ = At::kContent;
  } else if (call == TextCursor::Match::kMaybe || end == TextCursor::Match::kMaybe) {
    return false;
  } else if (cursor_.recording()) {
    NoCall(events);
  } else {
    in_section_ = false;
    at_ = At::kContent;
  }
  return true;
}

bool TaggedParser::ReadCall(ChatEvents& events) {
  const CallBody::Progress progress = body_->Read(cursor_, events);
  if (events.calls() > calls_before_ && cursor_.recording()) {
    cursor_.TakeRecord();
    content_.space.clear();
    content_may_end_in_space_ = false;
    if (from_reasoning_) content_.begun = false;
    from_reasoning_ = false;
  }
  if (progress == CallBody::Progress::kMore) return false;
  if (progress == CallBody::Progress::kDone) {
    at_ = At::kAfterCall;
  } else {
    NoCall(events);
  }
  return true;
}

bool TaggedParser::ReadAfterCall() {
  if (!calls_->call_end.empty()) {
    if (!cursor_.SkipSpace()) return false;
    const TextCursor::Match match = cursor_.At(calls_->call_end);
    if (match == TextCursor::Match::kMaybe) return false;
    if (match == TextCursor::Match::kYes) cursor_.Skip(calls_->call_end.size());
  }
  at_ = in_section_ ? At::kSection : At::kContent;
  return true;
}

void TaggedParser::NoCall(ChatEvents& events) {
  const std::string text = cursor_.TakeRecord();
  in_section_ = false;
  if (from_reasoning_) {
    at_ = At::kReasoning;
    Reason(text, cursor_.position() - text.size(), events);
  } else {
    at_ = At::kContent;
    Say(text, events);
  }
}

void TaggedParser::Finish(bool complete, ChatEvents& events) {
  cursor_.End();
  Run(events);
  while (cursor_.recording()) {
    NoCall(events);
    Run(events);
  }
  if (at_ == At::kCall) body_->Finish(complete, events);
  // Space behind calls, or between reasoning and calls, is not worth an answer.
  if (content_may_end_in_space_ && content_.begun) events.Content(content_.space);
  content_.space.clear();
}

std::string TaggedParser::Trimmed::Take(std::string_view text) {
  if (!begun) {
    text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
    if (text.empty()) return {};
    begun = true;
  }
  const size_t end = text.find_last_not_of(kSpaces) + 1;  // npos + 1 is 0
  if (end == 0) {
    space += text;
    return {};
  }
  std::string out = std::exchange(space, std::string(text.substr(end)));
  out += text.substr(0, end);
  return out;
}

void TaggedParser::Reason(std::string_view text, size_t position, ChatEvents& events) {
  if (text.empty()) return;
  events.ReasoningAt(position, position + text.size());
  line_begins_ = text.back() == '\n';
  events.Reasoning(thought_.Take(text));
}

void TaggedParser::Say(std::string_view text, ChatEvents& events) {
  if (text.empty()) return;
  const std::string out = content_.Take(text);
  if (out.empty()) return;
  events.Content(out);
  content_may_end_in_space_ = true;
}

}  // namespace moesaic
