#include "serving/api/chat_answer.h"

#include <utility>

#include "serving/api/random_id.h"

namespace moesaic {
namespace {

// Clients know one or the other name.
void SetReasoning(const std::string& text, Json& message) {
  message["reasoning"] = text;
  message["reasoning_content"] = text;
}

}  // namespace

ChatAnswer::ChatAnswer(std::shared_ptr<const AnswerParsing> parsing)
    : parsing_(std::move(parsing)),
      parser_(parsing_ == nullptr ? nullptr
                                  : MakeChatParser(std::shared_ptr<const ChatParserOptions>(
                                        parsing_, &parsing_->parser))) {}

std::vector<Json> ChatAnswer::Add(const OutputDelta& output) {
  if (parser_ == nullptr) {
    events_.Content(output.text);
  } else if (!satisfied_) {
    parser_->Add(output.text, output.special_offsets, events_);
    if (output.finish) parser_->Finish(*output.finish == FinishReason::kStop, events_);
  }
  return Take(events_.Take());
}

std::vector<Json> ChatAnswer::Take(std::vector<ChatEvent> events) {
  using Kind = ChatEvent::Kind;
  std::vector<Json> deltas;
  for (ChatEvent& event : events) {
    if (satisfied_) break;
    Json delta = Json::object();
    switch (event.kind) {
      case Kind::kReasoning:
        if (!parsing_->include_reasoning) continue;
        reasoning_ += event.text;
        SetReasoning(event.text, delta);
        break;
      case Kind::kContent:
        content_ += event.text;
        delta["content"] = std::move(event.text);
        break;
      case Kind::kCallBegin: {
        ToolCall& call = calls_.emplace_back();
        call.id = event.id.empty() ? MakeCallId() : std::move(event.id);
        call.name = std::move(event.text);
        Json begin = Json::object();
        begin["index"] = event.call;
        begin["id"] = call.id;
        begin["type"] = "function";
        begin["function"] = Json{{"name", call.name}, {"arguments", ""}};
        delta["tool_calls"] = Json::array({std::move(begin)});
        break;
      }
      case Kind::kArguments: {
        calls_.back().arguments += event.text;
        Json more = Json::object();
        more["index"] = event.call;
        more["function"] = Json::object();
        more["function"]["arguments"] = std::move(event.text);
        delta["tool_calls"] = Json::array({std::move(more)});
        break;
      }
      case Kind::kCallEnd:
        satisfied_ = !parsing_->parallel_calls;
        continue;
    }
    deltas.push_back(std::move(delta));
  }
  return deltas;
}

std::string ChatAnswer::MakeCallId() const {
  constexpr size_t kShortIdBytes = 9;
  const CallSyntax* syntax = parsing_->parser.syntax.calls;
  if (syntax == nullptr || !syntax->short_ids) return MakeRandomId("call_");
  return MakeRandomId("").substr(0, kShortIdBytes);
}

Json ChatAnswer::Message() const {
  Json message = Json::object();
  message["role"] = "assistant";
  const bool more = !calls_.empty() || !reasoning_.empty();
  message["content"] = content_.empty() && more ? Json(nullptr) : Json(content_);
  if (!reasoning_.empty()) SetReasoning(reasoning_, message);
  if (calls_.empty()) return message;
  Json list = Json::array();
  for (const ToolCall& call : calls_) {
    Json json = Json::object();
    json["id"] = call.id;
    json["type"] = "function";
    json["function"] = Json{{"name", call.name}, {"arguments", call.arguments}};
    list.push_back(std::move(json));
  }
  message["tool_calls"] = std::move(list);
  return message;
}

}  // namespace moesaic
