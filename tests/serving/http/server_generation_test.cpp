// Completions and chat, plain and streamed, through a socket.
#include <thread>

#include "tests/serving/http/server_fixture.h"

namespace moesaic {
namespace {

TEST_F(ServerTest, CompletionOverTheWire) {
  Start();
  TestClient client(port());
  const TestResponse response = client.Post("/v1/completions", Completion(3));
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.Header("Content-Type"), "application/json");
  const Json json = response.json();
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["id"].get<std::string>().substr(0, 5), "cmpl-");
  EXPECT_EQ(json["choices"][0]["text"], "w0 w1 w2");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 4);  // <end>abc
  EXPECT_EQ(json["usage"]["completion_tokens"], 3);
}

TEST_F(ServerTest, PromptsAndChoices) {
  Start();
  TestClient client(port());
  const Json json =
      client
          .Post("/v1/completions",
                R"({"prompt":["ab",[99,100]],"n":2,"max_tokens":1,"seed":5,"temperature":0.5})")
          .json();
  ASSERT_EQ(json["choices"].size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(json["choices"][i]["index"], i);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(json["usage"]["completion_tokens"], 4);
  EXPECT_EQ(engine_->Request(1).prompt, (std::vector<int32_t>{256, 97, 98}));
  EXPECT_EQ(engine_->Request(4).prompt, (std::vector<int32_t>{99, 100}));
  EXPECT_EQ(engine_->Request(2).sampling.seed, 6u);
  EXPECT_EQ(engine_->Request(3).sampling.seed, 5u);
  EXPECT_EQ(engine_->Request(1).sampling.temperature, 0.5);
}

TEST_F(ServerTest, EchoWithPromptLogprobsAsLmEvalWantsIt) {
  Start();
  TestClient client(port());
  const Json json =
      client
          .Post("/v1/completions",
                R"({"model":"org/test","prompt":[[97,195,169],[98]],"max_tokens":1,"logprobs":1,)"
                R"("echo":true,"temperature":0,"seed":1234})")
          .json();
  ASSERT_EQ(json["choices"].size(), 2u);
  const Json& first = json["choices"][0];
  EXPECT_EQ(first["text"], "a\xC3\xA9w0");
  EXPECT_EQ(DumpJson(first["logprobs"]["tokens"]), R"(["a","bytes:\\xc3","bytes:\\xa9","\u0000"])");
  EXPECT_EQ(DumpJson(first["logprobs"]["token_logprobs"]), "[null,-1.0,-1.0,-0.5]");
  EXPECT_EQ(DumpJson(first["logprobs"]["text_offset"]), "[0,1,1,2]");
  EXPECT_TRUE(first["logprobs"]["top_logprobs"][0].is_null());
  EXPECT_EQ(first["logprobs"]["top_logprobs"].size(), 4u);
  EXPECT_EQ(json["choices"][1]["text"], "bw0");
}

TEST_F(ServerTest, EchoWithoutNewTokens) {
  Start();
  TestClient client(port());
  const Json json =
      client.Post("/v1/completions", R"({"prompt":"xy","max_tokens":0,"echo":true,"logprobs":0})")
          .json();
  EXPECT_EQ(json["choices"][0]["text"], "xy");
  EXPECT_EQ(DumpJson(json["choices"][0]["logprobs"]["tokens"]), R"(["<end>","x","y"])");
  EXPECT_EQ(DumpJson(json["choices"][0]["logprobs"]["text_offset"]), "[0,0,1]");
  EXPECT_EQ(json["usage"]["completion_tokens"], 0);
}

TEST_F(ServerTest, ChatOverTheWire) {
  Start();
  TestClient client(port());
  const Json json =
      client.Post("/v1/chat/completions", Chat(2, R"(,"logprobs":true,"top_logprobs":2)")).json();
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["id"].get<std::string>().substr(0, 9), "chatcmpl-");
  EXPECT_EQ(DumpJson(json["choices"][0]["message"]), R"({"role":"assistant","content":"w0 w1"})");
  EXPECT_EQ(json["choices"][0]["logprobs"]["content"].size(), 2u);
  EXPECT_EQ(json["choices"][0]["logprobs"]["content"][0]["top_logprobs"].size(), 2u);
  const std::vector<int32_t> prompt = engine_->Request(1).prompt;
  EXPECT_EQ(tokenizer_.Decode(prompt, false), "[user]hi<end>[assistant]");
  EXPECT_EQ(prompt[8], ByteTokenizer::kEnd);
}

TEST_F(ServerTest, AChatTemplateThatDoesNotParseRefusesChatOnly) {
  chat_template_ = "a\n{% for x in y recursive %}{% endfor %}";
  Start();
  TestClient client(port());
  EXPECT_EQ(client.Get("/ready").status, 200);
  const TestResponse chat = client.Post("/v1/chat/completions", Chat(3));
  EXPECT_EQ(chat.status, 400);
  EXPECT_NE(chat.body.find("test, line 2: the template uses a recursive loop"), std::string::npos)
      << chat.body;
  EXPECT_EQ(client.Post("/v1/completions", Completion(3)).status, 200);
}

TEST_F(ServerTest, NullContentReachesTheTemplateAsNone) {
  chat_template_ =
      "{% for m in messages %}{{ 'none' if m.content is none else m.content }}"
      "{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}";
  Start();
  TestClient client(port());
  const auto prompt = [&](const std::string& content) {
    const TestResponse response = client.Post(
        "/tokenize",
        R"({"model":"org/test","messages":[{"role":"assistant",)" + content +
            R"("tool_calls":[{"type":"function","function":{"name":"f","arguments":"{}"}}]}]})");
    std::string text;
    const Json body = Json::parse(response.body, nullptr, false);
    if (!body.is_object() || !body.contains("tokens")) return response.body;
    for (const Json& token : body["tokens"]) text += static_cast<char>(token.get<int>());
    return text.substr(0, 5);
  };
  EXPECT_EQ(prompt(R"("content":null,)"), "none[");
  EXPECT_EQ(prompt(R"("content":"",)"), R"([{"ty)");
  EXPECT_EQ(prompt(""), R"([{"ty)");
}

TEST_F(ServerTest, ContinueFinalMessage) {
  Start();
  TestClient client(port());
  const std::string body =
      R"({"messages":[{"role":"user","content":"one"},{"role":"assistant","content":"two "}],)"
      R"("max_tokens":1,"continue_final_message":true})";
  EXPECT_EQ(client.Post("/v1/chat/completions", body).status, 200);
  EXPECT_EQ(tokenizer_.Decode(engine_->Request(1).prompt, false), "[user]one<end>[assistant]two ");
}

TEST_F(ServerTest, ToolsReachTheTemplate) {
  Start();
  TestClient client(port());
  client.Post("/v1/chat/completions",
              Chat(1, R"(,"tools":[{"type":"function","function":{"name":"f"}}])"));
  EXPECT_EQ(tokenizer_.Decode(engine_->Request(1).prompt, false), "[user]hi<end>T1[assistant]");
}

TEST_F(ServerTest, ChatStreamOverTheWire) {
  Start();
  TestClient client(port());
  const TestResponse response = client.Post(
      "/v1/chat/completions", Chat(3, R"(,"stream":true,"stream_options":{"include_usage":true})"));
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.Header("Content-Type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(response.Header("Cache-Control"), "no-cache");
  EXPECT_EQ(response.Header("X-Accel-Buffering"), "no");
  const std::vector<Json> events = SseEvents(response.body);
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  std::string text;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    EXPECT_EQ(events[i]["id"], events[0]["id"]);
    EXPECT_TRUE(events[i]["usage"].is_null());
    text += events[i]["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, "w0 w1 w2");
  EXPECT_EQ(events[events.size() - 3]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(events[events.size() - 2]["usage"]["completion_tokens"], 3);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(client.Get("/health").status, 200);  // the connection lives on
}

TEST_F(ServerTest, StreamToAnOldClientEndsWithTheConnection) {
  Start();
  TestClient client(port());
  const std::string body = Completion(2, R"(,"stream":true)");
  client.Send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  const TestResponse response = client.Receive();
  EXPECT_EQ(response.Header("Transfer-Encoding"), "");
  EXPECT_EQ(response.Header("Connection"), "close");
  EXPECT_EQ(SseEvents(response.body).back(), "[DONE]");
}

TEST_F(ServerTest, StreamsOfSeveralChoicesInterleave) {
  engine_options_.manual = true;
  Start();
  TestClient client(port());
  client.Send(TestClient::PostText("/v1/chat/completions", Chat(9, R"(,"stream":true,"n":2)")));
  engine_->WaitForSubmitted(2);
  engine_->Emit(2, 1);
  ASSERT_TRUE(client.ReceiveUntil("\"w0\""));
  engine_->Emit(1, 1);
  engine_->Emit(1, 1, FinishReason::kStop);
  engine_->Emit(2, 1, FinishReason::kLength);
  const TestResponse response = client.Receive();
  std::string texts[2];
  std::string reasons[2];
  int roles[2] = {0, 0};
  for (const Json& event : SseEvents(response.body)) {
    if (event == "[DONE]") continue;
    const Json& choice = event["choices"][0];
    const size_t index = choice["index"];
    ASSERT_LT(index, 2u);
    roles[index] += choice["delta"].contains("role") ? 1 : 0;
    texts[index] += choice["delta"].value("content", "");
    if (!choice["finish_reason"].is_null()) reasons[index] = choice["finish_reason"];
  }
  EXPECT_EQ(texts[0], "w0 w1");
  EXPECT_EQ(texts[1], "w0 w1");
  EXPECT_EQ(reasons[0], "stop");
  EXPECT_EQ(reasons[1], "length");
  EXPECT_EQ(roles[0], 1);
  EXPECT_EQ(roles[1], 1);
}

TEST_F(ServerTest, AFailureBeforeTheFirstTokenHasItsStatus) {
  engine_options_.manual = true;
  Start();
  for (const char* more : {"", R"(,"stream":true)"}) {
    TestClient client(port());
    client.Send(TestClient::PostText("/v1/completions", Completion(9, more)));
    while (engine_->Running().empty()) std::this_thread::yield();
    engine_->FailRequest(engine_->Running()[0], Error(ErrorKind::kInternal, "NaN logits"));
    const TestResponse response = client.Receive();
    EXPECT_EQ(response.status, 500);
    EXPECT_EQ(response.json()["error"]["message"], "NaN logits");
    EXPECT_EQ(response.json()["error"]["type"], "server_error");
  }
}

TEST_F(ServerTest, AFailureInAStreamIsAnEvent) {
  engine_options_.manual = true;
  Start();
  TestClient client(port());
  client.Send(TestClient::PostText("/v1/completions", Completion(9, R"(,"stream":true,"n":2)")));
  engine_->WaitForSubmitted(2);
  engine_->Emit(1, 1);
  ASSERT_TRUE(client.ReceiveUntil("w0"));
  engine_->FailRequest(1, Error(ErrorKind::kIo, "cannot read expert 3"));
  const TestResponse response = client.Receive();
  EXPECT_TRUE(response.complete);
  const std::vector<Json> events = SseEvents(response.body);
  EXPECT_EQ(events.back()["error"]["message"], "cannot read expert 3");
  engine_->WaitForCancelled(1);  // the other choice
}

TEST_F(ServerTest, AFullQueueIs503BeforeTheStatusLine) {
  engine_options_.manual = true;
  engine_options_.max_queue = 1;
  Start();
  TestClient first(port());
  first.Send(TestClient::PostText("/v1/completions", Completion(9, R"(,"stream":true)")));
  engine_->WaitForSubmitted(1);
  TestClient second(port());
  const TestResponse response = second.Post("/v1/chat/completions", Chat(9, R"(,"stream":true)"));
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.Header("Retry-After"), "1");
  EXPECT_EQ(response.json()["error"]["message"], "the request queue is full");
}

TEST_F(ServerTest, RequestTimeout) {
  engine_options_.manual = true;
  options_.request_timeout = std::chrono::milliseconds(1);
  Start();
  TestClient client(port());
  client.Send(TestClient::PostText("/v1/completions", Completion(9)));
  engine_->WaitForSubmitted(1);
  const auto deadline = engine_->Request(1).deadline;
  ASSERT_TRUE(deadline.has_value());
  while (std::chrono::steady_clock::now() < *deadline) std::this_thread::yield();
  engine_->FailRequest(1, Error(ErrorKind::kUnavailable, "the request's time ran out"));
  const TestResponse response = client.Receive();
  EXPECT_EQ(response.status, 504);
  EXPECT_EQ(response.json()["error"]["code"], "request_timeout");
}

TEST_F(ServerTest, AClientMayGiveItsRequestLessTime) {
  engine_options_.manual = true;
  options_.request_timeout = std::chrono::seconds(1000);
  Start();
  RequestId number = 0;
  for (const auto& [header, expected_s] : {std::pair{"0.5", 0.5}, {"20", 20.}, {"5000", 1000.}}) {
    TestClient client(port());
    const auto before = std::chrono::steady_clock::now();
    client.Send(TestClient::PostText("/v1/completions", Completion(9),
                                     fmt::format("X-Request-Timeout: {}\r\n", header)));
    engine_->WaitForSubmitted(++number);
    const auto deadline = engine_->Request(number).deadline;
    ASSERT_TRUE(deadline.has_value());
    const std::chrono::duration<double> expected(expected_s);
    EXPECT_GE(*deadline - before, expected) << header;
    EXPECT_LE(*deadline - std::chrono::steady_clock::now(), expected) << header;
    engine_->Emit(number, 1, FinishReason::kStop);
    EXPECT_EQ(client.Receive().status, 200);
  }
  TestClient client(port());
  for (const char* header : {"0", "-1", "soon", "1s", "nan", "inf", "1e9"}) {
    const TestResponse refused = client.Post("/v1/completions", Completion(9),
                                             fmt::format("X-Request-Timeout: {}\r\n", header));
    EXPECT_EQ(refused.status, 400) << header;
    EXPECT_NE(refused.body.find("X-Request-Timeout"), std::string::npos);
  }
}

TEST_F(ServerTest, KeepAliveComments) {
  engine_options_.manual = true;
  options_.sse_keep_alive = std::chrono::milliseconds(20);
  Start();
  TestClient client(port());
  client.Send(TestClient::PostText("/v1/completions", Completion(9, R"(,"stream":true)")));
  ASSERT_TRUE(client.ReceiveUntil(": keep-alive\n\n\r\n"));  // before the first token
  engine_->WaitForSubmitted(1);
  engine_->Emit(1, 1);
  ASSERT_TRUE(client.ReceiveUntil("w0"));
  const size_t before = client.received().rfind(": keep-alive");
  while (client.received().rfind(": keep-alive") == before) ASSERT_TRUE(client.ReceiveMore());
  engine_->Emit(1, 1, FinishReason::kStop);
  const std::vector<Json> events = SseEvents(client.Receive().body);
  EXPECT_EQ(events.front(), "comment");
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(ServerTest, MetricsOfARequest) {
  Start();
  TestClient client(port());
  client.Post("/v1/completions", Completion(3));
  EXPECT_EQ(Metric("moe_request_success_total{model_name=\"org/test\",finished_reason=\"length\"}"),
            1);
  EXPECT_EQ(Metric("moe_prompt_tokens_total{model_name=\"org/test\"}"), 4);
  EXPECT_EQ(Metric("moe_generation_tokens_total{model_name=\"org/test\"}"), 3);
  EXPECT_EQ(Metric("moe_time_to_first_token_seconds_count{model_name=\"org/test\"}"), 1);
  EXPECT_EQ(Metric("moe_inter_token_latency_seconds_count{model_name=\"org/test\"}"), 2);
  EXPECT_EQ(Metric("moe_request_queue_time_seconds_count{model_name=\"org/test\"}"), 1);
  EXPECT_EQ(Metric("moe_e2e_request_latency_seconds_count{model_name=\"org/test\"}"), 1);
  WaitForMetric("moe_http_responses_total{route=\"/v1/completions\",status=\"200\"}", 1);
}

}  // namespace
}  // namespace moesaic
