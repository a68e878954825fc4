// A reader of an expert store on another machine, over loopback; servers that do not keep to the
// protocol, fall silent or are lost.
#include "core/io/remote_reader.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/io/striped_reader.h"
#include "tests/core/base/caught.h"
#include "tests/core/io/remote_reader_rig.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

TEST_F(RemoteReaderTest, ReadsWhatTheFileHas) {
  const auto server = Serve();
  RemoteStore remote = Remote(server->port());
  remote.peer.host = "localhost";  // which may have two addresses, on one of which nobody listens
  const auto reader = MakeRemoteReader(remote, 6);
  EXPECT_EQ(ReadSome(*reader, 100), 0);
  EXPECT_EQ(server->counters().clients, 1u);
  EXPECT_GT(server->counters().bytes, uint64_t{1} << 20);
  reader->Wake();
  std::vector<ReadCompletion> done;
  reader->Wait(done, -1);
  EXPECT_TRUE(done.empty());
  reader->Wait(done, 0);
  EXPECT_TRUE(done.empty());
}

TEST_F(RemoteReaderTest, AReadThatIsLongerThanARequestIsCut) {
  ASSERT_GT(data_.size(), kMostExpertReadBytes + (1u << 20));
  const auto server = Serve();
  const auto reader = MakeRemoteReader(Remote(server->port()), 2);
  EXPECT_EQ(ReadOne(*reader, kMostExpertReadBytes + 5), kMostExpertReadBytes + 5);
  EXPECT_EQ(server->counters().reads, 2u);
  // What lies behind the end is not asked for.
  EXPECT_EQ(ReadOne(*reader, 4 * kMostExpertReadBytes), static_cast<int64_t>(data_.size()));
  EXPECT_EQ(server->counters().reads, 4u);
}

TEST_F(RemoteReaderTest, TheClientGetsTheStoreThatItWants) {
  std::vector<std::byte> other;
  MakeStore("other", 2, other);
  const auto server = Serve(Options(), {Store("other"), Store()});
  EXPECT_EQ(ReadSome(*MakeRemoteReader(Remote(server->port()), 4), 10), 0);
}

TEST_F(RemoteReaderTest, OtherKeysAndOtherExpertsAreRefused) {
  const auto server = Serve();
  RemoteStore remote = Remote(server->port());
  remote.key = "a key that nobody knows";
  const Error key = Caught([&] { MakeRemoteReader(remote, 2); });
  EXPECT_EQ(key.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(Contains(key, "does not have the same shared key")) << key.what();
  remote = Remote(server->port());
  ++remote.store.experts;
  EXPECT_TRUE(Contains(Caught([&] { MakeRemoteReader(remote, 2); }), "no store with the experts"));
  // A server that does not know the key gets nothing of it, and no reads.
  const OtherServer stranger(
      [](TestSocket& client) { Welcome(client, "what it guesses the key is"); });
  const Error guessed = Caught([&] { MakeRemoteReader(Remote(stranger.port()), 2); });
  EXPECT_TRUE(Contains(guessed, "does not have the same shared key")) << guessed.what();
  EXPECT_EQ(server->counters().clients, 0u);
  EXPECT_EQ(server->counters().reads, 0u);
}

TEST_F(RemoteReaderTest, AFileThatBecameShorterFailsTheReadsThatWantItsEnd) {
  const fs::path store = Store("shortened");
  fs::copy(Store(), store, fs::copy_options::recursive);
  const auto server = Serve(Options(), {store});
  const auto reader = MakeRemoteReader(Remote(server->port()), 4);
  fs::resize_file(ExpertStoreDataFile(store), kMostExpertReadBytes);
  EXPECT_EQ(ReadOne(*reader, kMostExpertReadBytes + 1), -ENODATA);  // the second of two requests
  fs::resize_file(ExpertStoreDataFile(store), 1 << 20);
  EXPECT_EQ(ReadOne(*reader, 2 << 20), -ENODATA);
  EXPECT_EQ(ReadOne(*reader, 1 << 20), 1 << 20);
  EXPECT_EQ(server->counters().clients, 1u);
}

TEST_F(RemoteReaderTest, ALostServerFailsReadsAtOnceAndIsThereAgainWhenItIs) {
  auto server = Serve();
  const uint16_t port = server->port();
  const auto reader = MakeRemoteReader(Remote(port), 4);
  EXPECT_EQ(ReadSome(*reader, 8), 0);
  server.reset();
  EXPECT_EQ(ReadSome(*reader, 8), 8);
  server = Serve(Options(port));
  // Each refused read tries to connect; while that goes on the next ones fail, too.
  int tries = 0;
  while (ReadSome(*reader, 1) > 0) {
    std::vector<ReadCompletion> done;
    reader->Wait(done, 10'000);
    ASSERT_LT(++tries, 1000);
  }
  EXPECT_EQ(ReadSome(*reader, 8), 0);
}

TEST_F(RemoteReaderTest, AServerThatIsNotThereFailsReadsWithTheReason) {
  uint16_t port = 0;
  {
    const auto server = Serve();
    port = server->port();
  }
  const auto reader = MakeRemoteReader(Remote(port), 4);
  EXPECT_EQ(ReadOne(*reader), -ECONNREFUSED);
  RemoteStore nowhere = Remote(port);
  nowhere.peer.host = "no such host";
  EXPECT_EQ(ReadOne(*MakeRemoteReader(nowhere, 4)), -EHOSTUNREACH);
}

// Answers that are none lose the connection; the read fails, and may be read elsewhere.
TEST_F(RemoteReaderTest, ServersThatSayWrongThingsAreLost) {
  const std::span<const std::byte> right = std::span<const std::byte>(data_).first(4096);
  const uint64_t checksum = Hash64(right);
  struct Case {
    const char* what;
    int error;
    std::function<void(TestSocket&, const ExpertReadRequest&)> answer;
  };
  const std::vector<Case> cases = {
      {"bytes without their checksum", EBADMSG,
       [&](TestSocket& client, const ExpertReadRequest& request) {
         client.SendFrame(ExpertReadReply{request.id, request.bytes, 0, checksum + 1},
                          kExpertReadReplyBytes);
         client.Send(right);
       }},
      {"another read", EPROTO,
       [&](TestSocket& client, const ExpertReadRequest& request) {
         client.SendFrame(ExpertReadReply{request.id + 1, request.bytes, 0, checksum},
                          kExpertReadReplyBytes);
         client.Send(right);
       }},
      {"fewer bytes", EPROTO,
       [&](TestSocket& client, const ExpertReadRequest& request) {
         client.SendFrame(ExpertReadReply{request.id, request.bytes - 1, 0, checksum},
                          kExpertReadReplyBytes);
       }},
      {"no frame", EPROTO,
       [&](TestSocket& client, const ExpertReadRequest&) {
         client.Send(right.first(kExpertReadReplyBytes));
       }},
      {"half of it", ECONNRESET,
       [&](TestSocket& client, const ExpertReadRequest& request) {
         client.SendFrame(ExpertReadReply{request.id, request.bytes, 0, checksum},
                          kExpertReadReplyBytes);
         client.Send(right.first(2000));
       }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    const OtherServer server([&](TestSocket& client) {
      Welcome(client);
      one.answer(client, client.ReceiveFrame<ExpertReadRequest>(kExpertReadRequestBytes));
    });
    EXPECT_EQ(ReadOne(*MakeRemoteReader(Remote(server.port()), 2)), -one.error);
  }
  // One that ends before it has welcomed the client is lost, and does not end the start.
  const OtherServer ending([](TestSocket& client) {
    client.SendFrame(ExpertHello{RandomExpertNonce()}, kExpertHelloBytes);
  });
  EXPECT_EQ(ReadOne(*MakeRemoteReader(Remote(ending.port()), 2)), -ECONNRESET);
  const OtherServer other([&](TestSocket& client) { client.Send(right); });
  EXPECT_EQ(ReadOne(*MakeRemoteReader(Remote(other.port()), 2)), -EPROTO);
}

TEST_F(RemoteReaderTest, ServersThatFallSilentAreLost) {
  for (const bool in_handshake : {true, false}) {
    const OtherServer server([&](TestSocket& client) {
      if (!in_handshake) Welcome(client);
      while (!client.ClosedByPeer()) {
      }
    });
    RemoteStore remote = Remote(server.port());
    remote.patience_ms = 30;
    EXPECT_EQ(ReadOne(*MakeRemoteReader(remote, 2)), -ETIMEDOUT);
  }
}

// Where nothing is asked of a server, its end must not keep the waiting thread busy.
TEST_F(RemoteReaderTest, AnIdleReaderWhoseServerEndsSleeps) {
  auto server = Serve();
  const auto reader = MakeRemoteReader(Remote(server->port()), 2);
  server.reset();
  const auto cpu_us = [] {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1'000'000 + time.tv_nsec / 1000;
  };
  const int64_t before_us = cpu_us();
  std::vector<ReadCompletion> done;
  reader->Wait(done, 100'000);
  EXPECT_TRUE(done.empty());
  EXPECT_LT(cpu_us() - before_us, 50'000);
}

// Beside a disk: the same bytes, from both; and from the disk alone when the server is gone, also
// with reads under way.
TEST_F(RemoteReaderTest, SharesTheReadingWithADisk) {
  auto server = Serve();
  const RemoteStore remote = Remote(server->port());
  const auto reader =
      OpenStripedReader(std::vector<std::vector<fs::path>>{{ExpertStoreDataFile(Store())}},
                        std::span(&remote, 1), ReadBackend::kBuffered, 4, 0);
  EXPECT_EQ(ReadOne(*reader, kServedSlotBytes), static_cast<int64_t>(kServedSlotBytes));
  std::vector<ReaderLink> links;
  reader->Links(links);
  EXPECT_EQ(links[1].name, fmt::format("tcp://127.0.0.1:{}", server->port()));
  EXPECT_GT(links[0].bytes, 0u);
  EXPECT_GT(links[1].bytes, 0u);
  std::thread ends([&] {
    const uint64_t reads = server->counters().reads;
    while (server->counters().reads < reads + 3) std::this_thread::yield();
    server.reset();
  });
  for (int round = 0; round < 1000; ++round) {
    ASSERT_EQ(ReadSome(*reader, 8), 0);
    reader->Links(links);
    if (links[1].failed > 0) break;
  }
  ends.join();
  EXPECT_EQ(ReadSome(*reader, 50), 0);
  reader->Links(links);
  EXPECT_GT(links[1].failed, 0u);
  EXPECT_EQ(links[0].failed, 0u);
}

TEST_F(RemoteReaderTest, ADestroyedReaderWritesNothingMore) {
  const auto server = Serve();
  for (int round = 0; round < 5; ++round) {
    AlignedBuffer buffer(4 << 20);
    const auto reader = MakeRemoteReader(Remote(server->port()), 4);
    for (uint64_t i = 0; i < 4; ++i) {
      reader->Submit({0, i << 20, 1 << 20, buffer.data() + (i << 20), i});
    }
  }
}

}  // namespace
}  // namespace moesaic
