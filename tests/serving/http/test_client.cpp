#include "tests/serving/http/test_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>

#include "core/base/check.h"

namespace moesaic {
namespace {

// Less than a test may take in all, and more than a busy machine makes a server wait.
constexpr time_t kPatienceS = 200;

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

std::string TestResponse::Header(std::string_view name) const {
  const std::string lower = Lower(head);
  const std::string key = "\r\n" + Lower(std::string(name)) + ": ";
  const size_t at = lower.find(key);
  if (at == std::string::npos) return {};
  const size_t begin = at + key.size();
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

TestClient::TestClient(uint16_t port, int receive_buffer_bytes)
    : tls_context_(nullptr, SSL_CTX_free), tls_(nullptr, SSL_free) {
  socket_ = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(socket_ >= 0);
  if (receive_buffer_bytes > 0) {
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
  }
  const timeval limit{kPatienceS, 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
}

TestClient::~TestClient() { Close(); }

std::string TestClient::StartTls(const std::filesystem::path& trusted, int max_version) {
  signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL
  tls_context_.reset(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_verify(tls_context_.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_max_proto_version(tls_context_.get(), max_version);
  CHECK_EQ(SSL_CTX_load_verify_file(tls_context_.get(), trusted.c_str()), 1);
  tls_.reset(SSL_new(tls_context_.get()));
  SSL_set_fd(tls_.get(), socket_);
  CHECK_EQ(SSL_set1_host(tls_.get(), "localhost"), 1);
  ERR_clear_error();
  if (SSL_connect(tls_.get()) == 1) return {};
  const char* why = ERR_reason_error_string(ERR_get_error());
  return why == nullptr ? "the connection ended" : why;
}

std::string TestClient::TlsOrganisation() const {
  char text[256] = {};
  X509_NAME_get_text_by_NID(X509_get_subject_name(SSL_get0_peer_certificate(tls_.get())),
                            NID_organizationName, text, sizeof(text));
  return text;
}

bool TestClient::TlsEndedInOrder() const {
  return (SSL_get_shutdown(tls_.get()) & SSL_RECEIVED_SHUTDOWN) != 0;
}

bool TestClient::SendBelowTls(std::string_view data) {
  return send(socket_, data.data(), data.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(data.size());
}

bool TestClient::Send(std::string_view data) {
  while (!data.empty()) {
    const ssize_t sent = tls_ != nullptr
                             ? SSL_write(tls_.get(), data.data(), static_cast<int>(data.size()))
                             : send(socket_, data.data(), data.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    data.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool TestClient::Fill() {
  char chunk[64 << 10];
  const ssize_t got = tls_ != nullptr ? SSL_read(tls_.get(), chunk, sizeof(chunk))
                                      : recv(socket_, chunk, sizeof(chunk), 0);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    ADD_FAILURE() << "nothing was received in time; so far: " << buffer_.substr(0, 2000);
  }
  if (got <= 0) return false;
  buffer_.append(chunk, static_cast<size_t>(got));
  return true;
}

bool TestClient::ReceiveUntil(std::string_view text) {
  while (buffer_.find(text) == std::string::npos) {
    if (!Fill()) return false;
  }
  return true;
}

void TestClient::ReceiveToEnd() {
  while (Fill()) buffer_.clear();
}

TestResponse TestClient::Receive(bool head_only) {
  TestResponse response;
  if (!ReceiveUntil("\r\n\r\n")) return response;
  const size_t head_end = buffer_.find("\r\n\r\n") + 4;
  response.head = buffer_.substr(0, head_end);
  buffer_.erase(0, head_end);
  response.status = std::stoi(response.head.substr(9, 3));
  const std::string length = response.Header("Content-Length");
  if (head_only || response.status == 204 || response.status == 100) {
    response.complete = true;
  } else if (!length.empty()) {
    const size_t bytes = std::stoul(length);
    while (buffer_.size() < bytes) {
      if (!Fill()) return response;
    }
    response.body = buffer_.substr(0, bytes);
    buffer_.erase(0, bytes);
    response.complete = true;
  } else if (response.Header("Transfer-Encoding") == "chunked") {
    while (true) {
      if (!ReceiveUntil("\r\n")) return response;
      const size_t line = buffer_.find("\r\n");
      const size_t bytes = std::stoul(buffer_.substr(0, line), nullptr, 16);
      while (buffer_.size() < line + 2 + bytes + 2) {
        if (!Fill()) return response;
      }
      response.body += buffer_.substr(line + 2, bytes);
      buffer_.erase(0, line + 2 + bytes + 2);
      if (bytes == 0) break;
    }
    response.complete = true;
  } else {
    while (Fill()) {
    }
    response.body.swap(buffer_);
    response.complete = true;
  }
  return response;
}

void TestClient::ShutdownSend() { shutdown(socket_, SHUT_WR); }

void TestClient::Close() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
}

void TestClient::Reset() {
  const linger hard{1, 0};
  setsockopt(socket_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
  Close();
}

TestResponse TestClient::Get(const std::string& path, const std::string& headers) {
  Send(fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", path, headers));
  return Receive();
}

std::string TestClient::PostText(const std::string& path, const std::string& body,
                                 const std::string& headers) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
      "{}\r\n{}\r\n{}",
      path, body.size(), headers, body);
}

TestResponse TestClient::Post(const std::string& path, const std::string& body,
                              const std::string& headers) {
  Send(PostText(path, body, headers));
  return Receive();
}

std::vector<Json> SseEvents(const std::string& body) {
  std::vector<Json> events;
  size_t pos = 0;
  while (pos < body.size()) {
    const size_t end = body.find("\n\n", pos);
    if (end == std::string::npos) {
      ADD_FAILURE() << "half an event: " << body.substr(pos);
      break;
    }
    const std::string event = body.substr(pos, end - pos);
    pos = end + 2;
    if (event[0] == ':') {
      events.emplace_back("comment");
    } else if (event == "data: [DONE]") {
      events.emplace_back("[DONE]");
    } else {
      EXPECT_EQ(event.substr(0, 6), "data: ");
      events.push_back(Json::parse(event.substr(6)));
    }
  }
  return events;
}

}  // namespace moesaic
