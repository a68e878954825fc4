// Keys from a file: who may use which model, who may change the server, and what a reload does.
#include <filesystem>
#include <fstream>
#include <memory>

#include "core/base/error.h"
#include "serving/http/api_keys.h"
#include "tests/core/base/temp_dir.h"
#include "tests/serving/http/server_fixture.h"

namespace moesaic {
namespace {

class ServerKeysTest : public ServerTest {
 protected:
  void WriteKeys(const std::string& text) { std::ofstream(options_.api_key_file) << text; }
  // Of GET /v1/models with the key.
  int StatusWith(const std::string& key, const std::string& path = "/v1/models") {
    return TestClient(port()).Get(path, "Authorization: Bearer " + key + "\r\n").status;
  }

  TempDir directory_;
};

TEST_F(ServerKeysTest, AKeyOpensItsModelsOnly) {
  options_.api_key_file = directory_.path() / "keys";
  WriteKeys(
      "all\n"
      R"({"key": "of-alias", "models": ["alias", "elsewhere"]})"
      "\n"
      R"({"key": "of-another", "models": ["another"]})"
      "\n");
  Start();
  const auto with = [](const char* key) {
    return fmt::format("Authorization: Bearer {}\r\n", key);
  };
  TestClient client(port());
  for (const char* key : {"all", "of-alias"}) {
    EXPECT_EQ(client.Post("/v1/completions", Completion(1), with(key)).status, 200);
    EXPECT_EQ(client.Get("/v1/models", with(key)).json()["data"].size(), 2u);
    EXPECT_EQ(client.Get("/v1/models/org/test", with(key)).status, 200);
  }
  // As if there were no such model, on every route.
  const TestResponse refused = client.Post("/v1/completions", Completion(1), with("of-another"));
  EXPECT_EQ(refused.status, 404);
  EXPECT_EQ(refused.body, client.Post("/v1/completions", Completion(1), with("of-another")).body);
  EXPECT_EQ(client.Post("/tokenize", R"({"prompt":"a"})", with("of-another")).status, 404);
  EXPECT_EQ(client.Get("/v1/models/org/test", with("of-another")).status, 404);
  EXPECT_EQ(client.Get("/tokenizer_info", with("of-another")).status, 404);
  EXPECT_TRUE(client.Get("/v1/models", with("of-another")).json()["data"].empty());
  EXPECT_TRUE(client.Get("/api/tags", with("of-another")).json()["models"].empty());
  EXPECT_EQ(engine_->submitted(), 2u);
}

TEST_F(ServerKeysTest, AKeyHasItsRate) {
  options_.api_key_file = directory_.path() / "keys";
  WriteKeys(R"({"key": "a", "name": "team", "requests_per_minute": 2, "tokens_per_minute": 1000})"
            "\n"
            R"({"key": "b", "name": "team", "requests_per_minute": 2})"
            "\n"
            R"({"key": "c", "name": "tokens", "tokens_per_minute": 1})"
            "\nfree\n");
  Start();
  const auto post = [this](const char* key, const char* path = "/v1/completions") {
    const std::string body = std::string(path) == "/tokenize" ? R"({"prompt":"a"})" : Completion(3);
    return TestClient(port()).Post(path, body, fmt::format("Authorization: Bearer {}\r\n", key));
  };
  const TestResponse first = post("a");
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.Header("x-ratelimit-limit-requests"), "2");
  EXPECT_EQ(first.Header("x-ratelimit-remaining-requests"), "1");
  EXPECT_EQ(first.Header("x-ratelimit-limit-tokens"), "1000");
  const int64_t spent = first.json()["usage"]["total_tokens"].get<int64_t>();
  EXPECT_EQ(first.Header("x-ratelimit-remaining-tokens"), std::to_string(1000 - spent));
  EXPECT_EQ(post("b").status, 200);  // of the same holder
  const TestResponse refused = post("a");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.json()["error"]["code"], "rate_limit_exceeded");
  EXPECT_GE(std::stoi(refused.Header("Retry-After")), 1);
  EXPECT_EQ(post("a", "/tokenize").status, 200);  // nothing is generated
  // What was spent is known at the end: one request has too much, and the next one waits for that.
  EXPECT_EQ(post("c").status, 200);
  EXPECT_EQ(post("c").status, 429);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(post("free").status, 200);
  EXPECT_EQ(post("free").Header("x-ratelimit-limit-requests"), "");
}

// In every dialect a request says how urgent it is, and a key how urgent its requests may be.
TEST_F(ServerKeysTest, RequestsHavePrioritiesAndClients) {
  options_.api_key_file = directory_.path() / "keys";
  WriteKeys(R"({"key": "a", "name": "team", "priority": 2})"
            "\n"
            R"({"key": "b", "name": "team"})"
            "\nplain\n");
  Start();
  RequestId id = 0;
  const auto post = [&](const char* key, const char* path, const std::string& fields) {
    return TestClient(port()).Post(path, R"({"model":"org/test",)" + fields + "}",
                                   fmt::format("Authorization: Bearer {}\r\n", key));
  };
  const auto expect = [&](const char* key, const char* path, const std::string& fields,
                          int32_t priority) {
    const TestResponse response = post(key, path, fields);
    ASSERT_EQ(response.status, 200) << response.body;
    const EngineRequest request = engine_->Request(++id);
    EXPECT_EQ(request.priority, priority) << path << fields;
    EXPECT_EQ(request.client, std::string(key) == "plain" ? ClientOf({"plain"}) : "team");
    EXPECT_FALSE(request.background);
  };
  const std::string prompt = R"("prompt":"ab","max_tokens":1)";
  const std::string messages = R"("messages":[{"role":"user","content":"ab"}],"max_tokens":1)";
  expect("plain", "/v1/completions", prompt, 0);
  expect("a", "/v1/completions", prompt, 2);
  expect("a", "/v1/completions", prompt + R"(,"priority":7)", 7);
  expect("b", "/v1/chat/completions", messages + R"(,"priority":-5)", -5);
  expect("b", "/v1/messages", messages + R"(,"priority":-4)", -4);
  expect("b", "/v1/responses", R"("input":"ab","max_output_tokens":1,"priority":-3)", -3);
  expect("b", "/api/chat", messages + R"(,"stream":false,"priority":-2)", -2);
  const TestResponse refused = post("a", "/v1/completions", prompt + R"(,"priority":1)");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "priority");
}

TEST_F(ServerKeysTest, ReloadingTakesAndGivesKeys) {
  options_.api_key_file = directory_.path() / "keys";
  options_.api_keys = {"given"};
  WriteKeys("old\n");
  Start();
  EXPECT_EQ(StatusWith("old"), 200);
  EXPECT_EQ(StatusWith("new"), 401);
  WriteKeys("new\n");
  EXPECT_EQ(StatusWith("old"), 200);  // not before it is asked for
  server_->Reload();
  EXPECT_EQ(StatusWith("old"), 401);
  EXPECT_EQ(StatusWith("new"), 200);
  EXPECT_EQ(StatusWith("given"), 200);
  for (const char* broken : {"", "# no key\n", "{\"key\": 1}\n"}) {
    WriteKeys(broken);
    server_->Reload();
    EXPECT_EQ(StatusWith("new"), 200) << broken;
    EXPECT_EQ(StatusWith(""), 401) << broken;
  }
  std::filesystem::remove(options_.api_key_file);
  server_->Reload();
  EXPECT_EQ(StatusWith("new"), 200);
}

TEST_F(ServerKeysTest, AKeyThatIsWithdrawnWhileABodyArrives) {
  options_.api_key_file = directory_.path() / "keys";
  WriteKeys("old\n");
  Start();
  TestClient client(port());
  const std::string text =
      TestClient::PostText("/v1/completions", Completion(1), "Authorization: Bearer old\r\n");
  const std::string expect = "Expect: 100-continue\r\n";
  std::string head = text.substr(0, text.size() - Completion(1).size());
  head.insert(head.find("\r\n") + 2, expect);
  client.Send(head);
  EXPECT_EQ(client.Receive().status, 100);  // the head has passed
  WriteKeys("new\n");
  server_->Reload();
  client.Send(Completion(1));
  EXPECT_EQ(client.Receive().status, 401);
  EXPECT_EQ(engine_->submitted(), 0u);
}

TEST_F(ServerKeysTest, AnOpenAddressNeedsKeysOrInsecure) {
  options_.host = "0.0.0.0";
  try {
    Server(options_, metrics_).Start();
    ADD_FAILURE() << "listens";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("--insecure"), std::string::npos) << error.what();
  }
  options_.api_keys = {"k"};
  Start();
  EXPECT_EQ(StatusWith("k"), 200);
}

}  // namespace
}  // namespace moesaic
