// ConversationBuilder: the messages of a chat (ChatInput::messages) from the items of a dialect
// that has no such messages: results of tools are messages of their own, and what the assistant
// thought, said and called in a row is one message.
//
// A value; used by one thread.
#pragma once

#include <map>
#include <string>

#include "core/base/json.h"

namespace moesaic {

class ConversationBuilder {
 public:
  // System text before all other messages becomes one message.
  void AddSystem(const std::string& text);
  void AddUser(const std::string& text);
  void AddReasoning(const std::string& text);
  void AddAnswer(const std::string& text);
  // `arguments`: an object, or the text of one.
  void AddCall(const std::string& id, const std::string& name, Json arguments);
  void AddResult(const std::string& call_id, const std::string& text);

  bool empty() const { return messages_.empty(); }
  // The last message is the assistant's, without calls: an answer that may go on.
  bool EndsInAnswer() const;
  Json Take() { return std::move(messages_); }

 private:
  Json& Add(const char* role);
  Json& Assistant();

  Json messages_ = Json::array();
  std::map<std::string, std::string> tool_of_call_;  // by id
};

// A tool in the shape that chat templates know.
Json FunctionTool(const std::string& name, const std::string& description, const Json* parameters);

}  // namespace moesaic
