#include "serving/api/conversation_builder.h"

#include <utility>

namespace moesaic {
namespace {

// As the parts of a message are joined.
void AppendLine(const std::string& text, const char* member, Json& message) {
  const auto found = message.find(member);
  if (found == message.end() || !found->is_string() || *found == Json("")) {
    message[member] = text;
  } else {
    found->get_ref<std::string&>() += "\n" + text;
  }
}

}  // namespace

Json& ConversationBuilder::Add(const char* role) {
  Json message = Json::object();
  message["role"] = role;
  message["content"] = "";
  messages_.push_back(std::move(message));
  return messages_.back();
}

Json& ConversationBuilder::Assistant() {
  if (messages_.empty() || messages_.back()["role"] != "assistant") Add("assistant");
  return messages_.back();
}

void ConversationBuilder::AddSystem(const std::string& text) {
  const bool more = messages_.size() == 1 && messages_.front()["role"] == "system";
  AppendLine(text, "content", more ? messages_.front() : Add("system"));
}

void ConversationBuilder::AddUser(const std::string& text) { Add("user")["content"] = text; }

void ConversationBuilder::AddReasoning(const std::string& text) {
  if (!text.empty()) AppendLine(text, "reasoning", Assistant());
}

void ConversationBuilder::AddAnswer(const std::string& text) {
  AppendLine(text, "content", Assistant());
}

void ConversationBuilder::AddCall(const std::string& id, const std::string& name, Json arguments) {
  Json call = Json::object();
  call["id"] = id;
  call["type"] = "function";
  call["function"] = Json{{"name", name}, {"arguments", std::move(arguments)}};
  Json& message = Assistant();
  if (!message.contains("tool_calls")) message["tool_calls"] = Json::array();
  message["tool_calls"].push_back(std::move(call));
  tool_of_call_[id] = name;
}

void ConversationBuilder::AddResult(const std::string& call_id, const std::string& text) {
  Json& message = Add("tool");
  message["content"] = text;
  message["tool_call_id"] = call_id;
  // Some templates name the tool in its result.
  if (const auto tool = tool_of_call_.find(call_id); tool != tool_of_call_.end()) {
    message["name"] = tool->second;
  }
}

bool ConversationBuilder::EndsInAnswer() const {
  if (messages_.empty()) return false;
  const Json& last = messages_.back();
  return last["role"] == "assistant" && !last.contains("tool_calls") && last["content"] != Json("");
}

Json FunctionTool(const std::string& name, const std::string& description, const Json* parameters) {
  Json function = Json::object();
  function["name"] = name;
  function["description"] = description;
  if (parameters != nullptr) function["parameters"] = *parameters;
  Json tool = Json::object();
  tool["type"] = "function";
  tool["function"] = std::move(function);
  return tool;
}

}  // namespace moesaic
