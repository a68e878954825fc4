// What becomes of the workers: clients that leave while theirs is at it, and a stop that finds one
// busy.
#include <atomic>
#include <thread>

#include "serving/http/request_memory.h"
#include "tests/serving/http/server_fixture.h"

namespace moesaic {
namespace {

using std::chrono::milliseconds;

// Encodes nothing until it is let go.
class HeldTokenizer : public ByteTokenizer {
 public:
  std::vector<int32_t> EncodeSegments(std::span<const TextSegment> segments,
                                      bool add_special_tokens) const override {
    calls_.fetch_add(1);
    calls_.notify_all();
    held_.wait(true);
    return ByteTokenizer::EncodeSegments(segments, add_special_tokens);
  }
  void LetGo() {
    held_ = false;
    held_.notify_all();
  }
  int calls() const { return calls_.load(); }
  void WaitForCall() const { calls_.wait(0); }

 private:
  std::atomic<bool> held_{true};
  mutable std::atomic<int> calls_{0};
};

class ServerWorkersTest : public ServerTest {
 protected:
  ServerWorkersTest() {
    options_.worker_threads = 1;
    model_tokenizer_ = &held_;
  }
  ~ServerWorkersTest() override {
    held_.LetGo();
    server_.reset();
  }

  static std::string TokenizeText() {
    return TestClient::PostText("/tokenize", R"({"prompt":"abc"})");
  }

  HeldTokenizer held_;
};

TEST_F(ServerWorkersTest, ARequestWhoseClientHasLeftIsNotBegun) {
  Start();
  TestClient first(port());
  first.Send(TokenizeText());
  held_.WaitForCall();
  // Two that wait for the worker, and leave.
  TestClient second(port());
  second.Send(TokenizeText());
  TestClient third(port());
  third.Send(TestClient::PostText("/v1/completions", Completion(1)));
  second.Close();
  third.Close();
  WaitForMetric("moe_http_responses_total{route=\"/tokenize\",status=\"499\"}", 1);
  WaitForMetric("moe_http_responses_total{route=\"/v1/completions\",status=\"499\"}", 1);
  held_.LetGo();
  EXPECT_EQ(first.Receive().status, 200);
  TestClient last(port());
  EXPECT_EQ(last.Post("/tokenize", R"({"prompt":"abc"})").status, 200);
  EXPECT_EQ(held_.calls(), 2);
}

// Nobody waits for the answer any more, so the engine must not get the request.
TEST_F(ServerWorkersTest, ARequestWhoseClientLeavesWhileItIsTokenisedIsNotSubmitted) {
  Start();
  TestClient client(port());
  client.Send(TestClient::PostText("/v1/completions", Completion(1)));
  held_.WaitForCall();
  client.Close();
  WaitForMetric("moe_http_responses_total{route=\"/v1/completions\",status=\"499\"}", 1);
  held_.LetGo();
  TestClient last(port());
  EXPECT_EQ(last.Post("/v1/completions", Completion(1)).status, 200);
  engine_->WaitForSubmitted(1);
  EXPECT_EQ(engine_->submitted(), 1u);
}

// What bodies take while they are tokenised is bounded, in multiples of their sizes.
TEST_F(ServerWorkersTest, BodiesAreOnlyReadWhereThereIsMemory) {
  options_.worker_threads = 2;
  options_.request_memory_bytes = RequestMemory::kBytesPerBodyByte * 30;
  Start();
  TestClient first(port());
  first.Send(TokenizeText());  // 16 bytes
  held_.WaitForCall();
  TestClient second(port());
  const TestResponse refused = second.Post("/tokenize", R"({"prompt":"abc"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.Header("Retry-After"), "1");
  EXPECT_EQ(refused.json()["error"]["code"], "overloaded");
  EXPECT_EQ(second.Post("/v1/completions", Completion(1)).status, 413);  // never
  EXPECT_EQ(second.Post("/detokenize", R"({"tokens":[97]})").status, 503);
  held_.LetGo();
  EXPECT_EQ(first.Receive().status, 200);
  EXPECT_EQ(second.Post("/tokenize", R"({"prompt":"abc"})").status, 200);
  EXPECT_EQ(second.Post("/tokenize", R"({"prompt":7})").status, 400);  // given back, too
  EXPECT_EQ(second.Post("/detokenize", R"({"tokens":[97]})").status, 200);
}

// Without a deadline this test does not end.
TEST_F(ServerWorkersTest, StopEndsThoughAWorkerIsBusy) {
  options_.worker_timeout = milliseconds(0);
  Start();
  TestClient tokenize(port());
  tokenize.Send(TokenizeText());
  held_.WaitForCall();
  EXPECT_FALSE(server_->HasBusyWorkers());
  EXPECT_FALSE(server_->Stop(milliseconds(0)));
  EXPECT_TRUE(server_->HasBusyWorkers());
  EXPECT_EQ(tokenize.Receive().status, 503);  // told, not just cut off
}

// The worker ends after the server has stopped: what it submits then is cancelled.
TEST_F(ServerWorkersTest, WhatALateWorkerDoesFindsNobody) {
  options_.worker_timeout = milliseconds(0);
  Start();
  TestClient client(port());
  client.Send(TestClient::PostText("/v1/completions", Completion(1)));
  held_.WaitForCall();
  EXPECT_FALSE(server_->Stop(milliseconds(0)));
  EXPECT_TRUE(server_->HasBusyWorkers());
  EXPECT_EQ(client.Receive().status, 503);
  held_.LetGo();
  server_.reset();
  EXPECT_TRUE(engine_->Running().empty());
}

TEST_F(ServerWorkersTest, StopWaitsForWorkersThatEnd) {
  held_.LetGo();
  Start();
  TestClient client(port());
  EXPECT_EQ(client.Post("/tokenize", R"({"prompt":"abc"})").status, 200);
  EXPECT_TRUE(server_->Stop(std::chrono::minutes(1)));
  EXPECT_FALSE(server_->HasBusyWorkers());
}

}  // namespace
}  // namespace moesaic
