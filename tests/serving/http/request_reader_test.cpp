#include "serving/http/request_reader.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

using Progress = RequestReader::Progress;

class RequestReaderTest : public ::testing::Test {
 protected:
  RequestReaderTest() {
    options_.max_body_bytes = 1000;
    options_.max_header_bytes = 2048;
    options_.max_target_bytes = 256;
  }

  // Feeds all at once and goes on until nothing more can be done.
  Progress Feed(RequestReader& reader, std::string& input) {
    Progress progress = reader.Consume(input);
    while (progress == Progress::kHead) progress = reader.Consume(input);
    return progress;
  }
  int StatusOf(std::string input) {
    RequestReader reader(options_);
    return Feed(reader, input) == Progress::kFailed ? reader.error().status() : 0;
  }

  ServerOptions options_;
};

constexpr char kGet[] = "GET /health?x=1 HTTP/1.1\r\nHost: a\r\nX-Thing:  v \r\n\r\n";
constexpr char kPost[] =
    "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";

TEST_F(RequestReaderTest, ReadsAGet) {
  RequestReader reader(options_);
  std::string input = kGet;
  EXPECT_EQ(reader.Consume(input), Progress::kHead);
  EXPECT_EQ(reader.Consume(input), Progress::kComplete);
  const HttpRequest request = reader.TakeRequest();
  EXPECT_EQ(request.method, "GET");
  EXPECT_EQ(request.target, "/health?x=1");
  EXPECT_EQ(request.path, "/health");
  EXPECT_EQ(request.Header("x-thing"), "v");
  EXPECT_TRUE(request.keep_alive);
  EXPECT_FALSE(request.has_body);
  EXPECT_FALSE(request.id.empty());
  EXPECT_FALSE(reader.started());
}

TEST_F(RequestReaderTest, ReadsByteByByteAndPipelined) {
  RequestReader reader(options_);
  const std::string stream = std::string(kPost) + kGet + kPost;
  std::string input;
  std::vector<std::string> seen;
  int heads = 0;
  for (const char c : stream) {
    input += c;
    for (Progress progress = reader.Consume(input); progress != Progress::kNeedMore;
         progress = reader.Consume(input)) {
      ASSERT_NE(progress, Progress::kFailed) << reader.error().what();
      heads += progress == Progress::kHead ? 1 : 0;
      if (progress == Progress::kComplete) {
        const HttpRequest request = reader.TakeRequest();
        seen.push_back(request.method + ":" + request.body);
      }
    }
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"POST:hello", "GET:", "POST:hello"}));
  EXPECT_EQ(heads, 3);
}

TEST_F(RequestReaderTest, LeavesTheNextRequestInTheInput) {
  RequestReader reader(options_);
  std::string input = std::string(kPost) + kGet;
  EXPECT_EQ(Feed(reader, input), Progress::kComplete);
  EXPECT_EQ(reader.TakeRequest().body, "hello");
  EXPECT_EQ(input, kGet);
}

TEST_F(RequestReaderTest, ReadsChunkedBodies) {
  RequestReader reader(options_);
  std::string input =
      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3;ext=1\r\nabc\r\nA\r\n0123456789\r\n0\r\n"
      "Trailer: x\r\n\r\nGET";
  EXPECT_EQ(Feed(reader, input), Progress::kComplete);
  const HttpRequest request = reader.TakeRequest();
  EXPECT_EQ(request.body, "abc0123456789");
  EXPECT_TRUE(request.chunked);
  EXPECT_EQ(input, "GET");
}

TEST_F(RequestReaderTest, KeepAliveFollowsVersionAndHeader) {
  const auto keep_alive = [this](std::string input) {
    RequestReader reader(options_);
    EXPECT_EQ(Feed(reader, input), Progress::kComplete);
    return reader.TakeRequest().keep_alive;
  };
  EXPECT_TRUE(keep_alive("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
  EXPECT_FALSE(keep_alive("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
  EXPECT_FALSE(keep_alive("GET / HTTP/1.0\r\n\r\n"));
  EXPECT_TRUE(keep_alive("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
}

TEST_F(RequestReaderTest, ExpectContinue) {
  RequestReader reader(options_);
  std::string input =
      "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n";
  EXPECT_EQ(reader.Consume(input), Progress::kHead);
  EXPECT_TRUE(reader.head().expects_continue);
  EXPECT_EQ(StatusOf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: wonders\r\n\r\n"),
            417);
}

TEST_F(RequestReaderTest, EmptyLinesBeforeARequestAreSkipped) {
  RequestReader reader(options_);
  std::string input = std::string("\r\n\r\n") + kGet;
  EXPECT_EQ(Feed(reader, input), Progress::kComplete);
  RequestReader waiting(options_);
  input = "\r\n\r";
  EXPECT_EQ(Feed(waiting, input), Progress::kNeedMore);
  EXPECT_FALSE(waiting.started());
}

TEST_F(RequestReaderTest, AbsoluteFormAndEscapes) {
  RequestReader reader(options_);
  std::string input = "GET http://a:80/v1/models/org%2Fname?q HTTP/1.1\r\nHost: a\r\n\r\n";
  EXPECT_EQ(Feed(reader, input), Progress::kComplete);
  EXPECT_EQ(reader.TakeRequest().path, "/v1/models/org/name");
}

TEST_F(RequestReaderTest, RefusesBadRequests) {
  const std::string host = "Host: a\r\n";
  EXPECT_EQ(StatusOf("\x16\x03\x01\x02\r\n\r\n"), 400);  // TLS on the plain port
  EXPECT_EQ(StatusOf("GET\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\n\r\n"), 400);  // no Host
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\n" + host + host + "\r\n"), 400);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\nHost a\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET /%zz HTTP/1.1\r\n" + host + "\r\n"), 400);
  EXPECT_EQ(StatusOf("GET /a%00b HTTP/1.1\r\n" + host + "\r\n"), 400);
  EXPECT_EQ(StatusOf("GET x HTTP/1.1\r\n" + host + "\r\n"), 400);
  EXPECT_EQ(StatusOf("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\n" + host + "Content-Length: 1e3\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\n" + host + "Content-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(
      StatusOf("GET / HTTP/1.1\r\n" + host + "Content-Length: 99999999999999999999999\r\n\r\n"),
      400);
}

TEST_F(RequestReaderTest, RefusesRequestSmuggling) {
  const std::string start = "POST / HTTP/1.1\r\nHost: a\r\n";
  EXPECT_EQ(StatusOf(start + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            400);
  EXPECT_EQ(StatusOf(start + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n"),
            400);
  EXPECT_EQ(StatusOf(start + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"), 400);
  EXPECT_EQ(StatusOf(start + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 501);
  EXPECT_EQ(StatusOf(start + "Transfer-Encoding: identity\r\n\r\n"), 501);
  EXPECT_NE(StatusOf("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 0);
  EXPECT_EQ(StatusOf(start + "Transfer-Encoding: chunked\r\n\r\nzz\r\n"), 400);
}

TEST_F(RequestReaderTest, Limits) {
  const std::string host = "Host: a\r\n";
  EXPECT_EQ(StatusOf("POST / HTTP/1.1\r\n" + host + "Content-Length: 1001\r\n\r\n"), 413);
  EXPECT_EQ(StatusOf("POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n3e9\r\n" +
                     std::string(1001, 'x')),
            413);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\n" + host + "X: " + std::string(3000, 'y') + "\r\n\r\n"),
            431);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\n" + host + "X: " + std::string(9000, 'y')), 431);
  EXPECT_EQ(StatusOf("GET /" + std::string(300, 'z') + " HTTP/1.1\r\n" + host + "\r\n"), 414);
  EXPECT_EQ(StatusOf("GET /" + std::string(1000, 'z')), 414);  // without an end
  EXPECT_EQ(StatusOf("POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n3;" +
                     std::string(100'000, 'e')),
            400);
}

TEST_F(RequestReaderTest, RequestIdIsTakenOrMade) {
  const auto id_of = [this](const std::string& value) {
    RequestReader reader(options_);
    std::string input = "GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: " + value + "\r\n\r\n";
    EXPECT_EQ(Feed(reader, input), Progress::kComplete);
    return reader.TakeRequest().id;
  };
  EXPECT_EQ(id_of("abc-1.2:3_X"), "abc-1.2:3_X");
  EXPECT_EQ(id_of("evil\"thing").substr(0, 4), "req-");
  EXPECT_EQ(id_of(std::string(129, 'a')).substr(0, 4), "req-");
  EXPECT_NE(id_of(""), id_of(""));
}

}  // namespace
}  // namespace moesaic
