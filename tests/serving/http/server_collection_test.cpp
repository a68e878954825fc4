// GET and PUT of the collection of request EAMs: who may, what comes back, and what damaged input,
// late engines and clients that leave do not do.
#include <chrono>
#include <cstddef>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "serving/engine/collection_file.h"
#include "tests/core/base/temp_dir.h"
#include "tests/core/config/made_up_layers.h"
#include "tests/serving/http/server_fixture.h"
#include "tracer/eam_collection.h"

namespace moesaic {
namespace {

constexpr char kPath[] = "/v1/moesaic/eamc";

class ServerCollectionTest : public ServerTest {
 protected:
  ServerCollectionTest() {
    engine_options_.layers = {SparseLayer(8, 2), SparseLayer(8, 2)};
    for (const int expert : {1, 5, 2}) {
      ExpertActivationMatrix eam(2, 8);
      eam.Add(0, expert, 3);
      eam.Add(1, 7 - expert, 300);
      collection_.Insert(eam);
    }
  }
  void StartWithCollection() {
    Start();
    engine_->SetCollection(&collection_);
  }
  TestResponse Put(const std::string& body, const std::string& query = {}) {
    return Put(body, query, "Content-Type: application/octet-stream\r\n");
  }
  TestResponse Put(const std::string& body, const std::string& query, const std::string& headers) {
    TestClient client(port());
    std::string text = TestClient::PostText(kPath + query, body, headers);
    text.replace(0, 4, "PUT");
    client.Send(text);
    return client.Receive();
  }
  static std::string Bytes(const EamCollection& collection) {
    std::string bytes;
    for (int entry = 0; entry < collection.size(); ++entry) {
      const auto counts = collection.Counts(entry);
      bytes.append(reinterpret_cast<const char*>(counts.data()), counts.size());
    }
    return bytes;
  }

  EamCollection collection_{2, 8, 4, KernelsFor(Isa::kScalar)};
};

TEST_F(ServerCollectionTest, WhatIsExportedCanBeImported) {
  StartWithCollection();
  TestClient client(port());
  const TestResponse got = client.Get(kPath);
  EXPECT_EQ(got.status, 200);
  EXPECT_EQ(got.Header("Content-Type"), "application/octet-stream");
  EamCollection other(2, 8, 4, KernelsFor(Isa::kScalar));
  const CollectionSection section =
      UnpackCollection(std::as_bytes(std::span(got.body)), engine_->config());
  UpdateCollection(other, section, CollectionUpdate::kReplace);
  EXPECT_EQ(Bytes(other), Bytes(collection_));

  const std::string before = Bytes(collection_);
  engine_->SetCollection(&other);
  other.Clear();
  EXPECT_EQ(Put(got.body).body, R"({"entries":3,"capacity":4,"mode":"replace"})");
  EXPECT_EQ(Bytes(other), before);
  EXPECT_EQ(client.Get(kPath).body, got.body);
  EXPECT_EQ(Put(got.body, "?mode=replace&model=alias").status, 200);
  EXPECT_EQ(Bytes(other), before);
  // Merged with itself: the one that there is room for is appended, the others take the places of
  // those that they are.
  EXPECT_EQ(Put(got.body, "?mode=merge").body, R"({"entries":4,"capacity":4,"mode":"merge"})");
  EXPECT_EQ(Bytes(other).substr(0, before.size()), before);
}

TEST_F(ServerCollectionTest, DamagedInputChangesNothing) {
  StartWithCollection();
  const std::string whole = TestClient(port()).Get(kPath).body;
  const std::string before = Bytes(collection_);
  const auto refused = [&](const std::string& body) {
    for (const char* query : {"", "?mode=merge"}) {
      const TestResponse response = Put(body, query);
      EXPECT_EQ(response.status, 400);
      EXPECT_EQ(response.json()["error"]["code"], "bad_collection");
    }
    EXPECT_EQ(Bytes(collection_), before);
  };
  for (size_t i = 0; i < whole.size(); i += 3) {
    refused(whole.substr(0, i));
    std::string flipped = whole;
    flipped[i] = static_cast<char>(flipped[i] ^ 0x20);
    refused(flipped);
  }
  ModelConfig another = engine_->config();
  another.vocab_size = 99;
  const std::vector<std::byte> packed = PackCollection(CopyCollection(collection_), another);
  refused(std::string(reinterpret_cast<const char*>(packed.data()), packed.size()));
  EamCollection wider(2, 9, 4, KernelsFor(Isa::kScalar));
  const std::vector<std::byte> wide = PackCollection(CopyCollection(wider), engine_->config());
  refused(std::string(reinterpret_cast<const char*>(wide.data()), wide.size()));
  EXPECT_EQ(Put(whole, "?mode=mend").status, 400);
  EXPECT_EQ(Put(whole, "?model=nobody").status, 404);
  EXPECT_EQ(TestClient(port()).Get(std::string(kPath) + "?model=nobody").status, 404);
  EXPECT_EQ(Put(whole).status, 200);
}

TEST_F(ServerCollectionTest, OtherPredictorsHaveNone) {
  Start();
  EXPECT_EQ(TestClient(port()).Get(kPath).json()["error"]["code"], "no_collection");
  const std::vector<std::byte> packed =
      PackCollection(CopyCollection(collection_), engine_->config());
  const TestResponse put =
      Put(std::string(reinterpret_cast<const char*>(packed.data()), packed.size()));
  EXPECT_EQ(put.status, 404);
  EXPECT_NE(put.body.find("--predictor eamc"), std::string::npos);
}

TEST_F(ServerCollectionTest, BodiesAreBounded) {
  options_.max_body_bytes = 1000;
  StartWithCollection();
  EXPECT_EQ(Put(std::string(1001, 'x')).status, 413);
  EXPECT_EQ(Put(std::string(1000, 'x')).status, 400);
  options_.request_memory_bytes = 2000;
  StartWithCollection();
  EXPECT_EQ(Put(std::string(501, 'x')).status, 413);
  EXPECT_EQ(Put("", "", "Content-Encoding: gzip\r\n").status, 415);
}

TEST_F(ServerCollectionTest, AdministratorsOnly) {
  const TempDir directory;
  options_.api_key_file = directory.path() / "keys";
  std::ofstream(options_.api_key_file) << "user\n"
                                       << R"({"key": "boss", "admin": true})"
                                       << "\n";
  StartWithCollection();
  const auto with = [&](const char* key) {
    return TestClient(port()).Get(kPath, fmt::format("Authorization: Bearer {}\r\n", key));
  };
  EXPECT_EQ(with("nobody").status, 401);
  EXPECT_EQ(with("user").status, 403);
  EXPECT_EQ(with("user").json()["error"]["code"], "admin_key_needed");
  const TestResponse got = with("boss");
  EXPECT_EQ(got.status, 200);
  EXPECT_EQ(Put(got.body, "", "Authorization: Bearer user\r\n").status, 403);
  EXPECT_EQ(Put(got.body, "", "Authorization: Bearer boss\r\n").status, 200);
  EXPECT_EQ(
      Put(got.body, "", "Authorization: Bearer boss\r\nOrigin: http://evil.example\r\n").status,
      403);
}

TEST_F(ServerCollectionTest, WithoutKeysOnlyOnLoopback) {
  options_.host = "0.0.0.0";
  options_.insecure = true;
  StartWithCollection();
  EXPECT_EQ(TestClient(port()).Get(kPath).status, 403);
  EXPECT_EQ(TestClient(port()).Get("/v1/models").status, 200);
  EXPECT_EQ(Put("x").status, 403);
}

// An engine in the middle of a long step finds clients, or the whole server, gone.
TEST_F(ServerCollectionTest, EnginesMayBeLate) {
  engine_options_.manual = true;
  StartWithCollection();
  const std::vector<std::byte> packed =
      PackCollection(CopyCollection(collection_), engine_->config());
  const std::string body(reinterpret_cast<const char*>(packed.data()), packed.size());
  const auto begin = [&](TestClient& client, bool put) {
    std::string text = TestClient::PostText(kPath, put ? body : "");
    text.replace(0, 4, put ? "PUT" : "GET");
    client.Send(text);
  };
  const auto wait_for = [&](size_t uses) {
    while (engine_->waiting_uses() < uses) std::this_thread::yield();
  };
  {
    TestClient stays(port());
    begin(stays, false);
    wait_for(1);
    TestClient leaves(port());
    begin(leaves, true);
    wait_for(2);
    leaves.Reset();
    WaitForMetric("moe_http_connections", 1);
    engine_->RunUses();
    EXPECT_EQ(stays.Receive().body, body);
  }
  TestClient cut(port());
  begin(cut, true);
  wait_for(1);
  TestClient cut_too(port());
  begin(cut_too, false);
  wait_for(2);
  server_->Stop(std::chrono::milliseconds(0));
  EXPECT_EQ(cut.Receive().status, 503);
  EXPECT_EQ(cut_too.Receive().status, 503);
  server_.reset();
  engine_->RunUses();
}

}  // namespace
}  // namespace moesaic
