// TestClient: a blocking HTTP client over a socket, plain or in TLS, that can also misbehave. Every
// wait has a time limit after which the test fails.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serving/api/json_text.h"

struct ssl_st;      // OpenSSL's SSL
struct ssl_ctx_st;  // and its SSL_CTX

namespace moesaic {

struct TestResponse {
  int status = 0;  // 0: the connection ended before a response
  std::string head;
  std::string body;  // without chunk framing
  bool complete = false;

  std::string Header(std::string_view name) const;  // "" when absent
  Json json() const { return Json::parse(body); }
};

class TestClient {
 public:
  // `receive_buffer_bytes` > 0 makes a client that can be slow early.
  explicit TestClient(uint16_t port, int receive_buffer_bytes = 0);
  ~TestClient();
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  // From now on in TLS; trusts the certificates of the file. "" or what is wrong. `max_version`: of
  // TLS (TLS1_2_VERSION, ...), 0 for any.
  std::string StartTls(const std::filesystem::path& trusted, int max_version = 0);
  // The organisation that the server's certificate names.
  std::string TlsOrganisation() const;
  // The server has said that nothing follows.
  bool TlsEndedInOrder() const;
  // Past TLS.
  bool SendBelowTls(std::string_view data);

  // False: the server has closed or reset the connection.
  bool Send(std::string_view data);
  TestResponse Receive(bool head_only = false);  // the next response, bodies of any framing
  // Reads until `text` has been seen (in all that was received after the last response); false at
  // the connection's end.
  bool ReceiveUntil(std::string_view text);
  bool ReceiveMore() { return Fill(); }  // at least a byte; false at the end
  // Reads to the connection's end, dropping what comes.
  void ReceiveToEnd();
  void ShutdownSend();
  void Close();
  void Reset();  // closes with RST
  const std::string& received() const { return buffer_; }

  TestResponse Get(const std::string& path, const std::string& headers = {});
  TestResponse Post(const std::string& path, const std::string& body,
                    const std::string& headers = {});
  static std::string PostText(const std::string& path, const std::string& body,
                              const std::string& headers = {});

 private:
  bool Fill();  // false at the end

  int socket_ = -1;
  std::unique_ptr<ssl_ctx_st, void (*)(ssl_ctx_st*)> tls_context_;
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> tls_;  // null: plain
  std::string buffer_;
};

// The JSON of each SSE event; "[DONE]" as a string; comments as "comment".
std::vector<Json> SseEvents(const std::string& body);

}  // namespace moesaic
