// What tests of a server of experts (serving/experts) and of its reader begin with: a store that is
// served over loopback, and who speaks the protocol by hand.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/io/expert_store.h"
#include "core/io/expert_wire.h"
#include "core/io/remote_reader.h"
#include "serving/experts/expert_server.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {

inline constexpr uint64_t kServedSlotBytes = 640 << 10;
inline constexpr int kServedExperts = 16;
inline constexpr int64_t kServedLongMs = 60'000;
inline const std::string kServedKey = "a key that both of them know";

class TestSocket {
 public:
  explicit TestSocket(int fd) : fd_(fd) {}
  ~TestSocket() { close(fd_); }
  TestSocket(const TestSocket&) = delete;
  TestSocket& operator=(const TestSocket&) = delete;

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

inline sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

inline std::unique_ptr<TestSocket> ConnectTo(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return std::make_unique<TestSocket>(fd);
}

// A server that answers one client as `talk` does.
class OtherServer {
 public:
  explicit OtherServer(std::function<void(TestSocket&)> talk)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = Loopback(0);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd_, 1), 0);
    socklen_t bytes = sizeof(address);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, talk = std::move(talk)] {
      TestSocket client(accept(fd_, nullptr, nullptr));
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
inline void Welcome(TestSocket& client, const std::string& key = kServedKey) {
  const ExpertNonce nonce = RandomExpertNonce();
  client.SendFrame(ExpertHello{nonce}, kExpertHelloBytes);
  ExpertAuth auth;
  if (!ReadExpertFrame(client.Receive(kExpertAuthBytes), auth)) return;
  const auto ok = ExpertWelcomeStatus::kOk;
  client.SendFrame(ExpertWelcome{ok, ServerMac(key, nonce, auth.nonce, auth.store, ok)},
                   kExpertWelcomeBytes);
}

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
        {"gate", DType::kF32, SectionFormat::kRowMajor, 160, 1024, 0, kServedSlotBytes}};
    header.layout.blob_bytes = kServedSlotBytes;
    header.layout.slot_bytes = kServedSlotBytes;
    header.sparse_layers = {0};
    header.num_experts = kServedExperts;
    ExpertStoreWriter writer(dir_->path() / name, header);
    std::mt19937_64 random(seed);
    std::vector<std::byte> blob(kServedSlotBytes);
    data.clear();
    for (int e = 0; e < kServedExperts; ++e) {
      for (size_t i = 0; i < blob.size(); i += 8) {
        const uint64_t value = random();
        std::memcpy(blob.data() + i, &value, 8);
      }
      writer.Append(blob);
      data.insert(data.end(), blob.begin(), blob.end());
    }
    writer.Finish();
  }
  static std::filesystem::path Store(const std::string& name = "store") {
    return dir_->path() / name;
  }

  static ExpertServerOptions Options(uint16_t port = 0) {
    ExpertServerOptions options;
    options.port = port;
    options.key = kServedKey;
    options.max_clients = 4;
    options.max_strangers = 4;
    options.patience = std::chrono::milliseconds(kServedLongMs);
    options.threads = 2;
    return options;
  }
  static std::unique_ptr<ExpertServer> Serve(const ExpertServerOptions& options = Options(),
                                             const std::vector<std::filesystem::path>& stores = {
                                                 Store()}) {
    return std::make_unique<ExpertServer>(stores, options);
  }

  static RemoteStore Remote(uint16_t port) {
    return {
        {"127.0.0.1", port}, kServedKey, IdentityOf(DescribeExpertStore(Store())), kServedLongMs};
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

  inline static std::unique_ptr<TempDir> dir_;
  inline static std::vector<std::byte> data_;  // of store "store"
  std::mt19937_64 random_{2};
};

}  // namespace moesaic
