// ClientStream: the bytes of a client's connection, plain or in TLS.
//
// Owned by a session and used on its strand: at most one read and one write at a time, beside a
// handshake before them or a shutdown behind them. Handlers keep alive what they use.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <optional>
#include <utility>

namespace moesaic {

class ClientStream {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using Error = boost::system::error_code;

  // `tls` null: the bytes go as they are.
  ClientStream(Socket socket, boost::asio::ssl::context* tls) : socket_(std::move(socket)) {
    if (tls != nullptr) tls_.emplace(socket_, *tls);
  }
  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;

  bool is_tls() const { return tls_.has_value(); }
  Socket& socket() { return socket_; }
  const Socket& socket() const { return socket_; }

  // Of TLS, before anything else. handler(Error)
  template <typename Handler>
  void Handshake(Handler&& handler) {
    tls_->async_handshake(boost::asio::ssl::stream_base::server, std::forward<Handler>(handler));
  }
  // handler(Error, size_t)
  template <typename Handler>
  void ReadSome(boost::asio::mutable_buffer buffer, Handler&& handler) {
    if (tls_) return tls_->async_read_some(buffer, std::forward<Handler>(handler));
    socket_.async_read_some(buffer, std::forward<Handler>(handler));
  }
  template <typename Handler>
  void WriteSome(boost::asio::const_buffer buffer, Handler&& handler) {
    if (tls_) return tls_->async_write_some(buffer, std::forward<Handler>(handler));
    socket_.async_write_some(buffer, std::forward<Handler>(handler));
  }
  // Tells the client that nothing follows; reading goes on. `handler` is called when the client has
  // said so too, or at once, and may ignore both.
  template <typename Handler>
  void ShutdownSend(Handler&& handler) {
    if (tls_) return tls_->async_shutdown(std::forward<Handler>(handler));
    Error ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
  }
  void Close() {
    Error ignored;
    socket_.close(ignored);
  }

  // The client sends no more, in order: or, in TLS, without having said so, as many do.
  static bool IsEnd(const Error& error) {
    return error == boost::asio::error::eof || error == boost::asio::ssl::error::stream_truncated;
  }

 private:
  Socket socket_;
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;
};

}  // namespace moesaic
