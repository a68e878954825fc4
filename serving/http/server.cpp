#include <utility>

#include "serving/http/server.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <deque>
#include <thread>
#include <unordered_map>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/logging.h"
#include "core/base/mutex.h"
#include "serving/http/api_service.h"
#include "serving/http/session.h"
#include "serving/http/tls_context.h"
#include "serving/http/worker_pool.h"

namespace moesaic {
namespace {

namespace net = boost::asio;
using tcp = net::ip::tcp;
using Clock = std::chrono::steady_clock;

constexpr int kBacklog = 1024;
constexpr std::chrono::milliseconds kAcceptRetry{50};
// How long connections may take to write the last answer of a request that the stop has cut short.
constexpr std::chrono::milliseconds kFlushTime{2000};

}  // namespace

class Server::Impl {
 public:
  Impl(ServerOptions options, MetricsRegistry& metrics)
      : options_(std::move(options)),
        metrics_(metrics),
        workers_(static_cast<size_t>(std::max(options_.worker_threads, 1))),
        service_(options_, metrics_,
                 [this](std::function<void()> task) { workers_.Post(std::move(task)); }),
        shared_(options_, service_, [this](Session* closed) { OnChange(closed); }),
        accept_strand_(net::make_strand(io_)),
        acceptor_(accept_strand_),
        retry_timer_(accept_strand_) {}

  ~Impl() {
    Stop(std::chrono::milliseconds(0));
    workers_.Join();
    // What a worker that was late has posted: it is cancelled like the rest.
    io_.restart();
    io_.poll();
  }

  void Start();
  void Reload();
  uint16_t port() const { return port_; }
  std::string address() const { return address_; }
  ApiService& service() { return service_; }
  bool Stop(std::chrono::milliseconds drain_timeout);
  bool HasBusyWorkers() {
    MutexLock lock(mutex_);
    return !workers_ended_;
  }

 private:
  void Listen(bool has_keys);
  void Accept();
  void OnAccepted(boost::system::error_code error, tcp::socket socket);
  void OnChange(Session* closed);
  std::vector<std::shared_ptr<Session>> Sessions();
  bool WaitIdle() REQUIRES(mutex_);
  void WaitClosed(Clock::time_point deadline);
  void CloseAcceptor();

  const ServerOptions options_;
  ServingMetrics metrics_;
  net::io_context io_;
  net::executor_work_guard<net::io_context::executor_type> work_{io_.get_executor()};
  WorkerPool workers_;
  ApiService service_;
  SessionShared shared_;
  std::unique_ptr<TlsContext> tls_;  // null: connections are not encrypted
  net::strand<net::io_context::executor_type> accept_strand_;
  tcp::acceptor acceptor_;
  net::steady_timer retry_timer_;
  std::vector<std::thread> threads_;
  uint16_t port_ = 0;
  std::string address_;

  Mutex mutex_;
  CondVar changed_;
  // By address; weak, as sessions are owned by their own operations.
  std::unordered_map<Session*, std::weak_ptr<Session>> sessions_ GUARDED_BY(mutex_);
  std::deque<Session*> probes_
      GUARDED_BY(mutex_);  // those of them that are for probes, oldest first
  Clock::time_point stop_deadline_ GUARDED_BY(mutex_) = Clock::time_point::max();
  enum class Phase { kNew, kRunning, kStopping, kStopped };
  Phase phase_ GUARDED_BY(mutex_) = Phase::kNew;
  bool accepting_ GUARDED_BY(mutex_) = true;
  bool drained_ GUARDED_BY(mutex_) = true;
  bool workers_ended_ GUARDED_BY(mutex_) = true;
};

void Server::Impl::Listen(bool has_keys) {
  boost::system::error_code error;
  tcp::resolver resolver(io_);
  const auto found =
      resolver.resolve(options_.host, std::to_string(options_.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    Fail(ErrorKind::kInvalidArgument, "--host: '{}' cannot be resolved: {}", options_.host,
         error.message());
  }
  // A name with addresses of both kinds ("localhost"): clients try IPv4 in any case.
  tcp::endpoint endpoint = found.begin()->endpoint();
  for (const auto& entry : found) {
    if (!entry.endpoint().address().is_v4()) continue;
    endpoint = entry.endpoint();
    break;
  }
  if (!endpoint.address().is_loopback() && !has_keys) {
    if (!options_.insecure) {
      Fail(ErrorKind::kInvalidArgument,
           "--host {}: everybody who reaches this address could use the server; give keys with "
           "--api-key-file, --api-key or MOESAIC_API_KEY, listen on 127.0.0.1, or say --insecure",
           options_.host);
    }
    LogWarn("listening on {} without keys (--insecure): everybody who reaches it can use it",
            options_.host);
  }
  const auto check = [&](const char* what) {
    if (!error) return;
    Fail(ErrorKind::kIo, "cannot {} {} port {}: {}; choose others with --host and --port", what,
         options_.host, options_.port, error.message());
  };
  acceptor_.open(endpoint.protocol(), error);
  check("open a socket for");
  acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  check("set up a socket for");
  acceptor_.bind(endpoint, error);
  check("bind to");
  acceptor_.listen(kBacklog, error);
  check("listen on");
  port_ = acceptor_.local_endpoint().port();
  const std::string host = endpoint.address().is_v6()
                               ? fmt::format("[{}]", endpoint.address().to_string())
                               : endpoint.address().to_string();
  address_ = fmt::format("{}://{}:{}", tls_ != nullptr ? "https" : "http", host, port_);
  service_.SetLoopbackOnly(endpoint.address().is_loopback());
}

void Server::Impl::Start() {
  ApiKeys keys = LoadApiKeys(options_.api_keys, options_.api_key_file);
  if (!options_.ssl_certfile.empty()) {
    tls_ = std::make_unique<TlsContext>(options_.ssl_certfile, options_.ssl_keyfile);
  } else if (!options_.ssl_keyfile.empty()) {
    Fail(ErrorKind::kInvalidArgument,
         "--ssl-keyfile {}: a key without a certificate; give --ssl-certfile too",
         options_.ssl_keyfile.string());
  }
  Listen(!keys.empty());
  service_.SetKeys(std::move(keys));
  {
    MutexLock lock(mutex_);
    CHECK(phase_ == Phase::kNew);
    phase_ = Phase::kRunning;
  }
  net::post(accept_strand_, [this] { Accept(); });
  try {
    for (int i = 0; i < std::max(options_.io_threads, 1); ++i) {
      threads_.emplace_back([this] { io_.run(); });
    }
  } catch (...) {  // the system makes no more: without a thread nothing could be stopped in order
    io_.stop();
    for (std::thread& thread : threads_) thread.join();
    MutexLock lock(mutex_);
    phase_ = Phase::kStopped;
    throw;
  }
}

void Server::Impl::Reload() {
  const auto reload = [](const char* what, const auto& read) {
    try {
      read();
      LogInfo("{} was read again", what);
    } catch (const Error& error) {
      LogError("{} stays as it was: {}", what, error.what());
    }
  };
  if (!options_.api_key_file.empty()) {
    reload("--api-key-file",
           [this] { service_.SetKeys(LoadApiKeys(options_.api_keys, options_.api_key_file)); });
  }
  if (tls_ != nullptr) reload("the certificate", [this] { tls_->Reload(); });
}

void Server::Impl::Accept() {
  acceptor_.async_accept(net::make_strand(io_),
                         [this](boost::system::error_code error, tcp::socket socket) {
                           OnAccepted(error, std::move(socket));
                         });
}

void Server::Impl::OnAccepted(boost::system::error_code error, tcp::socket socket) {
  if (!acceptor_.is_open()) return;
  if (error) {
    if (error == net::error::operation_aborted) return;
    // Out of file descriptors, mostly: trying again at once would spin.
    LogWarn("cannot accept a connection: {}", error.message());
    retry_timer_.expires_after(kAcceptRetry);
    retry_timer_.async_wait([this](boost::system::error_code aborted) {
      if (!aborted && acceptor_.is_open()) Accept();
    });
    return;
  }
  const auto tls = tls_ != nullptr ? tls_->current() : nullptr;
  auto session = std::make_shared<Session>(std::move(socket), tls.get(), shared_);
  bool for_probes = false;
  std::shared_ptr<Session> oldest;
  {
    MutexLock lock(mutex_);
    for_probes = sessions_.size() - probes_.size() >= options_.max_connections;
    if (for_probes) {
      // A probe needs milliseconds; who holds such a connection for longer gives way to the next.
      if (!probes_.empty() && probes_.size() >= options_.probe_connections) {
        oldest = sessions_.at(probes_.front()).lock();
        probes_.pop_front();
      }
      probes_.push_back(session.get());
    }
    sessions_.emplace(session.get(), session);
    metrics_.connections().Set(static_cast<double>(sessions_.size()));
  }
  if (oldest != nullptr) oldest->Kill();
  if (for_probes) {
    session->StartForProbes();
  } else {
    session->Start();
  }
  Accept();
}

void Server::Impl::OnChange(Session* closed) {
  MutexLock lock(mutex_);
  if (closed != nullptr) {
    sessions_.erase(closed);
    std::erase(probes_, closed);
    metrics_.connections().Set(static_cast<double>(sessions_.size()));
  }
  changed_.NotifyAll();
}

std::vector<std::shared_ptr<Session>> Server::Impl::Sessions() {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Session>> result;
  for (const auto& [key, weak] : sessions_) {
    if (auto session = weak.lock()) result.push_back(std::move(session));
  }
  return result;
}

bool Server::Impl::WaitIdle() {
  while (shared_.busy.load() > 0) {
    if (Clock::now() >= stop_deadline_) return false;
    changed_.WaitUntil(mutex_, stop_deadline_);
  }
  return true;
}

void Server::Impl::WaitClosed(Clock::time_point deadline) {
  MutexLock lock(mutex_);
  while (!sessions_.empty() && Clock::now() < deadline) changed_.WaitUntil(mutex_, deadline);
}

// Returns when no connection can be added any more.
void Server::Impl::CloseAcceptor() {
  net::post(accept_strand_, [this] {
    boost::system::error_code ignored;
    acceptor_.close(ignored);
    retry_timer_.cancel(ignored);
    MutexLock lock(mutex_);
    accepting_ = false;
    changed_.NotifyAll();
  });
  MutexLock lock(mutex_);
  while (accepting_) changed_.Wait(mutex_);
}

bool Server::Impl::Stop(std::chrono::milliseconds drain_timeout) {
  {
    MutexLock lock(mutex_);
    if (phase_ == Phase::kNew) phase_ = Phase::kStopped;
    if (phase_ == Phase::kStopped) return drained_;
    stop_deadline_ = std::min(stop_deadline_, Clock::now() + drain_timeout);
    changed_.NotifyAll();
    if (phase_ == Phase::kStopping) {  // another thread is at it
      while (phase_ != Phase::kStopped) changed_.Wait(mutex_);
      return drained_;
    }
    phase_ = Phase::kStopping;
  }
  service_.BeginDrain();
  {
    MutexLock lock(mutex_);
    drained_ = WaitIdle();
  }
  CloseAcceptor();
  // Connections that wait for a request close now; those whose request is cut short tell their
  // client.
  for (const auto& session : Sessions()) session->Shutdown();
  WaitClosed(Clock::now() + kFlushTime);
  for (const auto& session : Sessions()) session->Kill();
  // They look for it that their clients have gone, and end soon; but what they call does not
  // always.
  const bool workers_ended = workers_.WaitIdle(Clock::now() + options_.worker_timeout);
  // Every handler that is left runs before the threads end: what a worker has submitted is
  // cancelled, and no engine keeps a way to a connection.
  work_.reset();
  for (std::thread& thread : threads_) thread.join();
  MutexLock lock(mutex_);
  workers_ended_ = workers_ended;
  phase_ = Phase::kStopped;
  changed_.NotifyAll();
  return drained_;
}

Server::Server(ServerOptions options, MetricsRegistry& metrics)
    : impl_(std::make_unique<Impl>(std::move(options), metrics)) {}
Server::~Server() = default;

void Server::SetBatches(BatchBackend batches) { impl_->service().SetBatches(std::move(batches)); }
void Server::Start() { impl_->Start(); }
void Server::Reload() { impl_->Reload(); }
uint16_t Server::port() const { return impl_->port(); }
std::string Server::address() const { return impl_->address(); }
ServedModel Server::Model(const std::string& name) { return impl_->service().Model(name); }
void Server::SetModels(std::vector<ServedModel> models) {
  impl_->service().SetModels(std::move(models));
}
void Server::ShowLoading(double fraction) { impl_->service().ShowLoading(fraction); }
void Server::SetManager(ModelManager* manager) { impl_->service().SetManager(manager); }
void Server::BeginDrain() { impl_->service().BeginDrain(); }
bool Server::Stop(std::chrono::milliseconds drain_timeout) { return impl_->Stop(drain_timeout); }
bool Server::HasBusyWorkers() const { return impl_->HasBusyWorkers(); }

}  // namespace moesaic
