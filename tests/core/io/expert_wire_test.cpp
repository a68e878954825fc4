// What a server of experts and its clients say to each other: frames, MACs, addresses, keys.
#include "core/io/expert_wire.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/core/base/caught.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

const std::string kKey = "a key that both of them know";

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

}  // namespace
}  // namespace moesaic
