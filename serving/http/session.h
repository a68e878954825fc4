// Session: one client connection. It reads requests (request_reader.h), hands each to the
// RequestHandler, and writes what the handler answers, one request at a time and in order.
//
// A read is outstanding nearly always, also while a request is being answered: that is how a client
// that leaves is noticed. Written with completion handlers instead of coroutines: reading, writing
// and the timer run side by side, and Boost 1.74 has no cancellation slots to tie coroutines
// together.
//
// Owned by its own pending operations (shared_from_this). All private functions run on the socket's
// strand.
#pragma once

#include <utility>

#include <array>
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "serving/http/client_stream.h"
#include "serving/http/exchange.h"
#include "serving/http/request_reader.h"
#include "serving/http/server_options.h"
#include "serving/http/slow_peers.h"

namespace moesaic {

class Session;

// What all sessions share; owned by the server and outliving them.
struct SessionShared {
  SessionShared(const ServerOptions& server_options, RequestHandler& request_handler,
                std::function<void(Session* closed)> changed)
      : options(server_options),
        handler(request_handler),
        slow_peers(server_options.max_slow_per_peer),
        on_change(std::move(changed)) {}

  const ServerOptions& options;
  RequestHandler& handler;
  std::atomic<size_t> body_bytes{0};  // of requests being read or answered
  std::atomic<int64_t> busy{0};       // requests that have begun and are not yet answered
  SlowPeers slow_peers;
  // Called on any thread, after busy fell or a session ended.
  std::function<void(Session* closed)> on_change;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  // Of each of three buffers, from one answer to the next.
  static constexpr size_t kMaxKeptBytes = 8 << 10;
  static constexpr size_t kMostKeptBytes = 3 * kMaxKeptBytes;

  // `tls`: null for a connection without.
  Session(ClientStream::Socket socket, boost::asio::ssl::context* tls, SessionShared& shared);
  ~Session();

  // Any thread.
  void Start();
  // One connection too many: probes are answered, the rest with 503, and it closes then.
  void StartForProbes();
  // Ends the running call; idle connections close.
  void Shutdown();
  // Closes at once.
  void Kill();

 private:
  class SessionExchange;
  using Clock = std::chrono::steady_clock;
  enum class Phase {
    kReading,    // waits for a request, or in the middle of one
    kAnswering,  // the handler has the request
    kFlushing,   // the answer is complete but not all written
    kLingering,  // written and shut down; discards input so that the client can read the answer
    kClosed,
  };
  enum class ReadStage { kNone, kHandshake, kIdle, kHead, kBody };
  static bool MayBeSlow(ReadStage stage) {
    return stage == ReadStage::kHandshake || stage == ReadStage::kBody;
  }

  boost::asio::any_io_executor executor() { return stream_.socket().get_executor(); }

  void Handshake();
  void OnHandshake(boost::system::error_code error);
  void Read();
  void OnRead(boost::system::error_code error, size_t bytes);
  void ProcessInput();
  bool OnHead();  // false: the request has been answered
  void Dispatch();
  void UpdateReadDeadline();
  void BeginStage(ReadStage stage);
  void OnReadDeadline();
  void LeaveSlow();
  void AccountBody(size_t bytes);
  void Settle(int status);  // the request's end, whichever it was: metrics, log, counters

  void Respond(HttpResponse response);
  void RefuseInput(const ApiError& error);  // answers and closes
  void QueueOutput(std::string_view data);
  void QueueOwned(std::string data);  // without a copy, where nothing waits
  void Write();
  void OnWritten(boost::system::error_code error, size_t bytes);
  void EndRequest();
  void Linger();
  void Close();

  // On behalf of the current exchange.
  void StartStream(HttpResponse head);
  void SendStream(std::string_view data);
  void FinishStream();

  void ArmTimer();
  void OnTimer();

  SessionShared& shared_;
  ClientStream stream_;
  boost::asio::steady_timer timer_;
  Phase phase_ = Phase::kReading;

  std::array<char, 16 << 10> read_buffer_;
  std::string input_;
  bool reading_ = false;
  bool peer_gone_ = false;
  bool stopping_ = false;
  bool for_probes_ = false;
  std::string peer_;
  bool slow_ = false;  // counted in shared_.slow_peers
  RequestReader reader_;
  size_t accounted_body_bytes_ = 0;
  std::optional<HttpResponse> refusal_;  // by CheckHead, sent when the small body has been read

  std::string write_buffer_;  // being written
  size_t written_bytes_ = 0;
  std::string pending_output_;
  bool writing_ = false;

  HttpRequest request_;  // being answered
  std::shared_ptr<SessionExchange> exchange_;
  std::shared_ptr<Call> call_;
  bool close_after_ = false;
  bool chunked_ = false;
  bool streaming_ = false;
  bool counted_ = false;  // in shared_.busy
  int status_ = 0;
  std::string log_note_;
  Clock::time_point request_start_;

  ReadStage read_stage_ = ReadStage::kNone;
  // Clock::time_point::max(): not running.
  Clock::time_point read_deadline_ = Clock::time_point::max();
  // Of a handshake or a body that is slow, where its peer may have another one.
  Clock::time_point slow_deadline_ = Clock::time_point::max();
  Clock::time_point write_deadline_ = Clock::time_point::max();
  Clock::time_point quiet_deadline_ = Clock::time_point::max();
  Clock::time_point linger_deadline_ = Clock::time_point::max();
  Clock::time_point timer_at_ = Clock::time_point::max();
  size_t lingered_bytes_ = 0;
};

}  // namespace moesaic
