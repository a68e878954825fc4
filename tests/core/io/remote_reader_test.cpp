// A server of experts (serving/experts), and a reader of its bytes, over loopback; servers and
// clients that do not keep to the protocol.
#include "core/io/remote_reader.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/io/expert_store.h"
#include "core/io/expert_wire.h"
#include "core/io/striped_reader.h"
#include "serving/experts/expert_server.h"
#include "tests/core/base/caught.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSlotBytes = 640 << 10;
constexpr int kExperts = 16;
constexpr int64_t kLongMs = 60'000;
const std::string kKey = "a key that both of them know";

// --- frames

template <typename Frame>
void CheckFrame(const Frame& frame, size_t bytes) {
  std::vector<std::byte> written(bytes);
  WriteExpertFrame(frame, written);
  Frame read;
  ASSERT_TRUE(ReadExpertFrame(written, read));
  std::vector<std::byte> again(bytes);
  WriteExpertFrame(read, again);
  EXPECT_EQ(written, again);
  // No bit of it may change, nor its length.
  for (size_t bit = 0; bit < 8 * bytes; ++bit) {
    std::vector<std::byte> damaged = written;
    damaged[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(ReadExpertFrame(damaged, read)) << bit;
  }
  EXPECT_FALSE(ReadExpertFrame(std::span(written).first(bytes - 1), read));
  written.push_back({});
  EXPECT_FALSE(ReadExpertFrame(written, read));
}

TEST(ExpertWire, FramesComeBackAsTheyWereOrNotAtAll) {
  CheckFrame(ExpertHello{RandomExpertNonce()}, kExpertHelloBytes);
  CheckFrame(ExpertAuth{RandomExpertNonce(), {1, 2}, RandomExpertNonce()}, kExpertAuthBytes);
  CheckFrame(ExpertWelcome{ExpertWelcomeStatus::kFull, RandomExpertNonce()}, kExpertWelcomeBytes);
  CheckFrame(ExpertReadRequest{3, 4096, kMostExpertReadBytes}, kExpertReadRequestBytes);
  CheckFrame(ExpertReadReply{3, kMostExpertReadBytes, 0, 5}, kExpertReadReplyBytes);
  CheckFrame(ExpertReadReply{3, 0, EIO, 0}, kExpertReadReplyBytes);
}

TEST(ExpertWire, FieldsThatCannotBeAreRefused) {
  const auto accepted = [](const auto& frame, size_t bytes) {
    std::vector<std::byte> written(bytes);
    WriteExpertFrame(frame, written);
    auto read = frame;
    return ReadExpertFrame(written, read);
  };
  const auto request = [&](uint32_t bytes) {
    return accepted(ExpertReadRequest{1, 0, bytes}, kExpertReadRequestBytes);
  };
  EXPECT_FALSE(request(0));
  EXPECT_TRUE(request(1));
  EXPECT_FALSE(request(kMostExpertReadBytes + 1));
  const auto reply = [&](uint32_t bytes, int32_t error) {
    return accepted(ExpertReadReply{1, bytes, error, 0}, kExpertReadReplyBytes);
  };
  EXPECT_TRUE(reply(0, EIO));
  EXPECT_FALSE(reply(0, 0));
  EXPECT_FALSE(reply(1, EIO));
  EXPECT_FALSE(reply(0, -EIO));
  EXPECT_FALSE(reply(0, 4096));
  EXPECT_FALSE(reply(kMostExpertReadBytes + 1, 0));
  EXPECT_FALSE(
      accepted(ExpertWelcome{static_cast<ExpertWelcomeStatus>(3), {}}, kExpertWelcomeBytes));
}

TEST(ExpertWire, EverythingOfAHandshakeIsInItsMacs) {
  const ExpertNonce a = RandomExpertNonce();
  const ExpertNonce b = RandomExpertNonce();
  const ExpertStoreIdentity store = {1, 2};
  const ExpertMac client = ClientMac(kKey, a, b, store);
  EXPECT_TRUE(SameMac(client, ClientMac(kKey, a, b, store)));
  EXPECT_FALSE(SameMac(client, ClientMac(kKey + "x", a, b, store)));
  EXPECT_FALSE(SameMac(client, ClientMac(kKey, b, a, store)));
  EXPECT_FALSE(SameMac(client, ClientMac(kKey, a, a, store)));
  EXPECT_FALSE(SameMac(client, ClientMac(kKey, b, b, store)));
  EXPECT_FALSE(SameMac(client, ClientMac(kKey, a, b, {2, 2})));
  EXPECT_FALSE(SameMac(client, ClientMac(kKey, a, b, {1, 3})));
  // What one side says is of no use to the other.
  const auto server = [&](ExpertWelcomeStatus status) {
    return ServerMac(kKey, a, b, store, status);
  };
  EXPECT_FALSE(SameMac(client, server(ExpertWelcomeStatus::kOk)));
  EXPECT_FALSE(SameMac(server(ExpertWelcomeStatus::kOk), server(ExpertWelcomeStatus::kFull)));
}

TEST(ExpertWire, AddressesAreRead) {
  const auto name = [](const char* text) { return ExpertPeerName(ParseExpertPeer(text)); };
  EXPECT_EQ(name("tcp://other:7450"), "tcp://other:7450");
  EXPECT_EQ(name("tcp://10.0.0.1:1/"), "tcp://10.0.0.1:1");
  EXPECT_EQ(name("tcp://[::1]:65535"), "tcp://[::1]:65535");
  EXPECT_EQ(ParseExpertPeer("tcp://[::1]:65535").host, "::1");
  EXPECT_FALSE(IsExpertPeer("/disk/tcp://a:1"));
  for (const char* text :
       {"tcp://", "tcp://a", "tcp://:7450", "tcp://a:0", "tcp://a:65536", "tcp://a:12x",
        "tcp://a:7450/store", "tcp://::1:7450", "tcp://a b:1", "tcp://[]:1", "tcp://me@a:1"}) {
    const Error error = Caught([&] { ParseExpertPeer(text); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << text;
    EXPECT_TRUE(Contains(error, "tcp://HOST:PORT")) << error.what();
  }
}

TEST(ExpertWire, KeysAreReadFromOnePlace) {
  const TempDir dir;
  const fs::path file = dir.path() / "key";
  const auto write = [&](const std::string& text) { std::ofstream(file) << text; };
  write("  " + kKey + " \r\n");
  EXPECT_EQ(ExpertKeyOf("", file), kKey);
  EXPECT_EQ(ExpertKeyOf(kKey + "\n", ""), kKey);
  EXPECT_TRUE(Contains(Caught([&] { ExpertKeyOf("", ""); }), "no key is given"));
  EXPECT_TRUE(Contains(Caught([&] { ExpertKeyOf(kKey, file); }), "leave one out"));
  EXPECT_EQ(Caught([&] { ExpertKeyOf("", dir.path() / "none"); }).kind(), ErrorKind::kNotFound);
  for (const char* text : {"", " \n", "fifteen letters"}) {
    write(text);
    const Error error = Caught([&] { ExpertKeyOf("", file); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(Contains(error, file.string())) << error.what();
  }
}

// --- who speaks the protocol by hand

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void Send(std::span<const std::byte> bytes) {
    [[maybe_unused]] const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  template <typename Frame>
  void SendFrame(const Frame& frame, size_t bytes) {
    std::vector<std::byte> written(bytes);
    WriteExpertFrame(frame, written);
    Send(written);
  }
  // Until so many bytes have come, or the other side has closed; what came.
  std::vector<std::byte> Receive(size_t bytes) {
    std::vector<std::byte> all(bytes);
    size_t done = 0;
    while (done < bytes) {
      const ssize_t n = recv(fd_, all.data() + done, bytes - done, 0);
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
    all.resize(done);
    return all;
  }
  template <typename Frame>
  Frame ReceiveFrame(size_t bytes) {
    Frame frame;
    EXPECT_TRUE(ReadExpertFrame(Receive(bytes), frame));
    return frame;
  }
  bool ClosedByPeer() { return Receive(1).empty(); }

 private:
  const int fd_;
};

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

std::unique_ptr<Socket> ConnectTo(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return std::make_unique<Socket>(fd);
}

// A server that answers one client as `talk` does.
class OtherServer {
 public:
  explicit OtherServer(std::function<void(Socket&)> talk)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = Loopback(0);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd_, 1), 0);
    socklen_t bytes = sizeof(address);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, talk = std::move(talk)] {
      Socket client(accept(fd_, nullptr, nullptr));
      talk(client);
    });
  }
  ~OtherServer() {
    shutdown(fd_, SHUT_RDWR);  // ends an accept
    thread_.join();
    close(fd_);
  }
  uint16_t port() const { return port_; }

 private:
  const int fd_;
  uint16_t port_ = 0;
  std::thread thread_;
};

// A server's handshake. Does nothing more with a client that has left.
void Welcome(Socket& client, const std::string& key = kKey) {
  const ExpertNonce nonce = RandomExpertNonce();
  client.SendFrame(ExpertHello{nonce}, kExpertHelloBytes);
  ExpertAuth auth;
  if (!ReadExpertFrame(client.Receive(kExpertAuthBytes), auth)) return;
  const auto ok = ExpertWelcomeStatus::kOk;
  client.SendFrame(ExpertWelcome{ok, ServerMac(key, nonce, auth.nonce, auth.store, ok)},
                   kExpertWelcomeBytes);
}

// --- readers and servers

class RemoteReaderTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = std::make_unique<TempDir>();
    MakeStore("store", 1, data_);
  }
  static void TearDownTestSuite() { dir_.reset(); }

  static void MakeStore(const std::string& name, uint64_t seed, std::vector<std::byte>& data) {
    ExpertStoreHeader header;
    header.source_fingerprint = 5;
    header.model_type = "qwen3_moe";
    header.layout.sections = {
        {"gate", DType::kF32, SectionFormat::kRowMajor, 160, 1024, 0, kSlotBytes}};
    header.layout.blob_bytes = kSlotBytes;
    header.layout.slot_bytes = kSlotBytes;
    header.sparse_layers = {0};
    header.num_experts = kExperts;
    ExpertStoreWriter writer(dir_->path() / name, header);
    std::mt19937_64 random(seed);
    std::vector<std::byte> blob(kSlotBytes);
    data.clear();
    for (int e = 0; e < kExperts; ++e) {
      for (size_t i = 0; i < blob.size(); i += 8) {
        const uint64_t value = random();
        std::memcpy(blob.data() + i, &value, 8);
      }
      writer.Append(blob);
      data.insert(data.end(), blob.begin(), blob.end());
    }
    writer.Finish();
  }
  static fs::path Store(const std::string& name = "store") { return dir_->path() / name; }

  static ExpertServerOptions Options(uint16_t port = 0) {
    ExpertServerOptions options;
    options.port = port;
    options.key = kKey;
    options.max_clients = 4;
    options.max_strangers = 4;
    options.patience = std::chrono::milliseconds(kLongMs);
    options.threads = 2;
    return options;
  }
  static std::unique_ptr<ExpertServer> Serve(const ExpertServerOptions& options = Options(),
                                             const std::vector<fs::path>& stores = {Store()}) {
    return std::make_unique<ExpertServer>(stores, options);
  }

  static RemoteStore Remote(uint16_t port) {
    return {{"127.0.0.1", port}, kKey, IdentityOf(DescribeExpertStore(Store())), kLongMs};
  }

  // One read of the beginning: what the completion says.
  static int64_t ReadOne(AsyncReader& reader, uint32_t bytes = 4096) {
    AlignedBuffer buffer(bytes);
    reader.Submit({0, 0, bytes, buffer.data(), 1});
    std::vector<ReadCompletion> done;
    while (done.empty()) reader.Wait(done, -1);
    EXPECT_EQ(done.size(), 1u);
    if (done[0].result > 0) {
      EXPECT_EQ(std::memcmp(buffer.data(), data_.data(), static_cast<size_t>(done[0].result)), 0);
    }
    return done[0].result;
  }

  // Reads at random places. Returns how many failed; compares what came.
  int ReadSome(AsyncReader& reader, int reads) {
    constexpr size_t kMostBytes = 300'000;
    const int depth = reader.free_slots();
    AlignedBuffer memory(static_cast<size_t>(depth) * kMostBytes);
    std::vector<ReadRequest> requests(static_cast<size_t>(depth));
    std::vector<ReadCompletion> done;
    int failed = 0;
    for (int submitted = 0; submitted < reads;) {
      int in_flight = 0;
      for (; in_flight < depth && submitted < reads; ++in_flight, ++submitted) {
        ReadRequest& read = requests[static_cast<size_t>(in_flight)];
        read = {0, random_() % (data_.size() + 1000),
                static_cast<uint32_t>(random_() % kMostBytes + 1),
                memory.data() + static_cast<size_t>(in_flight) * kMostBytes,
                static_cast<uint64_t>(in_flight)};
        reader.Submit(read);
      }
      done.clear();
      while (std::ssize(done) < in_flight) reader.Wait(done, -1);
      for (const ReadCompletion& completion : done) {
        const ReadRequest& read = requests[completion.tag];
        if (completion.result < 0) {
          ++failed;
          continue;
        }
        const uint64_t there = read.offset >= data_.size()
                                   ? 0
                                   : std::min<uint64_t>(read.bytes, data_.size() - read.offset);
        EXPECT_EQ(completion.result, static_cast<int64_t>(there));
        if (there > 0) {
          EXPECT_EQ(std::memcmp(read.destination, data_.data() + read.offset, there), 0);
        }
      }
    }
    EXPECT_EQ(reader.free_slots(), depth);
    return failed;
  }

  static std::unique_ptr<TempDir> dir_;
  static std::vector<std::byte> data_;  // of store "store"
  std::mt19937_64 random_{2};
};
std::unique_ptr<TempDir> RemoteReaderTest::dir_;
std::vector<std::byte> RemoteReaderTest::data_;

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
  const OtherServer stranger([](Socket& client) { Welcome(client, "what it guesses the key is"); });
  const Error guessed = Caught([&] { MakeRemoteReader(Remote(stranger.port()), 2); });
  EXPECT_TRUE(Contains(guessed, "does not have the same shared key")) << guessed.what();
  EXPECT_EQ(server->counters().clients, 0u);
  EXPECT_EQ(server->counters().reads, 0u);
}

TEST_F(RemoteReaderTest, StrangersGetANonceAndHaveToLeave) {
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
  const ExpertAuth auth = {nonce, store, ClientMac(kKey, hello.nonce, nonce, store)};
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

TEST_F(RemoteReaderTest, StrangersCannotKeepOthersOut) {
  const auto server = Serve();
  std::vector<std::unique_ptr<Socket>> strangers;
  strangers.reserve(40);
  for (int i = 0; i < 40; ++i) strangers.push_back(ConnectTo(server->port()));
  const auto reader = MakeRemoteReader(Remote(server->port()), 4);
  EXPECT_EQ(ReadSome(*reader, 10), 0);
  for (size_t i = 0; i < 36; ++i) {  // but for the last ones
    strangers[i]->Receive(kExpertHelloBytes);
    EXPECT_TRUE(strangers[i]->ClosedByPeer());
  }
}

TEST_F(RemoteReaderTest, WhoAsksForWhatIsNotThereHasToLeave) {
  const auto server = Serve();
  const auto client = ConnectTo(server->port());
  const auto hello = client->ReceiveFrame<ExpertHello>(kExpertHelloBytes);
  const ExpertNonce nonce = RandomExpertNonce();
  const ExpertStoreIdentity store = server->identities()[0];
  client->SendFrame(ExpertAuth{nonce, store, ClientMac(kKey, hello.nonce, nonce, store)},
                    kExpertAuthBytes);
  const auto welcome = client->ReceiveFrame<ExpertWelcome>(kExpertWelcomeBytes);
  EXPECT_EQ(welcome.status, ExpertWelcomeStatus::kOk);
  EXPECT_TRUE(SameMac(welcome.mac, ServerMac(kKey, hello.nonce, nonce, store, welcome.status)));
  client->SendFrame(ExpertReadRequest{1, data_.size() - 10, 10}, kExpertReadRequestBytes);
  const auto reply = client->ReceiveFrame<ExpertReadReply>(kExpertReadReplyBytes);
  EXPECT_EQ(reply.bytes, 10u);
  EXPECT_EQ(client->Receive(10).size(), 10u);
  client->SendFrame(ExpertReadRequest{2, data_.size() - 10, 11}, kExpertReadRequestBytes);
  EXPECT_TRUE(client->ClosedByPeer());
}

TEST_F(RemoteReaderTest, AServerHasSoManyClientsAndNoMore) {
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
    std::function<void(Socket&, const ExpertReadRequest&)> answer;
  };
  const std::vector<Case> cases = {
      {"bytes without their checksum", EBADMSG,
       [&](Socket& client, const ExpertReadRequest& request) {
         client.SendFrame(ExpertReadReply{request.id, request.bytes, 0, checksum + 1},
                          kExpertReadReplyBytes);
         client.Send(right);
       }},
      {"another read", EPROTO,
       [&](Socket& client, const ExpertReadRequest& request) {
         client.SendFrame(ExpertReadReply{request.id + 1, request.bytes, 0, checksum},
                          kExpertReadReplyBytes);
         client.Send(right);
       }},
      {"fewer bytes", EPROTO,
       [&](Socket& client, const ExpertReadRequest& request) {
         client.SendFrame(ExpertReadReply{request.id, request.bytes - 1, 0, checksum},
                          kExpertReadReplyBytes);
       }},
      {"no frame", EPROTO,
       [&](Socket& client, const ExpertReadRequest&) {
         client.Send(right.first(kExpertReadReplyBytes));
       }},
      {"half of it", ECONNRESET,
       [&](Socket& client, const ExpertReadRequest& request) {
         client.SendFrame(ExpertReadReply{request.id, request.bytes, 0, checksum},
                          kExpertReadReplyBytes);
         client.Send(right.first(2000));
       }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    const OtherServer server([&](Socket& client) {
      Welcome(client);
      one.answer(client, client.ReceiveFrame<ExpertReadRequest>(kExpertReadRequestBytes));
    });
    EXPECT_EQ(ReadOne(*MakeRemoteReader(Remote(server.port()), 2)), -one.error);
  }
  // One that ends before it has welcomed the client is lost, and does not end the start.
  const OtherServer ending([](Socket& client) {
    client.SendFrame(ExpertHello{RandomExpertNonce()}, kExpertHelloBytes);
  });
  EXPECT_EQ(ReadOne(*MakeRemoteReader(Remote(ending.port()), 2)), -ECONNRESET);
  const OtherServer other([&](Socket& client) { client.Send(right); });
  EXPECT_EQ(ReadOne(*MakeRemoteReader(Remote(other.port()), 2)), -EPROTO);
}

TEST_F(RemoteReaderTest, ServersThatFallSilentAreLost) {
  for (const bool in_handshake : {true, false}) {
    const OtherServer server([&](Socket& client) {
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
  EXPECT_EQ(ReadOne(*reader, kSlotBytes), static_cast<int64_t>(kSlotBytes));
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

TEST_F(RemoteReaderTest, AServerLimitsWhatItSends) {
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

TEST_F(RemoteReaderTest, AServerThatCannotListenSaysSo) {
  const auto server = Serve();
  const Error error = Caught([&] { Serve(Options(server->port())); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
  EXPECT_TRUE(Contains(error, fmt::format("127.0.0.1:{}", server->port()))) << error.what();
  EXPECT_EQ(Caught([&] { Serve(Options(), {Store("none")}); }).kind(), ErrorKind::kNotFound);
}

}  // namespace
}  // namespace moesaic
