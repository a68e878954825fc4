#include "serving/api/openai_output.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "serving/api/expert_json.h"
#include "tracer/request_tracer.h"
#include "tracer/routed_experts.h"

namespace moesaic {
namespace {

OutputDelta Delta(std::string text, std::vector<int32_t> tokens, int64_t completion_tokens) {
  OutputDelta delta;
  delta.text = std::move(text);
  for (const int32_t token : tokens) delta.tokens.push_back(GeneratedToken{token, -0.5f, {}});
  delta.usage = Usage{2, completion_tokens, 1};
  return delta;
}

OutputDelta Last(OutputDelta delta, FinishReason reason, std::string stop_text = {}) {
  delta.finish = reason;
  delta.stop_text = std::move(stop_text);
  return delta;
}

TokenText Spell(int32_t token, bool) { return {std::string(1, static_cast<char>('a' + token))}; }

ApiOutputSpec Spec(bool chat) {
  ApiOutputSpec spec;
  spec.dialect = chat ? ApiDialect::kChat : ApiDialect::kCompletions;
  spec.id = "id-1";
  spec.model = "m";
  spec.created_unix_s = 5;
  spec.prompts = {{0, 1}};
  return spec;
}

// The JSON of each event; "[DONE]" as a string.
std::vector<Json> Events(const std::string& stream) {
  std::vector<Json> events;
  size_t pos = 0;
  while (pos < stream.size()) {
    const size_t end = stream.find("\n\n", pos);
    EXPECT_NE(end, std::string::npos);
    EXPECT_EQ(stream.substr(pos, 6), "data: ");
    const std::string data = stream.substr(pos + 6, end - pos - 6);
    events.push_back(data == "[DONE]" ? Json(data) : Json::parse(data));
    pos = end + 2;
  }
  return events;
}

TEST(ApiOutputTest, Completion) {
  OpenAiOutput output(Spec(false), Spell);
  output.Collect(0, Delta("c", {2}, 1));
  output.Collect(0, Last(Delta("de", {3, 4}, 3), FinishReason::kStop, "END"));
  EXPECT_EQ(
      output.FinalBody(),
      R"({"id":"id-1","object":"text_completion","created":5,"model":"m","choices":[{"index":0,)"
      R"("text":"cde","logprobs":null,"finish_reason":"stop","stop_reason":"END"}],"usage":)"
      R"({"prompt_tokens":2,"completion_tokens":3,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}})");
}

TEST(ApiOutputTest, Chat) {
  OpenAiOutput output(Spec(true), Spell);
  output.Collect(0, Last(Delta("hey", {3}, 1), FinishReason::kLength));
  const Json json = Json::parse(output.FinalBody());
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(DumpJson(json["choices"][0]),
            R"({"index":0,"message":{"role":"assistant","content":"hey"},"logprobs":null,)"
            R"("finish_reason":"length","stop_reason":null})");
}

TEST(ApiOutputTest, EchoWithLogprobsCoversPromptAndCompletion) {
  ApiOutputSpec spec = Spec(false);
  spec.echo = true;
  spec.logprobs = 0;
  spec.prompt_texts = {"ab"};
  spec.hidden_prompt_tokens = {0};
  OpenAiOutput output(spec, Spell);
  OutputDelta first = Delta("", {}, 0);
  first.prompt_tokens = {GeneratedToken{1, -2.f, {}}};
  output.Collect(0, first);
  output.Collect(0, Last(Delta("c", {2}, 1), FinishReason::kLength));
  const Json choice = Json::parse(output.FinalBody())["choices"][0];
  EXPECT_EQ(choice["text"], "abc");
  EXPECT_EQ(DumpJson(choice["logprobs"]),
            R"({"tokens":["a","b","c"],"token_logprobs":[null,-2.0,-0.5],)"
            R"("top_logprobs":[null,{"b":-2.0},{"c":-0.5}],"text_offset":[0,1,2]})");
}

TEST(ApiOutputTest, ChatStream) {
  ApiOutputSpec spec = Spec(true);
  spec.include_usage = true;
  OpenAiOutput output(spec, Spell);
  std::string stream = output.StreamDelta(0, Delta("h", {3}, 1));
  EXPECT_EQ(output.StreamDelta(0, Delta("", {4}, 2)), "");  // text held back: nothing to say
  stream += output.StreamDelta(0, Delta("ey", {5}, 3));
  stream += output.StreamDelta(0, Last(Delta("", {}, 3), FinishReason::kStop));
  stream += output.StreamEnd();
  const std::vector<Json> events = Events(stream);
  ASSERT_EQ(events.size(), 6u);
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(events[i]["id"], "id-1");
    EXPECT_EQ(events[i]["object"], "chat.completion.chunk");
    EXPECT_EQ(events[i]["created"], 5);
    EXPECT_EQ(events[i]["model"], "m");
    ASSERT_TRUE(events[i].contains("usage"));
    EXPECT_EQ(events[i]["usage"].is_null(), i != 4) << i;
  }
  EXPECT_EQ(
      DumpJson(events[0]["choices"]),
      R"([{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}])");
  EXPECT_EQ(DumpJson(events[1]["choices"]),
            R"([{"index":0,"delta":{"content":"h"},"logprobs":null,"finish_reason":null}])");
  EXPECT_EQ(events[2]["choices"][0]["delta"]["content"], "ey");
  EXPECT_EQ(
      DumpJson(events[3]["choices"]),
      R"([{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null}])");
  EXPECT_EQ(DumpJson(events[4]["choices"]), "[]");
  EXPECT_EQ(events[4]["usage"]["completion_tokens"], 3);
  EXPECT_EQ(events[5], "[DONE]");
}

TEST(ApiOutputTest, WithoutIncludeUsageNoChunkHasUsage) {
  OpenAiOutput output(Spec(true), Spell);
  const std::string stream =
      output.StreamDelta(0, Last(Delta("h", {3}, 1), FinishReason::kStop)) + output.StreamEnd();
  EXPECT_EQ(stream.find("usage"), std::string::npos);
}

TEST(ApiOutputTest, ContinuousUsage) {
  ApiOutputSpec spec = Spec(false);
  spec.continuous_usage = true;
  OpenAiOutput output(spec, Spell);
  const auto events = Events(output.StreamDelta(0, Delta("h", {3}, 1)));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["usage"]["completion_tokens"], 1);
  EXPECT_EQ(events[0]["usage"]["prompt_tokens"], 2);
}

// Before the chunk that begins the answer, which has all that it has otherwise.
TEST(ApiOutputTest, ProgressOfAPromptIsInChunksOfItsOwn) {
  for (const bool chat : {true, false}) {
    ApiOutputSpec spec = Spec(chat);
    spec.return_token_ids = true;
    OpenAiOutput output(spec, Spell);
    OutputDelta progress;
    progress.usage = {2, 0, 1};
    progress.progress = {.total = 2, .cached = 1, .processed = 1, .time_ms = 7};
    const auto told = Events(output.StreamDelta(0, progress));
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(DumpJson(told[0]["prompt_progress"]),
              R"({"total":2,"cache":1,"processed":1,"time_ms":7})");
    EXPECT_EQ(DumpJson(told[0]["choices"][0]),
              chat ? R"({"index":0,"delta":{"role":"assistant","content":null},"logprobs":null,)"
                     R"("finish_reason":null})"
                   : R"({"index":0,"text":"","logprobs":null,"finish_reason":null})");
    // What was told last comes with the first token, where nobody has read it.
    OutputDelta delta = Delta("h", {3}, 1);
    delta.progress = {.total = 2, .cached = 1, .processed = 2, .time_ms = 9};
    const auto events = Events(output.StreamDelta(0, delta));
    ASSERT_EQ(events.size(), chat ? 3u : 2u);
    EXPECT_EQ(events[0]["prompt_progress"]["processed"], 2);
    EXPECT_EQ(events.back()["choices"][0]["prompt_token_ids"].size(), 2u);
    EXPECT_FALSE(events.back().contains("prompt_progress"));
  }
}

TEST(ApiOutputTest, StreamWithLogprobsCarriesEveryToken) {
  ApiOutputSpec spec = Spec(true);
  spec.logprobs = 0;
  OpenAiOutput output(spec, Spell);
  output.StreamDelta(0, Delta("h", {3}, 1));
  const auto events = Events(output.StreamDelta(0, Delta("", {4}, 2)));  // held back, but a token
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["choices"][0]["logprobs"]["content"][0]["token"], "e");
  EXPECT_EQ(DumpJson(events[0]["choices"][0]["delta"]), "{}");
}

TEST(ApiOutputTest, EchoStreamsThePromptFirst) {
  ApiOutputSpec spec = Spec(false);
  spec.echo = true;
  spec.prompt_texts = {"ab"};
  spec.hidden_prompt_tokens = {0};
  spec.logprobs = 0;
  OpenAiOutput output(spec, Spell);
  OutputDelta first = Delta("", {}, 0);
  first.prompt_tokens = {GeneratedToken{1, -2.f, {}}};
  const auto events = Events(output.StreamDelta(0, first));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["choices"][0]["text"], "ab");
  EXPECT_EQ(events[0]["choices"][0]["logprobs"]["tokens"].size(), 2u);
  const auto next = Events(output.StreamDelta(0, Delta("c", {2}, 1)));
  EXPECT_EQ(next[0]["choices"][0]["text"], "c");
  EXPECT_EQ(DumpJson(next[0]["choices"][0]["logprobs"]["text_offset"]), "[2]");
}

TEST(ApiOutputTest, ChoicesOfSeveralPrompts) {
  ApiOutputSpec spec = Spec(false);
  spec.n = 2;
  spec.prompts = {{0, 1}, {2}};
  spec.echo = true;
  spec.prompt_texts = {"P", "Q"};
  spec.hidden_prompt_tokens = {0, 0};
  spec.return_token_ids = true;
  OpenAiOutput output(spec, Spell);
  ASSERT_EQ(output.choices(), 4u);
  for (size_t i : {3, 1, 0, 2}) {  // they end in any order
    output.Collect(
        i, Last(Delta(std::to_string(i), {static_cast<int32_t>(i)}, 1), FinishReason::kStop));
  }
  const Json json = Json::parse(output.FinalBody());
  const char* texts[] = {"P0", "P1", "Q2", "Q3"};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["text"], texts[i]);
    EXPECT_EQ(DumpJson(json["choices"][i]["token_ids"]), "[" + std::to_string(i) + "]");
    EXPECT_EQ(DumpJson(json["choices"][i]["prompt_token_ids"]), i < 2 ? "[0,1]" : "[2]");
  }
  // Each prompt's tokens once, all completions.
  EXPECT_EQ(json["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(json["usage"]["completion_tokens"], 4);
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
}

TEST(ApiOutputTest, EachChoiceOfAStreamBeginsWithItsRole) {
  ApiOutputSpec spec = Spec(true);
  spec.n = 2;
  OpenAiOutput output(spec, Spell);
  for (size_t i : {1, 0}) {
    const auto events = Events(output.StreamDelta(i, Delta("x", {1}, 1)));
    ASSERT_EQ(events.size(), 2u);
    EXPECT_EQ(events[0]["choices"][0]["index"], i);
    EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
    EXPECT_EQ(events[1]["choices"][0]["index"], i);
  }
}

TEST(ApiOutputTest, ErrorsInAStreamHaveTheErrorObject) {
  const auto events = Events(
      OpenAiOutput(Spec(true), Spell).StreamError(ApiError(500, "server_error", "x\n\"y\"")));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(DumpJson(events[0]),
            R"({"error":{"message":"x\n\"y\"","type":"server_error","param":null,"code":null}})");
}

TEST(ApiOutputTest, PromptLogprobsExtension) {
  ApiOutputSpec spec = Spec(true);
  spec.prompt_logprobs = 0;
  OpenAiOutput output(spec, Spell);
  OutputDelta delta = Last(Delta("x", {1}, 1), FinishReason::kStop);
  delta.prompt_tokens = {GeneratedToken{1, -2.f, {}}};
  output.Collect(0, delta);
  const Json json = Json::parse(output.FinalBody());
  EXPECT_EQ(json["prompt_logprobs"].size(), 2u);
  EXPECT_EQ(json["prompt_logprobs"][1]["1"]["logprob"], -2.0);
}

TEST(ApiOutputTest, Usage) {
  EXPECT_EQ(DumpJson(UsageJson(Usage{7, 3, 2})),
            R"({"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,)"
            R"("prompt_tokens_details":{"cached_tokens":2}})");
}

// Three layers, of which the second has no experts; three tokens, the last of an answer of two.
std::shared_ptr<const RoutedExperts> Routed() {
  auto routed = std::make_shared<RoutedExperts>(3, 2);
  routed->Grow(3);
  const std::vector<int32_t> first = {0, 1, 2, 3, 4, 5};
  const std::vector<int32_t> third = {10, 11, 12, 13, 14, 15};
  routed->Set(0, 0, first);
  routed->Set(0, 2, third);
  return routed;
}

TEST(ApiOutputTest, RoutedExpertsAsSglangHasThem) {
  ApiOutputSpec spec = Spec(true);
  spec.routed = {RoutedOutput::Form::kBase64, 2, {0, 2}};
  OutputDelta last = Last(Delta("de", {3, 4}, 2), FinishReason::kStop);
  last.routed = Routed();
  // int32 of 4, 5, -1, -1, 14, 15, by Python's base64.
  const std::string text = "BAAAAAUAAAD//////////w4AAAAPAAAA";
  for (const bool stream : {false, true}) {
    OpenAiOutput output(spec, Spell);
    if (!stream) output.Collect(0, last);
    const Json json =
        stream ? Events(output.StreamDelta(0, last)).back() : Json::parse(output.FinalBody());
    EXPECT_EQ(json["sglext"]["routed_experts"], text);
    EXPECT_FALSE(json["choices"][0].contains("sglext"));
  }
  // The choices of several have their own.
  spec.n = 2;
  OpenAiOutput output(spec, Spell);
  output.Collect(0, last);
  last.routed = nullptr;  // nothing was traced
  output.Collect(1, last);
  const Json json = Json::parse(output.FinalBody());
  EXPECT_EQ(json["choices"][0]["sglext"]["routed_experts"], text);
  EXPECT_EQ(json["choices"][1]["sglext"]["routed_experts"], nullptr);
  EXPECT_FALSE(json.contains("sglext"));
}

TEST(ApiOutputTest, RoutedExpertsAsVllmHasThem) {
  ApiOutputSpec spec = Spec(false);
  spec.routed = {RoutedOutput::Form::kLists, 0, {0, 2}};
  OutputDelta last = Last(Delta("de", {3, 4}, 2), FinishReason::kStop);
  last.routed = Routed();
  OpenAiOutput output(spec, Spell);
  EXPECT_FALSE(Events(output.StreamDelta(0, Delta("c", {2}, 1)))[0].contains("routed_experts"));
  const Json json = Events(output.StreamDelta(0, last)).back();
  EXPECT_EQ(DumpJson(json["prompt_routed_experts"]), "[[[0,1],[10,11]],[[2,3],[12,13]]]");
  EXPECT_EQ(DumpJson(json["choices"][0]["routed_experts"]), "[[[4,5],[14,15]]]");
}

TEST(ApiOutputTest, WhatARequestHasCost) {
  ApiOutputSpec spec = Spec(true);
  spec.return_moesaic = true;
  OutputDelta last = Last(Delta("de", {3, 4}, 2), FinishReason::kStop);
  last.experts.hits = 7;
  last.experts.misses = 2;
  last.experts.bytes_read = 1000;
  auto trace = std::make_shared<RequestTrace>();
  trace->prefill = ExpertActivationMatrix(2, 3);
  trace->decode = ExpertActivationMatrix(2, 3);
  trace->prefill.Add(1, 2, 5);
  trace->prefill_tokens = 5;
  trace->iterations = 4;
  last.trace = trace;
  OpenAiOutput output(spec, Spell);
  output.Collect(0, Delta("c", {2}, 1));
  output.Collect(0, last);
  last.links = {{"gpu:0", 3}, {"gpu:1", 997}};
  EXPECT_EQ(DumpJson(ExpertUseJson(last)["links"]),
            R"([{"name":"gpu:0","bytes":3},{"name":"gpu:1","bytes":997}])");
  EXPECT_EQ(
      DumpJson(Json::parse(output.FinalBody())["choices"][0]["moesaic"]),
      R"({"hits":7,"late_hits":0,"misses":2,"on_host":0,"bytes_read":1000,"blocked_us":0,)"
      R"("links":[{"name":"experts","bytes":1000}],"steps":4,)"
      R"("prefill":{"tokens":5,"eam":[[0,0,0],[0,0,5]]},"decode":{"tokens":0,"eam":[[0,0,0],[0,0,0]]}})");
}

}  // namespace
}  // namespace moesaic
