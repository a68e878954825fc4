// A server of experts (serving/experts): who gets what in which order, and strangers, who get
// nothing.
#include "serving/experts/expert_server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "tests/core/base/caught.h"
#include "tests/core/io/remote_reader_rig.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

using ExpertServerTest = RemoteReaderTest;

// Answers come in the order of the requests, whichever was made first, and those behind one that
// cannot be given come all the same.
TEST_F(ExpertServerTest, RequestsThatComeTogetherAreAnsweredInTheirOrder) {
  const fs::path store = Store("cut");
  fs::copy(Store(), store, fs::copy_options::recursive);
  const auto server = Serve(Options(), {store});
  fs::resize_file(ExpertStoreDataFile(store), data_.size() - 100);
  const auto client = ConnectTo(server->port());
  const auto hello = client->ReceiveFrame<ExpertHello>(kExpertHelloBytes);
  const ExpertNonce nonce = RandomExpertNonce();
  const ExpertStoreIdentity identity = server->identities()[0];
  client->SendFrame(
      ExpertAuth{nonce, identity, ClientMac(kServedKey, hello.nonce, nonce, identity)},
      kExpertAuthBytes);
  client->Receive(kExpertWelcomeBytes);
  std::vector<ExpertReadRequest> requests;
  for (uint64_t id = 1; id <= 60; ++id) {
    // Long ones and short ones in turn, every tenth one from where the file has nothing any more.
    const uint64_t bytes = id % 10 == 0 ? 10 : id % 2 == 0 ? 1 << 20 : 1 + random_() % 100;
    const uint64_t at = id % 10 == 0 ? data_.size() - 10 : random_() % (data_.size() - (2 << 20));
    requests.push_back({id, at, static_cast<uint32_t>(bytes)});
    client->SendFrame(requests.back(), kExpertReadRequestBytes);
  }
  for (const ExpertReadRequest& request : requests) {
    const auto reply = client->ReceiveFrame<ExpertReadReply>(kExpertReadReplyBytes);
    ASSERT_EQ(reply.id, request.id);
    ASSERT_EQ(reply.error, request.id % 10 == 0 ? ENODATA : 0);
    if (reply.error != 0) continue;
    const std::vector<std::byte> bytes = client->Receive(request.bytes);
    ASSERT_EQ(bytes.size(), request.bytes);
    ASSERT_EQ(std::memcmp(bytes.data(), data_.data() + request.offset, bytes.size()), 0);
    ASSERT_EQ(reply.checksum, Hash64(bytes));
  }
  EXPECT_EQ(server->counters().reads, 60u);
}

TEST_F(ExpertServerTest, StrangersGetANonceAndHaveToLeave) {
  ExpertServerOptions options = Options();
  options.patience = std::chrono::milliseconds(20);
  const auto strict = Serve(options);
  const std::vector<std::byte> bytes(1000, std::byte{0x5a});
  for (const size_t sent : {size_t{0}, size_t{1}, kExpertAuthBytes, size_t{1000}}) {
    const auto stranger = ConnectTo(strict->port());
    EXPECT_EQ(stranger->Receive(kExpertHelloBytes).size(), kExpertHelloBytes);
    stranger->Send(std::span(bytes).first(sent));
    stranger->Receive(kExpertWelcomeBytes);  // without a MAC, to who has sent as much as a frame
    EXPECT_TRUE(stranger->ClosedByPeer());
  }
  // A recorded handshake opens nothing: its nonce was another.
  const auto server = Serve();
  const ExpertStoreIdentity store = server->identities()[0];
  const auto client = ConnectTo(server->port());
  const auto hello = client->ReceiveFrame<ExpertHello>(kExpertHelloBytes);
  const ExpertNonce nonce = RandomExpertNonce();
  const ExpertAuth auth = {nonce, store, ClientMac(kServedKey, hello.nonce, nonce, store)};
  client->SendFrame(auth, kExpertAuthBytes);
  EXPECT_EQ(client->Receive(kExpertWelcomeBytes).size(), kExpertWelcomeBytes);
  const auto replayed = ConnectTo(server->port());
  EXPECT_EQ(replayed->Receive(kExpertHelloBytes).size(), kExpertHelloBytes);
  replayed->SendFrame(auth, kExpertAuthBytes);
  const auto refused = replayed->ReceiveFrame<ExpertWelcome>(kExpertWelcomeBytes);
  EXPECT_NE(refused.status, ExpertWelcomeStatus::kOk);
  EXPECT_TRUE(SameMac(refused.mac, {}));
  EXPECT_TRUE(replayed->ClosedByPeer());
  EXPECT_EQ(server->counters().clients, 1u);
  EXPECT_EQ(server->counters().reads, 0u);
}

TEST_F(ExpertServerTest, StrangersCannotKeepOthersOut) {
  const auto server = Serve();
  std::vector<std::unique_ptr<TestSocket>> strangers;
  strangers.reserve(40);
  for (int i = 0; i < 40; ++i) strangers.push_back(ConnectTo(server->port()));
  const auto reader = MakeRemoteReader(Remote(server->port()), 4);
  EXPECT_EQ(ReadSome(*reader, 10), 0);
  for (size_t i = 0; i < 36; ++i) {  // but for the last ones
    strangers[i]->Receive(kExpertHelloBytes);
    EXPECT_TRUE(strangers[i]->ClosedByPeer());
  }
}

TEST_F(ExpertServerTest, WhoAsksForWhatIsNotThereHasToLeave) {
  const auto server = Serve();
  const auto client = ConnectTo(server->port());
  const auto hello = client->ReceiveFrame<ExpertHello>(kExpertHelloBytes);
  const ExpertNonce nonce = RandomExpertNonce();
  const ExpertStoreIdentity store = server->identities()[0];
  client->SendFrame(ExpertAuth{nonce, store, ClientMac(kServedKey, hello.nonce, nonce, store)},
                    kExpertAuthBytes);
  const auto welcome = client->ReceiveFrame<ExpertWelcome>(kExpertWelcomeBytes);
  EXPECT_EQ(welcome.status, ExpertWelcomeStatus::kOk);
  EXPECT_TRUE(
      SameMac(welcome.mac, ServerMac(kServedKey, hello.nonce, nonce, store, welcome.status)));
  client->SendFrame(ExpertReadRequest{1, data_.size() - 10, 10}, kExpertReadRequestBytes);
  const auto reply = client->ReceiveFrame<ExpertReadReply>(kExpertReadReplyBytes);
  EXPECT_EQ(reply.bytes, 10u);
  EXPECT_EQ(client->Receive(10).size(), 10u);
  client->SendFrame(ExpertReadRequest{2, data_.size() - 10, 11}, kExpertReadRequestBytes);
  EXPECT_TRUE(client->ClosedByPeer());
}

TEST_F(ExpertServerTest, AServerHasSoManyClientsAndNoMore) {
  ExpertServerOptions options = Options();
  options.max_clients = 1;
  const auto server = Serve(options);
  auto first = MakeRemoteReader(Remote(server->port()), 2);
  const auto second = MakeRemoteReader(Remote(server->port()), 2);
  EXPECT_EQ(ReadOne(*first), 4096);
  EXPECT_EQ(ReadOne(*second), -EBUSY);
  first.reset();
  int tries = 0;
  while (ReadOne(*second) < 0) {
    std::vector<ReadCompletion> done;
    second->Wait(done, 10'000);
    ASSERT_LT(++tries, 1000);
  }
}

TEST_F(ExpertServerTest, AServerLimitsWhatItSends) {
  ExpertServerOptions options = Options();
  options.client_bytes_per_s = 32 << 20;
  std::unique_ptr<ExpertServer> server;
  try {
    server = Serve(options);
  } catch (const Error& error) {
    ASSERT_EQ(error.kind(), ErrorKind::kUnsupported);
    GTEST_SKIP() << error.what();
  }
  const auto reader = MakeRemoteReader(Remote(server->port()), 2);
  const Stopwatch watch;
  EXPECT_EQ(ReadOne(*reader, 8 << 20), 8 << 20);
  EXPECT_GT(watch.seconds(), 0.1);  // of 0.25: the first packets are not held back
}

TEST_F(ExpertServerTest, AServerThatCannotListenSaysSo) {
  const auto server = Serve();
  const Error error = Caught([&] { Serve(Options(server->port())); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
  EXPECT_TRUE(Contains(error, fmt::format("127.0.0.1:{}", server->port()))) << error.what();
  EXPECT_EQ(Caught([&] { Serve(Options(), {Store("none")}); }).kind(), ErrorKind::kNotFound);
}

}  // namespace
}  // namespace moesaic
