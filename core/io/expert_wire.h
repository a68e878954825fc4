// What a server of expert stores (serving/experts) and its clients say to each other: frames of
// fixed sizes, each with its kind, its length and a checksum; bytes of experts follow a reply.
//
//   server  hello: a random nonce
//   client  auth: a nonce of its own, which store it wants (by what is in it), and HMAC-SHA256 of
//           both nonces and the store under the shared key
//   server  welcome: whether it has the store, and HMAC of all of that, so that the client knows
//           that the server has the key, too. Who does not know it gets one without a MAC, which
//           tells another key from a lost server, and the connection is closed
//   client  requests of bytes, any number at a time
//   server  replies, in the order of the requests; behind each the bytes
//
// The key itself is never sent, and a recorded handshake opens nothing, because both sides choose a
// nonce. (Who records one can try keys against it: a key is to be random, not a word.) What follows
// the handshake is neither encrypted nor signed: its checksums find accidents. A network that is
// not trusted needs a tunnel.
//
// Plain functions on bytes of strangers: those that read frames do not allocate, block or throw.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace moesaic {

using ExpertNonce = std::array<std::byte, 32>;
using ExpertMac = std::array<std::byte, 32>;

// Stores with the same experts have the same one (IdentityOf, expert_store.h).
struct ExpertStoreIdentity {
  uint64_t experts = 0;  // a hash of their checksums and shape
  uint64_t bytes = 0;    // of the file with the experts
  bool operator==(const ExpertStoreIdentity&) const = default;
};

struct ExpertHello {
  ExpertNonce nonce = {};
};
struct ExpertAuth {
  ExpertNonce nonce = {};
  ExpertStoreIdentity store;
  ExpertMac mac = {};
};
enum class ExpertWelcomeStatus : uint32_t {
  kOk,
  kNoSuchStore,  // the server has no store with these experts
  kFull,         // it serves as many clients as it may
};
struct ExpertWelcome {
  ExpertWelcomeStatus status = ExpertWelcomeStatus::kOk;
  ExpertMac mac = {};
};
struct ExpertReadRequest {
  uint64_t id = 0;
  uint64_t offset = 0;
  uint32_t bytes = 0;  // 1 to kMostExpertReadBytes
};
struct ExpertReadReply {
  uint64_t id = 0;
  uint32_t bytes = 0;     // that follow: as many as were requested
  int32_t error = 0;      // an errno, and nothing follows
  uint64_t checksum = 0;  // Hash64 of what follows
};

// Of a whole frame.
constexpr size_t kExpertFrameHeadBytes = 16;
constexpr size_t kExpertHelloBytes = kExpertFrameHeadBytes + 32;
constexpr size_t kExpertAuthBytes = kExpertFrameHeadBytes + 80;
constexpr size_t kExpertWelcomeBytes = kExpertFrameHeadBytes + 40;
constexpr size_t kExpertReadRequestBytes = kExpertFrameHeadBytes + 24;
constexpr size_t kExpertReadReplyBytes = kExpertFrameHeadBytes + 24;
constexpr size_t kMostExpertFrameBytes = kExpertAuthBytes;
// Of one request: a server's memory for a connection is bounded by it.
constexpr uint32_t kMostExpertReadBytes = 8u << 20;

// `out` has the frame's size.
void WriteExpertFrame(const ExpertHello& hello, std::span<std::byte> out);
void WriteExpertFrame(const ExpertAuth& auth, std::span<std::byte> out);
void WriteExpertFrame(const ExpertWelcome& welcome, std::span<std::byte> out);
void WriteExpertFrame(const ExpertReadRequest& request, std::span<std::byte> out);
void WriteExpertFrame(const ExpertReadReply& reply, std::span<std::byte> out);

// False: these bytes are no such frame (its size, kind, version, length, checksum or a field is
// wrong).
bool ReadExpertFrame(std::span<const std::byte> frame, ExpertHello& hello);
bool ReadExpertFrame(std::span<const std::byte> frame, ExpertAuth& auth);
bool ReadExpertFrame(std::span<const std::byte> frame, ExpertWelcome& welcome);
bool ReadExpertFrame(std::span<const std::byte> frame, ExpertReadRequest& request);
bool ReadExpertFrame(std::span<const std::byte> frame, ExpertReadReply& reply);

ExpertNonce RandomExpertNonce();
ExpertMac ClientMac(std::string_view key, const ExpertNonce& server, const ExpertNonce& client,
                    const ExpertStoreIdentity& store);
ExpertMac ServerMac(std::string_view key, const ExpertNonce& server, const ExpertNonce& client,
                    const ExpertStoreIdentity& store, ExpertWelcomeStatus status);
// In a time that does not depend on where they differ.
bool SameMac(const ExpertMac& a, const ExpertMac& b);

// The server's side of a conversation, without its socket: takes one frame after another.
class ExpertGate {
 public:
  enum class Step : uint8_t {
    kKnown,   // the client knows the key: decide, and send what Admit returns
    kRead,    // answer request()
    kRefuse,  // close the connection
  };

  // Key and stores outlive it.
  ExpertGate(std::string_view key, const ExpertNonce& nonce,
             std::span<const ExpertStoreIdentity> stores)
      : key_(key), nonce_(nonce), stores_(stores) {}

  ExpertHello hello() const { return {nonce_}; }
  // Of the frame that is expected next.
  size_t wanted_bytes() const { return known_ ? kExpertReadRequestBytes : kExpertAuthBytes; }
  Step Take(std::span<const std::byte> frame);

  bool known() const { return known_; }  // the client has shown that it knows the key
  // After kKnown. `full`: there is no room for another client. Unless the status of what it returns
  // is kOk, the connection is to be closed behind it, and Take refuses everything.
  ExpertWelcome Admit(bool full);
  size_t store() const { return store_; }  // of the client, once it was admitted
  const ExpertReadRequest& request() const { return request_; }  // lies in the store's file

 private:
  const std::string_view key_;
  const ExpertNonce nonce_;
  const std::span<const ExpertStoreIdentity> stores_;
  bool known_ = false;
  bool admitted_ = false;
  ExpertAuth auth_;
  size_t store_ = 0;
  ExpertReadRequest request_;
};

// The shared key: `key`, or the text of the file, without blanks around it, at least 16 characters.
// Throws Error(kNotFound, kIo, kInvalidArgument), the last also when neither or both are given.
std::string ExpertKeyOf(std::string_view key, const std::filesystem::path& file);

// The address of a server: tcp://HOST:PORT, an IPv6 address in brackets.
struct ExpertPeer {
  std::string host;  // without brackets
  uint16_t port = 0;
};
bool IsExpertPeer(std::string_view text);  // begins with tcp://
// Throws Error(kInvalidArgument) for a text that begins so and is no address.
ExpertPeer ParseExpertPeer(std::string_view text);
std::string ExpertPeerName(const ExpertPeer& peer);  // as it is written

// Options of the TCP sockets of both sides: small frames leave at once, and a machine that is gone
// is noticed within a minute of silence, also when nothing is asked of it.
void SetExpertSocketOptions(int fd);

}  // namespace moesaic
