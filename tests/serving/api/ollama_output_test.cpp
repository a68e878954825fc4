// Answers in the shapes of Ollama's API, in one piece and as lines.
#include "serving/api/ollama_output.h"

#include <gtest/gtest.h>

#include "serving/api/json_text.h"

namespace moesaic {
namespace ollama_output_test {

constexpr const char* kAnswer =
    "<think>\nI must look.\n</think>\n\nOne moment.\n<tool_call>\n{\"name\": \"weather\", "
    "\"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", "
    "\"arguments\": {}}\n</tool_call>";

std::unique_ptr<ApiOutput> Output(ApiDialect dialect = ApiDialect::kOllamaChat) {
  AnswerParsing parsing;
  parsing.parser.syntax = FindChatSyntax("", "hermes", "qwen3");
  parsing.parser.calls = true;
  ApiOutputSpec spec;
  spec.dialect = dialect;
  spec.model = "m";
  spec.prompts = {{0, 1, 2, 3}};
  spec.parsing = std::make_shared<const AnswerParsing>(parsing);
  return MakeApiOutput(std::move(spec), [](int32_t, bool) { return TokenText{"t"}; });
}

OutputDelta Delta(std::string text, std::optional<FinishReason> finish = std::nullopt) {
  OutputDelta delta;
  delta.text = std::move(text);
  delta.tokens.resize(1);
  delta.finish = finish;
  delta.usage = Usage{4, 9, 3};
  return delta;
}

std::vector<Json> Lines(const std::string& stream) {
  std::vector<Json> lines;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find('\n', at);
    lines.push_back(ParseJson(stream.substr(at, end - at)));
    at = end + 1;
  }
  return lines;
}

std::vector<Json> Stream(const std::string& text, size_t bytes,
                         ApiDialect dialect = ApiDialect::kOllamaChat,
                         FinishReason finish = FinishReason::kStop) {
  const auto output = Output(dialect);
  std::string stream;
  for (size_t at = 0; at < text.size(); at += bytes) {
    stream += output->StreamDelta(0, Delta(text.substr(at, bytes)));
  }
  stream += output->StreamDelta(0, Delta("", finish));
  return Lines(stream + output->StreamEnd());
}

void ExpectEnd(const Json& line, const char* reason) {
  EXPECT_EQ(line["done"], true);
  EXPECT_EQ(line["done_reason"], reason);
  EXPECT_EQ(line["prompt_eval_count"], 4);
  EXPECT_EQ(line["eval_count"], 9);
  EXPECT_GT(line["total_duration"].get<int64_t>(), 0);
  EXPECT_EQ(line["total_duration"],
            line["prompt_eval_duration"].get<int64_t>() + line["eval_duration"].get<int64_t>());
}

TEST(OllamaOutputTest, AWholeAnswer) {
  const auto output = Output();
  output->Collect(0, Delta(kAnswer, FinishReason::kStop));
  const Json body = ParseJson(output->FinalBody());
  EXPECT_EQ(body["model"], "m");
  EXPECT_EQ(body["created_at"].get<std::string>().size(), 20u);
  const Json& message = body["message"];
  EXPECT_EQ(message["content"], "One moment.");
  EXPECT_EQ(message["thinking"], "I must look.");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  EXPECT_EQ(DumpJson(message["tool_calls"][0]["function"]),
            R"({"index":0,"name":"weather","arguments":{"city":"Rome"}})");
  EXPECT_EQ(message["tool_calls"][1]["function"]["arguments"], Json::object());
  ExpectEnd(body, "stop");
}

TEST(OllamaOutputTest, LinesAreTheSame) {
  for (const size_t bytes : {1, 7, 1000}) {
    const std::vector<Json> lines = Stream(kAnswer, bytes);
    std::string content, thinking;
    Json calls = Json::array();
    for (const Json& line : lines) {
      EXPECT_EQ(line["done"], &line == &lines.back());
      content += line["message"]["content"].get<std::string>();
      thinking += line["message"].value("thinking", "");
      for (const Json& call : line["message"].value("tool_calls", Json::array())) {
        calls.push_back(call["function"]);
      }
    }
    EXPECT_EQ(content, "One moment.");
    EXPECT_EQ(thinking, "I must look.");
    EXPECT_EQ(DumpJson(calls), R"([{"index":0,"name":"weather","arguments":{"city":"Rome"}},)"
                               R"({"index":1,"name":"time","arguments":{}}])");
    ExpectEnd(lines.back(), "stop");
  }
}

TEST(OllamaOutputTest, Generate) {
  const std::vector<Json> lines = Stream("<think>a</think>b", 1000, ApiDialect::kOllamaGenerate);
  EXPECT_EQ(lines.front()["response"], "b");
  EXPECT_EQ(lines.front()["thinking"], "a");
  EXPECT_FALSE(lines.front().contains("message"));
  EXPECT_EQ(lines.back()["response"], "");
}

TEST(OllamaOutputTest, ACallThatIsCutOffIsLeftOut) {
  const std::string cut = R"(Yes.<tool_call>{"name": "f", "arguments": {"x": "ab)";
  const std::vector<Json> lines = Stream(cut, 3, ApiDialect::kOllamaChat, FinishReason::kLength);
  for (const Json& line : lines) EXPECT_FALSE(line["message"].contains("tool_calls"));
  ExpectEnd(lines.back(), "length");
}

TEST(OllamaOutputTest, QuietLinesAndErrors) {
  const auto output = Output();
  EXPECT_EQ(output->stream_type(), "application/x-ndjson");
  const Json quiet = Lines(output->StreamQuiet()).front();
  EXPECT_EQ(quiet["message"]["content"], "");
  EXPECT_EQ(quiet["done"], false);
  EXPECT_EQ(output->StreamError(ApiError(500, "server_error", "x")), "{\"error\":\"x\"}\n");
}

}  // namespace ollama_output_test
}  // namespace moesaic
