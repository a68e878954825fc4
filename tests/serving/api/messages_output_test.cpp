// Answers in the shapes of Anthropic's Messages API, plain and as events.
#include "serving/api/messages_output.h"

#include <gtest/gtest.h>

#include "serving/api/json_text.h"

namespace moesaic {
namespace messages_output_test {

constexpr const char* kAnswer =
    "<think>\nI must look.\n</think>\n\nOne moment.\n<tool_call>\n{\"name\": \"weather\", "
    "\"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", "
    "\"arguments\": {}}\n</tool_call>";

ApiOutputSpec Spec() {
  AnswerParsing parsing;
  parsing.parser.syntax = FindChatSyntax("", "hermes", "qwen3");
  parsing.parser.calls = true;
  parsing.call_id_prefix = "toolu_";
  ApiOutputSpec spec;
  spec.dialect = ApiDialect::kMessages;
  spec.id = "msg_1";
  spec.model = "m";
  spec.prompts = {{0, 1, 2, 3}};
  spec.parsing = std::make_shared<const AnswerParsing>(parsing);
  return spec;
}

std::unique_ptr<ApiOutput> Output(ApiOutputSpec spec = Spec()) {
  return MakeApiOutput(std::move(spec), [](int32_t, bool) { return TokenText{"t"}; });
}

OutputDelta Delta(std::string text, std::optional<FinishReason> finish = std::nullopt,
                  std::string stop_text = {}) {
  OutputDelta delta;
  delta.text = std::move(text);
  delta.tokens.resize(1);
  delta.finish = finish;
  delta.stop_text = std::move(stop_text);
  delta.usage = Usage{4, 9, 3};
  return delta;
}

Json Whole(const OutputDelta& delta, ApiOutputSpec spec = Spec()) {
  const auto output = Output(std::move(spec));
  output->Collect(0, delta);
  return ParseJson(output->FinalBody());
}

// Events, whose names must be their types.
std::vector<Json> Events(const std::string& stream) {
  std::vector<Json> events;
  for (size_t at = 0; at < stream.size();) {
    const size_t line = stream.find('\n', at);
    const size_t end = stream.find("\n\n", at);
    EXPECT_EQ(stream.substr(line + 1, 6), "data: ");
    events.push_back(ParseJson(stream.substr(line + 7, end - line - 7)));
    EXPECT_EQ(stream.substr(at, line - at), "event: " + events.back()["type"].get<std::string>());
    at = end + 2;
  }
  return events;
}

std::vector<Json> Stream(const std::string& text, size_t bytes,
                         FinishReason finish = FinishReason::kStop) {
  const auto output = Output();
  std::string stream;
  for (size_t at = 0; at < text.size(); at += bytes) {
    stream += output->StreamDelta(0, Delta(text.substr(at, bytes)));
  }
  stream += output->StreamDelta(0, Delta("", finish));
  return Events(stream + output->StreamEnd());
}

// As Anthropic's client builds a message of events, with every rule about their order.
Json Built(const std::vector<Json>& events) {
  EXPECT_EQ(events.front()["type"], "message_start");
  EXPECT_EQ(events.back()["type"], "message_stop");
  Json message = events.front()["message"];
  EXPECT_TRUE(message["content"].empty());
  std::vector<std::string> inputs;
  bool open = false;
  for (size_t i = 1; i + 1 < events.size(); ++i) {
    const Json& event = events[i];
    const std::string type = event["type"];
    if (type == "content_block_start") {
      EXPECT_FALSE(open);
      open = true;
      EXPECT_EQ(event["index"], message["content"].size());
      message["content"].push_back(event["content_block"]);
      inputs.emplace_back();
    } else if (type == "content_block_delta") {
      EXPECT_TRUE(open);
      EXPECT_EQ(event["index"], message["content"].size() - 1);
      Json& block = message["content"].back();
      const Json& delta = event["delta"];
      const std::string kind = delta["type"];
      if (kind == "text_delta") {
        block["text"] = block["text"].get<std::string>() + delta["text"].get<std::string>();
      } else if (kind == "thinking_delta") {
        block["thinking"] =
            block["thinking"].get<std::string>() + delta["thinking"].get<std::string>();
      } else if (kind == "signature_delta") {
        block["signature"] = delta["signature"];
      } else {
        EXPECT_EQ(kind, "input_json_delta");
        inputs.back() += delta["partial_json"].get<std::string>();
      }
    } else if (type == "content_block_stop") {
      EXPECT_TRUE(open);
      open = false;
      Json& block = message["content"].back();
      if (block["type"] == "tool_use" && !inputs.back().empty()) {
        block["input"] = ParseJson(inputs.back());
      }
    } else {
      EXPECT_EQ(type, "message_delta");
      EXPECT_EQ(i + 2, events.size());
      EXPECT_FALSE(open);
      message.update(event["delta"]);
      message["usage"].update(event["usage"]);
    }
  }
  return message;
}

// Ids of calls are random.
Json WithoutIds(Json message) {
  for (Json& block : message["content"]) {
    if (block["type"] != "tool_use") continue;
    EXPECT_TRUE(block["id"].get<std::string>().starts_with("toolu_"));
    block.erase("id");
  }
  return message;
}

TEST(MessagesOutputTest, AWholeAnswer) {
  EXPECT_EQ(DumpJson(WithoutIds(Whole(Delta(kAnswer, FinishReason::kStop)))),
            R"({"id":"msg_1","type":"message","role":"assistant","model":"m","content":[)"
            R"({"type":"thinking","thinking":"I must look.","signature":"msg_1"},)"
            R"({"type":"text","text":"One moment."},)"
            R"({"type":"tool_use","name":"weather","input":{"city":"Rome"}},)"
            R"({"type":"tool_use","name":"time","input":{}}],"stop_reason":"tool_use",)"
            R"("stop_sequence":null,"usage":{"input_tokens":1,"cache_creation_input_tokens":0,)"
            R"("cache_read_input_tokens":3,"output_tokens":9}})");
}

TEST(MessagesOutputTest, AStreamBuildsTheSame) {
  const Json whole = WithoutIds(Whole(Delta(kAnswer, FinishReason::kStop)));
  for (const size_t bytes : {1, 2, 7, 1000}) {
    EXPECT_EQ(WithoutIds(Built(Stream(kAnswer, bytes))), whole) << bytes;
  }
}

TEST(MessagesOutputTest, EveryThinkingBlockIsSignedAtItsEnd) {
  const std::vector<Json> events = Stream(kAnswer, 5);
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i]["type"] != "content_block_stop" || events[i]["index"] != 0) continue;
    EXPECT_EQ(events[i - 1]["delta"]["type"], "signature_delta");
    return;
  }
  ADD_FAILURE() << "no end of the first block";
}

TEST(MessagesOutputTest, ReasonsToStop) {
  const auto reason = [](const OutputDelta& delta, bool cut = false) {
    ApiOutputSpec spec = Spec();
    spec.cut_to_context = cut;
    const Json message = Whole(delta, std::move(spec));
    return message["stop_reason"].get<std::string>() + "/" + DumpJson(message["stop_sequence"]);
  };
  EXPECT_EQ(reason(Delta("hi", FinishReason::kStop)), "end_turn/null");
  EXPECT_EQ(reason(Delta("hi", FinishReason::kStop, "END")), "stop_sequence/\"END\"");
  EXPECT_EQ(reason(Delta("hi", FinishReason::kLength)), "max_tokens/null");
  EXPECT_EQ(reason(Delta("hi", FinishReason::kLength), true), "model_context_window_exceeded/null");
  EXPECT_EQ(reason(Delta(kAnswer, FinishReason::kStop, "END")), "tool_use/null");
  EXPECT_EQ(reason(Delta(kAnswer, FinishReason::kLength)), "max_tokens/null");
}

TEST(MessagesOutputTest, ACallThatIsCutOffHasNoInput) {
  const std::string cut = R"(<tool_call>{"name": "f", "arguments": {"x": "ab)";
  const Json message = Whole(Delta(cut, FinishReason::kLength));
  EXPECT_EQ(message["content"][0]["name"], "f");
  EXPECT_EQ(message["content"][0]["input"], Json::object());
  EXPECT_EQ(message["stop_reason"], "max_tokens");
  std::string input;
  for (const Json& event : Stream(cut, 3, FinishReason::kLength)) {
    if (event["type"] == "content_block_delta") {
      input += event["delta"]["partial_json"].get<std::string>();
    }
  }
  EXPECT_EQ(input, R"({"x": "ab)");
}

TEST(MessagesOutputTest, AnEmptyAnswerHasNoBlocks) {
  EXPECT_TRUE(Whole(Delta("", FinishReason::kStop))["content"].empty());
  const std::vector<Json> events = Stream("", 1);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1]["delta"]["stop_reason"], "end_turn");
}

// The first output may be minutes away.
TEST(MessagesOutputTest, PingsBeginTheMessage) {
  const auto output = Output();
  std::string stream = output->StreamQuiet();
  stream += output->StreamQuiet();
  std::vector<Json> events = Events(stream);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["type"], "message_start");
  EXPECT_EQ(events[0]["message"]["usage"]["input_tokens"], 4);
  EXPECT_EQ(DumpJson(events[1]), R"({"type":"ping"})");
  EXPECT_EQ(DumpJson(events[2]), R"({"type":"ping"})");
  stream = output->StreamDelta(0, Delta("a", FinishReason::kStop));
  stream += output->StreamEnd();
  events = Events(stream);
  EXPECT_EQ(events[0]["type"], "content_block_start");
  // What the cache had is known by now.
  EXPECT_EQ(events[3]["usage"]["input_tokens"], 1);
  EXPECT_EQ(events[3]["usage"]["cache_read_input_tokens"], 3);
}

TEST(MessagesOutputTest, Errors) {
  EXPECT_EQ(Events(Output()->StreamError(ApiError(500, "server_error", "x"))).front()["error"],
            Json::parse(R"({"type":"api_error","message":"x"})"));
  EXPECT_EQ(MessagesErrorBody(BadParam("top_k", "no")),
            R"({"type":"error","error":{"type":"invalid_request_error","message":"no"}})");
  EXPECT_EQ(MessagesErrorStatus(Stopping()), 529);
  EXPECT_EQ(MessagesErrorStatus(ModelNotFound("x")), 404);
  EXPECT_EQ(ParseJson(MessagesErrorBody(Stopping()))["error"]["type"], "overloaded_error");
}

}  // namespace messages_output_test
}  // namespace moesaic
