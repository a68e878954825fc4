// Messages, Responses and Ollama's API over the wire: routes, errors in each one's shape, silence,
// clients that leave.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/serving/http/server_fixture.h"
#include "tests/serving/http/test_client.h"

namespace moesaic {
namespace server_dialects_test {

constexpr const char* kMessages = R"("messages":[{"role":"user","content":"hi"}])";

std::string Messages(const std::string& more = {}) {
  return std::string(R"({"model":"org/test","max_tokens":3,)") + kMessages + more + "}";
}

// What generates in each dialect.
struct Dialect {
  const char* path;
  std::string plain;
  std::string streamed;
};

std::vector<Dialect> Dialects() {
  const std::string responses = R"({"model":"org/test","max_output_tokens":3,"input":"hi")";
  const std::string options = R"({"model":"org/test","options":{"num_predict":3},)";
  return {
      {"/v1/messages", Messages(), Messages(R"(,"stream":true)")},
      {"/v1/responses", responses + "}", responses + R"(,"stream":true})"},
      {"/api/chat", options + kMessages + R"(,"stream":false})", options + kMessages + "}"},
      {"/api/generate", options + R"("prompt":"hi","stream":false})",
       options + R"("prompt":"hi"})"},
  };
}

TEST_F(ServerTest, EveryDialectGenerates) {
  Start();
  TestClient client(port());
  for (const Dialect& dialect : Dialects()) {
    const TestResponse plain = client.Post(dialect.path, dialect.plain);
    EXPECT_EQ(plain.status, 200) << dialect.path << plain.body;
    EXPECT_NE(plain.body.find("w0 w1 w2"), std::string::npos) << plain.body;
    EXPECT_EQ(plain.json()["model"], "org/test");
    const TestResponse streamed = client.Post(dialect.path, dialect.streamed);
    EXPECT_EQ(streamed.status, 200);
    EXPECT_NE(streamed.body.find("w0"), std::string::npos) << streamed.body;
    const bool lines = std::string(dialect.path).starts_with("/api/");
    EXPECT_EQ(streamed.Header("Content-Type"),
              lines ? "application/x-ndjson" : "text/event-stream; charset=utf-8");
  }
}

TEST_F(ServerTest, MessagesOverTheWire) {
  Start();
  TestClient client(port());
  const Json message =
      client.Post("/v1/messages?beta=true", Messages(), "anthropic-version: 2023-06-01\r\n").json();
  EXPECT_EQ(message["content"][0]["text"], "w0 w1 w2");
  EXPECT_EQ(message["stop_reason"], "max_tokens");
  EXPECT_EQ(message["usage"]["output_tokens"], 3);
  const std::string prompt = "[user]hi<end>[assistant]";
  EXPECT_EQ(message["usage"]["input_tokens"], prompt.size() - 4);  // "<end>" is one token
  EXPECT_EQ(
      client
          .Post("/v1/messages/count_tokens", R"({"model":"alias",)" + std::string(kMessages) + "}")
          .body,
      fmt::format(R"({{"input_tokens":{}}})", prompt.size() - 4));
  // More than the context has room for is no error.
  EXPECT_EQ(client
                .Post("/v1/messages",
                      std::string(R"({"model":"alias","max_tokens":100000,)") + kMessages + "}")
                .json()["stop_reason"],
            "model_context_window_exceeded");
}

TEST_F(ServerTest, ErrorsHaveTheShapeOfTheApi) {
  options_.api_keys = {"k"};
  Start();
  TestClient client(port());
  const std::string key = "X-Api-Key: k\r\n";
  TestResponse response = client.Post("/v1/messages", Messages());
  EXPECT_EQ(response.status, 401);
  EXPECT_EQ(response.json()["error"]["type"], "authentication_error");
  EXPECT_FALSE(response.Header("request-id").empty());
  response = client.Post("/v1/messages", "{", key);
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.json()["type"], "error");
  EXPECT_EQ(response.json()["error"]["type"], "invalid_request_error");
  response = client.Post("/v1/messages",
                         R"({"model":"nope","max_tokens":1,)" + std::string(kMessages) + "}", key);
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(response.json()["error"]["type"], "not_found_error");
  EXPECT_EQ(client.Post("/v1/messages/nope", "{}", key).json()["error"]["type"], "not_found_error");
  EXPECT_EQ(client.Get("/v1/messages", key).status, 405);
  EXPECT_TRUE(client.Get("/v1/messagesx", key).json()["error"].contains("code"));  // OpenAI's
  response = client.Post("/api/chat", "{}");
  EXPECT_EQ(response.status, 401);
  EXPECT_TRUE(response.json()["error"].is_string());
  response = client.Post("/api/show", R"({"model":"nope"})", key);
  EXPECT_EQ(response.status, 404);
  EXPECT_NE(response.json()["error"].get<std::string>().find("nope"), std::string::npos);
  response = client.Post("/v1/responses", R"({"input":"a","previous_response_id":"x"})", key);
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.json()["error"]["param"], "previous_response_id");
}

TEST_F(ServerTest, AServerThatIsFullSaysSoInTheApisWords) {
  engine_options_.manual = true;
  engine_options_.max_queue = 0;
  Start();
  TestClient client(port());
  const TestResponse response = client.Post("/v1/messages", Messages());
  EXPECT_EQ(response.status, 529);
  EXPECT_EQ(response.json()["error"]["type"], "overloaded_error");
  EXPECT_FALSE(response.Header("Retry-After").empty());
  EXPECT_EQ(client.Post("/v1/responses", R"({"input":"a"})").status, 503);
}

TEST_F(ServerTest, ModelsForOllama) {
  Start(false);
  TestClient client(port());
  EXPECT_EQ(client.Get("/api/tags").status, 503);
  EXPECT_TRUE(client.Get("/api/tags").json()["error"].is_string());
  EXPECT_TRUE(client.Get("/api/version").json()["version"].is_string());
  SetModel();
  const Json tags = client.Get("/api/tags").json();
  ASSERT_EQ(tags["models"].size(), 2u);
  EXPECT_EQ(tags["models"][0]["name"], "org/test");
  EXPECT_EQ(tags["models"][0]["modified_at"], "1970-01-01T00:01:17Z");
  EXPECT_TRUE(client.Get("/api/ps").json()["models"][0].contains("expires_at"));
  const Json shown = client.Post("/api/show", R"({"model":"alias:latest"})").json();
  EXPECT_EQ(shown["capabilities"], Json::array({"completion"}));
  EXPECT_NE(shown["template"].get<std::string>().find("[assistant]"), std::string::npos);
}

// Nothing to say for long: something is said all the same.
TEST_F(ServerTest, LongPrefillsAreNotSilent) {
  engine_options_.manual = true;
  options_.sse_keep_alive = std::chrono::milliseconds(20);
  Start();
  const std::vector<std::string> signs = {"event: message_start", ": keep-alive", "\"done\":false",
                                          "\"done\":false"};
  size_t number = 0;
  for (const Dialect& dialect : Dialects()) {
    TestClient client(port());
    client.Send(TestClient::PostText(dialect.path, dialect.streamed));
    EXPECT_TRUE(client.ReceiveUntil(signs[number++])) << dialect.path;
    if (number == 1) {
      EXPECT_TRUE(client.ReceiveUntil("event: ping"));
    }
    engine_->WaitForSubmitted(number);
    engine_->Emit(engine_->Running().front(), 3, FinishReason::kStop);
    EXPECT_TRUE(client.ReceiveUntil("w0 w1 w2"));
    EXPECT_TRUE(client.ReceiveUntil("0\r\n\r\n"));
    engine_->WaitForIdle();
  }
}

TEST_F(ServerTest, FailuresInMidStreamAreEvents) {
  engine_options_.manual = true;
  Start();
  const std::vector<std::string> signs = {"event: error", "event: response.failed",
                                          "{\"error\":\"broken\"}", "{\"error\":\"broken\"}"};
  size_t number = 0;
  for (const Dialect& dialect : Dialects()) {
    TestClient client(port());
    client.Send(TestClient::PostText(dialect.path, dialect.streamed));
    engine_->WaitForSubmitted(number + 1);
    const RequestId id = engine_->Running().front();
    engine_->Emit(id, 1);
    EXPECT_TRUE(client.ReceiveUntil("w0"));
    engine_->FailRequest(id, Error(ErrorKind::kInternal, "broken"));
    EXPECT_TRUE(client.ReceiveUntil(signs[number++])) << dialect.path;
  }
}

TEST_F(ServerTest, LeavingCancelsInEveryDialect) {
  engine_options_.manual = true;
  Start();
  size_t cancelled = 0;
  for (const Dialect& dialect : Dialects()) {
    for (const bool stream : {false, true}) {
      TestClient client(port());
      client.Send(TestClient::PostText(dialect.path, stream ? dialect.streamed : dialect.plain));
      engine_->WaitForSubmitted(cancelled + 1);
      client.Reset();
      engine_->WaitForCancelled(++cancelled);
    }
  }
}

// Bodies that no client sends.
TEST_F(ServerTest, HostileBodiesOfEveryDialect) {
  Start();
  TestClient client(port());
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  for (const char* path : {"/v1/messages", "/v1/messages/count_tokens", "/v1/responses",
                           "/api/chat", "/api/generate", "/api/show"}) {
    for (const std::string& body :
         {std::string("{}"), std::string("[]"), std::string("7"), std::string("\"\xff\""),
          std::string(R"({"messages":{},"input":{},"prompt":[],"model":7})"),
          std::string(R"({"max_tokens":1,"messages":[null],"input":[null]})"),
          std::string(
              R"({"max_tokens":1,"messages":[{"role":"user","content":[[]]}],"input":[[]]})"),
          R"({"max_tokens":1,"messages":)" + deep + R"(,"input":)" + deep + "}",
          std::string(R"({"max_tokens":1e300,"messages":"x","input":1e999})")}) {
      const TestResponse response = client.Post(path, body);
      EXPECT_GE(response.status, 400) << path << body;
      EXPECT_LT(response.status, 500) << path << body << response.body;
      EXPECT_TRUE(response.json().contains("error"));
    }
  }
  EXPECT_EQ(client.Get("/health").status, 200);
  EXPECT_EQ(engine_->submitted(), 0u);
}

}  // namespace server_dialects_test
}  // namespace moesaic
