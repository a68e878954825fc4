// ArgumentWriter: the parameters of a call, which come as bare text, as one JSON object, written as
// they come.
//
// A string goes out byte by byte, escaped; an object or array likewise, as it is. A number or word
// waits for its end: only then it is known to be JSON. What cannot be the JSON that its type wants
// goes out as a string, so that the object is JSON whatever the model wrote; only an object or
// array that has gone out in part cannot be taken back. Owned and used by one thread.
#pragma once

#include <string>
#include <string_view>

#include "serving/api/chat/chat_event.h"
#include "serving/api/chat/tool_schema.h"

namespace moesaic {

class ArgumentWriter {
 public:
  explicit ArgumentWriter(ChatEvents& events) : events_(events) {}

  void BeginParameter(std::string_view key, ParameterType type);
  void Value(std::string_view text);
  void EndParameter();
  void EndObject();
  bool in_parameter() const { return in_parameter_; }

 private:
  // What is decided of the value.
  enum class Form { kOpen, kText, kNested };

  void Decide();
  void Write(std::string_view text);

  ChatEvents& events_;
  bool any_ = false;  // the object has begun
  bool in_parameter_ = false;
  ParameterType type_ = ParameterType::kAny;
  Form form_ = Form::kOpen;
  std::string held_;  // kOpen: the value so far; kNested: space that may be its end
};

}  // namespace moesaic
