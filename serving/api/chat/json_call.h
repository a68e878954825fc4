// Calls whose arguments are JSON: {"name": ..., "arguments": {...}}, and a name in front of the
// arguments. The arguments go out as the model writes them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "serving/api/chat/call_body.h"
#include "serving/api/chat/json_stream.h"

namespace moesaic {

// The value that is a call's arguments. A string goes out as its text (some models write the
// arguments as JSON in a string), nothing at all and null as {}.
class JsonArguments {
 public:
  // Appends what is there to *out. True when the value has ended, or what follows is no part of it.
  bool Read(TextCursor& cursor, std::string* out);
  // What is still to be said when the call ends.
  std::string_view Rest() const { return given_ ? "" : "{}"; }
  bool given() const { return given_; }

 private:
  enum class Form { kUnknown, kNested, kString, kWord };

  Form form_ = Form::kUnknown;
  JsonScanner scanner_;
  JsonStringDecoder decoder_;
  std::string word_;
  bool given_ = false;
};

// {"name": NAME, "arguments" or "parameters": {...}}; other members are passed over.
class NamedJsonCall : public CallBody {
 public:
  Progress Read(TextCursor& cursor, ChatEvents& events) override;
  void Finish(bool complete, ChatEvents& events) override;

 private:
  enum class At { kBegin, kMember, kKey, kColon, kValue, kName, kArguments, kOther, kAfterValue };

  Progress ReadMember(TextCursor& cursor, ChatEvents& events);
  Progress ReadValue(TextCursor& cursor, ChatEvents& events);
  Progress Broken(ChatEvents& events) { return begun_ ? End(events) : Progress::kNoCall; }
  Progress End(ChatEvents& events);

  At at_ = At::kBegin;
  bool begun_ = false;
  std::string key_;
  std::string name_;
  JsonStringDecoder decoder_;  // kKey, kName
  JsonScanner scanner_;        // kOther
  JsonArguments arguments_;
  bool has_arguments_ = false;
  std::string held_;  // arguments that came in front of the name
};

// NAME, a marker, and the arguments.
struct HeadedForm {
  std::string_view type_end;  // in front of the name stands a word that this ends; or empty
  std::string_view name_end;
  std::string_view name_prefix;  // no part of the name, where it is there
  bool numbered = false;         // the head is PREFIX NAME:NUMBER, and as a whole the call's id
  std::string_view fence;        // around the arguments, where it is there ("```json")
  std::string_view fence_end;
};

class HeadedJsonCall : public CallBody {
 public:
  // `end`: the marker behind the call, which may come in place of the arguments.
  HeadedJsonCall(const HeadedForm& form, std::string_view end) : form_(form), end_(end) {}
  Progress Read(TextCursor& cursor, ChatEvents& events) override;
  void Finish(bool complete, ChatEvents& events) override;

 private:
  enum class At { kType, kName, kFence, kArguments, kFenceEnd, kEnd };

  Progress ReadHead(TextCursor& cursor, ChatEvents& events);
  bool Begin(std::string_view head, ChatEvents& events);

  const HeadedForm& form_;
  const std::string_view end_;
  At at_ = At::kType;
  JsonArguments arguments_;
};

// A list of {"name", "arguments"}, or one such object; Mistral's also NAME[CALL_ID]ID[ARGS]{...},
// of which the middle may be missing.
class JsonListCall : public CallBody {
 public:
  // `may_be_headed`: the last form is one, too.
  explicit JsonListCall(bool may_be_headed) : may_be_headed_(may_be_headed) {}
  Progress Read(TextCursor& cursor, ChatEvents& events) override;
  void Finish(bool complete, ChatEvents& events) override;

 private:
  enum class At { kBegin, kItems, kItem, kName, kId, kArguments };

  Progress ReadItems(TextCursor& cursor, ChatEvents& events);
  Progress ReadHead(TextCursor& cursor, ChatEvents& events);

  const bool may_be_headed_;
  At at_ = At::kBegin;
  bool list_ = false;
  bool begun_ = false;
  std::unique_ptr<NamedJsonCall> item_;
  std::string name_;
  JsonArguments arguments_;
};

}  // namespace moesaic
