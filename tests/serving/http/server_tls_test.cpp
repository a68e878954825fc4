// The server in TLS: what clients get, what a reload changes, and clients that never finish their
// handshake or speak something else.
#include <openssl/ssl.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/core/base/temp_dir.h"
#include "tests/serving/http/server_fixture.h"
#include "tests/serving/http/test_certificate.h"

namespace moesaic {
namespace {

using std::chrono::milliseconds;

constexpr char kTlsConnections[] = "moe_http_connections";

class ServerTlsTest : public ServerTest {
 protected:
  ServerTlsTest() : files_(WriteTestCertificate(directory_.path(), "first")) {
    options_.ssl_certfile = files_.certificate;
    options_.ssl_keyfile = files_.key;
  }
  // What becomes of a handshake with a new connection: the organisation that the certificate names.
  std::string Handshake(const std::filesystem::path& trusted) {
    TestClient client(port());
    const std::string problem = client.StartTls(trusted);
    return problem.empty() ? client.TlsOrganisation() : problem;
  }
  // Puts another certificate and key into the server's files.
  void Replace(const TestCertificate& with) {
    const auto overwrite = std::filesystem::copy_options::overwrite_existing;
    std::filesystem::copy_file(with.certificate, files_.certificate, overwrite);
    std::filesystem::copy_file(with.key, files_.key, overwrite);
  }

  TempDir directory_;
  const TestCertificate files_;
};

TEST_F(ServerTlsTest, AnswersAndStreams) {
  Start();
  EXPECT_EQ(server_->address(), fmt::format("https://127.0.0.1:{}", port()));
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TestClient client(port());
    ASSERT_EQ(client.StartTls(files_.certificate, version), "");
    EXPECT_EQ(client.Get("/health").status, 200);
    EXPECT_EQ(client.Post("/v1/completions", Completion(3)).json()["usage"]["completion_tokens"],
              3);
    const TestResponse stream = client.Post("/v1/completions", Completion(50, R"(,"stream":true)"));
    EXPECT_TRUE(stream.complete);
    EXPECT_EQ(SseEvents(stream.body).back(), "[DONE]");
    // Pipelined, and in records of any size.
    std::string input;
    for (int i = 0; i < 20; ++i) input += TestClient::PostText("/v1/completions", Completion(2));
    for (size_t at = 0; at < input.size(); at += 333) {
      ASSERT_TRUE(client.Send(std::string_view(input).substr(at, 333)));
    }
    for (int i = 0; i < 20; ++i) EXPECT_EQ(client.Receive().status, 200);
  }
}

TEST_F(ServerTlsTest, LargeBodiesAndAnswers) {
  Start();
  TestClient client(port());
  ASSERT_EQ(client.StartTls(files_.certificate), "");
  const std::string text(1'000'000, 'x');
  const TestResponse response =
      client.Post("/tokenize", R"({"prompt":")" + text + R"(","add_special_tokens":false})");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.json()["count"], 1'000'000);
}

// The answer arrives whole, and behind it the end of the connection as TLS says it.
TEST_F(ServerTlsTest, ClosesInOrder) {
  options_.max_body_bytes = 100'000;
  Start();
  TestClient client(port());
  ASSERT_EQ(client.StartTls(files_.certificate), "");
  client.Send("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.Receive().status, 200);
  client.ReceiveToEnd();
  EXPECT_TRUE(client.TlsEndedInOrder());
  // Also to a client that goes on sending what nobody reads.
  TestClient sender(port());
  ASSERT_EQ(sender.StartTls(files_.certificate), "");
  sender.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n");
  sender.Send(std::string(2'000'000, 'x'));
  EXPECT_EQ(sender.Receive().status, 413);
  sender.Close();
  client.Close();
  WaitForMetric(kTlsConnections, 0);
}

TEST_F(ServerTlsTest, KeyInTheFileOfTheCertificate) {
  const auto both = directory_.path() / "both.pem";
  std::ofstream(both) << std::ifstream(files_.certificate).rdbuf()
                      << std::ifstream(files_.key).rdbuf();
  options_.ssl_certfile = both;
  options_.ssl_keyfile = "";
  Start();
  EXPECT_EQ(Handshake(files_.certificate), "first");
}

TEST_F(ServerTlsTest, OldVersionsAreRefused) {
  Start();
  for (const int version : {TLS1_VERSION, TLS1_1_VERSION}) {
    TestClient client(port());
    EXPECT_NE(client.StartTls(files_.certificate, version), "");
  }
  EXPECT_EQ(Handshake(files_.certificate), "first");
}

TEST_F(ServerTlsTest, StartFailsOnWrongFiles) {
  const TestCertificate other = WriteTestCertificate(directory_.path(), "other");
  const auto refusal = [&](const std::filesystem::path& certificate,
                           const std::filesystem::path& key) -> std::string {
    options_.ssl_certfile = certificate;
    options_.ssl_keyfile = key;
    try {
      Server(options_, metrics_).Start();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal(directory_.path() / "none", files_.key).find("--ssl-certfile"),
            std::string::npos);
  EXPECT_NE(refusal(files_.certificate, directory_.path() / "none").find("--ssl-keyfile"),
            std::string::npos);
  EXPECT_NE(refusal(files_.certificate, other.key).find("--ssl-keyfile"), std::string::npos);
  EXPECT_NE(refusal(files_.certificate, "").find("--ssl-keyfile"), std::string::npos);
  EXPECT_NE(refusal("", files_.key).find("--ssl-certfile"), std::string::npos);
}

TEST_F(ServerTlsTest, ReloadingKeepsConnectionsAndWhatWorks) {
  engine_options_.manual = true;
  Start();
  TestClient early(port());
  ASSERT_EQ(early.StartTls(files_.certificate), "");
  early.Send(TestClient::PostText("/v1/completions", Completion(4, R"(,"stream":true)")));
  engine_->WaitForSubmitted(1);
  engine_->Emit(engine_->Running().front(), 1);
  ASSERT_TRUE(early.ReceiveUntil("w0"));

  const TestCertificate second = WriteTestCertificate(directory_.path(), "second");
  Replace(second);
  EXPECT_EQ(Handshake(files_.certificate), "certificate verify failed");  // still the first one's
  server_->Reload();
  EXPECT_EQ(Handshake(second.certificate), "second");
  // A file that is broken, or half of what belongs together, changes nothing.
  std::ofstream(files_.certificate) << "-----BEGIN CERTIFICATE-----\nAAAA\n";
  server_->Reload();
  EXPECT_EQ(Handshake(second.certificate), "second");
  std::filesystem::remove(files_.certificate);
  server_->Reload();
  EXPECT_EQ(Handshake(second.certificate), "second");
  const TestCertificate third = WriteTestCertificate(directory_.path(), "third");
  std::filesystem::copy_file(third.certificate, files_.certificate);
  server_->Reload();
  EXPECT_EQ(Handshake(second.certificate), "second");
  Replace(third);
  server_->Reload();
  EXPECT_EQ(Handshake(third.certificate), "third");

  // The stream that began before all this goes on.
  engine_->Emit(engine_->Running().front(), 3, FinishReason::kLength);
  EXPECT_TRUE(early.ReceiveUntil("[DONE]"));
  EXPECT_EQ(early.TlsOrganisation(), "first");
}

TEST_F(ServerTlsTest, PlainHttpIsTold) {
  Start();
  TestClient client(port());
  const TestResponse response = client.Get("/health");
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(response.body.find("https"), std::string::npos);
  EXPECT_TRUE(response.complete);
  client.ReceiveToEnd();
}

TEST_F(ServerTlsTest, Nonsense) {
  Start();
  const std::string hello_of_a_megabyte("\x16\x03\x01\xff\xff\x01\x0f\xff\xff", 9);
  for (const std::string& nonsense :
       {std::string("\0", 1), std::string(100'000, '\0'), std::string(100'000, '\x16'),
        std::string("\x16\x03\x01\x00\x05hello", 10),
        hello_of_a_megabyte + std::string(70'000, 'A'),
        std::string("\x80\x2e\x01\x00\x02", 5) + std::string(100, 'B'),  // SSL 2
        std::string("\x15\x03\x03\x00\x02\x02\x28", 7),                  // an alert
        std::string("\x17\x03\x03\x00\x05xxxxx", 10)}) {                 // data before a handshake
    TestClient client(port());
    client.Send(nonsense);
    client.ShutdownSend();
    client.ReceiveToEnd();
  }
  WaitForMetric(kTlsConnections, 0);
  // Data that is not what its record says, on a good connection.
  TestClient client(port());
  ASSERT_EQ(client.StartTls(files_.certificate), "");
  client.SendBelowTls(std::string("\x17\x03\x03\x00\x20", 5) + std::string(32, 'C'));
  client.ReceiveToEnd();
  WaitForMetric(kTlsConnections, 0);
  EXPECT_EQ(Handshake(files_.certificate), "first");
}

TEST_F(ServerTlsTest, ClientsThatLeaveInTheMiddle) {
  engine_options_.manual = true;
  Start();
  for (int i = 0; i < 10; ++i) {
    TestClient client(port());
    ASSERT_EQ(client.StartTls(files_.certificate), "");
    client.Send(TestClient::PostText("/v1/completions", Completion(4, R"(,"stream":true)")));
    engine_->WaitForSubmitted(static_cast<size_t>(i) + 1);
    if (i % 2 == 0) {
      client.Reset();
    } else {
      client.Close();
    }
    engine_->WaitForCancelled(static_cast<size_t>(i) + 1);
  }
  WaitForMetric(kTlsConnections, 0);
}

TEST_F(ServerTlsTest, SilentClientsAreClosed) {
  options_.handshake_timeout = milliseconds(30);
  Start();
  TestClient silent(port());
  silent.ReceiveToEnd();
  TestClient slow(port());
  slow.Send(std::string("\x16\x03\x01\x02\x00\x01", 6));  // the beginning of a hello
  slow.ReceiveToEnd();
  WaitForMetric(kTlsConnections, 0);
}

TEST_F(ServerTlsTest, SlowHandshakesOfOnePeerAreBounded) {
  options_.slow_after = milliseconds(1);
  options_.max_slow_per_peer = 2;
  Start();
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 6; ++i) clients.push_back(std::make_unique<TestClient>(port()));
  WaitForMetric(kTlsConnections, 2);  // the others had to go
  clients.clear();
  WaitForMetric(kTlsConnections, 0);
}

TEST_F(ServerTlsTest, StopsWhileHandshakesWait) {
  Start();
  TestClient silent(port());
  TestClient slow(port());
  slow.Send(std::string("\x16\x03\x01\x02\x00\x01", 6));
  WaitForMetric(kTlsConnections, 2);
  EXPECT_TRUE(server_->Stop(milliseconds(0)));
  silent.ReceiveToEnd();
  slow.ReceiveToEnd();
}

}  // namespace
}  // namespace moesaic
