#include "serving/api/chat/json_call.h"

#include <array>
#include <utility>

namespace moesaic {

bool JsonArguments::Read(TextCursor& cursor, std::string* out) {
  if (form_ == Form::kUnknown) {
    if (!cursor.SkipSpace()) return false;
    const char c = cursor.rest()[0];
    form_ = c == '"' ? Form::kString : c == '{' || c == '[' ? Form::kNested : Form::kWord;
    if (form_ == Form::kString) cursor.Skip(1);
  }
  const size_t before = out->size();
  bool ended = false;
  if (form_ == Form::kString) {
    cursor.Skip(decoder_.Feed(cursor.rest(), out));
    ended = decoder_.done();
  } else {
    const size_t bytes = scanner_.Feed(cursor.rest());
    std::string& text = form_ == Form::kWord ? word_ : *out;
    text += cursor.rest().substr(0, bytes);
    cursor.Skip(bytes);
    if (cursor.ended()) scanner_.End();
    ended = scanner_.status() != JsonScanner::Status::kMore;
    if (form_ == Form::kWord && ended && word_ != "null") *out += word_;
  }
  given_ = given_ || out->size() > before;
  return ended;
}

CallBody::Progress NamedJsonCall::Read(TextCursor& cursor, ChatEvents& events) {
  for (;;) {
    const At before = at_;
    const Progress progress =
        at_ <= At::kColon ? ReadMember(cursor, events) : ReadValue(cursor, events);
    if (progress != Progress::kMore || at_ == before) return progress;
  }
}

// Up to a member's colon. kMore with another at_: there is more to be read.
CallBody::Progress NamedJsonCall::ReadMember(TextCursor& cursor, ChatEvents& events) {
  if (at_ == At::kKey) {
    cursor.Skip(decoder_.Feed(cursor.rest(), &key_));
    if (decoder_.done()) at_ = At::kColon;
    return Progress::kMore;
  }
  if (!cursor.SkipSpace()) return Progress::kMore;
  const char c = cursor.rest()[0];
  if (at_ == At::kBegin) {
    if (c != '{') return Progress::kNoCall;
    at_ = At::kMember;
  } else if (at_ == At::kColon) {
    if (c != ':') return Broken(events);
    at_ = At::kValue;
  } else {
    if (c == '}') {
      cursor.Skip(1);
      return End(events);
    }
    if (c != '"') return Broken(events);
    key_.clear();
    decoder_ = {};
    at_ = At::kKey;
  }
  cursor.Skip(1);
  return Progress::kMore;
}

CallBody::Progress NamedJsonCall::ReadValue(TextCursor& cursor, ChatEvents& events) {
  if (at_ == At::kName) {
    cursor.Skip(decoder_.Feed(cursor.rest(), &name_));
    if (!decoder_.done()) return Progress::kMore;
    if (name_.empty()) return Progress::kNoCall;
    begun_ = true;
    events.BeginCall(name_);
    events.Arguments(std::exchange(held_, {}));
    at_ = At::kAfterValue;
    return Progress::kMore;
  }
  if (at_ == At::kArguments) {
    std::string text;
    const bool ended = arguments_.Read(cursor, &text);
    if (begun_) {
      events.Arguments(text);
    } else {
      held_ += text;
    }
    if (ended) at_ = At::kAfterValue;
    return Progress::kMore;
  }
  if (at_ == At::kOther) {
    cursor.Skip(scanner_.Feed(cursor.rest()));
    if (scanner_.status() != JsonScanner::Status::kMore) at_ = At::kAfterValue;
    return Progress::kMore;
  }
  if (!cursor.SkipSpace()) return Progress::kMore;
  const char c = cursor.rest()[0];
  if (at_ == At::kAfterValue) {
    // Where the last bracket is missing the call ends all the same.
    if (c != ',') return c == '}' ? (at_ = At::kMember, Progress::kMore) : Broken(events);
    cursor.Skip(1);
    at_ = At::kMember;
  } else if (key_ == "name" && !begun_ && c == '"') {
    cursor.Skip(1);
    decoder_ = {};
    at_ = At::kName;
  } else if ((key_ == "arguments" || key_ == "parameters") && !has_arguments_) {
    has_arguments_ = true;
    at_ = At::kArguments;
  } else {
    scanner_ = {};
    at_ = At::kOther;
  }
  return Progress::kMore;
}

CallBody::Progress NamedJsonCall::End(ChatEvents& events) {
  if (!begun_) return Progress::kNoCall;
  events.Arguments(arguments_.Rest());
  events.EndCall();
  return Progress::kDone;
}

void NamedJsonCall::Finish(bool complete, ChatEvents& events) {
  if (!begun_) return;
  const bool whole = arguments_.given() && at_ != At::kArguments;
  if (whole || (complete && !arguments_.given())) End(events);
}

CallBody::Progress HeadedJsonCall::Read(TextCursor& cursor, ChatEvents& events) {
  while (at_ == At::kType || at_ == At::kName) {
    const At before = at_;
    const Progress progress = ReadHead(cursor, events);
    if (progress != Progress::kMore || at_ == before) return progress;
  }
  if (at_ == At::kFence) {
    if (!cursor.SkipSpace()) return Progress::kMore;
    const TextCursor::Match match =
        form_.fence.empty() ? TextCursor::Match::kNo : cursor.At(form_.fence);
    if (match == TextCursor::Match::kMaybe) return Progress::kMore;
    if (match == TextCursor::Match::kYes) cursor.Skip(form_.fence.size());
    at_ = At::kArguments;
  }
  if (at_ == At::kArguments) {
    std::string text;
    const bool ended = arguments_.Read(cursor, &text);
    events.Arguments(text);
    if (!ended) return Progress::kMore;
    at_ = At::kFenceEnd;
  }
  if (at_ == At::kFenceEnd && !form_.fence_end.empty()) {
    if (!cursor.SkipSpace()) return Progress::kMore;
    const TextCursor::Match match = cursor.At(form_.fence_end);
    if (match == TextCursor::Match::kMaybe) return Progress::kMore;
    if (match == TextCursor::Match::kYes) cursor.Skip(form_.fence_end.size());
  }
  events.Arguments(arguments_.Rest());
  events.EndCall();
  at_ = At::kEnd;
  return Progress::kDone;
}

CallBody::Progress HeadedJsonCall::ReadHead(TextCursor& cursor, ChatEvents& events) {
  if (at_ == At::kType && form_.type_end.empty()) at_ = At::kName;
  const bool at_name = at_ == At::kName;
  if (at_name && !cursor.SkipSpace()) return Progress::kMore;
  const std::array<std::string_view, 2> ends = {at_name ? form_.name_end : form_.type_end, end_};
  const TextCursor::Found found = cursor.Find(ends);
  if (found.before.size() > kMaxToolNameBytes) return Progress::kNoCall;
  if (!found.found) return Progress::kMore;
  const bool without_arguments = found.marker == 1;
  if (!at_name) {
    if (without_arguments) return Progress::kNoCall;
    cursor.Skip(found.before.size() + form_.type_end.size());
    at_ = At::kName;
    return Progress::kMore;
  }
  if (!Begin(TrimSpace(found.before), events)) return Progress::kNoCall;
  cursor.Skip(found.before.size() + (without_arguments ? 0 : form_.name_end.size()));
  at_ = without_arguments ? At::kFenceEnd : At::kFence;
  return Progress::kMore;
}

bool HeadedJsonCall::Begin(std::string_view head, ChatEvents& events) {
  std::string_view name = head;
  if (name.starts_with(form_.name_prefix)) name.remove_prefix(form_.name_prefix.size());
  if (form_.numbered) {
    const size_t colon = name.rfind(':');
    if (colon != std::string_view::npos &&
        name.find_first_not_of("0123456789", colon + 1) == std::string_view::npos) {
      name = name.substr(0, colon);
    }
  }
  if (!IsToolName(name)) return false;
  events.BeginCall(std::string(name), form_.numbered ? std::string(head) : std::string());
  return true;
}

void HeadedJsonCall::Finish(bool complete, ChatEvents& events) {
  if (at_ < At::kFence) return;
  if (at_ == At::kFenceEnd || (complete && !arguments_.given())) {
    events.Arguments(arguments_.Rest());
    events.EndCall();
  }
}

CallBody::Progress JsonListCall::Read(TextCursor& cursor, ChatEvents& events) {
  for (;;) {
    const At before = at_;
    Progress progress = Progress::kMore;
    if (at_ == At::kBegin) {
      if (!cursor.SkipSpace()) return Progress::kMore;
      const char c = cursor.rest()[0];
      if (!may_be_headed_ && c != '[' && c != '{') return Progress::kNoCall;
      list_ = c == '[';
      if (list_) cursor.Skip(1);
      at_ = list_ || c == '{' ? At::kItems : At::kName;
    } else if (at_ == At::kItems || at_ == At::kItem) {
      progress = ReadItems(cursor, events);
    } else if (at_ == At::kName || at_ == At::kId) {
      progress = ReadHead(cursor, events);
    } else {
      std::string text;
      const bool ended = arguments_.Read(cursor, &text);
      events.Arguments(text);
      if (!ended) return Progress::kMore;
      events.Arguments(arguments_.Rest());
      events.EndCall();
      return Progress::kDone;
    }
    if (progress != Progress::kMore || at_ == before) return progress;
  }
}

CallBody::Progress JsonListCall::ReadItems(TextCursor& cursor, ChatEvents& events) {
  if (at_ == At::kItem) {
    const Progress progress = item_->Read(cursor, events);
    if (progress == Progress::kNoCall) return begun_ ? Progress::kDone : Progress::kNoCall;
    if (progress == Progress::kMore) return Progress::kMore;
    item_.reset();
    begun_ = true;
    at_ = At::kItems;
    return list_ ? Progress::kMore : Progress::kDone;
  }
  if (!cursor.SkipSpace()) return Progress::kMore;
  const char c = cursor.rest()[0];
  if (c == '{') {
    item_ = std::make_unique<NamedJsonCall>();
    at_ = At::kItem;
    return Progress::kMore;
  }
  if (c == ',' && begun_) {
    cursor.Skip(1);
    return ReadItems(cursor, events);
  }
  if (c == ']') cursor.Skip(1);
  return begun_ ? Progress::kDone : Progress::kNoCall;
}

CallBody::Progress JsonListCall::ReadHead(TextCursor& cursor, ChatEvents& events) {
  constexpr std::array<std::string_view, 3> kEnds = {"[ARGS]", "{", "[CALL_ID]"};
  const TextCursor::Found found = cursor.Find(kEnds);
  if (found.before.size() > kMaxToolNameBytes) return Progress::kNoCall;
  if (!found.found) return Progress::kMore;
  const std::string text(TrimSpace(found.before));
  if (found.marker == 2) {
    if (at_ == At::kId || !IsToolName(text)) return Progress::kNoCall;
    name_ = text;
    at_ = At::kId;
  } else {
    if (at_ == At::kName && !IsToolName(text)) return Progress::kNoCall;
    begun_ = true;
    events.BeginCall(at_ == At::kName ? text : name_, at_ == At::kName ? "" : text);
    at_ = At::kArguments;
  }
  cursor.Skip(found.before.size() + (found.marker == 1 ? 0 : kEnds[found.marker].size()));
  return Progress::kMore;
}

void JsonListCall::Finish(bool complete, ChatEvents& events) {
  if (item_ != nullptr) {
    item_->Finish(complete, events);
  } else if (at_ == At::kArguments && complete && !arguments_.given()) {
    events.Arguments(arguments_.Rest());
    events.EndCall();
  }
}

}  // namespace moesaic
