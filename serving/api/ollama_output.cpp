#include "serving/api/ollama_output.h"

#include <utility>

#include "core/base/check.h"
#include "serving/api/utc_text.h"

namespace moesaic {
namespace {

int64_t Nanoseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

std::string JsonLine(const Json& json) { return DumpJson(json) + "\n"; }

// Arguments are objects here: calls that were cut off have none, and are left out.
void AddWholeCall(const AnswerItem& item, size_t index, Json& calls) {
  try {
    Json arguments = ParseJson(item.text);
    if (!arguments.is_object()) return;
    Json function = Json::object();
    function["index"] = index;
    function["name"] = item.name;
    function["arguments"] = std::move(arguments);
    calls.push_back(Json{{"id", item.id}, {"function", std::move(function)}});
  } catch (const ApiError&) {
  }
}

}  // namespace

std::string OllamaErrorBody(const ApiError& error) {
  return DumpJson(Json{{"error", error.what()}});
}

OllamaOutput::OllamaOutput(ApiOutputSpec spec, TokenSpeller spell)
    : ApiOutput(std::move(spec), std::move(spell)) {
  CHECK_EQ(choices(), 1u);
}

std::string_view OllamaOutput::stream_type() const { return "application/x-ndjson"; }

void OllamaOutput::Observe(const OutputDelta& delta) {
  if (!first_token_at_ && !delta.tokens.empty()) first_token_at_ = Clock::now();
}

Json OllamaOutput::Line(Part part, bool done) const {
  Json json = Json::object();
  json["model"] = spec().model;
  json["created_at"] = UtcText(std::chrono::duration_cast<std::chrono::seconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
  if (spec().dialect == ApiDialect::kOllamaGenerate) {
    json["response"] = std::move(part.content);
    if (!part.thinking.empty()) json["thinking"] = std::move(part.thinking);
  } else {
    Json message = Json::object();
    message["role"] = "assistant";
    message["content"] = std::move(part.content);
    if (!part.thinking.empty()) message["thinking"] = std::move(part.thinking);
    if (!part.calls.empty()) message["tool_calls"] = std::move(part.calls);
    json["message"] = std::move(message);
  }
  json["done"] = done;
  return json;
}

void OllamaOutput::SetEnd(const OutputDelta& last, Json& line) const {
  const Usage usage = TotalUsage();
  const Clock::time_point now = Clock::now();
  const Clock::time_point first = first_token_at_.value_or(now);
  const bool stopped = last.finish == FinishReason::kStop || StateOf(0).answer.satisfied();
  line["done_reason"] = stopped ? "stop" : "length";
  line["total_duration"] = Nanoseconds(now - begun_at_);
  line["load_duration"] = 0;
  line["prompt_eval_count"] = usage.prompt_tokens;
  line["prompt_eval_duration"] = Nanoseconds(first - begun_at_);
  line["eval_count"] = usage.completion_tokens;
  line["eval_duration"] = Nanoseconds(now - first);
}

std::string OllamaOutput::Render(size_t choice, const OutputDelta& delta, bool) {
  if (delta.finish.has_value()) last_.finish = delta.finish;
  Part part;
  const ChatAnswer& answer = StateOf(choice).answer;
  for (const ChatEvent& event : StateOf(choice).answer.Add(delta)) {
    if (event.kind == ChatEvent::Kind::kContent) part.content += event.text;
    if (event.kind == ChatEvent::Kind::kReasoning) part.thinking += event.text;
    if (event.kind != ChatEvent::Kind::kCallEnd) continue;
    // The call goes out whole, as soon as it is.
    size_t calls = 0;
    for (const AnswerItem& item : answer.items()) {
      if (item.kind != AnswerItem::Kind::kCall || calls++ != event.call) continue;
      AddWholeCall(item, calls_++, part.calls);
    }
  }
  const bool empty = part.content.empty() && part.thinking.empty() && part.calls.empty();
  return empty ? std::string() : JsonLine(Line(std::move(part), false));
}

std::string OllamaOutput::StreamEnd() {
  Json line = Line({}, true);
  SetEnd(last_, line);
  return JsonLine(line);
}

std::string OllamaOutput::StreamQuiet() { return JsonLine(Line({}, false)); }

std::string OllamaOutput::StreamError(const ApiError& error) {
  return OllamaErrorBody(error) + "\n";
}

std::string OllamaOutput::FinalBody() {
  const ChatAnswer& answer = StateOf(0).answer;
  Part part;
  part.content = answer.Text(AnswerItem::Kind::kContent);
  part.thinking = answer.Text(AnswerItem::Kind::kReasoning);
  for (const AnswerItem& item : answer.items()) {
    if (item.kind == AnswerItem::Kind::kCall) AddWholeCall(item, part.calls.size(), part.calls);
  }
  Json body = Line(std::move(part), true);
  SetEnd(StateOf(0).collected, body);
  return DumpJson(body);
}

}  // namespace moesaic
