#include "serving/api/chat/parameter_call.h"

#include <array>

namespace moesaic {
namespace {

using Match = TextCursor::Match;

constexpr size_t kMaxTagBytes = 1024;  // of a tag's name and attributes

}  // namespace

CallBody::Progress ParameterCall::Read(TextCursor& cursor, ChatEvents& events) {
  for (;;) {
    const At before = at_;
    const Progress progress = Step(cursor, events);
    if (progress != Progress::kMore || at_ == before) return progress;
  }
}

// kMore with another at_: there is more to be read.
CallBody::Progress ParameterCall::Step(TextCursor& cursor, ChatEvents& events) {
  bool wrong = false;
  switch (at_) {
    case At::kOpen: {
      if (!cursor.SkipSpace()) return Progress::kMore;
      const Match match = cursor.At(form_.open);
      if (match == Match::kNo) return Progress::kNoCall;
      if (match == Match::kYes) {
        cursor.Skip(form_.open.size());
        at_ = At::kName;
      }
      return Progress::kMore;
    }
    case At::kName: {
      // What cannot be a name is given back at once: a call may begin in it.
      const std::string_view rest = cursor.rest();
      const std::string_view begun = TrimSpace(rest.substr(0, rest.find(form_.name_end)));
      if (!begun.empty() && !IsToolName(begun)) return Progress::kNoCall;
      std::string attributes;
      if (ReadTag(cursor, &name_, &attributes, &wrong)) at_ = At::kFirst;
      return wrong || (at_ == At::kFirst && !IsToolName(name_)) ? Progress::kNoCall
                                                                : Progress::kMore;
    }
    case At::kFirst:
    case At::kNext: {
      if (!cursor.SkipSpace()) return Progress::kMore;
      const Match close = cursor.At(form_.close);
      const Match open = cursor.At(form_.parameter_open);
      const bool json = at_ == At::kFirst && cursor.rest()[0] == '{';
      if (close == Match::kMaybe || open == Match::kMaybe) return Progress::kMore;
      if (!json && close == Match::kNo && open == Match::kNo) {
        // Something else within a call: the call is over.
        return at_ == At::kFirst ? Progress::kNoCall : End(events);
      }
      if (at_ == At::kFirst) {
        events.BeginCall(name_);
        writer_.emplace(events);
      }
      if (json) {
        at_ = At::kJson;
      } else if (close == Match::kYes) {
        cursor.Skip(form_.close.size());
        return End(events);
      } else {
        cursor.Skip(form_.parameter_open.size());
        at_ = At::kKey;
      }
      return Progress::kMore;
    }
    case At::kKey: {
      std::string key, attributes;
      if (ReadTag(cursor, &key, &attributes, &wrong)) {
        writer_->BeginParameter(key, TypeOf(key, attributes));
        at_ = form_.own_lines ? At::kBreak : At::kValue;
      }
      return wrong ? End(events) : Progress::kMore;
    }
    case At::kBreak:
      if (cursor.rest().empty()) return Progress::kMore;
      if (cursor.rest()[0] == '\n') cursor.Skip(1);
      at_ = At::kValue;
      return Progress::kMore;
    case At::kValue: {
      const std::string on_own_line = "\n" + std::string(form_.parameter_close);
      const std::array<std::string_view, 2> closes = {
          form_.own_lines ? std::string_view(on_own_line) : form_.parameter_close,
          form_.parameter_close};
      const TextCursor::Found found = cursor.Find(closes);
      writer_->Value(found.before);
      cursor.Skip(found.before.size() + (found.found ? closes[found.marker].size() : 0));
      if (!found.found) return Progress::kMore;
      writer_->EndParameter();
      at_ = At::kNext;
      return Progress::kMore;
    }
    case At::kJson: {
      const size_t bytes = json_.Feed(cursor.rest());
      events.Arguments(cursor.rest().substr(0, bytes));
      cursor.Skip(bytes);
      if (json_.status() != JsonScanner::Status::kMore) at_ = At::kJsonEnd;
      return Progress::kMore;
    }
    case At::kJsonEnd:
      break;
  }
  if (!cursor.SkipSpace()) return Progress::kMore;
  const Match close = cursor.At(form_.close);
  if (close == Match::kMaybe) return Progress::kMore;
  if (close == Match::kYes) cursor.Skip(form_.close.size());
  events.EndCall();
  return Progress::kDone;
}

bool ParameterCall::ReadTag(TextCursor& cursor, std::string* name, std::string* attributes,
                            bool* wrong) {
  const std::string_view text = cursor.rest();
  const size_t name_end = text.find(form_.name_end);
  const size_t tag_end = name_end == std::string_view::npos ? name_end : text.find('>', name_end);
  if (tag_end == std::string_view::npos) {
    *wrong = text.size() > kMaxTagBytes;
    return false;
  }
  *name = TrimSpace(text.substr(0, name_end));
  *attributes = text.substr(name_end, tag_end - name_end);
  *wrong = tag_end > kMaxTagBytes;
  cursor.Skip(tag_end + 1);
  return !*wrong;
}

ParameterType ParameterCall::TypeOf(const std::string& key, const std::string& attributes) const {
  if (!form_.text_attribute.empty()) {
    const std::string attribute = std::string(form_.text_attribute) + "=\"";
    const size_t at = attributes.find(attribute);
    if (at != std::string::npos) {
      const bool text = attributes.compare(at + attribute.size(), 4, "true") == 0;
      return text ? ParameterType::kText : ParameterType::kJson;
    }
  }
  return schemas_.TypeOf(name_, key);
}

CallBody::Progress ParameterCall::End(ChatEvents& events) {
  writer_->EndObject();
  events.EndCall();
  return Progress::kDone;
}

void ParameterCall::Finish(bool complete, ChatEvents& events) {
  if (at_ == At::kJsonEnd) {
    events.EndCall();
  } else if (writer_ && complete && at_ != At::kJson) {
    End(events);
  }
}

CallBody::Progress PairCall::Read(TextCursor& cursor, ChatEvents& events) {
  for (;;) {
    const At before = at_;
    const Progress progress = Step(cursor, events);
    if (progress != Progress::kMore || at_ == before) return progress;
  }
}

CallBody::Progress PairCall::Step(TextCursor& cursor, ChatEvents& events) {
  if (at_ == At::kName) {
    if (!cursor.SkipSpace()) return Progress::kMore;
    const std::array<std::string_view, 3> ends = {"\n", form_.key_open, end_};
    const TextCursor::Found found = cursor.Find(ends);
    if (found.before.size() > kMaxToolNameBytes) return Progress::kNoCall;
    if (!found.found) return Progress::kMore;
    name_ = TrimSpace(found.before);
    if (!IsToolName(name_)) return Progress::kNoCall;
    cursor.Skip(found.before.size());
    at_ = At::kFirst;
    return Progress::kMore;
  }
  if (at_ == At::kKey) {
    const TextCursor::Found found = cursor.Find(std::array<std::string_view, 1>{form_.key_close});
    if (found.before.size() > kMaxTagBytes) return End(events);
    if (!found.found) return Progress::kMore;
    key_ = TrimSpace(found.before);
    cursor.Skip(found.before.size() + form_.key_close.size());
    at_ = At::kBetween;
    return Progress::kMore;
  }
  if (at_ == At::kValue) {
    const TextCursor::Found found = cursor.Find(std::array<std::string_view, 1>{form_.value_close});
    writer_->Value(found.before);
    cursor.Skip(found.before.size() + (found.found ? form_.value_close.size() : 0));
    if (!found.found) return Progress::kMore;
    writer_->EndParameter();
    at_ = At::kNext;
    return Progress::kMore;
  }
  if (!cursor.SkipSpace()) return Progress::kMore;
  if (at_ == At::kBetween) {
    const Match match = cursor.At(form_.value_open);
    if (match == Match::kNo) return End(events);
    if (match == Match::kYes) {
      cursor.Skip(form_.value_open.size());
      writer_->BeginParameter(key_, schemas_.TypeOf(name_, key_));
      at_ = At::kValue;
    }
    return Progress::kMore;
  }
  const Match key = cursor.At(form_.key_open);
  const Match end = cursor.At(end_);
  if (key == Match::kMaybe || end == Match::kMaybe) return Progress::kMore;
  if (at_ == At::kFirst) {
    if (key == Match::kNo && end == Match::kNo) return Progress::kNoCall;
    events.BeginCall(name_);
    writer_.emplace(events);
  }
  if (key == Match::kNo) return End(events);
  cursor.Skip(form_.key_open.size());
  at_ = At::kKey;
  return Progress::kMore;
}

CallBody::Progress PairCall::End(ChatEvents& events) {
  writer_->EndObject();
  events.EndCall();
  return Progress::kDone;
}

void PairCall::Finish(bool complete, ChatEvents& events) {
  if (writer_ && complete) End(events);
}

}  // namespace moesaic
