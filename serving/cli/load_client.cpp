#include "serving/cli/load_client.h"

#include <utility>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cmath>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "serving/cli/sse_parser.h"

namespace moesaic {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kMaxErrorBytes = 4 << 10;
constexpr uint64_t kMaxReplyBytes = uint64_t{64} << 20;

std::chrono::nanoseconds Nanoseconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

http::request<http::string_body> MakeRequest(const Endpoint& endpoint, const std::string& path,
                                             const std::string& api_key, const std::string& body) {
  http::request<http::string_body> request;
  request.version(11);
  request.method(body.empty() ? http::verb::get : http::verb::post);
  request.target(endpoint.prefix + path);
  const bool v6 = endpoint.host.find(':') != std::string::npos;
  request.set(http::field::host,
              (v6 ? "[" + endpoint.host + "]" : endpoint.host) + ":" + endpoint.port);
  request.set(http::field::user_agent, "moesaic-bench");
  request.set(http::field::connection, "close");
  if (!api_key.empty()) request.set(http::field::authorization, "Bearer " + api_key);
  if (!body.empty()) {
    request.set(http::field::content_type, "application/json");
    request.body() = body;
  }
  request.prepare_payload();
  return request;
}

// What an error answer says: OpenAI's error object, or the body as it is.
std::string ErrorText(int status, const std::string& body) {
  const nlohmann::json json = nlohmann::json::parse(body, nullptr, false);
  if (json.is_object() && json.contains("error")) {
    const nlohmann::json& error = json["error"];
    if (error.is_object() && error.contains("message") && error["message"].is_string()) {
      return "HTTP " + std::to_string(status) + ": " + error["message"].get<std::string>();
    }
  }
  return "HTTP " + std::to_string(status) + ": " + body.substr(0, 200);
}

// One request on one connection; held alive by its pending operations.
class StreamCall : public std::enable_shared_from_this<StreamCall> {
 public:
  StreamCall(asio::io_context& io, http::request<http::string_body> request, LoadResult& result,
             std::function<void()> done)
      : stream_(io), request_(std::move(request)), result_(result), done_(std::move(done)) {
    parser_.body_limit(kMaxReplyBytes);
  }

  void Start(const tcp::resolver::results_type& addresses, double timeout_s) {
    watch_.Restart();
    stream_.expires_after(Nanoseconds(timeout_s));  // for everything until the end
    stream_.async_connect(addresses,
                          [self = shared_from_this()](ErrorCode error, const tcp::endpoint&) {
                            self->OnConnect(error);
                          });
  }

 private:
  void OnConnect(ErrorCode error) {
    if (error) return Fail("cannot connect: " + error.message());
    ErrorCode ignored;
    stream_.socket().set_option(tcp::no_delay(true), ignored);
    http::async_write(stream_, request_, [self = shared_from_this()](ErrorCode failed, size_t) {
      if (failed) return self->Fail("sending failed: " + failed.message());
      http::async_read_header(self->stream_, self->buffer_, self->parser_,
                              [self](ErrorCode unread, size_t) { self->OnHeader(unread); });
    });
  }

  void OnHeader(ErrorCode error) {
    if (error) return Fail("no answer: " + error.message());
    status_ = parser_.get().result_int();
    ReadBody();
  }

  void ReadBody() {
    parser_.get().body().data = chunk_;
    parser_.get().body().size = sizeof(chunk_);
    parser_.get().body().more = true;
    http::async_read_some(
        stream_, buffer_, parser_,
        [self = shared_from_this()](ErrorCode error, size_t) { self->OnBody(error); });
  }

  void OnBody(ErrorCode error) {
    const size_t bytes = sizeof(chunk_) - parser_.get().body().size;
    const double now_s = watch_.seconds();
    if (error == http::error::need_buffer) error = {};
    if (status_ != 200) {
      error_body_.append(chunk_, std::min(bytes, kMaxErrorBytes - error_body_.size()));
    } else {
      events_.clear();
      sse_.Feed({chunk_, bytes}, events_);
      for (const std::string& event : events_) {
        if (TakeStreamEvent(event, now_s, result_)) return Finish();
      }
    }
    if (error) return Fail("the answer broke off: " + error.message());
    if (!parser_.is_done()) return ReadBody();
    if (status_ != 200) return Fail(ErrorText(static_cast<int>(status_), error_body_));
    Fail("the stream ended without [DONE]");
  }

  void Fail(const std::string& error) {
    result_.error = error;
    result_.ok = false;
    Finish();
  }

  void Finish() {
    if (result_.error.empty()) {
      result_.ok = true;
      if (result_.ttft_s == 0) result_.ttft_s = result_.latency_s = watch_.seconds();
      if (result_.output_tokens == 0 && !result_.text.empty()) {
        result_.output_tokens = 1 + static_cast<int64_t>(result_.itl_s.size());
      }
    }
    ErrorCode ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.close();
    done_();
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  http::request<http::string_body> request_;
  http::response_parser<http::buffer_body> parser_;
  LoadResult& result_;
  std::function<void()> done_;
  Stopwatch watch_;
  SseParser sse_;
  std::vector<std::string> events_;
  unsigned status_ = 0;
  std::string error_body_;
  char chunk_[kReadBytes];
};

// Starts requests at their arrival times, no more at once than the shape allows.
class LoadRunner {
 public:
  LoadRunner(const Endpoint& endpoint, const std::string& path, const std::string& api_key,
             const std::vector<LoadRequest>& requests, const LoadShape& shape,
             const std::function<void(size_t done)>& progress)
      : endpoint_(endpoint),
        path_(path),
        api_key_(api_key),
        requests_(requests),
        shape_(shape),
        progress_(progress),
        arrivals_(ArrivalTimes(requests.size(), shape)),
        timer_(io_) {
    run_.results.resize(requests.size());
    tcp::resolver resolver(io_);
    ErrorCode error;
    addresses_ = resolver.resolve(endpoint.host, endpoint.port, error);
    if (error) {
      moesaic::Fail(ErrorKind::kUnavailable, "{}: {}", endpoint.host, error.message());
    }
  }

  LoadRun Run() {
    watch_.Restart();
    ScheduleNext();
    io_.run();
    run_.duration_s = watch_.seconds();
    return std::move(run_);
  }

 private:
  void ScheduleNext() {
    if (arrived_ == requests_.size()) return;
    const double wait_s = arrivals_[arrived_] - watch_.seconds();
    timer_.expires_after(Nanoseconds(std::max(0.0, wait_s)));
    timer_.async_wait([this](ErrorCode) {
      waiting_.push_back(arrived_++);
      StartWaiting();
      ScheduleNext();
    });
  }

  void StartWaiting() {
    while (!waiting_.empty() &&
           (shape_.max_concurrency == 0 || running_ < shape_.max_concurrency)) {
      const size_t index = waiting_.front();
      waiting_.pop_front();
      ++running_;
      LoadResult& result = run_.results[index];
      result.start_s = watch_.seconds();
      result.prompt_tokens = requests_[index].prompt_tokens;
      std::make_shared<StreamCall>(
          io_, MakeRequest(endpoint_, path_, api_key_, requests_[index].body), result,
          [this] {
            --running_;
            progress_(++done_);
            StartWaiting();
          })
          ->Start(addresses_, shape_.timeout_s);
    }
  }

  const Endpoint& endpoint_;
  const std::string& path_;
  const std::string& api_key_;
  const std::vector<LoadRequest>& requests_;
  const LoadShape& shape_;
  const std::function<void(size_t done)>& progress_;
  std::vector<double> arrivals_;
  asio::io_context io_{1};
  asio::steady_timer timer_;
  tcp::resolver::results_type addresses_;
  Stopwatch watch_;
  LoadRun run_;
  std::deque<size_t> waiting_;  // arrived, not started
  size_t arrived_ = 0;
  size_t done_ = 0;
  int64_t running_ = 0;
};

}  // namespace

Endpoint ParseBaseUrl(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  if (url.compare(0, 8, "https://") == 0) {
    Fail(ErrorKind::kUnsupported, "--base-url {}: https is not supported; use http", url);
  }
  Endpoint endpoint;
  std::string rest =
      url.compare(0, kScheme.size(), kScheme) == 0 ? url.substr(kScheme.size()) : url;
  const size_t slash = std::min(rest.find('/'), rest.size());
  endpoint.prefix = rest.substr(slash);
  while (!endpoint.prefix.empty() && endpoint.prefix.back() == '/') endpoint.prefix.pop_back();
  rest.resize(slash);
  const size_t bracket = rest.find(']');  // [::1]:8000
  const size_t colon = rest.find(':', bracket == std::string::npos ? 0 : bracket);
  endpoint.host = rest.substr(0, colon);
  endpoint.port = colon == std::string::npos ? "80" : rest.substr(colon + 1);
  if (bracket != std::string::npos && endpoint.host.front() == '[') {
    endpoint.host = endpoint.host.substr(1, bracket - 1);
  }
  const bool digits = std::all_of(endpoint.port.begin(), endpoint.port.end(),
                                  [](char c) { return c >= '0' && c <= '9'; });
  if (endpoint.host.empty() || endpoint.port.empty() || endpoint.port.size() > 5 || !digits) {
    Fail(ErrorKind::kInvalidArgument, "--base-url: '{}' is not like http://127.0.0.1:8000", url);
  }
  return endpoint;
}

HttpReply HttpCall(const Endpoint& endpoint, const std::string& path, const std::string& api_key,
                   const std::string& body, double timeout_s) {
  asio::io_context io(1);
  beast::tcp_stream stream(io);
  beast::flat_buffer buffer;
  http::request<http::string_body> request = MakeRequest(endpoint, path, api_key, body);
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxReplyBytes);
  tcp::resolver resolver(io);
  ErrorCode result;
  const auto addresses = resolver.resolve(endpoint.host, endpoint.port, result);
  if (!result) {
    // A tcp_stream's deadline works for asynchronous operations only.
    stream.expires_after(Nanoseconds(timeout_s));
    stream.async_connect(addresses, [&](ErrorCode error, const tcp::endpoint&) {
      result = error;
      if (error) return;
      http::async_write(stream, request, [&](ErrorCode unsent, size_t) {
        result = unsent;
        if (unsent) return;
        http::async_read(stream, buffer, parser,
                         [&](ErrorCode unread, size_t) { result = unread; });
      });
    });
    io.run();
  }
  if (result) {
    Fail(ErrorKind::kUnavailable, "http://{}:{}{}{}: {}", endpoint.host, endpoint.port,
         endpoint.prefix, path, result.message());
  }
  return {static_cast<int>(parser.get().result_int()), parser.get().body()};
}

LoadRun RunLoad(const Endpoint& endpoint, const std::string& path, const std::string& api_key,
                const std::vector<LoadRequest>& requests, const LoadShape& shape,
                const std::function<void(size_t done)>& progress) {
  return LoadRunner(endpoint, path, api_key, requests, shape, progress).Run();
}

std::vector<double> ArrivalTimes(size_t count, const LoadShape& shape) {
  std::vector<double> times(count, 0.0);
  if (!std::isfinite(shape.requests_per_s)) return times;
  std::mt19937_64 random(shape.seed);
  // Gaps of mean 1 / rate, as vLLM's benchmark draws them.
  std::gamma_distribution<double> gap(shape.burstiness,
                                      1.0 / (shape.requests_per_s * shape.burstiness));
  double now_s = 0;
  for (double& time : times) {
    time = now_s;
    now_s += gap(random);
  }
  return times;
}

bool TakeStreamEvent(const std::string& data, double now_s, LoadResult& result) {
  if (data == "[DONE]") return true;
  try {
    const nlohmann::json json = nlohmann::json::parse(data);
    if (const auto error = json.find("error"); error != json.end()) {
      result.error = error->is_object() ? error->value("message", "error") : error->dump();
      return true;
    }
    if (const auto usage = json.find("usage"); usage != json.end() && usage->is_object()) {
      result.prompt_tokens = usage->value("prompt_tokens", result.prompt_tokens);
      result.output_tokens = usage->value("completion_tokens", result.output_tokens);
    }
    const auto choices = json.find("choices");
    if (choices == json.end() || choices->empty()) return false;
    const nlohmann::json& choice = choices->at(0);
    const bool chat = choice.contains("delta");
    const nlohmann::json& holder = chat ? choice.at("delta") : choice;
    const auto text = holder.find(chat ? "content" : "text");
    // The first chunk of a chat carries the role alone: no token has been made yet.
    if (text == holder.end() || text->is_null()) return false;
    const std::string piece = text->get<std::string>();
    if (piece.empty()) return false;
    if (result.text.empty()) {
      result.ttft_s = now_s;
    } else {
      result.itl_s.push_back(now_s - result.latency_s);
    }
    result.latency_s = now_s;
    result.text += piece;
    return false;
  } catch (const nlohmann::json::exception&) {
    result.error = "not an event of a completion: " + data.substr(0, 100);
    return true;
  }
}

}  // namespace moesaic
