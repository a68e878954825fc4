// Clients that leave, stall, flood or talk nonsense, and the server's own end.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "serving/http/http_message.h"
#include "serving/http/slow_peers.h"
#include "tests/serving/http/server_fixture.h"

namespace moesaic {
namespace {

using std::chrono::milliseconds;

constexpr char kConnections[] = "moe_http_connections";

TEST_F(ServerTest, PipelinedRequestsAreAnsweredInOrder) {
  Start();
  TestClient client(port());
  std::string input;
  for (int i = 0; i < 20; ++i) {
    input += TestClient::PostText("/v1/completions", Completion(1 + i % 3));
    input += "GET /v1/models/alias HTTP/1.1\r\nHost: localhost\r\n\r\n";
  }
  client.Send(input);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(client.Receive().json()["usage"]["completion_tokens"], 1 + i % 3);
    EXPECT_EQ(client.Receive().json()["id"], "alias");
  }
}

TEST_F(ServerTest, ByteByByte) {
  Start();
  TestClient client(port());
  for (const char c : TestClient::PostText("/v1/completions", Completion(1))) {
    ASSERT_TRUE(client.Send(std::string_view(&c, 1)));
  }
  EXPECT_EQ(client.Receive().status, 200);
}

TEST_F(ServerTest, ChunkedBody) {
  Start();
  TestClient client(port());
  const std::string body = Completion(1);
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  std::string chunks;
  for (size_t i = 0; i < body.size(); i += 7) AppendChunk(body.substr(i, 7), chunks);
  client.Send(chunks + "0\r\n\r\n");
  EXPECT_EQ(client.Receive().status, 200);
}

TEST_F(ServerTest, ExpectContinue) {
  options_.max_body_bytes = 1000;
  Start();
  TestClient client(port());
  const std::string body = Completion(1);
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n";
  client.Send(head + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(client.Receive().status, 100);
  client.Send(body);
  EXPECT_EQ(client.Receive().status, 200);
  client.Send(head + "Content-Length: 1001\r\n\r\n");  // refused without the body
  EXPECT_EQ(client.Receive().status, 413);
}

TEST_F(ServerTest, LargeBodiesAreRefusedReadably) {
  options_.max_body_bytes = 100'000;
  Start();
  TestClient client(port());
  // The client goes on sending what will never be read; the answer must arrive all the same.
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n");
  client.Send(std::string(2'000'000, 'x'));
  const TestResponse response = client.Receive();
  EXPECT_EQ(response.status, 413);
  EXPECT_EQ(response.Header("Connection"), "close");
  EXPECT_EQ(response.json()["error"]["code"], "body_too_large");
}

TEST_F(ServerTest, RefusedHeadsKeepTheConnectionWhenTheBodyIsSmall) {
  options_.api_keys = {"k"};
  Start();
  TestClient client(port());
  EXPECT_EQ(client.Post("/v1/completions", Completion(1)).status, 401);
  EXPECT_EQ(client.Post("/nowhere", "{}").status, 404);
  EXPECT_EQ(client.Get("/health").status, 200);
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n\r\n");
  const TestResponse response = client.Receive();  // at once, not after nine megabytes
  EXPECT_EQ(response.status, 401);
  EXPECT_EQ(response.Header("Connection"), "close");
}

TEST_F(ServerTest, Garbage) {
  Start();
  for (const std::string& garbage :
       {std::string("\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 11), std::string("hello\r\n\r\n"),
        std::string(100'000, 'A'), std::string(100'000, '\0'),
        std::string("GET / HTTP/1.1\r\n: x\r\n\r\n")}) {
    TestClient client(port());
    client.Send(garbage);
    const TestResponse response = client.Receive();
    EXPECT_GE(response.status, 400);
    EXPECT_LT(response.status, 500);
    EXPECT_EQ(response.Header("Connection"), "close");
    client.ReceiveToEnd();
  }
  TestClient big(port());
  big.Send("GET / HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(200'000, 'y') + "\r\n\r\n");
  EXPECT_EQ(big.Receive().status, 431);
  TestClient client(port());
  EXPECT_EQ(client.Get("/health").status, 200);
}

TEST_F(ServerTest, SlowHeadsTimeOut) {
  options_.header_timeout = milliseconds(30);
  Start();
  TestClient client(port());
  client.Send("GET /health HT");
  EXPECT_EQ(client.Receive().status, 408);
  client.ReceiveToEnd();
}

TEST_F(ServerTest, SlowBodiesTimeOut) {
  options_.body_timeout = milliseconds(30);
  Start();
  TestClient client(port());
  client.Send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_EQ(client.Receive().status, 408);
}

TEST_F(ServerTest, IdleConnectionsAreClosedSilently) {
  options_.idle_timeout = milliseconds(30);
  Start();
  // A connection is idle before its first request, too: until a request gets there in time.
  for (int status = 0; status == 0;) {
    TestClient client(port());
    status = client.Get("/health").status;
    client.ReceiveToEnd();
    EXPECT_TRUE(status == 0 || status == 200) << status;
  }
  TestClient silent(port());
  EXPECT_EQ(silent.Receive().status, 0);
  WaitForMetric(kConnections, 0);
}

TEST_F(ServerTest, LeavingCancelsAStream) {
  engine_options_.manual = true;
  Start();
  TestClient client(port());
  client.Send(TestClient::PostText("/v1/completions", Completion(9, R"(,"stream":true,"n":2)")));
  engine_->WaitForSubmitted(2);
  engine_->Emit(1, 1);
  ASSERT_TRUE(client.ReceiveUntil("w0"));
  client.Close();
  engine_->WaitForCancelled(2);
  WaitForMetric("moe_request_success_total{model_name=\"org/test\",finished_reason=\"abort\"}", 2);
  WaitForMetric("moe_http_responses_total{route=\"/v1/completions\",status=\"499\"}", 1);
  WaitForMetric(kConnections, 0);
}

TEST_F(ServerTest, LeavingCancelsAnAnswerThatIsNotStreamed) {
  engine_options_.manual = true;
  Start();
  TestClient gone(port());
  gone.Send(TestClient::PostText("/v1/completions", Completion(9)));
  TestClient reset(port());
  reset.Send(TestClient::PostText("/v1/chat/completions", Chat(9)));
  engine_->WaitForSubmitted(2);
  gone.Close();
  reset.Reset();
  engine_->WaitForCancelled(2);
  WaitForMetric(kConnections, 0);
}

TEST_F(ServerTest, LeavingBeforeTheBodyIsComplete) {
  Start();
  for (int i = 0; i < 10; ++i) {
    TestClient client(port());
    client.Send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
    if (i % 2 == 0) client.Reset();
  }
  WaitForMetric(kConnections, 0);
  EXPECT_TRUE(engine_->Running().empty());
}

TEST_F(ServerTest, AHalfClosedClientGetsItsAnswer) {
  Start();
  TestClient client(port());
  client.Send(
      "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /version HTTP/1.1\r\nHost: "
      "localhost\r\n\r\n");
  client.ShutdownSend();
  EXPECT_EQ(client.Receive().status, 200);
  EXPECT_EQ(client.Receive().status, 200);
}

// A stream whose client does not read: the engine goes on, other clients are served, what waits is
// merged and bounded, and all of it arrives once the client reads.
TEST_F(ServerTest, ASlowReaderHoldsNobodyUp) {
  engine_options_.manual = true;
  options_.max_pending_output_bytes = 64 << 20;
  Start();
  TestClient slow(port(), 4096);
  slow.Send(TestClient::PostText("/v1/completions", Completion(9, R"(,"stream":true)")));
  engine_->WaitForSubmitted(1);
  const std::string block(1000, 'x');
  constexpr int kDeltas = 20'000;  // far more than the sockets' buffers hold
  for (int i = 0; i < kDeltas; ++i) engine_->EmitText(1, block);
  TestClient other(port());
  EXPECT_EQ(other.Get("/v1/models").status, 200);
  engine_->Emit(1, 0, FinishReason::kStop);
  const TestResponse response = slow.Receive();
  EXPECT_TRUE(response.complete);
  size_t text_bytes = 0;
  const std::vector<Json> events = SseEvents(response.body);
  for (const Json& event : events) {
    if (event.is_object())
      text_bytes += event["choices"][0]["text"].get_ref<const std::string&>().size();
  }
  EXPECT_EQ(text_bytes, block.size() * kDeltas);
  EXPECT_LT(events.size(), size_t{kDeltas} / 2);  // merged
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(ServerTest, AReaderThatIsTooSlowIsCancelled) {
  engine_options_.manual = true;
  options_.max_pending_output_bytes = 100'000;
  Start();
  TestClient slow(port(), 4096);
  slow.Send(TestClient::PostText("/v1/completions", Completion(9, R"(,"stream":true)")));
  engine_->WaitForSubmitted(1);
  const std::string block(10'000, 'x');
  while (engine_->cancelled() == 0) engine_->EmitText(1, block);
  WaitForMetric(kConnections, 0);
}

TEST_F(ServerTest, AWriteThatMakesNoProgressTimesOut) {
  engine_options_.manual = true;
  options_.write_timeout = milliseconds(50);
  options_.max_pending_output_bytes = 1 << 30;
  Start();
  TestClient stuck(port(), 4096);
  stuck.Send(TestClient::PostText("/v1/completions", Completion(9, R"(,"stream":true)")));
  engine_->WaitForSubmitted(1);
  for (int i = 0; i < 30; ++i) engine_->EmitText(1, std::string(1'000'000, 'x'));
  engine_->WaitForCancelled(1);
}

TEST_F(ServerTest, TooManyConnections) {
  options_.max_connections = 2;
  Start();
  TestClient first(port());
  TestClient second(port());
  EXPECT_EQ(first.Get("/health").status, 200);
  EXPECT_EQ(second.Get("/health").status, 200);
  {
    TestClient third(port());
    const TestResponse response = third.Get("/v1/models");
    EXPECT_EQ(response.status, 503);
    EXPECT_EQ(response.Header("Retry-After"), "1");
    EXPECT_EQ(response.Header("Connection"), "close");
    EXPECT_EQ(response.json()["error"]["code"], "too_many_connections");
    third.ReceiveToEnd();
  }
  WaitForMetric(kConnections, 2);
  first.Close();
  WaitForMetric(kConnections, 1);
  TestClient fourth(port());
  EXPECT_EQ(fourth.Get("/health").status, 200);
}

// Whoever takes all connections, and those for probes, too, does not make the server look dead.
TEST_F(ServerTest, ProbesAreAnsweredThoughAllConnectionsAreTaken) {
  options_.max_connections = 2;
  options_.probe_connections = 3;
  Start();
  std::vector<std::unique_ptr<TestClient>> slow;
  for (int i = 0; i < 2; ++i) {
    slow.push_back(std::make_unique<TestClient>(port()));
    slow.back()->Send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{");
  }
  WaitForMetric(kConnections, 2);
  for (int i = 0; i < 50; ++i) {
    slow.push_back(std::make_unique<TestClient>(port()));
    slow.back()->Send("GET /health HT");
  }
  for (const char* path : {"/health", "/live", "/ready"}) {
    TestClient probe(port());
    const TestResponse response = probe.Get(path);
    EXPECT_EQ(response.status, 200) << path;
    EXPECT_EQ(response.Header("Connection"), "close");
  }
  TestClient other(port());
  EXPECT_EQ(other.Post("/tokenize", R"({"prompt":"a"})").status, 503);
  // Those that came first are still served.
  slow[0]->Send("        ");
  EXPECT_EQ(slow[0]->Receive().status, 400);
}

TEST_F(ServerTest, SlowBodiesOfOnePeerAreBounded) {
  options_.slow_after = milliseconds(1);
  options_.body_timeout = std::chrono::hours(1);
  options_.max_slow_per_peer = 2;
  Start();
  std::vector<std::unique_ptr<TestClient>> slow;
  for (int i = 0; i < 5; ++i) {
    slow.push_back(std::make_unique<TestClient>(port()));
    slow.back()->Send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{");
  }
  WaitForMetric("moe_http_responses_total{route=\"/tokenize\",status=\"408\"}", 3);
  // The two that are left end, and others may be slow in their places.
  for (auto& client : slow) client->Reset();
  WaitForMetric(kConnections, 0);
  TestClient next(port());
  next.Send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n{");
  TestClient more(port());
  for (int i = 0; i < 3; ++i) {
    more.Send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{        ");
    EXPECT_EQ(more.Receive().status, 400);
  }
  next.Send(R"("prompt":"a"})");
  EXPECT_EQ(next.Receive().status, 200);
}

TEST(SlowPeersTest, CountsByPeer) {
  SlowPeers slow(2);
  EXPECT_TRUE(slow.Enter("a"));
  EXPECT_TRUE(slow.Enter("a"));
  EXPECT_FALSE(slow.Enter("a"));
  EXPECT_TRUE(slow.Enter("b"));
  slow.Leave("a");
  EXPECT_TRUE(slow.Enter("a"));
  EXPECT_FALSE(slow.Enter("a"));
  const auto peer = [](const char* address) {
    return PeerOf(boost::asio::ip::make_address(address));
  };
  EXPECT_NE(peer("10.0.0.1"), peer("10.0.0.2"));
  EXPECT_EQ(peer("10.0.0.1"), peer("::ffff:10.0.0.1"));
  EXPECT_EQ(peer("2001:db8::1"), peer("2001:db8::ffff:1"));
  EXPECT_NE(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
}

TEST_F(ServerTest, BodiesOfAllConnectionsAreBounded) {
  options_.max_buffered_body_bytes = 100'000;
  Start();
  TestClient holder(port());
  holder.Send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90001\r\n\r\n" +
              std::string(90'000, ' '));
  // Which of the two is over the limit depends on who was read first; the server goes on either
  // way.
  TestClient second(port());
  second.Send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90001\r\n\r\n" +
              std::string(90'000, ' '));
  WaitForMetricAtLeast("moe_http_responses_total{route=\"/tokenize\",status=\"503\"}", 1);
  holder.Close();
  second.Close();
  WaitForMetric(kConnections, 0);
  TestClient third(port());
  EXPECT_EQ(third.Post("/tokenize", R"({"prompt":")" + std::string(50'000, 'a') + "\"}").status,
            200);
}

TEST_F(ServerTest, ManyIdleAndSlowClients) {
  Start();
  std::vector<std::unique_ptr<TestClient>> idle;
  for (int i = 0; i < 300; ++i) {
    idle.push_back(std::make_unique<TestClient>(port()));
    if (i % 2 == 0) idle.back()->Send("POST /v1/completions HTTP/1.1\r\nHo");
  }
  WaitForMetric(kConnections, 300);
  TestClient client(port());
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(client.Post("/v1/completions", Completion(5)).status, 200);
  }
}

TEST_F(ServerTest, ConcurrentClientsGetTheirOwnAnswers) {
  Start();
  std::vector<std::thread> threads;
  threads.reserve(8);
  std::atomic<int> right{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      TestClient client(port());
      for (int i = 0; i < 25; ++i) {
        const int tokens = 1 + (t * 7 + i) % 20;
        const bool stream = i % 2 == 0;
        const TestResponse response = client.Post(
            "/v1/completions",
            Completion(tokens,
                       stream ? R"(,"stream":true,"stream_options":{"include_usage":true})" : ""));
        const Json last = stream ? SseEvents(response.body).end()[-2] : response.json();
        right += last["usage"]["completion_tokens"] == tokens ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 200);
}

TEST_F(ServerTest, ClientsThatComeAndGoAtRandomMoments) {
  Start();
  constexpr uint32_t kSeed = 12345;  // printed with a failure
  SCOPED_TRACE(kSeed);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      uint32_t state = kSeed + t;
      const auto random = [&state](uint32_t below) {
        state = state * 1664525u + 1013904223u;
        return (state >> 8) % below;
      };
      for (int i = 0; i < 60; ++i) {
        TestClient client(port());
        const std::string request = TestClient::PostText(
            "/v1/chat/completions", Chat(200, random(2) ? R"(,"stream":true)" : ""));
        client.Send(request.substr(0, random(3) ? request.size() : random(request.size() + 1)));
        if (random(2)) client.Send("GET /health HTTP/1.1\r\n");
        if (random(3) == 0) client.ShutdownSend();
        if (random(2)) {
          client.Reset();
        } else {
          client.Close();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  WaitForMetric(kConnections, 0);
  engine_->WaitForIdle();
}

TEST_F(ServerTest, DrainLetsRunningRequestsFinish) {
  engine_options_.manual = true;
  Start();
  TestClient running(port());
  running.Send(TestClient::PostText("/v1/completions", Completion(9, R"(,"stream":true)")));
  engine_->WaitForSubmitted(1);
  engine_->Emit(1, 1);
  ASSERT_TRUE(running.ReceiveUntil("w0"));
  TestClient idle(port());
  EXPECT_EQ(idle.Get("/health").status, 200);

  bool drained = false;
  std::thread stopper([&] { drained = server_->Stop(std::chrono::minutes(1)); });
  while (!engine_->draining()) std::this_thread::yield();
  TestClient late(port());
  EXPECT_EQ(late.Get("/health").status, 200);
  EXPECT_EQ(late.Get("/ready").status, 503);
  const TestResponse refused = late.Post("/v1/completions", Completion(1));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.json()["error"]["code"], "draining");
  EXPECT_NE(refused.Header("Retry-After"), "");

  engine_->Emit(1, 1, FinishReason::kStop);
  const TestResponse response = running.Receive();
  EXPECT_EQ(SseEvents(response.body).back(), "[DONE]");
  stopper.join();
  EXPECT_TRUE(drained);
  EXPECT_EQ(engine_->cancelled(), 0u);
  idle.ReceiveToEnd();
}

TEST_F(ServerTest, AStopThatDoesNotWaitTellsTheClients) {
  engine_options_.manual = true;
  Start();
  TestClient stream(port());
  stream.Send(TestClient::PostText("/v1/completions", Completion(9, R"(,"stream":true)")));
  engine_->WaitForSubmitted(1);
  engine_->Emit(1, 1);
  ASSERT_TRUE(stream.ReceiveUntil("w0"));
  TestClient plain(port());
  plain.Send(TestClient::PostText("/v1/completions", Completion(9)));
  engine_->WaitForSubmitted(2);
  EXPECT_FALSE(server_->Stop(milliseconds(0)));
  const TestResponse cut = stream.Receive();
  EXPECT_TRUE(cut.complete);
  EXPECT_EQ(SseEvents(cut.body).back()["error"]["code"], "draining");
  EXPECT_EQ(plain.Receive().status, 503);
  EXPECT_EQ(engine_->cancelled(), 2u);
}

TEST_F(ServerTest, ASecondStopShortensTheFirst) {
  engine_options_.manual = true;
  Start();
  TestClient client(port());
  client.Send(TestClient::PostText("/v1/completions", Completion(9)));
  engine_->WaitForSubmitted(1);
  std::thread stopper([&] { EXPECT_FALSE(server_->Stop(std::chrono::hours(1))); });
  while (!engine_->draining()) std::this_thread::yield();
  EXPECT_FALSE(server_->Stop(milliseconds(0)));
  stopper.join();
  EXPECT_EQ(client.Receive().status, 503);
}

TEST_F(ServerTest, StoppingWhileLoading) {
  Start(false);
  TestClient client(port());
  EXPECT_EQ(client.Get("/health").status, 200);
  server_->BeginDrain();
  SetModel();  // the model that was being loaded comes too late
  EXPECT_TRUE(engine_->draining());
  EXPECT_EQ(client.Post("/v1/completions", Completion(1)).status, 503);
  EXPECT_TRUE(server_->Stop(std::chrono::minutes(1)));
}

TEST_F(ServerTest, AnEngineThatOutlivesTheServer) {
  engine_options_.manual = true;
  Start();
  auto client = std::make_unique<TestClient>(port());
  client->Send(TestClient::PostText("/v1/completions", Completion(9, R"(,"stream":true)")));
  engine_->WaitForSubmitted(1);
  server_.reset();
  engine_->Emit(1, 1);  // nobody is there
}

}  // namespace
}  // namespace moesaic
