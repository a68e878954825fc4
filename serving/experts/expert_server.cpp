#include "serving/experts/expert_server.h"

#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <chrono>
#include <exception>
#include <iterator>
#include <list>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/logging.h"
#include "core/base/mutex.h"
#include "core/io/expert_store.h"

namespace moesaic {
namespace {

namespace net = boost::asio;
using tcp = net::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr std::chrono::milliseconds kAcceptRetry{100};
constexpr std::chrono::seconds kBetweenWarnings{10};

// Answers of a connection that are read, hashed or on their way at a time: while one is sent the
// next one is made.
constexpr size_t kAnswers = 2;
// Of a read from the file: hashed while it is in a core's cache.
constexpr size_t kPieceBytes = size_t{256} << 10;

constexpr int kLeastThreads = 2;
constexpr int kMostThreads = 8;

class Connection;

// A connection in its handshake.
struct Stranger {
  const Connection* connection = nullptr;  // which it is, no more
  std::weak_ptr<Connection> alive;
};

// What connections share. Outlives them.
struct Shared {
  Shared(ExpertServerOptions all, std::vector<File> stores, std::vector<ExpertStoreIdentity> ids)
      : options(std::move(all)), files(std::move(stores)), identities(std::move(ids)) {}

  const ExpertServerOptions options;
  const std::vector<File> files;                      // [stores]
  const std::vector<ExpertStoreIdentity> identities;  // [stores]

  Mutex mutex;
  std::list<Stranger> strangers GUARDED_BY(mutex);  // oldest first
  int clients GUARDED_BY(mutex) = 0;
  std::chrono::steady_clock::time_point warned GUARDED_BY(mutex){};

  std::atomic<uint64_t> admitted{0};
  std::atomic<uint64_t> refused{0};
  std::atomic<uint64_t> reads{0};
  std::atomic<uint64_t> bytes{0};
};

// The kernel paces what the socket sends. False: it does not know how.
bool LimitRate(int fd, uint64_t bytes_per_s) {
  if (bytes_per_s == 0) return true;
  return setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_s, sizeof(bytes_per_s)) == 0;
}

// One client, on its strand: a handshake, then requests, answered in their order. Answers are made
// on any of the server's threads, beside the strand. Shared by the handlers of its operations under
// way, and ends with the last of them.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Shared& shared, net::any_io_executor threads, tcp::socket socket)
      : shared_(shared),
        threads_(std::move(threads)),
        socket_(std::move(socket)),
        timer_(socket_.get_executor()),
        gate_(shared.options.key, RandomExpertNonce(), shared.identities) {
    ErrorCode ignored;
    const tcp::endpoint peer = socket_.remote_endpoint(ignored);
    peer_ = fmt::format("{}:{}", peer.address().to_string(), peer.port());
  }

  ~Connection() {
    if (is_client_) {
      const MutexLock lock(shared_.mutex);
      --shared_.clients;
    }
    if (!gate_.known()) ++shared_.refused;
  }

  void Start() {
    SetExpertSocketOptions(socket_.native_handle());
    LimitRate(socket_.native_handle(), shared_.options.client_bytes_per_s);
    // One deadline for the whole handshake: bytes that drip do not lengthen it.
    CloseIn(shared_.options.patience);
    WriteExpertFrame(gate_.hello(), std::span(frame_).first(kExpertHelloBytes));
    net::async_write(socket_, net::buffer(frame_.data(), kExpertHelloBytes),
                     [self = shared_from_this()](ErrorCode error, size_t) {
                       if (!error) self->ReadFrame();
                     });
  }

  // Any thread.
  void Close() {
    net::post(socket_.get_executor(), [self = shared_from_this()] { self->CloseNow(); });
  }

 private:
  void CloseNow() {
    ErrorCode ignored;
    timer_.cancel();
    socket_.close(ignored);
  }

  void CloseIn(std::chrono::milliseconds time) {
    timer_.expires_after(time);
    timer_.async_wait([self = shared_from_this()](ErrorCode error) {
      if (!error) self->CloseNow();
    });
  }

  void ReadFrame() {
    net::async_read(socket_, net::buffer(frame_.data(), gate_.wanted_bytes()),
                    [self = shared_from_this()](ErrorCode error, size_t bytes) {
                      if (error) return self->CloseNow();
                      self->Took(std::span<const std::byte>(self->frame_).first(bytes));
                    });
  }

  void Took(std::span<const std::byte> frame) {
    switch (gate_.Take(frame)) {
      case ExpertGate::Step::kRefuse:
        return Refuse();
      case ExpertGate::Step::kKnown:
        return Admit();
      case ExpertGate::Step::kRead:
        return Take(gate_.request());
    }
  }

  void Refuse() {
    {
      const MutexLock lock(shared_.mutex);
      const auto now = std::chrono::steady_clock::now();
      if (now - shared_.warned >= kBetweenWarnings) {
        shared_.warned = now;
        LogWarn("{}: {}; the connection is closed", peer_,
                gate_.known() ? "asks for what is not in the store"
                              : "does not know the shared key, or speaks something else");
      }
    }
    if (gate_.known()) return CloseNow();
    // A welcome without its MAC: so a client can tell another key from a server that was lost.
    WriteExpertFrame(ExpertWelcome{ExpertWelcomeStatus::kNoSuchStore, {}},
                     std::span(frame_).first(kExpertWelcomeBytes));
    net::async_write(socket_, net::buffer(frame_.data(), kExpertWelcomeBytes),
                     [self = shared_from_this()](ErrorCode, size_t) { self->CloseNow(); });
  }

  void Admit() {
    ExpertWelcome welcome;
    {
      const MutexLock lock(shared_.mutex);
      std::erase_if(shared_.strangers, [&](const Stranger& stranger) {
        return stranger.connection == this || stranger.alive.expired();
      });
      welcome = gate_.Admit(shared_.clients >= shared_.options.max_clients);
      is_client_ = welcome.status == ExpertWelcomeStatus::kOk;
      if (is_client_) ++shared_.clients;
    }
    switch (welcome.status) {
      case ExpertWelcomeStatus::kNoSuchStore:
        LogWarn("{}: wants a store with other experts than those here", peer_);
        break;
      case ExpertWelcomeStatus::kFull:
        LogWarn("{}: is refused; {} clients are the most (--max-clients)", peer_,
                shared_.options.max_clients);
        break;
      case ExpertWelcomeStatus::kOk:
        ++shared_.admitted;
        LogInfo("{}: reads {}", peer_, shared_.files[gate_.store()].path().parent_path().string());
        break;
    }
    WriteExpertFrame(welcome, std::span(frame_).first(kExpertWelcomeBytes));
    net::async_write(socket_, net::buffer(frame_.data(), kExpertWelcomeBytes),
                     [self = shared_from_this()](ErrorCode error, size_t) {
                       if (error || !self->is_client_) return self->CloseNow();
                       self->timer_.cancel();
                       self->ReadFrame();
                     });
  }

  struct Answer {
    enum class State : uint8_t { kFree, kMaking, kMade };
    State state = State::kFree;
    ExpertReadRequest request;
    ExpertReadReply reply;
    std::array<std::byte, kExpertReadReplyBytes> head = {};
    std::vector<std::byte> bytes;
    Hash64Stream hash;
  };

  void Take(const ExpertReadRequest& request) {
    Answer& answer = answers_[next_to_make_];
    next_to_make_ = (next_to_make_ + 1) % kAnswers;
    answer.state = Answer::State::kMaking;
    answer.request = request;
    net::post(threads_, [self = shared_from_this(), &answer] {
      self->Make(answer);
      net::post(self->socket_.get_executor(), [self, &answer] {
        answer.state = Answer::State::kMade;
        self->SendNext();
      });
    });
    ReadNext();
  }

  void ReadNext() {
    if (answers_[next_to_make_].state == Answer::State::kFree) ReadFrame();
  }

  // Not on the strand, which leaves the answer alone meanwhile.
  void Make(Answer& answer) const {
    const ExpertReadRequest& request = answer.request;
    if (answer.bytes.size() < request.bytes) answer.bytes.resize(request.bytes);
    ExpertReadReply& reply = answer.reply;
    reply = {request.id, request.bytes, 0, 0};
    answer.hash.Reset();
    try {
      const File& file = shared_.files[gate_.store()];
      for (size_t at = 0; at < request.bytes && reply.error == 0; at += kPieceBytes) {
        const std::span<std::byte> piece =
            std::span(answer.bytes).subspan(at, std::min(kPieceBytes, request.bytes - at));
        if (file.ReadAt(request.offset + at, piece) != piece.size()) reply.error = ENODATA;
        answer.hash.Add(piece);
      }
    } catch (const Error& error) {
      LogWarn("{}", error.what());
      reply.error = EIO;
    }
    if (reply.error != 0) {
      reply.bytes = 0;
    } else {
      reply.checksum = answer.hash.Value();
    }
    ++shared_.reads;
    shared_.bytes += reply.bytes;
    WriteExpertFrame(reply, answer.head);
  }

  // If it is made, and none is on its way.
  void SendNext() {
    Answer& answer = answers_[next_to_send_];
    if (sends_ || answer.state != Answer::State::kMade || !socket_.is_open()) return;
    sends_ = true;
    const std::array<net::const_buffer, 2> parts = {
        net::buffer(answer.head), net::buffer(answer.bytes.data(), answer.reply.bytes)};
    CloseIn(TimeFor(answer.reply.bytes));
    net::async_write(socket_, parts, [self = shared_from_this(), &answer](ErrorCode error, size_t) {
      if (error) return self->CloseNow();
      self->timer_.cancel();
      self->sends_ = false;
      answer.state = Answer::State::kFree;
      // All were taken: nobody reads requests.
      const bool was_full = self->next_to_make_ == self->next_to_send_;
      self->next_to_send_ = (self->next_to_send_ + 1) % kAnswers;
      if (was_full) self->ReadFrame();
      self->SendNext();
    });
  }

  // For an answer to be taken.
  std::chrono::milliseconds TimeFor(uint64_t bytes) const {
    const uint64_t limit = shared_.options.client_bytes_per_s;
    return shared_.options.stall + std::chrono::milliseconds(limit > 0 ? 1000 * bytes / limit : 0);
  }

  Shared& shared_;
  const net::any_io_executor threads_;  // all of the server's
  tcp::socket socket_;
  net::steady_timer timer_;
  std::string peer_;
  ExpertGate gate_;
  bool is_client_ = false;  // counted in shared_.clients
  std::array<std::byte, kMostExpertFrameBytes> frame_ = {};
  std::array<Answer, kAnswers> answers_;  // in turn
  size_t next_to_make_ = 0;
  size_t next_to_send_ = 0;
  bool sends_ = false;
};

int ThreadsFor(const ExpertServerOptions& options) {
  if (options.threads > 0) return options.threads;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), kLeastThreads,
                    kMostThreads);
}

}  // namespace

class ExpertServer::Impl {
 public:
  Impl(std::span<const std::filesystem::path> stores, ExpertServerOptions options)
      : shared_(MakeShared(stores, std::move(options))),
        work_(net::make_work_guard(io_)),
        acceptor_(net::make_strand(io_)),
        retry_(acceptor_.get_executor()) {
    Listen();
    Accept();
    threads_.reserve(kMostThreads);
    try {
      for (int i = ThreadsFor(shared_.options); i > 0; --i) {
        threads_.emplace_back([this] { Run(); });
      }
    } catch (...) {
      Stop();
      throw;
    }
  }
  ~Impl() { Stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  uint16_t port() const { return port_; }
  const Shared& shared() const { return shared_; }

 private:
  static Shared MakeShared(std::span<const std::filesystem::path> stores,
                           ExpertServerOptions options) {
    std::vector<File> files;
    std::vector<ExpertStoreIdentity> identities;
    files.reserve(stores.size());
    identities.reserve(stores.size());
    for (const std::filesystem::path& store : stores) {
      identities.push_back(IdentityOf(DescribeExpertStore(store)));
      files.emplace_back(ExpertStoreDataFile(store));
    }
    return {std::move(options), std::move(files), std::move(identities)};
  }

  void Listen() {
    const ExpertServerOptions& options = shared_.options;
    try {
      tcp::resolver resolver(io_);
      const tcp::endpoint endpoint =
          *resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive)
               .begin();
      acceptor_.open(endpoint.protocol());
      acceptor_.set_option(tcp::acceptor::reuse_address(true));
      acceptor_.bind(endpoint);
      acceptor_.listen();
      port_ = acceptor_.local_endpoint().port();
    } catch (const boost::system::system_error& error) {
      Fail(ErrorKind::kUnavailable, "cannot listen on {}:{}: {}", options.host, options.port,
           error.code().message());
    }
    if (!LimitRate(acceptor_.native_handle(), options.client_bytes_per_s)) {
      Fail(ErrorKind::kUnsupported,
           "the system cannot limit what a socket sends (SO_MAX_PACING_RATE: {}); leave "
           "--client-bandwidth out",
           ErrnoMessage(errno));
    }
  }

  void Accept() {
    acceptor_.async_accept(net::make_strand(io_), [this](ErrorCode error, tcp::socket socket) {
      if (error == net::error::operation_aborted) return;
      if (error) {  // no descriptors are left, say
        retry_.expires_after(kAcceptRetry);
        retry_.async_wait([this](ErrorCode stopped) {
          if (!stopped) Accept();
        });
        return;
      }
      try {
        Admit(std::move(socket));
      } catch (const std::exception& failure) {  // no memory: the others go on
        LogWarn("a connection was refused: {}", failure.what());
      }
      Accept();
    });
  }

  void Run() {
    pthread_setname_np(pthread_self(), "expert-server");
    for (;;) {
      try {
        io_.run();
        return;
      } catch (const std::exception& failure) {  // its connection went with its handler
        LogWarn("a connection was closed: {}", failure.what());
      }
    }
  }

  void Admit(tcp::socket socket) {
    const auto connection =
        std::make_shared<Connection>(shared_, io_.get_executor(), std::move(socket));
    std::shared_ptr<Connection> leaves;
    {
      const MutexLock lock(shared_.mutex);
      auto& strangers = shared_.strangers;
      std::erase_if(strangers, [](const Stranger& stranger) { return stranger.alive.expired(); });
      if (std::ssize(strangers) >= shared_.options.max_strangers) {
        leaves = strangers.front().alive.lock();
        strangers.pop_front();
      }
      strangers.push_back({connection.get(), connection});
    }
    if (leaves) leaves->Close();
    connection->Start();
  }

  void Stop() {
    io_.stop();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  Shared shared_;  // before the context, whose connections look at it until it goes
  net::io_context io_;
  net::executor_work_guard<net::io_context::executor_type> work_;
  tcp::acceptor acceptor_;
  net::steady_timer retry_;
  uint16_t port_ = 0;
  std::vector<std::thread> threads_;
};

ExpertServer::ExpertServer(std::span<const std::filesystem::path> stores,
                           ExpertServerOptions options)
    : impl_(std::make_unique<Impl>(stores, std::move(options))) {}
ExpertServer::~ExpertServer() = default;

uint16_t ExpertServer::port() const { return impl_->port(); }
std::span<const ExpertStoreIdentity> ExpertServer::identities() const {
  return impl_->shared().identities;
}
ExpertServerCounters ExpertServer::counters() const {
  const Shared& shared = impl_->shared();
  return {.clients = shared.admitted,
          .refused = shared.refused,
          .reads = shared.reads,
          .bytes = shared.bytes};
}

}  // namespace moesaic
