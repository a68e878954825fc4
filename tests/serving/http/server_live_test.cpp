// The page, and what it reads: who may, what comes, and that readers who are slow, leave or stay
// cost nothing and hold up nobody.

#include <openssl/sha.h>

#include <chrono>
#include <string>
#include <thread>

#include "serving/api/live_json.h"
#include "serving/http/page.h"
#include "tests/core/config/made_up_layers.h"
#include "tests/serving/http/server_fixture.h"

namespace moesaic {
namespace {

constexpr char kEvents[] = "/v1/moesaic/events";
constexpr char kSnapshot[] = "/v1/moesaic/snapshot";
constexpr char kBrowser[] = "Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n";

class ServerLiveTest : public ServerTest {
 protected:
  ServerLiveTest() {
    engine_options_.live = true;
    engine_options_.layers = {SparseLayer(8, 2), SparseLayer(8, 2)};
  }
  void StartWithKey() {
    options_.api_keys = {"secret"};
    Start();
  }
  LiveView& live() { return *engine_->live(); }
  void WaitForWatchers(bool watched) {
    while (live().watched() != watched) std::this_thread::yield();
  }
  // `experts`: so large is the sample.
  void Publish(size_t experts = 16) {
    LiveSample& sample = live().Back();
    sample.running = 3;
    sample.use.assign(experts, 0.5f);
    sample.places.assign(experts, ExpertPresence::kResident);
    sample.left.assign(experts, 0);
    live().Publish();
  }
  static std::string GetText(const std::string& path) {
    return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
  }
};

TEST_F(ServerLiveTest, BrowsersGetThePage) {
  StartWithKey();  // which the page itself does not need
  TestClient client(port());
  const TestResponse page = client.Get("/", kBrowser);
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.Header("Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(page.body, PageText());
  EXPECT_EQ(page.body.substr(0, 15), "<!DOCTYPE html>");
  EXPECT_EQ(page.Header("X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(client.Get("/").status, 401);
  EXPECT_EQ(client.Get("/", "Accept: application/json\r\n").status, 401);
  const TestResponse text = client.Get("/", "Authorization: Bearer secret\r\n");
  EXPECT_EQ(text.status, 200);
  EXPECT_EQ(text.Header("Content-Type"), "text/plain; charset=utf-8");
  EXPECT_NE(text.body.find("/v1/moesaic/events"), std::string::npos);
  EXPECT_EQ(client.Get("/v1/models", kBrowser).status, 401);
}

std::string HashOf(const std::string& page, const std::string& begin, const std::string& end) {
  const size_t from = page.find(begin) + begin.size();
  const std::string text = page.substr(from, page.find(end, from) - from);
  uint8_t digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(), digest);
  return "'sha256-" + Base64(digest) + "'";
}

TEST_F(ServerLiveTest, ThePageMayRunItselfAndNothingElse) {
  Start(false);  // the model is being loaded
  const TestResponse page = TestClient(port()).Get("/", kBrowser);
  ASSERT_EQ(page.status, 200);
  EXPECT_EQ(page.Header("Content-Security-Policy"),
            "default-src 'none'; script-src " + HashOf(page.body, "<script>", "</script>") +
                "; style-src " + HashOf(page.body, "<style>", "</style>") +
                "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                "frame-ancestors 'none'");
  for (const char* outside :
       {"http:", "https:", "@import", "url(", "stylesheet", "eval(", " style=\""}) {
    EXPECT_EQ(page.body.find(outside), std::string::npos) << outside;
  }
}

TEST_F(ServerLiveTest, ASnapshot) {
  Start();
  TestClient client(port());
  client.Send(GetText(kSnapshot));
  WaitForWatchers(true);
  Publish();
  const TestResponse response = client.Receive();
  WaitForWatchers(false);
  ASSERT_EQ(response.status, 200);
  EXPECT_EQ(response.Header("Cache-Control"), "no-store");
  const Json json = response.json();
  const Json& model = json["model"];
  EXPECT_EQ(model["name"], "org/test");
  EXPECT_EQ(model["layers"], 2);
  EXPECT_EQ(model["layers_with_experts"], Json::array({0, 1}));
  EXPECT_EQ(model["experts"], 8);
  EXPECT_EQ(model["experts_per_token"], 2);
  EXPECT_EQ(model["memory"][0], Json::parse(R"({"memory":"host","limit_bytes":1000,"items":[
                {"name":"experts","bytes":600},{"name":"KV cache","bytes":200}]})"));
  EXPECT_EQ(json["sample"]["running"], 3);
  EXPECT_EQ(json["sample"]["experts_resident"], 16);
}

TEST_F(ServerLiveTest, Events) {
  Start();
  TestClient client(port());
  client.Send(GetText(kEvents));
  ASSERT_TRUE(client.ReceiveUntil("event: model\ndata: {\"type\":\"model\""));
  WaitForWatchers(true);
  for (int number = 1; number <= 3; ++number) {
    Publish();
    ASSERT_TRUE(client.ReceiveUntil("event: sample\ndata: {\"type\":\"sample\",\"number\":" +
                                    std::to_string(number)));
  }
  EXPECT_NE(client.received().find("text/event-stream"), std::string::npos);
  client.Close();
  WaitForWatchers(false);
}

TEST_F(ServerLiveTest, OnlyTheHead) {
  Start();
  TestClient client(port());
  client.Send("HEAD " + std::string(kEvents) + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const TestResponse head = client.Receive(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.Header("Content-Type"), "text/event-stream; charset=utf-8");
  EXPECT_FALSE(live().watched());
  EXPECT_EQ(client.Get("/v1/models").status, 200);  // the connection goes on
}

TEST_F(ServerLiveTest, WhoMayLook) {
  StartWithKey();
  TestClient client(port());
  EXPECT_EQ(client.Get(kEvents).status, 401);
  EXPECT_EQ(client.Get(kSnapshot).status, 401);
  EXPECT_FALSE(live().watched());
  client.Send("GET " + std::string(kSnapshot) +
              "?model=alias HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\r\n");
  WaitForWatchers(true);
  Publish();
  EXPECT_EQ(client.Receive().status, 200);
  EXPECT_EQ(
      client.Get(std::string(kEvents) + "?model=nobody", "Authorization: Bearer secret\r\n").status,
      404);
  EXPECT_EQ(client.Post(kEvents, "{}", "Authorization: Bearer secret\r\n").status, 405);
}

TEST_F(ServerLiveTest, EnginesThatShowNothing) {
  engine_options_.live = false;
  Start();
  TestClient client(port());
  EXPECT_EQ(client.Get(kEvents).json()["error"]["code"], "no_live_view");
  EXPECT_EQ(client.Get(kSnapshot).status, 404);
}

TEST_F(ServerLiveTest, WhileTheModelIsLoaded) {
  Start(false);
  TestClient client(port());
  const TestResponse response = client.Get(kEvents);
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.json()["error"]["code"], "loading");
}

TEST_F(ServerLiveTest, TheExpertsOfARequest) {
  StartWithKey();
  auto trace = std::make_shared<RequestTrace>();
  trace->prefill = ExpertActivationMatrix(2, 3);
  trace->prefill.Add(1, 2, 5);
  trace->decode = ExpertActivationMatrix(2, 3);
  trace->decode.Add(0, 1, 300);
  trace->prefill_tokens = 5;
  auto experts = std::make_shared<RequestExperts>();
  experts->trace = trace;
  experts->has_collection = true;
  experts->nearest = {7, 9, 0.5, trace->decode};
  engine_->SetExperts(42, experts);
  TestClient client(port());
  const std::string path = "/v1/moesaic/requests/";
  const std::string key = "Authorization: Bearer secret\r\n";
  EXPECT_EQ(client.Get(path + "42").status, 401);
  const TestResponse response = client.Get(path + "42", key);
  ASSERT_EQ(response.status, 200);
  EXPECT_EQ(response.json(), Json::parse(R"({"prefill_tokens":5,"decode_tokens":0,
      "prefill":[[0,0,0],[0,0,5]],"decode":[[0,300,0],[0,0,0]],"collection":true,
      "nearest":{"entry":7,"entries":9,"similarity":0.5,"counts":[[0,300,0],[0,0,0]]}})"));
  EXPECT_TRUE(client.Get(path + "42?nearest=false", key).json()["nearest"].is_null());
  for (const char* unknown : {"41", "-42", "42x", "99999999999999999999999", "x", "4/2"}) {
    const TestResponse none = client.Get(path + unknown, key);
    EXPECT_EQ(none.status, 404) << unknown;
    EXPECT_EQ(none.json()["error"]["code"], "unknown_request") << unknown;
  }
  EXPECT_EQ(client.Get(path, key).status, 404);
  EXPECT_EQ(client.Get(path + "42?model=nobody", key).status, 404);
}

// A reader that does not read: samples are made, none is kept for him, and he goes on with the last
// one.
TEST_F(ServerLiveTest, SlowReaders) {
  Start();
  TestClient slow(port(), 4096);
  slow.Send(GetText(kEvents));
  WaitForWatchers(true);
  constexpr size_t kExperts = 1 << 20;  // more than the system buffers
  uint64_t sent = 0;
  TestClient other(port());
  other.Send(GetText(kEvents));
  ASSERT_TRUE(other.ReceiveUntil("event: model"));
  for (int i = 0; i < 5; ++i) {
    Publish(kExperts);
    sent = live().number();
    ASSERT_TRUE(other.ReceiveUntil("\"number\":" + std::to_string(sent) + ","));
  }
  ASSERT_TRUE(slow.ReceiveUntil("\"number\":" + std::to_string(sent) + ","));
  // He has missed some of the five.
  int seen = 0;
  for (uint64_t number = 1; number <= sent; ++number) {
    if (slow.received().find("\"number\":" + std::to_string(number) + ",") != std::string::npos) {
      ++seen;
    }
  }
  EXPECT_LT(seen, 5);
}

// Who has got his sample does not watch on while he reads the answer.
TEST_F(ServerLiveTest, SlowReadersOfASnapshot) {
  Start();
  TestClient slow(port(), 4096);
  slow.Send(GetText(kSnapshot));
  WaitForWatchers(true);
  Publish(1 << 21);  // more than the system buffers
  WaitForWatchers(false);
  const TestResponse response = slow.Receive();
  EXPECT_EQ(response.status, 200);
  EXPECT_TRUE(response.body.ends_with('}'));  // the connection was not given up
}

// An engine whose model is unloaded is given back, whoever looks on.
TEST_F(ServerLiveTest, UnloadedModels) {
  Start();
  TestClient events(port());
  events.Send(GetText(kEvents));
  ASSERT_TRUE(events.ReceiveUntil("event: model"));
  std::weak_ptr<TestEngine> old = engine_;
  SetModel();  // another engine under the same names
  EXPECT_TRUE(events.ReceiveUntil("\r\n0\r\n\r\n"));
  while (!old.expired()) std::this_thread::yield();
  events.Send(GetText(kEvents));
  ASSERT_TRUE(events.ReceiveUntil("event: model"));
  WaitForWatchers(true);
}

// Nobody's work is cut off when they end, so that a server that stops does not wait for them.
TEST_F(ServerLiveTest, ADrainingServerEndsThem) {
  options_.shutdown_timeout = std::chrono::minutes(10);
  Start();
  TestClient events(port());
  events.Send(GetText(kEvents));
  ASSERT_TRUE(events.ReceiveUntil("event: model"));
  TestClient snapshot(port());
  snapshot.Send(GetText(kSnapshot));
  WaitForWatchers(true);
  EXPECT_TRUE(server_->Stop(std::chrono::minutes(10)));
  EXPECT_TRUE(events.ReceiveUntil("\r\n0\r\n\r\n"));
  EXPECT_EQ(snapshot.Receive().status, 503);
  EXPECT_FALSE(live().watched());
}

}  // namespace
}  // namespace moesaic
