#include "serving/api/messages_output.h"

#include <utility>

#include "core/base/check.h"
#include "serving/api/sse_event.h"

namespace moesaic {
namespace {

using ItemKind = AnswerItem::Kind;

const char* ErrorType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 500:
      return "api_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return "invalid_request_error";
  }
}

Json ErrorJson(const ApiError& error) {
  Json inner = Json::object();
  inner["type"] = ErrorType(error.status());
  inner["message"] = error.what();
  Json json = Json::object();
  json["type"] = "error";
  json["error"] = std::move(inner);
  return json;
}

Json TextBlock(std::string_view text) {
  Json block = Json::object();
  block["type"] = "text";
  block["text"] = text;
  return block;
}

// The signature is no proof of anything: clients drop thinking that has none.
Json ThinkingBlock(std::string_view text, std::string_view signature) {
  Json block = Json::object();
  block["type"] = "thinking";
  block["thinking"] = text;
  block["signature"] = signature;
  return block;
}

Json ToolUseBlock(const std::string& id, const std::string& name, Json input) {
  Json block = Json::object();
  block["type"] = "tool_use";
  block["id"] = id;
  block["name"] = name;
  block["input"] = std::move(input);
  return block;
}

// Arguments that were cut off are no JSON: the block is there all the same, and stop_reason says
// why it is empty.
Json InputOf(const std::string& arguments) {
  try {
    Json input = ParseJson(arguments);
    if (input.is_object()) return input;
  } catch (const ApiError&) {
  }
  return Json::object();
}

}  // namespace

std::string MessagesErrorBody(const ApiError& error) { return DumpJson(ErrorJson(error)); }

int MessagesErrorStatus(const ApiError& error) {
  constexpr int kOverloaded = 529;
  return error.status() == 503 ? kOverloaded : error.status();
}

MessagesOutput::MessagesOutput(ApiOutputSpec spec, TokenSpeller spell)
    : ApiOutput(std::move(spec), std::move(spell)) {
  CHECK_EQ(choices(), 1u);
}

Json MessagesOutput::UsageJson() const {
  const Usage usage = TotalUsage();
  Json json = Json::object();
  // Tokens from the cache are not among input_tokens.
  json["input_tokens"] = usage.prompt_tokens - usage.cached_tokens;
  json["cache_creation_input_tokens"] = 0;
  json["cache_read_input_tokens"] = usage.cached_tokens;
  json["output_tokens"] = usage.completion_tokens;
  return json;
}

Json MessagesOutput::MessageJson() const {
  Json json = Json::object();
  json["id"] = spec().id;
  json["type"] = "message";
  json["role"] = "assistant";
  json["model"] = spec().model;
  json["content"] = Json::array();
  json["stop_reason"] = nullptr;
  json["stop_sequence"] = nullptr;
  json["usage"] = UsageJson();
  return json;
}

void MessagesOutput::SetStop(const OutputDelta& delta, Json& json) const {
  const ChatAnswer& answer = StateOf(0).answer;
  const bool stopped = delta.finish == FinishReason::kStop || answer.satisfied();
  const char* reason = "max_tokens";
  if (stopped) {
    reason = answer.has_calls()         ? "tool_use"
             : !delta.stop_text.empty() ? "stop_sequence"
                                        : "end_turn";
  } else if (spec().cut_to_context) {
    reason = "model_context_window_exceeded";
  }
  json["stop_reason"] = reason;
  json["stop_sequence"] = stopped && !answer.has_calls() && !delta.stop_text.empty()
                              ? Json(delta.stop_text)
                              : Json(nullptr);
}

std::string MessagesOutput::Begin() {
  if (std::exchange(begun_, true)) return {};
  Json json = Json::object();
  json["type"] = "message_start";
  json["message"] = MessageJson();
  return NamedSseEvent(json);
}

std::string MessagesOutput::OpenBlock(AnswerItem::Kind kind, Json block) {
  std::string out = CloseBlock();
  block_open_ = true;
  block_kind_ = kind;
  Json json = Json::object();
  json["type"] = "content_block_start";
  json["index"] = blocks_++;
  json["content_block"] = std::move(block);
  return out + NamedSseEvent(json);
}

std::string MessagesOutput::BlockDelta(std::string_view type, const char* member,
                                       const std::string& text) const {
  Json delta = Json::object();
  delta["type"] = type;
  delta[member] = text;
  Json json = Json::object();
  json["type"] = "content_block_delta";
  json["index"] = blocks_ - 1;
  json["delta"] = std::move(delta);
  return NamedSseEvent(json);
}

std::string MessagesOutput::CloseBlock() {
  if (!std::exchange(block_open_, false)) return {};
  std::string out;
  if (block_kind_ == ItemKind::kReasoning)
    out = BlockDelta("signature_delta", "signature", spec().id);
  Json json = Json::object();
  json["type"] = "content_block_stop";
  json["index"] = blocks_ - 1;
  return out + NamedSseEvent(json);
}

std::string MessagesOutput::RenderEvent(const ChatEvent& event) {
  const auto open_for = [this](ItemKind kind) { return block_open_ && block_kind_ == kind; };
  std::string out;
  switch (event.kind) {
    case ChatEvent::Kind::kReasoning:
      if (!open_for(ItemKind::kReasoning))
        out = OpenBlock(ItemKind::kReasoning, ThinkingBlock("", ""));
      return out + BlockDelta("thinking_delta", "thinking", event.text);
    case ChatEvent::Kind::kContent:
      if (!open_for(ItemKind::kContent)) out = OpenBlock(ItemKind::kContent, TextBlock(""));
      return out + BlockDelta("text_delta", "text", event.text);
    case ChatEvent::Kind::kCallBegin:
      return OpenBlock(ItemKind::kCall, ToolUseBlock(event.id, event.text, Json::object()));
    case ChatEvent::Kind::kArguments:
      return BlockDelta("input_json_delta", "partial_json", event.text);
    case ChatEvent::Kind::kCallEnd:
      break;
  }
  return CloseBlock();
}

std::string MessagesOutput::Render(size_t choice, const OutputDelta& delta, bool) {
  std::string out = Begin();
  for (const ChatEvent& event : StateOf(choice).answer.Add(delta)) out += RenderEvent(event);
  if (delta.finish.has_value()) {
    last_.finish = delta.finish;
    last_.stop_text = delta.stop_text;
  }
  return out;
}

std::string MessagesOutput::StreamEnd() {
  std::string out = Begin();
  out += CloseBlock();
  Json delta = Json::object();
  SetStop(last_, delta);
  Json json = Json::object();
  json["type"] = "message_delta";
  json["delta"] = std::move(delta);
  json["usage"] = UsageJson();
  return out + NamedSseEvent(json) + NamedSseEvent(Json{{"type", "message_stop"}});
}

std::string MessagesOutput::StreamQuiet() {
  std::string out = Begin();
  return out += NamedSseEvent(Json{{"type", "ping"}});
}

std::string MessagesOutput::StreamError(const ApiError& error) {
  return NamedSseEvent(ErrorJson(error));
}

std::string MessagesOutput::FinalBody() {
  Json json = MessageJson();
  for (const AnswerItem& item : StateOf(0).answer.items()) {
    json["content"].push_back(
        item.kind == ItemKind::kCall        ? ToolUseBlock(item.id, item.name, InputOf(item.text))
        : item.kind == ItemKind::kReasoning ? ThinkingBlock(item.text, spec().id)
                                            : TextBlock(item.text));
  }
  SetStop(StateOf(0).collected, json);
  return DumpJson(json);
}

}  // namespace moesaic
