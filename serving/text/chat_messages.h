// The messages of a conversation: what is checked of them, and the form in which a template gets
// them. Pure functions.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/base/error.h"

namespace moesaic {

// Templates disagree about what an answer with tool calls looks like; ChatTemplate finds out.
struct MessageForm {
  enum class Arguments {
    kObject,   // as most templates iterate over them
    kText,     // JSON text
    kAsGiven,  // for messages that are only checked
  };
  Arguments arguments = Arguments::kObject;
  // Content that is null reaches the template as none and the empty text as it is, as with Hugging
  // Face, but for templates that fail so; absent content is empty text, or none.
  bool null_for_empty = false;
  bool empty_for_null = false;
  // The template reads the reasoning of a message with tool calls as `thinking`, and wants no
  // content beside it (gpt-oss).
  bool thinking = false;
};

// Error(kInvalidArgument) that says where: "messages[3].content[1].type".
class MessageError : public Error {
 public:
  MessageError(const std::string& where, const std::string& what)
      : Error(ErrorKind::kInvalidArgument, where + " " + what),
        where_(std::make_shared<const std::string>(where)) {}
  const std::string& where() const { return *where_; }

 private:
  std::shared_ptr<const std::string> where_;  // shared: copying must not throw
};

// Content given as parts is joined with line breaks. Reasoning has two names, `reasoning` and
// `reasoning_content`; a message that has one gets both. Throws MessageError.
nlohmann::ordered_json NormalizeMessages(const nlohmann::ordered_json& messages,
                                         const MessageForm& form);
void CheckTools(const nlohmann::ordered_json& tools);

}  // namespace moesaic
