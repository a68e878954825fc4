// Exchange and Call: the seam between a connection and the API. The connection (session.h) makes an
// Exchange for each request; the API (api_service.h) answers through it, at once or later, and gets
// told through its Call when the client takes output or leaves. Tests put a fake Exchange in the
// place of a socket.
//
// Thread contract: everything runs on the connection's strand, except Exchange::Post, which any
// thread may call and which runs the function on the strand.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "serving/http/http_message.h"

namespace moesaic {

class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual HttpRequest& request() = 0;

  // The whole answer, once. Ignored when the connection has gone.
  virtual void Respond(HttpResponse response) = 0;

  // A streamed answer: StartStream, any number of Sends, FinishStream. `head.body` is ignored.
  virtual void StartStream(HttpResponse head) = 0;
  virtual void Send(std::string_view data) = 0;
  virtual void FinishStream() = 0;
  // False while earlier output has not all gone to the operating system; Call::OnWritable follows.
  virtual bool writable() const = 0;

  // Closes the connection without more ado.
  virtual void Abort() = 0;

  // Added to the access log line, e.g. "prompt_tokens=7".
  virtual void SetLogNote(std::string note) = 0;

  virtual void Post(std::function<void()> function) = 0;
  // On the strand: runs the function there later.
  virtual void PostAfter(std::chrono::milliseconds wait, std::function<void()> function) = 0;
};

// A request that is being answered. The exchange holds it until the answer is complete or the
// client gone.
class Call {
 public:
  virtual ~Call() = default;
  virtual void OnWritable() = 0;
  // Nothing has been written for ServerOptions::sse_keep_alive.
  virtual void OnQuiet() = 0;
  // The client has left; nothing can be sent any more.
  virtual void OnDisconnect() = 0;
  // The server stops: end the work now and tell the client.
  virtual void OnShutdown() = 0;
};

class RequestHandler {
 public:
  virtual ~RequestHandler() = default;
  // A request that tells only how the server is; it is answered on any connection.
  virtual bool IsProbe(const HttpRequest& head) const = 0;
  // Called when the head is complete and before a body is read: an answer refuses the request.
  virtual std::optional<HttpResponse> CheckHead(const HttpRequest& head) = 0;
  // Headers that go with every response to this request (CORS).
  virtual void DecorateResponse(const HttpRequest& head, HttpResponse& response) = 0;
  // Answers through the exchange, at once (returns null) or later (returns the call).
  virtual std::shared_ptr<Call> Handle(std::shared_ptr<Exchange> exchange) = 0;
  // For metrics and the access log; `log_note` is what SetLogNote said.
  virtual void OnResponse(const HttpRequest& request, int status, double seconds,
                          std::string_view log_note) = 0;
};

}  // namespace moesaic
