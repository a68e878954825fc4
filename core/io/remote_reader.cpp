#include "core/io/remote_reader.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/logging.h"

namespace moesaic {
namespace {

// Of a read from the socket: hashed while it is in a core's cache.
constexpr size_t kPieceBytes = size_t{256} << 10;

class RemoteReader : public AsyncReader {
 public:
  RemoteReader(RemoteStore remote, int depth)
      : remote_(std::move(remote)),
        name_(ExpertPeerName(remote_.peer)),
        depth_(depth),
        wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (wake_fd_ < 0) Fail(ErrorKind::kIo, "{}: eventfd: {}", name_, ErrnoMessage(errno));
    StartConnecting();
    while (state_ != State::kReady && state_ != State::kClosed) Turn(-1);
    starting_ = false;
    if (refusal_.empty()) return;
    Close();
    close(wake_fd_);
    Fail(ErrorKind::kInvalidArgument, "--expert-store {}", refusal_);
  }

  ~RemoteReader() override {
    Close();  // nothing is written into anybody's memory any more
    close(wake_fd_);
  }
  RemoteReader(const RemoteReader&) = delete;
  RemoteReader& operator=(const RemoteReader&) = delete;

  ReadBackend backend() const override { return ReadBackend::kBuffered; }
  bool aligned_only() const override { return false; }
  int free_slots() const override { return depth_ - in_flight_; }

  void Submit(const ReadRequest& request) override {
    CHECK_GT(free_slots(), 0);
    CHECK_EQ(request.file, 0);
    ++in_flight_;
    if (state_ == State::kClosed) StartConnecting();
    if (state_ != State::kReady) {
      done_.push_back({request.tag, -int64_t{lost_error_}, 0});
      return;
    }
    const uint64_t file_bytes = remote_.store.bytes;
    const uint64_t there = request.offset >= file_bytes
                               ? 0
                               : std::min<uint64_t>(request.bytes, file_bytes - request.offset);
    if (there == 0) {
      done_.push_back({request.tag, 0, 0});
      return;
    }
    if (asked_.empty()) heard_ns_ = clock_.NowNs();
    for (uint64_t at = 0; at < there;) {
      const auto bytes =
          static_cast<uint32_t>(std::min<uint64_t>(kMostExpertReadBytes, there - at));
      Queue(ExpertReadRequest{next_id_, request.offset + at, bytes}, kExpertReadRequestBytes);
      asked_.push_back({next_id_, request.tag, request.destination + at, bytes,
                        at + bytes == there ? static_cast<int64_t>(there) : -1});
      ++next_id_;
      at += bytes;
    }
    Flush();
  }

  void Wait(std::vector<ReadCompletion>& out, int64_t timeout_us) override {
    const int64_t end_ns = clock_.NowNs() + 1000 * std::max<int64_t>(timeout_us, 0);
    for (;;) {
      if (state_ == State::kReady) Receive();
      if (!done_.empty()) break;
      const int64_t left_ns = timeout_us < 0 ? -1 : std::max<int64_t>(0, end_ns - clock_.NowNs());
      if (Turn(left_ns) || (timeout_us >= 0 && clock_.NowNs() >= end_ns)) break;
    }
    in_flight_ -= static_cast<int>(done_.size());
    out.insert(out.end(), done_.begin(), done_.end());
    done_.clear();
  }

  void Wake() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(wake_fd_, &one, sizeof(one));
  }

 private:
  enum class State : uint8_t { kClosed, kConnecting, kHello, kWelcome, kReady };
  // A part of a read that was asked for.
  struct Asked {
    uint64_t id = 0;
    uint64_t tag = 0;
    std::byte* to = nullptr;
    uint32_t bytes = 0;
    int64_t result = -1;  // of the whole read, with its last part
  };
  struct Address {
    sockaddr_storage data = {};
    socklen_t bytes = 0;
  };

  void StartConnecting() {
    CHECK(state_ == State::kClosed);
    if (addresses_.empty()) Resolve();
    next_address_ = 0;
    ConnectToNext();
  }

  void Resolve() {
    addrinfo wanted{};
    wanted.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const std::string port = std::to_string(remote_.peer.port);
    const int failed = getaddrinfo(remote_.peer.host.c_str(), port.c_str(), &wanted, &found);
    if (failed != 0) {
      lost_error_ = EHOSTUNREACH;
      return Warn(gai_strerror(failed));
    }
    for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
      Address& address = addresses_.emplace_back();
      CHECK_LE(info->ai_addrlen, sizeof(address.data));
      std::memcpy(&address.data, info->ai_addr, info->ai_addrlen);
      address.bytes = info->ai_addrlen;
    }
    freeaddrinfo(found);
  }

  // A name may have several addresses, on not all of which there is a server (localhost has one of
  // either kind): the others are tried until there is a connection.
  void ConnectToNext() {
    while (next_address_ < addresses_.size()) {
      const Address& address = addresses_[next_address_++];
      fd_ = socket(address.data.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      if (fd_ >= 0) {
        SetExpertSocketOptions(fd_);
        const int failed =
            connect(fd_, reinterpret_cast<const sockaddr*>(&address.data), address.bytes);
        if (failed == 0 || errno == EINPROGRESS) {
          state_ = State::kConnecting;
          heard_ns_ = clock_.NowNs();
          return;
        }
      }
      lost_error_ = errno;
      Close();
    }
  }

  // Waits for one of the sockets, at most that long (-1: no limit), and does what is to be done.
  // True: somebody has called Wake.
  bool Turn(int64_t timeout_ns) {
    std::array<pollfd, 2> polled = {{{wake_fd_, POLLIN, 0}, {fd_, 0, 0}}};
    if (state_ != State::kClosed) {
      const bool sends = state_ == State::kConnecting || !to_send_.empty();
      polled[1].events =
          static_cast<short>((state_ == State::kConnecting ? 0 : POLLIN) | (sends ? POLLOUT : 0));
    }
    const int64_t patience_ns = 1'000'000 * remote_.patience_ms;
    if (Expects()) {
      const int64_t left_ns = std::max<int64_t>(0, heard_ns_ + patience_ns - clock_.NowNs());
      timeout_ns = timeout_ns < 0 ? left_ns : std::min(timeout_ns, left_ns);
    }
    const timespec timeout = {timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
    const int ready = ppoll(polled.data(), state_ == State::kClosed ? 1 : 2,
                            timeout_ns < 0 ? nullptr : &timeout, nullptr);
    CHECK(ready >= 0 || errno == EINTR);
    if (ready > 0 && polled[1].revents != 0) Progress(polled[1].revents);
    if (Expects() && clock_.NowNs() - heard_ns_ >= patience_ns) Lose(ETIMEDOUT);
    if (ready <= 0 || polled[0].revents == 0) return false;
    uint64_t count = 0;
    return read(wake_fd_, &count, sizeof(count)) > 0;
  }

  // Whether something is to come from the server.
  bool Expects() const {
    return state_ == State::kReady ? !asked_.empty() : state_ != State::kClosed;
  }

  void Progress(short events) {
    if (state_ == State::kConnecting) {
      int error = 0;
      socklen_t bytes = sizeof(error);
      getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &bytes);
      if (error != 0) return Lose(error);
      if ((events & POLLOUT) == 0) return;
      state_ = State::kHello;
      frame_done_ = 0;
      return;
    }
    if ((events & POLLOUT) != 0) Flush();
    if (state_ == State::kHello) {
      TakeHello();
    } else if (state_ == State::kWelcome) {
      TakeWelcome();
    } else if (state_ == State::kReady && asked_.empty()) {
      // It has closed the connection, or says what nobody asked for.
      std::byte unasked = {};
      if (TakeBytes(&unasked, 1) > 0) Lose(EPROTO, "sent what nobody asked for");
    } else if (state_ == State::kReady) {
      Receive();
    }
  }

  void TakeHello() {
    ExpertHello hello;
    if (!TakeFrame(kExpertHelloBytes)) return;
    if (!ReadExpertFrame(Frame(kExpertHelloBytes), hello)) {
      return Lose(EPROTO, "is no `moesaic serve-experts`, or one of another version");
    }
    server_nonce_ = hello.nonce;
    client_nonce_ = RandomExpertNonce();
    const ExpertMac mac = ClientMac(remote_.key, server_nonce_, client_nonce_, remote_.store);
    state_ = State::kWelcome;
    frame_done_ = 0;
    Queue(ExpertAuth{client_nonce_, remote_.store, mac}, kExpertAuthBytes);
    Flush();
  }

  void TakeWelcome() {
    ExpertWelcome welcome;
    if (!TakeFrame(kExpertWelcomeBytes)) return;
    if (!ReadExpertFrame(Frame(kExpertWelcomeBytes), welcome) ||
        !SameMac(welcome.mac, ServerMac(remote_.key, server_nonce_, client_nonce_, remote_.store,
                                        welcome.status))) {
      return Refuse(
          "the server does not have the same shared key; give both the same "
          "--expert-store-key-file");
    }
    switch (welcome.status) {
      case ExpertWelcomeStatus::kNoSuchStore:
        return Refuse(
            "the server has no store with the experts of the one here; let it serve a "
            "copy");
      case ExpertWelcomeStatus::kFull:
        return Lose(EBUSY, "has as many clients as it may (--max-clients)");
      case ExpertWelcomeStatus::kOk:
        break;
    }
    state_ = State::kReady;
    frame_done_ = 0;
    warned_ = false;
    LogInfo("{}: connected", name_);
  }

  void Refuse(const char* why) {
    refusal_ = fmt::format("{}: {}", name_, why);
    Lose(EACCES, starting_ ? nullptr : why);  // the constructor throws it
  }

  // What has come of the bytes that were asked for.
  void Receive() {
    while (!asked_.empty()) {
      const Asked& asked = asked_.front();
      if (!in_payload_) {
        if (!TakeFrame(kExpertReadReplyBytes)) return;
        if (!ReadExpertFrame(Frame(kExpertReadReplyBytes), reply_) || reply_.id != asked.id ||
            (reply_.error == 0 && reply_.bytes != asked.bytes)) {
          return Lose(EPROTO, "sent an answer that is not valid");
        }
        frame_done_ = 0;
        if (reply_.error != 0) {
          EndFirst(reply_.error);  // this read alone fails, the connection is right
          continue;
        }
        in_payload_ = true;
        payload_done_ = 0;
        hash_.Reset();
      }
      while (payload_done_ < asked.bytes) {
        std::byte* const to = asked.to + payload_done_;
        const size_t n = TakeBytes(to, std::min<size_t>(asked.bytes - payload_done_, kPieceBytes));
        if (n == 0) return;
        hash_.Add({to, n});
        payload_done_ += static_cast<uint32_t>(n);
      }
      in_payload_ = false;
      if (hash_.Value() != reply_.checksum) {
        return Lose(EBADMSG, "sent bytes that do not have their checksum");
      }
      EndFirst(0);
    }
  }

  // The first part that was asked for has come, or failed; its read ends with its last part.
  void EndFirst(int error) {
    const Asked asked = asked_.front();
    asked_.pop_front();
    if (error != 0) failed_ = error;
    if (asked.result < 0) return;
    const int failed = std::exchange(failed_, 0);
    done_.push_back({asked.tag, failed != 0 ? -int64_t{failed} : asked.result, 0});
  }

  std::span<const std::byte> Frame(size_t bytes) const { return std::span(frame_).first(bytes); }

  // False: it is not there as a whole.
  bool TakeFrame(size_t bytes) {
    while (frame_done_ < bytes) {
      const size_t n = TakeBytes(frame_.data() + frame_done_, bytes - frame_done_);
      if (n == 0) return false;
      frame_done_ += n;
    }
    return true;
  }

  // 0: there is nothing now, or the connection is lost.
  size_t TakeBytes(std::byte* to, size_t bytes) {
    const ssize_t n = recv(fd_, to, bytes, 0);
    if (n > 0) {
      heard_ns_ = clock_.NowNs();
      return static_cast<size_t>(n);
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    const int error = n == 0 ? ECONNRESET : errno;
    Lose(error);
    return 0;
  }

  template <typename T>
  void Queue(const T& frame, size_t bytes) {
    const size_t at = to_send_.size();
    to_send_.resize(at + bytes);
    WriteExpertFrame(frame, std::span(to_send_).subspan(at));
  }

  void Flush() {
    size_t sent = 0;
    int error = 0;
    while (sent < to_send_.size()) {
      const ssize_t n = send(fd_, to_send_.data() + sent, to_send_.size() - sent, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        error = errno;
        break;
      }
      sent += static_cast<size_t>(n);
    }
    to_send_.erase(to_send_.begin(), to_send_.begin() + static_cast<std::ptrdiff_t>(sent));
    if (error != 0 && error != EAGAIN) Lose(error);
  }

  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
    state_ = State::kClosed;
    to_send_.clear();
    frame_done_ = 0;
    in_payload_ = false;
  }

  // `why`: what the errno does not tell. Who reads says the errno, and what it does about it.
  void Lose(int error, const char* why = nullptr) {
    const bool connecting = state_ == State::kConnecting;
    Close();
    lost_error_ = error;
    if (why != nullptr) Warn(why);
    while (!asked_.empty()) EndFirst(error);
    if (connecting) ConnectToNext();
  }

  void Warn(const char* why) {
    if (!std::exchange(warned_, true)) LogWarn("{}: {}", name_, why);
  }

  const RemoteStore remote_;
  const std::string name_;
  const int depth_;
  const int wake_fd_;
  const SteadyClock clock_{};
  std::vector<Address> addresses_;  // of the host, once its name was resolved
  size_t next_address_ = 0;
  int fd_ = -1;
  State state_ = State::kClosed;
  int64_t heard_ns_ = 0;       // when the server said something, or something was asked of it
  int lost_error_ = ENOTCONN;  // why there is no connection
  bool warned_ = false;        // of that; until there is one
  std::string refusal_;        // why there will never be one
  bool starting_ = true;       // in the constructor
  ExpertNonce server_nonce_ = {};
  ExpertNonce client_nonce_ = {};
  std::vector<std::byte> to_send_;
  std::array<std::byte, kMostExpertFrameBytes> frame_ = {};  // that is being received
  size_t frame_done_ = 0;
  ExpertReadReply reply_;
  bool in_payload_ = false;
  uint32_t payload_done_ = 0;
  Hash64Stream hash_;  // of these
  uint64_t next_id_ = 1;
  int failed_ = 0;           // errno of a part of the read whose parts come
  std::deque<Asked> asked_;  // oldest first
  std::vector<ReadCompletion> done_;
  int in_flight_ = 0;
};

}  // namespace

std::unique_ptr<AsyncReader> MakeRemoteReader(RemoteStore remote, int depth) {
  return std::make_unique<RemoteReader>(std::move(remote), depth);
}

}  // namespace moesaic
