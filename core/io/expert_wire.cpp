#include "core/io/expert_wire.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <system_error>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/hash.h"

namespace moesaic {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are written as they lie");

constexpr uint32_t kWireMagic = 0x58454f4d;  // "MOEX"
constexpr uint16_t kWireVersion = 1;
enum class FrameKind : uint16_t { kHello = 1, kAuth, kWelcome, kReadRequest, kReadReply };

// The head: magic (4), version (2), kind (2), bytes of the body (4), checksum of all but itself.
constexpr size_t kChecksumAt = 12;

constexpr int32_t kMostErrno = 4095;

constexpr std::string_view kScheme = "tcp://";

uint32_t ChecksumOf(std::span<const std::byte> frame) {
  const uint64_t head = Hash64(frame.first(kChecksumAt));
  return static_cast<uint32_t>(Hash64(frame.subspan(kExpertFrameHeadBytes), head));
}

class FrameWriter {
 public:
  FrameWriter(FrameKind kind, std::span<std::byte> out, size_t frame_bytes) : out_(out) {
    CHECK_EQ(out.size(), frame_bytes);
    const auto body_bytes = static_cast<uint32_t>(frame_bytes - kExpertFrameHeadBytes);
    Add(kWireMagic).Add(kWireVersion).Add(kind).Add(body_bytes);
    at_ = kExpertFrameHeadBytes;
  }
  template <typename T>
  FrameWriter& Add(const T& value) {
    CHECK_LE(at_ + sizeof(T), out_.size());
    std::memcpy(out_.data() + at_, &value, sizeof(T));
    at_ += sizeof(T);
    return *this;
  }
  void Seal() {
    CHECK_EQ(at_, out_.size());
    const uint32_t checksum = ChecksumOf(out_);
    std::memcpy(out_.data() + kChecksumAt, &checksum, sizeof(checksum));
  }

 private:
  const std::span<std::byte> out_;
  size_t at_ = 0;
};

template <typename T>
T TakeField(std::span<const std::byte>& bytes) {
  T value = {};
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes = bytes.subspan(sizeof(T));
  return value;
}

// The body of a frame of this kind and size; nullopt: it is none.
std::optional<std::span<const std::byte>> BodyOf(std::span<const std::byte> frame, FrameKind kind,
                                                 size_t frame_bytes) {
  if (frame.size() != frame_bytes) return std::nullopt;
  std::span<const std::byte> head = frame;
  if (TakeField<uint32_t>(head) != kWireMagic) return std::nullopt;
  if (TakeField<uint16_t>(head) != kWireVersion) return std::nullopt;
  if (TakeField<uint16_t>(head) != static_cast<uint16_t>(kind)) return std::nullopt;
  if (TakeField<uint32_t>(head) != frame_bytes - kExpertFrameHeadBytes) return std::nullopt;
  if (TakeField<uint32_t>(head) != ChecksumOf(frame)) return std::nullopt;
  return frame.subspan(kExpertFrameHeadBytes);
}

ExpertMac MacOf(std::string_view key, std::string_view who, const ExpertNonce& server,
                const ExpertNonce& client, const ExpertStoreIdentity& store, uint32_t status) {
  // Every part has a fixed length but the first, which tells the two sides apart.
  std::vector<std::byte> text;
  text.reserve(who.size() + server.size() + client.size() + sizeof(store) + sizeof(status));
  const auto add = [&](const void* data, size_t bytes) {
    const auto* const begin = static_cast<const std::byte*>(data);
    text.insert(text.end(), begin, begin + bytes);
  };
  add(who.data(), who.size());
  add(server.data(), server.size());
  add(client.data(), client.size());
  add(&store.experts, sizeof(store.experts));
  add(&store.bytes, sizeof(store.bytes));
  add(&status, sizeof(status));
  ExpertMac mac = {};
  unsigned mac_bytes = 0;
  const unsigned char* const made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
           reinterpret_cast<unsigned char*>(mac.data()), &mac_bytes);
  CHECK(made != nullptr && mac_bytes == mac.size());
  return mac;
}

}  // namespace

void WriteExpertFrame(const ExpertHello& hello, std::span<std::byte> out) {
  FrameWriter(FrameKind::kHello, out, kExpertHelloBytes).Add(hello.nonce).Seal();
}

void WriteExpertFrame(const ExpertAuth& auth, std::span<std::byte> out) {
  FrameWriter(FrameKind::kAuth, out, kExpertAuthBytes)
      .Add(auth.nonce)
      .Add(auth.store.experts)
      .Add(auth.store.bytes)
      .Add(auth.mac)
      .Seal();
}

void WriteExpertFrame(const ExpertWelcome& welcome, std::span<std::byte> out) {
  FrameWriter(FrameKind::kWelcome, out, kExpertWelcomeBytes)
      .Add(welcome.status)
      .Add(uint32_t{0})
      .Add(welcome.mac)
      .Seal();
}

void WriteExpertFrame(const ExpertReadRequest& request, std::span<std::byte> out) {
  FrameWriter(FrameKind::kReadRequest, out, kExpertReadRequestBytes)
      .Add(request.id)
      .Add(request.offset)
      .Add(request.bytes)
      .Add(uint32_t{0})
      .Seal();
}

void WriteExpertFrame(const ExpertReadReply& reply, std::span<std::byte> out) {
  FrameWriter(FrameKind::kReadReply, out, kExpertReadReplyBytes)
      .Add(reply.id)
      .Add(reply.bytes)
      .Add(reply.error)
      .Add(reply.checksum)
      .Seal();
}

bool ReadExpertFrame(std::span<const std::byte> frame, ExpertHello& hello) {
  auto body = BodyOf(frame, FrameKind::kHello, kExpertHelloBytes);
  if (!body) return false;
  hello.nonce = TakeField<ExpertNonce>(*body);
  return true;
}

bool ReadExpertFrame(std::span<const std::byte> frame, ExpertAuth& auth) {
  auto body = BodyOf(frame, FrameKind::kAuth, kExpertAuthBytes);
  if (!body) return false;
  auth.nonce = TakeField<ExpertNonce>(*body);
  auth.store.experts = TakeField<uint64_t>(*body);
  auth.store.bytes = TakeField<uint64_t>(*body);
  auth.mac = TakeField<ExpertMac>(*body);
  return true;
}

bool ReadExpertFrame(std::span<const std::byte> frame, ExpertWelcome& welcome) {
  auto body = BodyOf(frame, FrameKind::kWelcome, kExpertWelcomeBytes);
  if (!body) return false;
  const auto status = TakeField<uint32_t>(*body);
  const auto unused = TakeField<uint32_t>(*body);
  welcome.status = static_cast<ExpertWelcomeStatus>(status);
  welcome.mac = TakeField<ExpertMac>(*body);
  return status <= static_cast<uint32_t>(ExpertWelcomeStatus::kFull) && unused == 0;
}

bool ReadExpertFrame(std::span<const std::byte> frame, ExpertReadRequest& request) {
  auto body = BodyOf(frame, FrameKind::kReadRequest, kExpertReadRequestBytes);
  if (!body) return false;
  request.id = TakeField<uint64_t>(*body);
  request.offset = TakeField<uint64_t>(*body);
  request.bytes = TakeField<uint32_t>(*body);
  const auto unused = TakeField<uint32_t>(*body);
  return request.bytes > 0 && request.bytes <= kMostExpertReadBytes && unused == 0;
}

bool ReadExpertFrame(std::span<const std::byte> frame, ExpertReadReply& reply) {
  auto body = BodyOf(frame, FrameKind::kReadReply, kExpertReadReplyBytes);
  if (!body) return false;
  reply.id = TakeField<uint64_t>(*body);
  reply.bytes = TakeField<uint32_t>(*body);
  reply.error = TakeField<int32_t>(*body);
  reply.checksum = TakeField<uint64_t>(*body);
  return reply.bytes <= kMostExpertReadBytes && reply.error >= 0 && reply.error <= kMostErrno &&
         (reply.error == 0) == (reply.bytes > 0);
}

ExpertNonce RandomExpertNonce() {
  ExpertNonce nonce = {};
  size_t done = 0;
  while (done < nonce.size()) {
    const ssize_t n = getrandom(nonce.data() + done, nonce.size() - done, 0);
    CHECK(n > 0 || errno == EINTR);
    if (n > 0) done += static_cast<size_t>(n);
  }
  return nonce;
}

ExpertMac ClientMac(std::string_view key, const ExpertNonce& server, const ExpertNonce& client,
                    const ExpertStoreIdentity& store) {
  return MacOf(key, "moesaic expert client 1", server, client, store, 0);
}

ExpertMac ServerMac(std::string_view key, const ExpertNonce& server, const ExpertNonce& client,
                    const ExpertStoreIdentity& store, ExpertWelcomeStatus status) {
  return MacOf(key, "moesaic expert server 1", server, client, store,
               static_cast<uint32_t>(status));
}

bool SameMac(const ExpertMac& a, const ExpertMac& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

ExpertGate::Step ExpertGate::Take(std::span<const std::byte> frame) {
  if (!known_) {
    if (!ReadExpertFrame(frame, auth_)) return Step::kRefuse;
    if (!SameMac(auth_.mac, ClientMac(key_, nonce_, auth_.nonce, auth_.store))) {
      return Step::kRefuse;
    }
    known_ = true;
    return Step::kKnown;
  }
  if (!admitted_ || !ReadExpertFrame(frame, request_)) return Step::kRefuse;
  const uint64_t file_bytes = stores_[store_].bytes;
  const bool inside =
      request_.offset <= file_bytes && request_.bytes <= file_bytes - request_.offset;
  return inside ? Step::kRead : Step::kRefuse;
}

ExpertWelcome ExpertGate::Admit(bool full) {
  CHECK(known_ && !admitted_);
  const auto found = std::find(stores_.begin(), stores_.end(), auth_.store);
  auto status = ExpertWelcomeStatus::kOk;
  if (found == stores_.end()) {
    status = ExpertWelcomeStatus::kNoSuchStore;
  } else if (full) {
    status = ExpertWelcomeStatus::kFull;
  }
  store_ = static_cast<size_t>(found - stores_.begin());
  admitted_ = status == ExpertWelcomeStatus::kOk;
  return {status, ServerMac(key_, nonce_, auth_.nonce, auth_.store, status)};
}

std::string ExpertKeyOf(std::string_view key, const std::filesystem::path& file) {
  constexpr uint64_t kMostKeyBytes = 4096;
  constexpr size_t kLeastKeyBytes = 16;
  constexpr std::string_view kBlanks = " \t\r\n";
  if (key.empty() && file.empty()) {
    Fail(ErrorKind::kInvalidArgument,
         "no key is given for servers of experts: write --expert-store-key-file FILE, or set "
         "MOESAIC_EXPERT_STORE_KEY to the key; `openssl rand -hex 32` makes one");
  }
  if (!key.empty() && !file.empty()) {
    Fail(ErrorKind::kInvalidArgument,
         "two keys are given for servers of experts, expert-store-key and expert-store-key-file "
         "({}): leave one out",
         file.string());
  }
  const std::string text = key.empty() ? ReadTextFile(file, kMostKeyBytes) : std::string(key);
  const size_t begin = text.find_first_not_of(kBlanks);
  const size_t end = text.find_last_not_of(kBlanks);
  std::string found = begin == std::string::npos ? "" : text.substr(begin, end + 1 - begin);
  if (found.size() < kLeastKeyBytes) {
    Fail(ErrorKind::kInvalidArgument,
         "{}: the shared key has {} characters, {} are the least; `openssl rand -hex 32` makes one",
         key.empty() ? file.string() : "expert-store-key", found.size(), kLeastKeyBytes);
  }
  return found;
}

bool IsExpertPeer(std::string_view text) { return text.starts_with(kScheme); }

ExpertPeer ParseExpertPeer(std::string_view text) {
  CHECK(IsExpertPeer(text));
  std::string_view rest = text.substr(kScheme.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const size_t colon = rest.rfind(':');
  ExpertPeer peer;
  bool ok = colon != std::string_view::npos;
  if (ok) {
    const std::string_view port = rest.substr(colon + 1);
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), peer.port);
    ok = error == std::errc() && end == port.data() + port.size() && peer.port > 0;
    std::string_view host = rest.substr(0, colon);
    const bool in_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
    if (in_brackets) host = host.substr(1, host.size() - 2);
    ok = ok && !host.empty() && host.find_first_of("/[]@ ") == std::string_view::npos &&
         (in_brackets || host.find(':') == std::string_view::npos);
    peer.host = host;
  }
  if (!ok) {
    Fail(ErrorKind::kInvalidArgument,
         "--expert-store: {:.200} is no address of a `moesaic serve-experts`; write "
         "tcp://HOST:PORT (an IPv6 address in brackets, and no path: the server finds the store by "
         "its experts)",
         text);
  }
  return peer;
}

std::string ExpertPeerName(const ExpertPeer& peer) {
  const bool brackets = peer.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}{}:{}", kScheme, brackets ? "[" : "", peer.host, brackets ? "]" : "",
                     peer.port);
}

void SetExpertSocketOptions(int fd) {
  const int on = 1;
  const int idle_s = 30;
  const int interval_s = 10;
  const int probes = 3;
  // None of them is needed for right answers: one that the system does not have is left out.
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

}  // namespace moesaic
