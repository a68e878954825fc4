// Routes, loading, keys, errors: everything that a well-behaved client sees without generating.
#include "tests/serving/http/server_fixture.h"

namespace moesaic {
namespace {

// The error object with all four fields, or a failure.
Json ErrorOf(const TestResponse& response) {
  const Json json = response.json();
  EXPECT_EQ(json.size(), 1u);
  const Json& error = json["error"];
  EXPECT_TRUE(error["message"].is_string());
  EXPECT_TRUE(error["type"].is_string());
  EXPECT_TRUE(error["param"].is_string() || error["param"].is_null());
  EXPECT_TRUE(error["code"].is_string() || error["code"].is_null());
  EXPECT_EQ(error.size(), 4u);
  return error;
}

TEST_F(ServerTest, LoadingAndThenReady) {
  Start(false);
  TestClient client(port());
  EXPECT_EQ(client.Get("/health").status, 200);
  EXPECT_EQ(client.Get("/live").status, 200);
  EXPECT_EQ(client.Get("/version").status, 200);
  EXPECT_EQ(client.Get("/metrics").status, 200);
  for (const char* path : {"/ready", "/v1/models", "/v1/models/x"}) {
    const TestResponse response = client.Get(path);
    EXPECT_EQ(response.status, 503) << path;
    EXPECT_EQ(response.Header("Retry-After"), "5");
    EXPECT_EQ(ErrorOf(response)["code"], "loading");
  }
  EXPECT_EQ(client.Post("/v1/completions", Completion(1)).status, 503);
  SetModel();
  EXPECT_EQ(client.Get("/ready").status, 200);
  EXPECT_EQ(client.Post("/v1/completions", Completion(1)).status, 200);
}

TEST_F(ServerTest, AnEngineThatCanServeNothingIsNotReady) {
  Start();
  TestClient client(port());
  EXPECT_EQ(client.Get("/ready").status, 200);
  engine_->SetNotReady("device cuda:0 is lost", "device_lost");
  const TestResponse response = client.Get("/ready");
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(ErrorOf(response)["code"], "device_lost");
  EXPECT_EQ(ErrorOf(response)["message"], "device cuda:0 is lost");
  for (const char* path : {"/health", "/live"}) EXPECT_EQ(client.Get(path).status, 200);
  engine_->SetNotReady("experts cannot be read", "read_failed");
  EXPECT_EQ(ErrorOf(client.Get("/ready"))["code"], "read_failed");
  EXPECT_EQ(client.Post("/v1/completions", Completion(1)).status, 200);  // it may work again
  engine_->SetNotReady("", "");
  EXPECT_EQ(client.Get("/ready").status, 200);
}

TEST_F(ServerTest, Models) {
  Start();
  TestClient client(port());
  const Json list = client.Get("/v1/models").json();
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["models"], Json::array());  // Codex cannot do without it
  ASSERT_EQ(list["data"].size(), 2u);
  EXPECT_EQ(
      DumpJson(list["data"][0]),
      R"({"id":"org/test","object":"model","created":77,"owned_by":"moesaic","root":"org/test",)"
      R"("parent":null,"max_model_len":1024,"status":{"value":"loaded","state":"resident"},)"
      R"("type":"model","display_name":"org/test",)"
      R"("created_at":"1970-01-01T00:01:17Z"})");
  EXPECT_EQ(list["data"][1]["id"], "alias");
  EXPECT_EQ(client.Get("/v1/models/org/test").json()["id"], "org/test");
  EXPECT_EQ(client.Get("/v1/models/org%2Ftest").json()["id"], "org/test");
  const TestResponse unknown = client.Get("/v1/models/nope");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(ErrorOf(unknown)["message"], "The model `nope` does not exist.");
  EXPECT_EQ(ErrorOf(unknown)["type"], "NotFoundError");
}

TEST_F(ServerTest, RouteErrors) {
  Start();
  TestClient client(port());
  TestResponse response = client.Get("/v1/nothing");
  EXPECT_EQ(response.status, 404);
  ErrorOf(response);
  response = client.Get("/v1/completions");
  EXPECT_EQ(response.status, 405);
  EXPECT_EQ(response.Header("Allow"), "POST, OPTIONS");
  ErrorOf(response);
  response = client.Post("/health", "{}");
  EXPECT_EQ(response.status, 405);
  EXPECT_EQ(response.Header("Allow"), "GET, HEAD, OPTIONS");
  client.Send("BREW /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.Receive().status, 405);
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.Receive().status, 411);
  // Codex asks for a WebSocket first, and posts at once when the answer is 426.
  client.Send(
      "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
      "Upgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\n\r\n");
  response = client.Receive();
  EXPECT_EQ(response.status, 426);
  EXPECT_EQ(response.Header("Upgrade"), "HTTP/1.1");
  EXPECT_EQ(ErrorOf(response)["code"], "websocket_not_supported");
  EXPECT_EQ(client.Get("/").Header("Content-Type"), "text/plain; charset=utf-8");
}

TEST_F(ServerTest, HeadAndOptions) {
  Start();
  TestClient client(port());
  client.Send("HEAD /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const TestResponse head = client.Receive(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_GT(std::stoi(head.Header("Content-Length")), 10);
  client.Send("OPTIONS /tokenize HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const TestResponse options = client.Receive();
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.Header("Allow"), "POST, OPTIONS");
  EXPECT_EQ(options.Header("Access-Control-Allow-Origin"), "");
  client.Send("OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.Receive().status, 204);
  EXPECT_EQ(client.Get("/health").status, 200);  // the connection is still in step
}

TEST_F(ServerTest, Cors) {
  options_.allowed_origins = {"http://page"};
  Start();
  TestClient client(port());
  EXPECT_EQ(
      client.Get("/v1/models", "Origin: http://page\r\n").Header("Access-Control-Allow-Origin"),
      "http://page");
  EXPECT_EQ(client.Get("/v1/nope", "Origin: http://page\r\n").Header("Access-Control-Allow-Origin"),
            "http://page");
  EXPECT_EQ(
      client.Get("/v1/models", "Origin: http://evil\r\n").Header("Access-Control-Allow-Origin"),
      "");
}

// A page of evil.example, whose owner makes that name point at this machine, gets nothing.
TEST_F(ServerTest, ANameThatOthersGaveThisMachineIsRefused) {
  Start();
  TestClient client(port());
  const auto status = [&](const std::string& method, const std::string& path,
                          const std::string& host, const std::string& body = {}) {
    client.Send(
        fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nContent-Type: "
                    "application/json\r\nContent-Length: {}\r\n\r\n{}",
                    method, path, host, body.size(), body));
    return client.Receive().status;
  };
  const std::string evil = fmt::format("evil.example:{}", port());
  for (const char* path : {"/health", "/live", "/ready"}) EXPECT_EQ(status("GET", path, evil), 200);
  for (const char* path : {"/", "/version", "/metrics", "/v1/models", "/v1/models/alias",
                           "/tokenizer_info", "/nowhere"}) {
    EXPECT_EQ(status("GET", path, evil), 403) << path;
  }
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"}) {
    EXPECT_EQ(status("POST", path, evil, "{}"), 403) << path;
    EXPECT_EQ(status("OPTIONS", path, evil), 403) << path;
  }
  EXPECT_EQ(status("GET", "/v1/models", fmt::format("127.0.0.1:{}", port())), 200);
  EXPECT_EQ(engine_->submitted(), 0u);
  const TestResponse refused =
      client.Post("/v1/completions", Completion(1), "Origin: http://evil.example\r\n");
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(ErrorOf(refused)["code"], "origin_not_allowed");
  EXPECT_EQ(
      client.Post("/v1/completions", Completion(1), fmt::format("Origin: http://localhost\r\n"))
          .status,
      200);
}

TEST_F(ServerTest, HostsAreNotCheckedOnAnOpenAddressUnlessListed) {
  options_.host = "0.0.0.0";
  options_.insecure = true;
  Start();
  TestClient client(port());
  client.Send("GET /v1/models HTTP/1.1\r\nHost: models.lan\r\n\r\n");
  EXPECT_EQ(client.Receive().status, 200);
}

TEST_F(ServerTest, ListedHostsAreTheOnlyOnes) {
  options_.host = "0.0.0.0";
  options_.insecure = true;
  options_.allowed_hosts = {"models.lan"};
  Start();
  TestClient client(port());
  client.Send("GET /v1/models HTTP/1.1\r\nHost: models.lan\r\n\r\n");
  EXPECT_EQ(client.Receive().status, 200);
  client.Send("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_EQ(client.Receive().status, 403);
}

TEST_F(ServerTest, ApiKeys) {
  options_.api_keys = {"k1", "k2"};
  Start();
  TestClient client(port());
  for (const char* path : {"/health", "/live", "/ready"}) EXPECT_EQ(client.Get(path).status, 200);
  for (const char* path : {"/v1/models", "/metrics", "/version", "/"}) {
    const TestResponse response = client.Get(path);
    EXPECT_EQ(response.status, 401) << path;
    EXPECT_EQ(response.Header("WWW-Authenticate"), "Bearer");
    EXPECT_EQ(ErrorOf(response)["code"], "missing_api_key");
  }
  EXPECT_EQ(ErrorOf(client.Get("/metrics", "Authorization: Bearer k3\r\n"))["code"],
            "invalid_api_key");
  EXPECT_EQ(client.Get("/v1/models", "Authorization: Bearer k2\r\n").status, 200);
  EXPECT_EQ(client.Get("/v1/models", "X-Api-Key: k1\r\n").status, 200);
  EXPECT_EQ(client.Post("/v1/completions", Completion(1)).status, 401);
  EXPECT_EQ(client.Post("/v1/completions", Completion(1), "Authorization: Bearer k1\r\n").status,
            200);
}

TEST_F(ServerTest, MetricsMayBeOpen) {
  options_.api_keys = {"k"};
  options_.metrics_without_key = true;
  options_.metrics_vllm_names = true;
  Start();
  TestClient client(port());
  const TestResponse response = client.Get("/metrics");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.Header("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_NE(response.body.find("moe_kv_cache_usage_ratio{model_name=\"org/test\"} 0.25\n"),
            std::string::npos);
  EXPECT_NE(response.body.find("vllm:kv_cache_usage_perc{model_name=\"org/test\"} 0.25\n"),
            std::string::npos);
}

TEST_F(ServerTest, RequestIds) {
  Start();
  TestClient client(port());
  EXPECT_EQ(client.Get("/health", "X-Request-Id: mine-1\r\n").Header("X-Request-Id"), "mine-1");
  EXPECT_EQ(client.Get("/health").Header("X-Request-Id").substr(0, 4), "req-");
  EXPECT_EQ(client.Get("/nope", "X-Request-Id: mine-2\r\n").Header("X-Request-Id"), "mine-2");
}

TEST_F(ServerTest, BadBodies) {
  Start();
  TestClient client(port());
  TestResponse response = client.Post("/v1/completions", "{\"prompt\":");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(ErrorOf(response)["code"], "invalid_json");
  response = client.Post("/v1/chat/completions", R"({"messages":[]})");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(ErrorOf(response)["param"], "messages");
  response = client.Post("/v1/completions", R"({"model":"gpt-9","prompt":"x"})");
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(ErrorOf(response)["message"], "The model `gpt-9` does not exist.");
  EXPECT_EQ(ErrorOf(response)["param"], "model");
  response = client.Post("/v1/completions", Completion(5000));
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(ErrorOf(response)["code"], "context_length_exceeded");
  response = client.Post("/v1/completions", R"({"prompt":[257]})");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(client.Post("/v1/completions", "").status, 400);
  EXPECT_EQ(client.Post("/v1/completions", Completion(1), "Content-Encoding: gzip\r\n").status,
            415);
  EXPECT_EQ(client.Post("/v1/completions", Completion(1)).status, 200);
}

TEST_F(ServerTest, TokenizeAndDetokenize) {
  Start();
  TestClient client(port());
  EXPECT_EQ(
      client.Post("/tokenize", R"({"prompt":"a<end>","return_token_strs":true})").body,
      R"({"count":3,"max_model_len":1024,"tokens":[256,97,256],"token_strs":["<end>","a","<end>"]})");
  EXPECT_EQ(
      client.Post("/tokenize", R"({"prompt":"a","add_special_tokens":false})").json()["count"], 1);
  // What a user writes is text, what the template writes may be special.
  const Json chat =
      client
          .Post("/tokenize",
                R"({"messages":[{"role":"user","content":"<end>"}],"add_generation_prompt":false})")
          .json();
  EXPECT_EQ(DumpJson(chat["tokens"]), "[91,117,115,101,114,93,60,101,110,100,62,256]");
  EXPECT_EQ(client.Post("/detokenize", R"({"model":"alias","tokens":[104,105,256]})").body,
            R"({"prompt":"hi<end>"})");
  EXPECT_EQ(client.Post("/detokenize", R"({"tokens":[999]})").status, 400);
  EXPECT_EQ(client.Post("/detokenize", R"({"model":"x","tokens":[]})").status, 404);
  const Json info = client.Get("/tokenizer_info").json();
  EXPECT_EQ(info["eos_token"], "<end>");
  EXPECT_TRUE(info["bos_token"].is_null());
  EXPECT_EQ(info["model_max_length"], 1024);
}

TEST_F(ServerTest, TheOnlyModelNeedsNoName) {
  Start();
  TestClient client(port());
  EXPECT_EQ(client.Post("/v1/completions", R"({"prompt":"x"})").json()["model"], "org/test");
  EXPECT_EQ(client.Post("/v1/completions", R"({"prompt":"x","model":"alias"})").json()["model"],
            "alias");
}

TEST_F(ServerTest, AChatNeedsATemplate) {
  Start(false);
  engine_ = std::make_shared<TestEngine>(tokenizer_, engine_options_);
  server_->SetModels({ServedModel{{"m"}, engine_, nullptr, 0}});
  TestClient client(port());
  const TestResponse response =
      client.Post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(response.body.find("chat template"), std::string::npos);
}

TEST_F(ServerTest, StartFailsClearly) {
  Start();
  ServerOptions options;
  options.port = port();
  Server second(options, metrics_);
  EXPECT_THROW(second.Start(), Error);
  ServerOptions nowhere;
  nowhere.host = "no.such.host.invalid";
  Server third(nowhere, metrics_);
  EXPECT_THROW(third.Start(), Error);
}

}  // namespace
}  // namespace moesaic
