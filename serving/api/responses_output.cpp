#include "serving/api/responses_output.h"

#include <utility>

#include "core/base/check.h"
#include "serving/api/sse_event.h"

namespace moesaic {
namespace {

using ItemKind = AnswerItem::Kind;

constexpr const char* kInProgress = "in_progress";
constexpr const char* kCompleted = "completed";
constexpr const char* kIncomplete = "incomplete";

Json OutputText(const std::string& text) {
  Json part = Json::object();
  part["type"] = "output_text";
  part["text"] = text;
  part["annotations"] = Json::array();
  part["logprobs"] = Json::array();
  return part;
}

Json ReasoningText(const std::string& text) {
  return Json{{"type", "reasoning_text"}, {"text", text}};
}

Json PartOf(const AnswerItem& item) {
  return item.kind == ItemKind::kReasoning ? ReasoningText(item.text) : OutputText(item.text);
}

// "response.output_text", "response.reasoning_text", "response.function_call_arguments": what the
// events of an item's text begin with.
std::string EventsOf(ItemKind kind) {
  switch (kind) {
    case ItemKind::kReasoning:
      return "response.reasoning_text";
    case ItemKind::kContent:
      return "response.output_text";
    case ItemKind::kCall:
      break;
  }
  return "response.function_call_arguments";
}

bool Stopped(const OutputDelta& last, const ChatAnswer& answer) {
  return last.finish == FinishReason::kStop || answer.satisfied();
}

}  // namespace

ResponsesOutput::ResponsesOutput(ApiOutputSpec spec, TokenSpeller spell)
    : ApiOutput(std::move(spec), std::move(spell)) {
  CHECK_EQ(choices(), 1u);
}

Json ResponsesOutput::UsageJson() const {
  const Usage usage = TotalUsage();
  Json json = Json::object();
  json["input_tokens"] = usage.prompt_tokens;
  json["input_tokens_details"] =
      Json{{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}};
  json["output_tokens"] = usage.completion_tokens;
  json["output_tokens_details"] = Json{{"reasoning_tokens", StateOf(0).answer.reasoning_tokens()}};
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  return json;
}

Json ResponsesOutput::ItemJson(size_t index, const char* status, bool whole) const {
  const AnswerItem& item = StateOf(0).answer.items()[index];
  const std::string number =
      fmt::format("{}_{}", std::string_view(spec().id).substr(spec().id.find('_') + 1), index);
  Json json = Json::object();
  switch (item.kind) {
    case ItemKind::kReasoning:
      json["type"] = "reasoning";
      json["id"] = "rs_" + number;
      json["summary"] = Json::array();
      json["content"] = whole ? Json::array({PartOf(item)}) : Json::array();
      json["encrypted_content"] = nullptr;
      break;
    case ItemKind::kContent:
      json["type"] = "message";
      json["id"] = "msg_" + number;
      json["role"] = "assistant";
      json["content"] = whole ? Json::array({PartOf(item)}) : Json::array();
      break;
    case ItemKind::kCall:
      json["type"] = "function_call";
      json["id"] = "fc_" + number;
      json["call_id"] = item.id;
      json["name"] = item.name;
      json["arguments"] = whole ? item.text : "";
      break;
  }
  json["status"] = status;
  return json;
}

Json ResponsesOutput::ResponseJson(const char* status, bool whole) const {
  Json json = Json::object();
  json["id"] = spec().id;
  json["object"] = "response";
  json["created_at"] = spec().created_unix_s;
  json["status"] = status;
  json["error"] = nullptr;
  json["incomplete_details"] = nullptr;
  json["model"] = spec().model;
  json["output"] = Json::array();
  json.update(spec().response_fields);
  json["usage"] = whole ? UsageJson() : Json(nullptr);
  return json;
}

// All but the last item of an answer that was cut off are whole.
Json ResponsesOutput::FinishedJson(const OutputDelta& last) const {
  const ChatAnswer& answer = StateOf(0).answer;
  const bool whole = Stopped(last, answer);
  const char* status = whole ? kCompleted : kIncomplete;
  Json json = ResponseJson(status, true);
  if (!whole) json["incomplete_details"] = Json{{"reason", "max_output_tokens"}};
  const size_t items = answer.items().size();
  for (size_t i = 0; i < items; ++i) {
    json["output"].push_back(ItemJson(i, i + 1 < items ? kCompleted : status, true));
  }
  return json;
}

std::string ResponsesOutput::Event(const std::string& type, Json fields) {
  Json json = Json::object();
  json["type"] = type;
  json["sequence_number"] = sequence_number_++;
  json.update(fields);
  return NamedSseEvent(json);
}

Json ResponsesOutput::Place(bool content) const {
  Json place = Json::object();
  place["item_id"] = ItemJson(items_ - 1, kInProgress, false)["id"];
  place["output_index"] = items_ - 1;
  if (content) place["content_index"] = 0;
  return place;
}

std::string ResponsesOutput::Begin() {
  if (std::exchange(begun_, true)) return {};
  const Json response = Json{{"response", ResponseJson(kInProgress, false)}};
  std::string out = Event("response.created", response);
  return out += Event("response.in_progress", response);
}

std::string ResponsesOutput::OpenItem() {
  std::string out = CloseItem(kCompleted);
  item_open_ = true;
  const size_t index = items_++;
  Json added = Json::object();
  added["output_index"] = index;
  added["item"] = ItemJson(index, kInProgress, false);
  out += Event("response.output_item.added", std::move(added));
  const AnswerItem& item = StateOf(0).answer.items()[index];
  if (item.kind == ItemKind::kCall) return out;
  Json part = Place(true);
  part["part"] = item.kind == ItemKind::kReasoning ? ReasoningText("") : OutputText("");
  return out + Event("response.content_part.added", std::move(part));
}

std::string ResponsesOutput::CloseItem(const char* status) {
  if (!std::exchange(item_open_, false)) return {};
  const size_t index = items_ - 1;
  const AnswerItem& item = StateOf(0).answer.items()[index];
  const bool call = item.kind == ItemKind::kCall;
  Json done = Place(!call);
  done[call ? "arguments" : "text"] = item.text;
  if (item.kind == ItemKind::kContent) done["logprobs"] = Json::array();
  if (call) done["name"] = item.name;
  std::string out = Event(EventsOf(item.kind) + ".done", std::move(done));
  if (!call) {
    Json part = Place(true);
    part["part"] = PartOf(item);
    out += Event("response.content_part.done", std::move(part));
  }
  Json whole = Json::object();
  whole["output_index"] = index;
  whole["item"] = ItemJson(index, status, true);
  return out + Event("response.output_item.done", std::move(whole));
}

std::string ResponsesOutput::Render(size_t choice, const OutputDelta& delta, bool) {
  std::string out = Begin();
  // The answer's items hold all of the delta already: of an item that is closed here, all there is.
  for (const ChatEvent& event : StateOf(choice).answer.Add(delta)) out += RenderEvent(event);
  if (delta.finish.has_value()) last_.finish = delta.finish;
  return out;
}

std::string ResponsesOutput::RenderEvent(const ChatEvent& event) {
  if (event.kind == ChatEvent::Kind::kCallEnd) return CloseItem(kCompleted);
  const ItemKind kind = event.kind == ChatEvent::Kind::kReasoning ? ItemKind::kReasoning
                        : event.kind == ChatEvent::Kind::kContent ? ItemKind::kContent
                                                                  : ItemKind::kCall;
  if (event.kind == ChatEvent::Kind::kCallBegin) return OpenItem();
  std::string out;
  if (!item_open_ || StateOf(0).answer.items()[items_ - 1].kind != kind) out = OpenItem();
  Json fields = Place(kind != ItemKind::kCall);
  fields["delta"] = event.text;
  if (kind == ItemKind::kContent) fields["logprobs"] = Json::array();
  return out + Event(EventsOf(kind) + ".delta", std::move(fields));
}

std::string ResponsesOutput::StreamEnd() {
  const bool whole = Stopped(last_, StateOf(0).answer);
  std::string out = Begin();
  out += CloseItem(whole ? kCompleted : kIncomplete);
  return out += Event(whole ? "response.completed" : "response.incomplete",
                      Json{{"response", FinishedJson(last_)}});
}

std::string ResponsesOutput::StreamError(const ApiError& error) {
  Json response = ResponseJson("failed", true);
  response["error"] = Json{{"code", "server_error"}, {"message", error.what()}};
  std::string out = Begin();
  return out += Event("response.failed", Json{{"response", std::move(response)}});
}

std::string ResponsesOutput::FinalBody() { return DumpJson(FinishedJson(StateOf(0).collected)); }

}  // namespace moesaic
