// A server with several models, of which some are not loaded: what each dialect answers, and how
// requests wait.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "serving/api/model_manager.h"
#include "serving/text/chat_template.h"
#include "tests/serving/http/server_fixture.h"

namespace moesaic {
namespace {

// Keeps the orders, for the test to carry out.
class TestManager : public ModelManager {
 public:
  bool starting() const override { return starting_; }
  void Load(std::string_view name, Done done) override {
    MutexLock lock(mutex_);
    waiting_.emplace_back(name, std::move(done));
    changed_.NotifyAll();
  }
  void Unload(std::string_view name, Done done) override {
    Load("unload " + std::string(name), std::move(done));
  }
  void Touch(std::string_view name, std::optional<KeepAlive> keep_alive) override {
    MutexLock lock(mutex_);
    ++touched_[std::string(name)];
    kept_.push_back(keep_alive.value_or(KeepAlive(-1)));
  }
  uint64_t Watch(Watcher watcher) override {
    MutexLock lock(mutex_);
    watcher_ = std::move(watcher);
    ++watches_;
    for (const char* id : {"first", "later"}) watcher_({id, ModelState::kUnloaded, 0, ""});
    changed_.NotifyAll();
    return 7;
  }
  void Unwatch(uint64_t watch) override {
    MutexLock lock(mutex_);
    if (watch == 7) watcher_ = nullptr;
    changed_.NotifyAll();
  }
  void Tell(const ModelStatus& status) {
    MutexLock lock(mutex_);
    while (watches_ == 0) changed_.Wait(mutex_);
    watcher_(status);
  }
  void WaitUntilUnwatched() {
    MutexLock lock(mutex_);
    while (watcher_ != nullptr) changed_.Wait(mutex_);
  }
  std::vector<KeepAlive> kept() {
    MutexLock lock(mutex_);
    return kept_;
  }

  std::vector<std::pair<std::string, Done>> Take(size_t count) {
    MutexLock lock(mutex_);
    while (waiting_.size() < count) changed_.Wait(mutex_);
    return std::exchange(waiting_, {});
  }
  int touched(const std::string& name) {
    MutexLock lock(mutex_);
    return touched_[name];
  }

  std::atomic<bool> starting_{false};

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::pair<std::string, Done>> waiting_ GUARDED_BY(mutex_);
  std::map<std::string, int> touched_ GUARDED_BY(mutex_);
  std::vector<KeepAlive> kept_ GUARDED_BY(mutex_);
  Watcher watcher_ GUARDED_BY(mutex_);
  int watches_ GUARDED_BY(mutex_) = 0;
};

class ServerModelsTest : public ServerTest {
 protected:
  void StartSeveral() {
    Start(false);
    server_->SetManager(&manager_);
    engine_ = std::make_shared<TestEngine>(tokenizer_, engine_options_);
    Publish(ModelState::kUnloaded);
  }
  // "first" and "second" are there; "later" is as `state` says.
  void Publish(ModelState state) {
    std::vector<ServedModel> models;
    for (const char* id : {"first", "second", "later"}) {
      ServedModel& model = models.emplace_back();
      model.names = {id, std::string(id) + "-alias"};
      model.chat_template = std::make_shared<const ChatTemplate>(
          "test", "{% for m in messages %}{{ m.content }}{% endfor %}", "",
          ChatTemplate::SpecialTokens());
      model.engine = engine_;
      if (model.names.front() != "later") continue;
      model.state = state;
      if (state == ModelState::kFailed) model.why_failed = "no such file";
      if (state != ModelState::kResident) model.engine = nullptr;
    }
    server_->SetModels(std::move(models));
  }
  static std::string Body(const std::string& model) {
    return R"({"model":")" + model + R"(","prompt":"ab","max_tokens":2})";
  }

  TestManager manager_;
};

TEST_F(ServerModelsTest, TheListSaysHowEachIs) {
  StartSeveral();
  TestClient client(port());
  Json list = client.Get("/v1/models").json()["data"];
  ASSERT_EQ(list.size(), 6u);
  EXPECT_EQ(list[0]["status"]["value"], "loaded");
  EXPECT_EQ(list[4]["id"], "later");
  EXPECT_EQ(list[4]["status"]["value"], "unloaded");
  EXPECT_TRUE(list[4]["max_model_len"].is_null());
  EXPECT_EQ(client.Get("/v1/models/later").json()["status"]["state"], "unloaded");
  EXPECT_EQ(client.Get("/api/tags").json()["models"].size(), 6u);
  EXPECT_EQ(client.Get("/api/ps").json()["models"].size(), 4u);
  Publish(ModelState::kFailed);
  list = client.Get("/v1/models").json()["data"];
  EXPECT_EQ(list[4]["status"]["value"], "failed");
  EXPECT_EQ(list[4]["status"]["reason"], "no such file");
}

TEST_F(ServerModelsTest, AnUnknownModelIsToldWhichThereAre) {
  StartSeveral();
  TestClient client(port());
  for (const char* path : {"/v1/completions", "/tokenize"}) {
    const TestResponse response = client.Post(path, Body("other"));
    EXPECT_EQ(response.status, 404);
    const std::string message = response.json()["error"]["message"];
    EXPECT_NE(message.find("`other`"), std::string::npos) << message;
    EXPECT_NE(message.find("`first`, `first-alias`, `second`"), std::string::npos) << message;
  }
  EXPECT_EQ(client.Get("/v1/models/other").status, 404);
  const TestResponse unnamed = client.Post("/v1/completions", R"({"prompt":"ab"})");
  EXPECT_EQ(unnamed.status, 404);
  EXPECT_NE(unnamed.body.find("names no model"), std::string::npos) << unnamed.body;
}

TEST_F(ServerModelsTest, EveryDialectSelects) {
  StartSeveral();
  TestClient client(port());
  const std::string messages = R"("messages":[{"role":"user","content":"ab"}],"max_tokens":2)";
  const std::pair<const char*, std::string> requests[] = {
      {"/v1/completions", R"("prompt":"ab","max_tokens":2)"},
      {"/v1/chat/completions", messages},
      {"/v1/messages", messages},
      {"/v1/responses", R"("input":"ab","max_output_tokens":2)"},
      {"/api/chat", messages},
      {"/api/generate", R"("prompt":"ab","options":{"num_predict":2})"},
      {"/tokenize", R"("prompt":"ab")"},
      {"/v1/messages/count_tokens", messages},
  };
  for (const auto& [path, fields] : requests) {
    EXPECT_EQ(client.Post(path, R"({"model":"second-alias",)" + fields + "}").status, 200) << path;
    EXPECT_EQ(client.Post(path, R"({"model":"third",)" + fields + "}").status, 404) << path;
  }
  EXPECT_EQ(manager_.touched("second"), 6);
  EXPECT_EQ(Metric("moe_http_responses_total{route=\"/v1/completions\",status=\"404\"}"), 1);
}

TEST_F(ServerModelsTest, RequestsWaitForAModelThatIsNotLoaded) {
  StartSeveral();
  std::vector<TestResponse> responses(3);
  std::vector<std::thread> clients;
  const char* const paths[] = {"/v1/completions", "/tokenize", "/api/show"};
  for (size_t i = 0; i < responses.size(); ++i) {
    clients.emplace_back(
        [&, i] { responses[i] = TestClient(port()).Post(paths[i], Body("later-alias")); });
  }
  auto waiting = manager_.Take(3);
  EXPECT_EQ(waiting[0].first, "later");
  // Others do not wait.
  TestClient client(port());
  EXPECT_EQ(client.Post("/v1/completions", Body("first")).status, 200);
  Publish(ModelState::kLoading);
  EXPECT_EQ(client.Get("/v1/models/later").json()["status"]["value"], "loading");
  Publish(ModelState::kResident);
  for (auto& [name, done] : waiting) done(std::nullopt);
  for (std::thread& thread : clients) thread.join();
  for (const TestResponse& response : responses) EXPECT_EQ(response.status, 200) << response.body;
}

// A stream is kept open while its model is loaded; what is wrong then is its last event.
TEST_F(ServerModelsTest, AStreamThatWaitsForItsModelIsKeptOpen) {
  options_.sse_keep_alive = std::chrono::milliseconds(1);
  StartSeveral();
  const std::string messages = R"("messages":[{"role":"user","content":"ab"}],"max_tokens":2)";
  struct Way {
    const char* path;
    std::string fields;
    const char* quiet;
    const char* begin;
    const char* last;
    const char* failed;
  };
  const Way ways[] = {
      {"/v1/completions", R"("prompt":"ab","max_tokens":2)", ": keep-alive", "data: {", "[DONE]",
       "too large"},
      {"/v1/messages", messages, ": keep-alive", "message_start", "message_stop", "event: error"},
      {"/v1/responses", R"("input":"ab","max_output_tokens":2)", ": keep-alive", "response.created",
       "response.output_text.done", "response.failed"},
      {"/api/chat", messages, R"("content":"")", "w0", R"("done":true)", "too large"},
  };
  for (const Way& way : ways) {
    for (const bool comes : {true, false}) {
      Publish(ModelState::kLoading);
      TestClient client(port());
      client.Send(
          TestClient::PostText(way.path, R"({"model":"later","stream":true,)" + way.fields + "}"));
      auto waiting = manager_.Take(1);
      ASSERT_TRUE(client.ReceiveUntil(way.quiet)) << way.path;
      EXPECT_EQ(client.received().find("HTTP/1.1 200"), 0u) << client.received();
      EXPECT_EQ(client.received().find(way.begin), std::string::npos) << client.received();
      if (comes) {
        Publish(ModelState::kResident);
        waiting[0].second(std::nullopt);
        EXPECT_TRUE(client.ReceiveUntil(way.last)) << client.received();
        const size_t first = client.received().find(way.begin);
        EXPECT_NE(first, std::string::npos) << client.received();
      } else {
        waiting[0].second(Unavailable("too large", "insufficient_memory", 60));
        EXPECT_TRUE(client.ReceiveUntil(way.failed)) << client.received();
      }
    }
  }
}

TEST_F(ServerModelsTest, AWaitEndsInTime) {
  StartSeveral();
  TestClient client(port());
  const TestResponse response =
      client.Post("/v1/completions", Body("later"), "X-Request-Timeout: 0.02\r\n");
  EXPECT_EQ(response.status, 504);
  EXPECT_EQ(response.json()["error"]["code"], "request_timeout");
  manager_.Take(1)[0].second(std::nullopt);  // late
  EXPECT_EQ(client.Post("/v1/completions", Body("first")).status, 200);
  EXPECT_EQ(engine_->submitted(), 1u);
}

TEST_F(ServerModelsTest, AModelThatLeavesAgainIsWaitedForAgain) {
  StartSeveral();
  TestResponse response;
  std::thread sender([&] { response = TestClient(port()).Post("/v1/completions", Body("later")); });
  for (int i = 0; i < 3; ++i) manager_.Take(1)[0].second(std::nullopt);  // gone already
  auto last = manager_.Take(1);
  Publish(ModelState::kResident);
  last[0].second(std::nullopt);
  sender.join();
  EXPECT_EQ(response.status, 200);
}

TEST_F(ServerModelsTest, WhyAModelDoesNotCome) {
  StartSeveral();
  TestResponse response;
  std::thread sender([&] { response = TestClient(port()).Post("/v1/completions", Body("later")); });
  manager_.Take(1)[0].second(Unavailable("too large", "insufficient_memory", 60));
  sender.join();
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.Header("Retry-After"), "60");
  EXPECT_EQ(response.json()["error"]["code"], "insufficient_memory");
  // One that has failed is not tried again for a request.
  Publish(ModelState::kFailed);
  TestClient client(port());
  for (const char* path : {"/v1/completions", "/tokenize"}) {
    const TestResponse failed = client.Post(path, Body("later"));
    EXPECT_EQ(failed.status, 503);
    EXPECT_NE(failed.body.find("no such file"), std::string::npos) << failed.body;
  }
}

TEST_F(ServerModelsTest, AStopEndsTheWait) {
  StartSeveral();
  TestResponse response;
  std::thread sender([&] { response = TestClient(port()).Post("/v1/completions", Body("later")); });
  auto waiting = manager_.Take(1);
  server_->Stop(std::chrono::milliseconds(0));
  sender.join();
  EXPECT_EQ(response.status, 503);
  waiting[0].second(std::nullopt);  // late
}

TEST_F(ServerModelsTest, ReadyWhenTheModelsOfTheStartAreThere) {
  manager_.starting_ = true;
  StartSeveral();
  TestClient client(port());
  EXPECT_EQ(client.Get("/ready").status, 503);
  EXPECT_EQ(client.Post("/v1/completions", Body("first")).status, 200);  // this one is
  manager_.starting_ = false;
  EXPECT_EQ(client.Get("/ready").status, 200);
}

TEST_F(ServerModelsTest, OrdersAreCarriedOutAndAnswered) {
  StartSeveral();
  const auto order = [this](const char* path, const std::string& body,
                            const std::optional<ApiError>& why_not, const std::string& expected) {
    TestResponse response;
    std::thread sender([&] { response = TestClient(port()).Post(path, body); });
    auto waiting = manager_.Take(1);
    EXPECT_EQ(waiting[0].first, expected);
    waiting[0].second(why_not);
    sender.join();
    return response;
  };
  EXPECT_EQ(order("/models/load", R"({"model":"later"})", std::nullopt, "later").body,
            R"({"success":true})");
  EXPECT_EQ(order("/models/unload", R"({"model":"first"})", std::nullopt, "unload first").status,
            200);
  const TestResponse refused = order("/models/load", R"({"model":"later"})",
                                     Unavailable("too large", "insufficient_memory", 60), "later");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.json()["error"]["code"], "insufficient_memory");
  TestClient client(port());
  EXPECT_EQ(client.Post("/models/load", "{}").status, 400);
  EXPECT_EQ(client.Post("/models/load", R"({"model":"other"})").status, 404);
  EXPECT_EQ(client.Get("/models/load").status, 405);
  EXPECT_EQ(client.Get("/models").json()["data"].size(), 6u);
}

TEST_F(ServerModelsTest, OrdersAreForAdministrators) {
  options_.api_keys = {"user"};
  StartSeveral();
  TestClient client(port());
  const std::string body = R"({"model":"later"})";
  EXPECT_EQ(client.Post("/models/load", body).status, 401);
  EXPECT_EQ(client.Post("/models/load", body, "Authorization: Bearer user\r\n").status, 403);
  EXPECT_EQ(client.Post("/models/unload", body, "Authorization: Bearer user\r\n").status, 403);
  EXPECT_EQ(client.Get("/models", "Authorization: Bearer user\r\n").status, 200);
}

TEST_F(ServerModelsTest, AServerWithOneModelSaysSo) {
  Start();
  TestClient client(port());
  EXPECT_EQ(client.Post("/models/unload", R"({"model":"org/test"})").json()["error"]["code"],
            "one_model");
  EXPECT_EQ(client.Get("/models/events").json()["error"]["code"], "one_model");
  EXPECT_EQ(client.Get("/models").status, 200);
}

TEST_F(ServerModelsTest, EventsSayWhatChanges) {
  StartSeveral();
  TestClient client(port());
  client.Send("GET /models/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_TRUE(client.ReceiveUntil("later"));
  const std::string begin = client.received();
  EXPECT_NE(begin.find("text/event-stream"), std::string::npos) << begin;
  EXPECT_NE(begin.find("event: model_status"), std::string::npos) << begin;
  manager_.Tell({"later", ModelState::kLoading, 5, "", false, 0.4256});
  ASSERT_TRUE(client.ReceiveUntil("\"loading\""));
  ASSERT_TRUE(client.ReceiveUntil("\"progress\":0.425"));
  manager_.Tell({"elsewhere", ModelState::kLoading, 5, ""});  // not of this server's list
  manager_.Tell({"later", ModelState::kFailed, 0, "no disk"});
  ASSERT_TRUE(client.ReceiveUntil("no disk"));
  EXPECT_EQ(client.received().find("elsewhere"), std::string::npos) << client.received();
  client.Close();
  manager_.WaitUntilUnwatched();
}

TEST_F(ServerModelsTest, AStopEndsTheEvents) {
  StartSeveral();
  TestClient client(port());
  client.Send("GET /models/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_TRUE(client.ReceiveUntil("later"));
  EXPECT_TRUE(server_->Stop(std::chrono::milliseconds(60'000)));  // without waiting so long
  manager_.WaitUntilUnwatched();
}

TEST_F(ServerModelsTest, RequestsSayHowLongTheModelStays) {
  StartSeveral();
  TestClient client(port());
  const std::pair<const char*, std::string> requests[] = {
      {"/v1/completions", R"("prompt":"ab","max_tokens":1)"},
      {"/v1/completions", R"("prompt":"ab","max_tokens":1,"ttl":90)"},
      {"/api/generate", R"("prompt":"ab","options":{"num_predict":1},"keep_alive":"1m30s")"},
      {"/v1/messages",
       R"("messages":[{"role":"user","content":"ab"}],"max_tokens":1,"keep_alive":0)"},
      {"/v1/responses", R"("input":"ab","max_output_tokens":1,"keep_alive":-1)"},
  };
  for (const auto& [path, fields] : requests) {
    EXPECT_EQ(client.Post(path, R"({"model":"first",)" + fields + "}").status, 200) << path;
  }
  using std::chrono::seconds;
  EXPECT_EQ(manager_.kept(), (std::vector<KeepAlive>{KeepAlive(-1), seconds(90), seconds(90),
                                                     KeepAlive(0), kKeepForEver}));
  EXPECT_EQ(client.Post("/v1/completions", R"({"model":"first","prompt":"ab","keep_alive":"soon"})")
                .status,
            400);
}

TEST_F(ServerModelsTest, TokenizerOfOne) {
  StartSeveral();
  TestClient client(port());
  EXPECT_EQ(client.Get("/tokenizer_info?model=second").status, 200);
  EXPECT_EQ(client.Get("/tokenizer_info?model=later").status, 503);
  EXPECT_EQ(client.Get("/tokenizer_info").status, 200);
}

}  // namespace
}  // namespace moesaic
