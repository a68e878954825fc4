#include "serving/http/request_reader.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "serving/http/http_message.h"

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

  // 200 when the request is complete, 0 when more is wanted.
  int OutcomeOf(std::string input) {
    RequestReader reader(options_);
    const Progress progress = Feed(reader, input);
    return progress == Progress::kFailed ? reader.error().status()
                                         : (progress == Progress::kComplete ? 200 : 0);
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
  // Of HTTP/1.1 and with a body alone.
  for (std::string other :
       {"POST / HTTP/1.0\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nExpect: 100-continue\r\n\r\n"}) {
    RequestReader without(options_);
    EXPECT_EQ(without.Consume(other), Progress::kHead);
    EXPECT_FALSE(without.head().expects_continue);
  }
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
  EXPECT_EQ(StatusOf(start + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" +
                     "0\r\n\r\n"),
            400);
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

// Each limit is met by what is as long, and passed by one byte more.
TEST_F(RequestReaderTest, ExactlyTheLimits) {
  const std::string host = "Host: a\r\n";
  for (const size_t over : {size_t{0}, size_t{1}}) {
    SCOPED_TRACE(over);
    const std::string body(options_.max_body_bytes + over, 'x');
    const auto post = [&](const std::string& header, const std::string& rest) {
      return OutcomeOf("POST / HTTP/1.1\r\n" + host + header + "\r\n\r\n" + rest);
    };
    const int body_status = over == 0 ? 200 : 413;
    EXPECT_EQ(post(fmt::format("Content-Length: {}", body.size()), body), body_status);
    const auto chunk = [](std::string_view bytes) {
      return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
    };
    const std::string chunked = "Transfer-Encoding: chunked";
    EXPECT_EQ(post(chunked, chunk(body) + "0\r\n\r\n"), body_status);
    const std::string_view all = body;
    EXPECT_EQ(post(chunked, chunk(all.substr(0, 600)) + chunk(all.substr(600)) + "0\r\n\r\n"),
              body_status);

    const std::string target = "/" + std::string(options_.max_target_bytes - 1 + over, 'z');
    EXPECT_EQ(OutcomeOf("GET " + target + " HTTP/1.1\r\n" + host + "\r\n"), over == 0 ? 200 : 414);

    // Header lines, up to and with the empty line, have both limits together.
    const size_t most = options_.max_header_bytes + options_.max_target_bytes;
    const std::string value(most + over - host.size() - std::string("X: ").size() - 4, 'y');
    const std::string head = "GET / HTTP/1.1\r\n" + host + "X: " + value + "\r\n\r\n";
    EXPECT_EQ(OutcomeOf(head), over == 0 ? 200 : 431);
  }
}

// A request line that has no end yet is refused when it cannot be one that is short enough: with
// 64 bytes for the method and the version.
TEST_F(RequestReaderTest, ALineWithoutAnEnd) {
  const std::string line = "GET /" + std::string(options_.max_target_bytes + 64 - 5, 'z');
  EXPECT_EQ(OutcomeOf(line), 0);
  EXPECT_EQ(OutcomeOf(line + "z"), 414);
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

TEST(HttpMessageTest, QueryValues) {
  EXPECT_EQ(QueryValue("/p?mode=merge&model=org%2Fa", "mode"), "merge");
  EXPECT_EQ(QueryValue("/p?mode=merge&model=org%2Fa", "model"), "org/a");
  EXPECT_EQ(QueryValue("/p?a&b=&&c=1=2&c=3", "a"), "");
  EXPECT_EQ(QueryValue("/p?a&b=&&c=1=2&c=3", "b"), "");
  EXPECT_EQ(QueryValue("/p?a&b=&&c=1=2&c=3", "c"), "1=2");
  EXPECT_EQ(QueryValue("/p?amode=1", "mode"), std::nullopt);
  EXPECT_EQ(QueryValue("/p?mode=%zz", "mode"), std::nullopt);
  for (const char* target : {"/p", "/p?", "mode=1", ""}) {
    EXPECT_EQ(QueryValue(target, "mode"), std::nullopt) << target;
  }
}

}  // namespace
}  // namespace moesaic
