#include <utility>

#include "serving/http/session.h"

#include <openssl/err.h>
#include <openssl/sslerr.h>

#include <algorithm>
#include <boost/asio/post.hpp>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "serving/http/error_response.h"

namespace moesaic {
namespace {

namespace net = boost::asio;

constexpr size_t kMaxPipelinedBytes = 64 << 10;  // read ahead while a request is being answered
constexpr size_t kMaxDrainedBytes =
    64 << 10;  // a refused body up to this is read, the connection kept
constexpr size_t kMaxLingerBytes = 8 << 20;
constexpr std::chrono::seconds kLingerTime{2};
constexpr std::chrono::milliseconds kProbeTime{2'000};  // for the head of a probe, once connected
constexpr int kClientClosedRequest = 499;               // nginx's number, for metrics and logs only
// A program that was given the address without the "s" gets to know it.
constexpr std::string_view kAnswerToPlainHttp =
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 54\r\n"
    "Connection: close\r\n\r\nThis port speaks HTTPS: the address begins with https.";

bool IsPlainHttp(const boost::system::error_code& error) {
  return error.category() == net::error::get_ssl_category() &&
         ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_HTTP_REQUEST;
}

}  // namespace

class Session::SessionExchange : public Exchange {
 public:
  explicit SessionExchange(std::shared_ptr<Session> session)
      : session_(std::move(session)), executor_(session_->executor()) {}

  HttpRequest& request() override { return session_->request_; }
  void Respond(HttpResponse response) override {
    if (Live()) session_->Respond(std::move(response));
  }
  void StartStream(HttpResponse head) override {
    if (Live()) session_->StartStream(std::move(head));
  }
  void Send(std::string_view data) override {
    if (Live()) session_->SendStream(data);
  }
  void FinishStream() override {
    if (Live()) session_->FinishStream();
  }
  bool writable() const override {
    return Live() && !session_->writing_ && session_->pending_output_.empty();
  }
  void Abort() override {
    if (Live()) session_->Close();
  }
  void SetLogNote(std::string note) override {
    // Also when the connection has just gone: the note says why.
    if (session_->exchange_.get() == this) session_->log_note_ = std::move(note);
  }
  void Post(std::function<void()> function) override { net::post(executor_, std::move(function)); }
  void PostAfter(std::chrono::milliseconds wait, std::function<void()> function) override {
    auto timer = std::make_shared<net::steady_timer>(executor_, wait);  // lives until it fires
    timer->async_wait(
        [timer, function = std::move(function)](boost::system::error_code) { function(); });
  }

 private:
  bool Live() const {
    return session_->exchange_.get() == this && session_->phase_ == Phase::kAnswering;
  }

  const std::shared_ptr<Session> session_;
  const net::any_io_executor executor_;
};

Session::Session(ClientStream::Socket socket, boost::asio::ssl::context* tls, SessionShared& shared)
    : shared_(shared),
      stream_(std::move(socket), tls),
      timer_(executor()),
      reader_(shared.options) {
  boost::system::error_code ignored;
  stream_.socket().set_option(net::ip::tcp::no_delay(true), ignored);
  const auto endpoint = stream_.socket().remote_endpoint(ignored);
  if (!ignored) peer_ = PeerOf(endpoint.address());
}

Session::~Session() = default;

void Session::Start() {
  net::post(executor(), [self = shared_from_this()] {
    if (self->stream_.is_tls()) return self->Handshake();
    self->UpdateReadDeadline();
    self->Read();
  });
}

void Session::StartForProbes() {
  for_probes_ = true;  // nothing runs yet
  close_after_ = true;
  Start();
}

void Session::Shutdown() {
  net::post(executor(), [self = shared_from_this()] {
    self->stopping_ = true;
    self->close_after_ = true;
    if (self->phase_ == Phase::kReading || self->phase_ == Phase::kLingering) {
      self->Close();
    } else if (self->phase_ == Phase::kAnswering && self->call_ != nullptr) {
      const std::shared_ptr<Call> call = self->call_;
      call->OnShutdown();
    }
  });
}

void Session::Kill() {
  net::post(executor(), [self = shared_from_this()] { self->Close(); });
}

void Session::Handshake() {
  BeginStage(ReadStage::kHandshake);
  stream_.Handshake(
      [self = shared_from_this()](boost::system::error_code error) { self->OnHandshake(error); });
}

void Session::OnHandshake(boost::system::error_code error) {
  if (phase_ == Phase::kClosed) return;
  LeaveSlow();
  if (error) {
    boost::system::error_code ignored;
    LogDebug("no TLS with {}: {}", stream_.socket().remote_endpoint(ignored).address().to_string(),
             error.message());
    if (IsPlainHttp(error)) {
      stream_.socket().write_some(net::buffer(kAnswerToPlainHttp), ignored);
    }
    return Close();
  }
  UpdateReadDeadline();
  Read();
}

void Session::Read() {
  if (reading_ || peer_gone_ || phase_ == Phase::kClosed) return;
  const bool ahead = phase_ == Phase::kAnswering || phase_ == Phase::kFlushing;
  if (ahead && input_.size() >= kMaxPipelinedBytes) return;  // EndRequest goes on
  reading_ = true;
  stream_.ReadSome(net::buffer(read_buffer_),
                   [self = shared_from_this()](boost::system::error_code error, size_t bytes) {
                     self->OnRead(error, bytes);
                   });
}

void Session::OnRead(boost::system::error_code error, size_t bytes) {
  reading_ = false;
  if (phase_ == Phase::kClosed) return;
  if (error) {
    peer_gone_ = true;
    // A client that only shuts its sending side may still read an answer that is complete; one that
    // does so while an answer is being generated is taken to have left, as other servers do.
    if (!ClientStream::IsEnd(error) || phase_ != Phase::kFlushing) Close();
    return;
  }
  if (phase_ == Phase::kLingering) {
    lingered_bytes_ += bytes;
    if (lingered_bytes_ > kMaxLingerBytes) return Close();
  } else {
    input_.append(read_buffer_.data(), bytes);
    if (phase_ == Phase::kReading) ProcessInput();
  }
  Read();
}

void Session::ProcessInput() {
  while (phase_ == Phase::kReading) {
    switch (reader_.Consume(input_)) {
      case RequestReader::Progress::kNeedMore:
        if (peer_gone_) return Close();
        AccountBody(reader_.body_bytes());
        if (phase_ == Phase::kReading) UpdateReadDeadline();
        return;
      case RequestReader::Progress::kHead:
        if (!OnHead()) return;
        break;
      case RequestReader::Progress::kComplete:
        AccountBody(reader_.body_bytes());
        if (phase_ == Phase::kReading) Dispatch();
        return;
      case RequestReader::Progress::kFailed:
        return RefuseInput(reader_.error());
    }
  }
}

bool Session::OnHead() {
  counted_ = true;
  shared_.busy.fetch_add(1);
  request_start_ = Clock::now();
  const HttpRequest& head = reader_.head();
  if (for_probes_ && !shared_.handler.IsProbe(head)) {
    refusal_ = ErrorResponse(Unavailable("The server has too many connections; try again later.",
                                         "too_many_connections", 1),
                             head.path);
  } else {
    refusal_ = shared_.handler.CheckHead(head);
  }
  if (!refusal_.has_value()) {
    if (head.expects_continue) QueueOutput("HTTP/1.1 100 Continue\r\n\r\n");
    return true;
  }
  const bool small_body = !head.chunked && head.content_length.value_or(0) <= kMaxDrainedBytes;
  if (small_body && !head.expects_continue) return true;  // Dispatch answers behind the body
  request_ = head;
  refusal_->close = true;
  Respond(std::move(*refusal_));
  return false;
}

void Session::Dispatch() {
  request_ = reader_.TakeRequest();
  phase_ = Phase::kAnswering;
  read_stage_ = ReadStage::kNone;
  read_deadline_ = Clock::time_point::max();
  LeaveSlow();
  if (refusal_.has_value()) return Respond(std::move(*refusal_));
  exchange_ = std::make_shared<SessionExchange>(shared_from_this());
  try {
    call_ = shared_.handler.Handle(exchange_);
  } catch (...) {
    Respond(ErrorResponse(CurrentApiError(fmt::format("request {}", request_.id)), request_.path));
  }
  if (phase_ == Phase::kAnswering && shared_.options.sse_keep_alive.count() > 0) {
    quiet_deadline_ = Clock::now() + shared_.options.sse_keep_alive;
    ArmTimer();
  }
}

void Session::UpdateReadDeadline() {
  const ReadStage stage = !reader_.started()    ? ReadStage::kIdle
                          : !reader_.has_head() ? ReadStage::kHead
                                                : ReadStage::kBody;
  if (stage != read_stage_) BeginStage(stage);
}

void Session::BeginStage(ReadStage stage) {
  const ServerOptions& options = shared_.options;
  read_stage_ = stage;
  const Clock::time_point now = Clock::now();
  auto timeout = options.idle_timeout;
  if (stage == ReadStage::kHead) timeout = options.header_timeout;
  if (MayBeSlow(stage)) {
    const auto longest =
        stage == ReadStage::kHandshake ? options.handshake_timeout : options.body_timeout;
    slow_deadline_ = now + longest;
    timeout = std::min(options.slow_after, longest);
  }
  if (for_probes_) timeout = std::min(timeout, kProbeTime);
  read_deadline_ = now + timeout;
  ArmTimer();
}

// A handshake or a body that is late goes on until its own deadline where its peer may have another
// slow one.
void Session::OnReadDeadline() {
  if (MayBeSlow(read_stage_) && read_deadline_ < slow_deadline_ && !for_probes_ &&
      shared_.slow_peers.Enter(peer_)) {
    slow_ = true;
    read_deadline_ = slow_deadline_;
    return;
  }
  if (read_stage_ == ReadStage::kIdle || read_stage_ == ReadStage::kHandshake) return Close();
  RefuseInput(ApiError(408, "invalid_request_error", "The request did not arrive in time.", {},
                       "request_timeout"));
}

void Session::LeaveSlow() {
  if (slow_) shared_.slow_peers.Leave(peer_);
  slow_ = false;
}

void Session::AccountBody(size_t bytes) {
  const size_t total =
      shared_.body_bytes.fetch_add(bytes - accounted_body_bytes_) + bytes - accounted_body_bytes_;
  accounted_body_bytes_ = bytes;
  if (bytes > 0 && total > shared_.options.max_buffered_body_bytes) {
    RefuseInput(
        Unavailable("The server holds too many request bodies; try again later.", "overloaded", 1));
  }
}

void Session::RefuseInput(const ApiError& error) {
  request_ = reader_.head();
  HttpResponse response = ErrorResponse(error, request_.path);
  response.close = true;
  Respond(std::move(response));
}

void Session::Respond(HttpResponse response) {
  if (phase_ != Phase::kReading && phase_ != Phase::kAnswering) return;
  CHECK(!streaming_);
  LeaveSlow();
  phase_ = Phase::kFlushing;
  read_stage_ = ReadStage::kNone;
  read_deadline_ = Clock::time_point::max();
  quiet_deadline_ = Clock::time_point::max();
  shared_.handler.DecorateResponse(request_, response);
  status_ = response.status;
  close_after_ = close_after_ || response.close || !request_.keep_alive;
  std::string head = SerializeHead(response, BodyFraming::kContentLength, response.body.size(),
                                   !close_after_, request_.id);
  if (request_.method == "HEAD") return QueueOwned(std::move(head));
  response.body.insert(0, head);  // in place: an answer may have megabytes
  QueueOwned(std::move(response.body));
}

void Session::StartStream(HttpResponse head) {
  CHECK(!streaming_);
  streaming_ = true;
  shared_.handler.DecorateResponse(request_, head);
  status_ = head.status;
  chunked_ = request_.version >= 11;
  close_after_ = close_after_ || !chunked_ || !request_.keep_alive;
  QueueOutput(SerializeHead(head, chunked_ ? BodyFraming::kChunked : BodyFraming::kUntilClose, 0,
                            !close_after_, request_.id));
}

void Session::SendStream(std::string_view data) {
  CHECK(streaming_);
  if (data.empty()) return;  // an empty chunk would end the stream
  if (!chunked_) return QueueOutput(data);
  std::string chunk;
  chunk.reserve(data.size() + 16);
  AppendChunk(data, chunk);
  QueueOutput(chunk);
}

void Session::FinishStream() {
  CHECK(streaming_);
  phase_ = Phase::kFlushing;
  quiet_deadline_ = Clock::time_point::max();
  if (chunked_) return QueueOutput("0\r\n\r\n");
  if (!writing_) EndRequest();
}

void Session::QueueOutput(std::string_view data) {
  pending_output_ += data;
  if (!writing_) Write();
}

void Session::QueueOwned(std::string data) {
  if (!pending_output_.empty()) return QueueOutput(data);
  pending_output_ = std::move(data);
  if (!writing_) Write();
}

void Session::Write() {
  if (!writing_) {
    write_buffer_.clear();
    write_buffer_.swap(pending_output_);
    written_bytes_ = 0;
    writing_ = true;
  }
  write_deadline_ = Clock::now() + shared_.options.write_timeout;
  ArmTimer();
  stream_.WriteSome(
      net::buffer(write_buffer_.data() + written_bytes_, write_buffer_.size() - written_bytes_),
      [self = shared_from_this()](boost::system::error_code error, size_t bytes) {
        self->OnWritten(error, bytes);
      });
}

void Session::OnWritten(boost::system::error_code error, size_t bytes) {
  if (phase_ == Phase::kClosed) return;
  if (error) return Close();
  written_bytes_ += bytes;
  if (written_bytes_ < write_buffer_.size()) return Write();
  writing_ = false;
  if (!pending_output_.empty()) return Write();
  write_deadline_ = Clock::time_point::max();
  if (phase_ == Phase::kFlushing) return EndRequest();
  if (phase_ != Phase::kAnswering) return;  // a "100 Continue"
  if (shared_.options.sse_keep_alive.count() > 0) {
    quiet_deadline_ = Clock::now() + shared_.options.sse_keep_alive;
    ArmTimer();
  }
  if (call_ != nullptr) {
    const std::shared_ptr<Call> call = call_;
    call->OnWritable();
  }
}

void Session::Settle(int status) {
  if (status != 0) {
    const double seconds =
        counted_ ? std::chrono::duration<double>(Clock::now() - request_start_).count() : 0;
    shared_.handler.OnResponse(request_, status, seconds, log_note_);
  }
  AccountBody(0);
  log_note_.clear();
  status_ = 0;
  exchange_.reset();
  if (counted_) {
    counted_ = false;
    shared_.busy.fetch_sub(1);
    shared_.on_change(nullptr);
  }
}

void Session::EndRequest() {
  Settle(status_);
  call_.reset();
  refusal_.reset();
  streaming_ = false;
  request_ = HttpRequest();
  for (std::string* buffer : {&write_buffer_, &pending_output_, &input_}) {
    if (buffer->empty() && buffer->capacity() > kMaxKeptBytes) *buffer = std::string();
  }
  if (close_after_) return Linger();
  phase_ = Phase::kReading;
  UpdateReadDeadline();
  ProcessInput();
  Read();
}

void Session::Linger() {
  phase_ = Phase::kLingering;
  if (peer_gone_ || stopping_) return Close();
  // Closing with input unread would send a reset, which can overtake the answer.
  stream_.ShutdownSend([self = shared_from_this()](boost::system::error_code) {});
  linger_deadline_ = Clock::now() + kLingerTime;
  ArmTimer();
  Read();
}

void Session::Close() {
  if (phase_ == Phase::kClosed) return;
  const bool answering = phase_ == Phase::kAnswering || phase_ == Phase::kFlushing;
  phase_ = Phase::kClosed;
  LeaveSlow();
  if (call_ != nullptr) {
    call_->OnDisconnect();
    // Released later: this may run inside one of the call's own functions.
    net::post(executor(), [call = std::move(call_)] {});
  }
  Settle(answering || counted_ ? kClientClosedRequest : 0);
  boost::system::error_code ignored;
  timer_.cancel(ignored);
  stream_.Close();
  shared_.on_change(this);
}

void Session::ArmTimer() {
  const Clock::time_point next =
      std::min({read_deadline_, write_deadline_, quiet_deadline_, linger_deadline_});
  // An armed timer that fires too early only looks at the deadlines again: cheaper than moving it
  // with every write.
  if (next >= timer_at_ || phase_ == Phase::kClosed) return;
  timer_at_ = next;
  timer_.expires_at(next);
  timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (error != net::error::operation_aborted) self->OnTimer();
  });
}

void Session::OnTimer() {
  if (phase_ == Phase::kClosed) return;
  timer_at_ = Clock::time_point::max();
  const Clock::time_point now = Clock::now();
  if (write_deadline_ <= now || linger_deadline_ <= now) return Close();
  if (read_deadline_ <= now) OnReadDeadline();
  if (phase_ == Phase::kClosed) return;
  if (quiet_deadline_ <= now) {
    quiet_deadline_ = now + shared_.options.sse_keep_alive;
    if (phase_ == Phase::kAnswering && call_ != nullptr) {
      const std::shared_ptr<Call> call = call_;
      call->OnQuiet();
    }
  }
  ArmTimer();
}

}  // namespace moesaic
