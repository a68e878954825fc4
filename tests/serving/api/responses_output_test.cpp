// Answers in the shapes of OpenAI's Responses API, plain and as events.
#include "serving/api/responses_output.h"

#include <gtest/gtest.h>

#include "serving/api/json_text.h"

namespace moesaic {
namespace responses_output_test {

constexpr const char* kAnswer =
    "<think>\nI must look.\n</think>\n\nOne moment.\n<tool_call>\n{\"name\": \"weather\", "
    "\"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", "
    "\"arguments\": {}}\n</tool_call>";

std::unique_ptr<ApiOutput> Output() {
  AnswerParsing parsing;
  parsing.parser.syntax = FindChatSyntax("", "hermes", "qwen3");
  parsing.parser.calls = true;
  ApiOutputSpec spec;
  spec.dialect = ApiDialect::kResponses;
  spec.id = "resp_1";
  spec.model = "m";
  spec.created_unix_s = 5;
  spec.prompts = {{0, 1, 2, 3}};
  spec.response_fields["tools"] = Json::array();
  spec.parsing = std::make_shared<const AnswerParsing>(parsing);
  return MakeApiOutput(std::move(spec), [](int32_t, bool) { return TokenText{"t"}; });
}

// One token; `before`: bytes of text before it.
OutputDelta Delta(std::string text, std::optional<FinishReason> finish = std::nullopt,
                  size_t before = 0) {
  OutputDelta delta;
  delta.text = std::move(text);
  delta.tokens.resize(1);
  delta.token_ends = {before + delta.text.size()};
  delta.finish = finish;
  delta.usage = Usage{4, 9, 3};
  return delta;
}

Json Whole(const std::string& text, FinishReason finish = FinishReason::kStop) {
  const auto output = Output();
  output->Collect(0, Delta(text, finish));
  return ParseJson(output->FinalBody());
}

std::vector<Json> Events(const std::string& stream) {
  std::vector<Json> events;
  for (size_t at = 0; at < stream.size();) {
    const size_t line = stream.find('\n', at);
    const size_t end = stream.find("\n\n", at);
    events.push_back(ParseJson(stream.substr(line + 7, end - line - 7)));
    EXPECT_EQ(stream.substr(at, line - at), "event: " + events.back()["type"].get<std::string>());
    EXPECT_EQ(events.back()["sequence_number"], events.size() - 1);
    at = end + 2;
  }
  return events;
}

std::vector<Json> Stream(const std::string& text, size_t bytes,
                         FinishReason finish = FinishReason::kStop) {
  const auto output = Output();
  std::string stream;
  for (size_t at = 0; at < text.size(); at += bytes) {
    stream += output->StreamDelta(0, Delta(text.substr(at, bytes), std::nullopt, at));
  }
  stream += output->StreamDelta(0, Delta("", finish, text.size()));
  return Events(stream + output->StreamEnd());
}

// Of calls of functions, which are random.
Json WithoutCallIds(Json response) {
  for (Json& item : response["output"]) item.erase("call_id");
  return response;
}

TEST(ResponsesOutputTest, AWholeAnswer) {
  const Json response = Whole(kAnswer);
  EXPECT_EQ(response["id"], "resp_1");
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["status"], "completed");
  EXPECT_TRUE(response["error"].is_null() && response["incomplete_details"].is_null());
  EXPECT_EQ(
      DumpJson(WithoutCallIds(response)["output"]),
      R"([{"type":"reasoning","id":"rs_1_0","summary":[],"content":[{"type":"reasoning_text",)"
      R"("text":"I must look."}],"encrypted_content":null,"status":"completed"},)"
      R"({"type":"message","id":"msg_1_1","role":"assistant","content":[{"type":"output_text",)"
      R"("text":"One moment.","annotations":[],"logprobs":[]}],"status":"completed"},)"
      R"({"type":"function_call","id":"fc_1_2","name":"weather","arguments":"{\"city\": \"Rome\"}",)"
      R"("status":"completed"},)"
      R"({"type":"function_call","id":"fc_1_3","name":"time","arguments":"{}",)"
      R"("status":"completed"}])");
  EXPECT_EQ(
      DumpJson(response["usage"]),
      R"({"input_tokens":4,"input_tokens_details":{"cached_tokens":3,"cache_write_tokens":0},)"
      R"("output_tokens":9,"output_tokens_details":{"reasoning_tokens":1},"total_tokens":13})");
}

TEST(ResponsesOutputTest, TheOrderOfEvents) {
  std::vector<std::string> types;
  for (const Json& event :
       Stream("<think>\nhm\n</think>\n\nYes.<tool_call>{\"name\": \"f\"}</tool_call>", 1000)) {
    types.push_back(event["type"].get<std::string>().substr(9));
  }
  EXPECT_EQ(types, (std::vector<std::string>{
                       "created", "in_progress", "output_item.added", "content_part.added",
                       "reasoning_text.delta", "reasoning_text.done", "content_part.done",
                       "output_item.done", "output_item.added", "content_part.added",
                       "output_text.delta", "output_text.done", "content_part.done",
                       "output_item.done", "output_item.added", "function_call_arguments.delta",
                       "function_call_arguments.done", "output_item.done", "completed"}));
}

// However the text is cut, the last event holds the whole answer, and so do the others together.
TEST(ResponsesOutputTest, AStreamIsTheSame) {
  Json whole = WithoutCallIds(Whole(kAnswer));
  whole.erase("usage");
  for (const size_t bytes : {1, 2, 7, 1000}) {
    const std::vector<Json> events = Stream(kAnswer, bytes);
    Json last = WithoutCallIds(events.back()["response"]);
    last.erase("usage");
    EXPECT_EQ(last, whole);
    std::vector<std::string> texts;
    Json done = Json::array();
    for (const Json& event : events) {
      const std::string type = event["type"];
      if (type == "response.output_item.added") {
        EXPECT_EQ(event["output_index"], texts.size());
        EXPECT_EQ(event["item"]["status"], "in_progress");
        texts.emplace_back();
      } else if (type.ends_with(".delta")) {
        EXPECT_EQ(event["output_index"], texts.size() - 1);
        texts.back() += event["delta"].get<std::string>();
      } else if (type == "response.output_text.done") {
        EXPECT_EQ(event["text"], texts.back());
      } else if (type == "response.function_call_arguments.done") {
        EXPECT_EQ(event["arguments"], texts.back());
      } else if (type == "response.output_item.done") {
        done.push_back(event["item"]);
      }
    }
    EXPECT_EQ(texts, (std::vector<std::string>{"I must look.", "One moment.", R"({"city": "Rome"})",
                                               "{}"}));
    EXPECT_EQ(done, events.back()["response"]["output"]);
  }
}

TEST(ResponsesOutputTest, AnAnswerThatIsCutOff) {
  const std::string cut = "Yes.<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"ab";
  const Json whole = Whole(cut, FinishReason::kLength);
  EXPECT_EQ(whole["status"], "incomplete");
  EXPECT_EQ(whole["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(whole["output"][0]["status"], "completed");
  EXPECT_EQ(whole["output"][1]["status"], "incomplete");
  EXPECT_EQ(whole["output"][1]["arguments"], R"({"x": "ab)");
  const std::vector<Json> events = Stream(cut, 3, FinishReason::kLength);
  EXPECT_EQ(events.back()["type"], "response.incomplete");
  EXPECT_EQ(events[events.size() - 2]["item"]["status"], "incomplete");
}

TEST(ResponsesOutputTest, FailuresAndEmptyAnswers) {
  const auto output = Output();
  output->StreamDelta(0, Delta("a"));
  const auto failed = output->StreamError(ApiError(500, "server_error", "x"));
  const Json event = ParseJson(failed.substr(failed.find("data: ") + 6));
  EXPECT_EQ(event["type"], "response.failed");
  EXPECT_EQ(event["response"]["status"], "failed");
  EXPECT_EQ(event["response"]["error"]["message"], "x");
  EXPECT_EQ(Stream("", 1).size(), 3u);
  EXPECT_TRUE(Whole("")["output"].empty());
}

}  // namespace responses_output_test
}  // namespace moesaic
