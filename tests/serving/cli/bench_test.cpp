// The parts of `moesaic bench serve` that need no server.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "serving/cli/bench_dataset.h"
#include "serving/cli/bench_report.h"
#include "serving/cli/load_client.h"
#include "serving/cli/sse_parser.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

TEST(SseParserTest, AnyCutGivesTheSameEvents) {
  const std::string stream =
      ": comment\r\n\r\ndata: one\r\n\r\ndata:two\n\nevent: x\ndata: three\ndata:  four\n\nid: "
      "1\n\n"
      "data\n\ndata: [DONE]\n\n";
  const std::vector<std::string> expected = {"one", "two", "three\n four", "", "[DONE]"};
  for (size_t cut = 0; cut <= stream.size(); ++cut) {
    SseParser parser;
    std::vector<std::string> events;
    parser.Feed(stream.substr(0, cut), events);
    parser.Feed(stream.substr(cut), events);
    EXPECT_EQ(events, expected) << "cut at " << cut;
  }
  SseParser parser;
  std::vector<std::string> events;
  for (const char c : stream) parser.Feed({&c, 1}, events);
  EXPECT_EQ(events, expected);
  // An event without its empty line is not complete.
  events.clear();
  parser.Feed("data: half\n", events);
  EXPECT_TRUE(events.empty());
}

TEST(StreamEventTest, TimesChunksWithText) {
  LoadResult result;
  EXPECT_FALSE(
      TakeStreamEvent(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})", 0.1, result));
  EXPECT_FALSE(TakeStreamEvent(R"({"choices":[{"delta":{"content":"a"}}]})", 0.5, result));
  EXPECT_FALSE(TakeStreamEvent(R"({"choices":[{"delta":{"content":"b"}}]})", 0.75, result));
  EXPECT_FALSE(
      TakeStreamEvent(R"({"choices":[{"delta":{},"finish_reason":"stop"}]})", 0.8, result));
  EXPECT_FALSE(TakeStreamEvent(
      R"({"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3}})", 0.9, result));
  EXPECT_TRUE(TakeStreamEvent("[DONE]", 0.9, result));
  EXPECT_DOUBLE_EQ(result.ttft_s, 0.5);
  EXPECT_DOUBLE_EQ(result.latency_s, 0.75);
  EXPECT_EQ(result.itl_s, std::vector<double>{0.25});
  EXPECT_EQ(result.text, "ab");
  EXPECT_EQ(result.prompt_tokens, 5);
  EXPECT_EQ(result.output_tokens, 3);
  EXPECT_EQ(result.error, "");
}

TEST(StreamEventTest, LegacyCompletionsAndErrors) {
  LoadResult result;
  EXPECT_FALSE(TakeStreamEvent(R"({"choices":[{"text":"x"}],"usage":null})", 0.2, result));
  EXPECT_EQ(result.text, "x");
  EXPECT_TRUE(TakeStreamEvent(R"({"error":{"message":"too bad"}})", 0.3, result));
  EXPECT_EQ(result.error, "too bad");
  for (const char* text :
       {"", "{", "[]", "7", R"({"choices":[7]})", R"({"choices":7})", R"({"choices":[{"text":7}]})",
        R"({"usage":{"prompt_tokens":"x"}})", R"({"error":{"message":7}})"}) {
    LoadResult bad;
    const bool last = TakeStreamEvent(text, 0.1, bad);
    EXPECT_EQ(last, !bad.error.empty()) << text;
    EXPECT_TRUE(bad.text.empty()) << text;
  }
}

TEST(BaseUrlTest, Parses) {
  Endpoint e = ParseBaseUrl("http://127.0.0.1:8000");
  EXPECT_EQ(e.host + "|" + e.port + "|" + e.prefix, "127.0.0.1|8000|");
  e = ParseBaseUrl("http://host/api/");
  EXPECT_EQ(e.host + "|" + e.port + "|" + e.prefix, "host|80|/api");
  e = ParseBaseUrl("[::1]:81");
  EXPECT_EQ(e.host + "|" + e.port + "|" + e.prefix, "::1|81|");
  for (const char* url : {"", "http://", "http://:80", "http://h:x", "http://h:", "https://h"}) {
    EXPECT_THROW(ParseBaseUrl(url), Error) << url;
  }
}

TEST(ArrivalTest, RateAndBurstiness) {
  LoadShape shape;
  EXPECT_EQ(ArrivalTimes(3, shape), (std::vector<double>{0, 0, 0}));
  shape.requests_per_s = 50;
  shape.seed = 7;
  const std::vector<double> poisson = ArrivalTimes(20000, shape);
  EXPECT_NEAR(20000 / poisson.back(), 50, 2);
  EXPECT_EQ(ArrivalTimes(20000, shape), poisson);
  const auto spread = [](const std::vector<double>& times) {
    double squares = 0;
    const double mean = times.back() / static_cast<double>(times.size());
    for (size_t i = 1; i < times.size(); ++i) {
      squares += std::pow(times[i] - times[i - 1] - mean, 2);
    }
    return std::sqrt(squares / static_cast<double>(times.size())) / mean;
  };
  EXPECT_NEAR(spread(poisson), 1.0, 0.05);  // the coefficient of variation is 1 / sqrt(burstiness)
  shape.burstiness = 100;
  EXPECT_NEAR(spread(ArrivalTimes(20000, shape)), 0.1, 0.01);
}

TEST(BenchReportTest, PercentilesAsNumpy) {
  EXPECT_DOUBLE_EQ(Percentile({}, 50), 0);
  EXPECT_DOUBLE_EQ(Percentile({3}, 99), 3);
  EXPECT_DOUBLE_EQ(Percentile({4, 1, 3, 2}, 50), 2.5);
  EXPECT_DOUBLE_EQ(Percentile({1, 2, 3, 4}, 90), 3.7);
  EXPECT_DOUBLE_EQ(Percentile({1, 2, 3, 4}, 100), 4);
}

LoadRun ExampleRun() {
  LoadRun run;
  run.duration_s = 2;
  run.results.resize(3);
  run.results[0] = {true, "", 0, 0.1, 0.5, {0.2, 0.2}, 10, 3, "abc"};
  run.results[1] = {true, "", 0, 0.3, 0.3, {}, 20, 1, "x"};  // one token: no TPOT
  run.results[2].error = "HTTP 503";
  return run;
}

TEST(BenchReportTest, Numbers) {
  const BenchReport report = MakeBenchReport(ExampleRun(), {50, 99}, {{"ttft", 200}});
  EXPECT_EQ(report.completed, 2);
  EXPECT_EQ(report.failed, 1);
  EXPECT_EQ(report.input_tokens, 30);
  EXPECT_EQ(report.output_tokens, 4);
  EXPECT_EQ(report.good_requests, 1);
  EXPECT_DOUBLE_EQ(report.latencies.at("ttft").mean_ms, 200);
  EXPECT_DOUBLE_EQ(report.latencies.at("ttft").std_ms, 100);
  EXPECT_DOUBLE_EQ(report.latencies.at("tpot").mean_ms, 200);
  EXPECT_DOUBLE_EQ(report.latencies.at("e2el").median_ms, 400);
}

TEST(BenchReportTest, KeysOfVllm) {
  const LoadRun run = ExampleRun();
  const BenchReport report = MakeBenchReport(run, {50, 99, 99.9}, {});
  const Json json = BenchReportJson(report, {"ttft", "tpot", "itl", "e2el"}, run, true);
  for (const char* key : {"duration",
                          "completed",
                          "failed",
                          "total_input_tokens",
                          "total_output_tokens",
                          "request_throughput",
                          "output_throughput",
                          "total_token_throughput",
                          "mean_ttft_ms",
                          "median_ttft_ms",
                          "std_ttft_ms",
                          "p99_ttft_ms",
                          "p99.9_itl_ms",
                          "mean_tpot_ms",
                          "std_e2el_ms",
                          "input_lens",
                          "output_lens",
                          "ttfts",
                          "itls",
                          "generated_texts",
                          "errors"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_DOUBLE_EQ(json["request_throughput"].get<double>(), 1);
  EXPECT_DOUBLE_EQ(json["output_throughput"].get<double>(), 2);
  EXPECT_TRUE(json["request_goodput"].is_null());
  EXPECT_EQ(json["errors"][2], "HTTP 503");
  EXPECT_FALSE(BenchReportJson(report, {"ttft"}, run, false).contains("ttfts"));
  const std::string text = BenchReportText(report, {"ttft"});
  EXPECT_NE(text.find("Successful requests:                     2"), std::string::npos) << text;
  EXPECT_NE(text.find("Mean TTFT (ms):                          200.00"), std::string::npos)
      << text;
}

BenchDatasetOptions Options(bool chat = false) {
  BenchDatasetOptions options;
  options.model = "m";
  options.chat = chat;
  options.count = 4;
  options.input_tokens = 8;
  options.output_tokens = 5;
  return options;
}

TEST(BenchDatasetTest, RandomTokenIds) {
  BenchDatasetOptions options = Options();
  options.prefix_tokens = 3;
  options.ignore_eos = true;
  const auto requests = MakeRandomRequests(options);
  ASSERT_EQ(requests.size(), 4u);
  const Json first = Json::parse(requests[0].body);
  const Json second = Json::parse(requests[1].body);
  EXPECT_EQ(first["prompt"].size(), 11u);
  EXPECT_EQ(requests[0].prompt_tokens, 11);
  EXPECT_EQ(first["max_tokens"], 5);
  EXPECT_EQ(first["stream"], true);
  EXPECT_EQ(first["stream_options"]["include_usage"], true);
  EXPECT_EQ(first["ignore_eos"], true);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(first["prompt"][i], second["prompt"][i]);
  EXPECT_NE(first["prompt"], second["prompt"]);
  for (const auto& id : first["prompt"]) {
    EXPECT_GE(id.get<int64_t>(), kFirstRandomToken);
    EXPECT_LT(id.get<int64_t>(), 1000);
  }
  EXPECT_EQ(MakeRandomRequests(options)[3].body, requests[3].body);  // the seed decides
  options.vocab_size = 10;
  EXPECT_THROW(MakeRandomRequests(options), Error);
}

TEST(BenchDatasetTest, RangeRatioVariesLengths) {
  BenchDatasetOptions options = Options();
  options.count = 200;
  options.range_ratio = 0.5;
  int64_t least = 100;
  int64_t most = 0;
  for (const LoadRequest& request : MakeRandomRequests(options)) {
    least = std::min(least, request.prompt_tokens);
    most = std::max(most, request.prompt_tokens);
  }
  EXPECT_EQ(least, 4);
  EXPECT_EQ(most, 12);
}

TEST(BenchDatasetTest, JsonLines) {
  const auto requests = ParseJsonLinesRequests(
      "{\"prompt\":\"a\",\"max_tokens\":9}\n\n{\"prompt\":\"b\"}\r\n", "f.jsonl", Options());
  ASSERT_EQ(requests.size(), 4u);  // used again from the beginning
  EXPECT_EQ(Json::parse(requests[0].body)["max_tokens"], 9);
  EXPECT_EQ(Json::parse(requests[1].body)["max_tokens"], 5);
  EXPECT_EQ(requests[2].body, requests[0].body);
  const auto chat = ParseJsonLinesRequests(
      "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}\n{\"prompt\":\"b\"}", "f",
      Options(true));
  EXPECT_EQ(Json::parse(chat[0].body)["messages"][0]["content"], "hi");
  EXPECT_EQ(Json::parse(chat[1].body)["messages"][0]["content"], "b");
}

TEST(BenchDatasetTest, JsonLinesErrorsNameFileAndLine) {
  for (const char* text : {"{\"prompt\":\"a\"}\nnope\n", "{\"prompt\":\"a\"}\n[]\n",
                           "{\"prompt\":\"a\"}\n{\"prompt\":7}\n",
                           "{\"prompt\":\"a\"}\n{\"prompt\":\"b\",\"max_tokens\":0}\n",
                           "{\"prompt\":\"a\"}\n{\"messages\":[]}\n"}) {
    try {
      ParseJsonLinesRequests(text, "f.jsonl", Options());
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).substr(0, 9), "f.jsonl:2") << error.what();
    }
  }
  EXPECT_THROW(ParseJsonLinesRequests("\n", "f", Options()), Error);
}

}  // namespace
}  // namespace moesaic
