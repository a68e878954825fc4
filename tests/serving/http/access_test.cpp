#include "serving/http/access.h"

#include <gtest/gtest.h>

#include "serving/http/router.h"

namespace moesaic {
namespace {

HttpRequest With(HttpHeaders headers) {
  HttpRequest request;
  request.method = "POST";
  request.content_length = 2;
  request.headers = std::move(headers);
  return request;
}

std::string HeaderOf(const HttpResponse& response, std::string_view name) {
  for (const auto& [key, value] : response.headers) {
    if (key == name) return value;
  }
  return "absent";
}

TEST(AccessTest, ApiKeys) {
  EXPECT_EQ(GivenKey(With({{"authorization", "Bearer first"}})), "first");
  EXPECT_EQ(GivenKey(With({{"authorization", "bearer  second-key"}})), "second-key");
  EXPECT_EQ(GivenKey(With({{"x-api-key", "second-key"}})), "second-key");
  for (const char* none : {"", "Bearer", "Bearer ", "Basic first", "first"}) {
    EXPECT_EQ(GivenKey(With({{"authorization", none}})), "") << none;
  }
  EXPECT_EQ(KeyError(With({})).code(), "missing_api_key");
  EXPECT_EQ(KeyError(With({{"x-api-key", "no"}})).code(), "invalid_api_key");
  EXPECT_EQ(KeyError(With({})).status(), 401);
}

TEST(AccessTest, CorsIsOffByDefault) {
  HttpResponse response;
  AddCorsHeaders(With({{"origin", "http://a"}}), ServerOptions(), response);
  EXPECT_TRUE(response.headers.empty());
  response = AnswerOptions(With({{"origin", "http://a"}}), ServerOptions(), "GET");
  EXPECT_EQ(response.status, 204);
  EXPECT_EQ(HeaderOf(response, "Allow"), "GET");
  EXPECT_EQ(HeaderOf(response, "Access-Control-Allow-Methods"), "absent");
}

TEST(AccessTest, CorsForListedOrigins) {
  ServerOptions options;
  options.allowed_origins = {"http://a"};
  HttpResponse response;
  AddCorsHeaders(With({{"origin", "http://a"}}), options, response);
  EXPECT_EQ(HeaderOf(response, "Access-Control-Allow-Origin"), "http://a");
  HttpResponse other;
  AddCorsHeaders(With({{"origin", "http://b"}}), options, other);
  EXPECT_EQ(HeaderOf(other, "Access-Control-Allow-Origin"), "absent");
  EXPECT_EQ(HeaderOf(other, "Vary"), "Origin");
  options.allowed_origins = {"*"};
  const auto preflight = AnswerOptions(
      With({{"origin", "http://b"}, {"access-control-request-headers", "x-stainless-lang"}}),
      options, "POST, OPTIONS");
  EXPECT_EQ(HeaderOf(preflight, "Access-Control-Allow-Methods"), "POST, OPTIONS");
  EXPECT_EQ(HeaderOf(preflight, "Access-Control-Allow-Headers"), "x-stainless-lang");
}

int HostStatus(std::string_view host, std::vector<std::string> allowed = {},
               bool loopback_only = true) {
  ServerOptions options;
  options.allowed_hosts = std::move(allowed);
  const auto error = CheckHost(With({{"host", std::string(host)}}), options, loopback_only);
  return error.has_value() ? error->status() : 0;
}

TEST(AccessTest, HostsOfAServerOnLoopback) {
  for (const char* host : {"localhost", "LocalHost:8000", "127.0.0.1", "127.0.0.1:8000",
                           "127.255.3.4:1", "[::1]", "[::1]:65535"}) {
    EXPECT_EQ(HostStatus(host), 0) << host;
  }
  for (const char* host :
       {"evil.example", "evil.example:8000", "", ":8000", "127.0.0.1.evil.example",
        "127.evil.example", "localhost.evil.example", "notlocalhost", "128.0.0.1", "0.0.0.0",
        "10.0.0.1", "[::2]", "[::1", "[::1].evil.example", "::1", "localhost:evil",
        "127.0.0.1:123456", "localhost@evil.example", "127.0.0.1, evil.example"}) {
    EXPECT_EQ(HostStatus(host), 403) << host;
  }
  HttpRequest old = With({});
  old.version = 10;
  EXPECT_FALSE(CheckHost(old, ServerOptions(), true).has_value());
}

TEST(AccessTest, AllowedHosts) {
  EXPECT_EQ(HostStatus("models.lan", {"models.lan"}), 0);
  EXPECT_EQ(HostStatus("Models.LAN:9000", {"models.lan"}), 0);
  EXPECT_EQ(HostStatus("models.lan:9000", {"models.lan:9000"}), 0);
  EXPECT_EQ(HostStatus("models.lan:9001", {"models.lan:9000"}), 403);
  EXPECT_EQ(HostStatus("models.lan", {"models.lan:9000"}), 403);
  EXPECT_EQ(HostStatus("localhost", {"models.lan"}), 0);
  EXPECT_EQ(HostStatus("evil.example", {"*"}), 0);
  EXPECT_EQ(HostStatus("[fe80::1]:8000", {"[fe80::1]"}), 0);
  // Bound elsewhere, the check is only made where it was asked for.
  EXPECT_EQ(HostStatus("evil.example", {}, false), 0);
  EXPECT_EQ(HostStatus("evil.example", {"models.lan"}, false), 403);
  EXPECT_EQ(HostStatus("models.lan", {"models.lan"}, false), 0);
}

int OriginStatus(std::string_view origin, std::vector<std::string> allowed = {},
                 const char* method = "POST") {
  ServerOptions options;
  options.allowed_origins = std::move(allowed);
  HttpRequest request = With({{"host", "localhost:8000"}, {"origin", std::string(origin)}});
  request.method = method;
  const auto error = CheckOrigin(request, options);
  return error.has_value() ? error->status() : 0;
}

TEST(AccessTest, OriginsOfPosts) {
  EXPECT_EQ(OriginStatus(""), 0);
  EXPECT_EQ(OriginStatus("http://localhost:8000"), 0);   // its own
  EXPECT_EQ(OriginStatus("https://localhost:8000"), 0);  // behind a proxy
  EXPECT_EQ(OriginStatus("http://page", {"http://page"}), 0);
  EXPECT_EQ(OriginStatus("http://page", {"*"}), 0);
  for (const char* origin :
       {"http://evil.example", "null", "http://localhost:3000", "http://localhost",
        "localhost:8000", "http://localhost:8000.evil.example"}) {
    EXPECT_EQ(OriginStatus(origin), 403) << origin;
    EXPECT_EQ(OriginStatus(origin, {"http://page"}), 403) << origin;
    EXPECT_EQ(OriginStatus(origin, {}, "GET"), 0) << origin;
  }
}

int BodyStatus(const HttpRequest& request) {
  const auto error = CheckBodyHeaders(request);
  return error.has_value() ? error->status() : 0;
}

TEST(AccessTest, BodyHeaders) {
  EXPECT_EQ(BodyStatus(With({{"content-type", "application/json"}})), 0);
  EXPECT_EQ(BodyStatus(With({{"content-type", "Application/JSON ; charset=utf-8"}})), 0);
  EXPECT_EQ(BodyStatus(With({{"content-type", "application/vnd.x+json"}})), 0);
  EXPECT_EQ(BodyStatus(With({})), 0);
  EXPECT_EQ(BodyStatus(With({{"content-type", "application/x-www-form-urlencoded"}})), 0);
  EXPECT_EQ(BodyStatus(With({{"content-type", "multipart/form-data; boundary=x"}})), 415);
  EXPECT_EQ(BodyStatus(With({{"content-encoding", "gzip"}})), 415);
  EXPECT_EQ(BodyStatus(With({{"content-encoding", "identity"}})), 0);
  // A page of another site could send these without asking.
  EXPECT_EQ(BodyStatus(With({{"content-type", "text/plain"}, {"origin", "http://evil"}})), 415);
  EXPECT_EQ(BodyStatus(With({{"origin", "http://evil"}})), 415);
  HttpRequest no_length = With({});
  no_length.content_length.reset();
  EXPECT_EQ(BodyStatus(no_length), 411);
  no_length.chunked = true;
  EXPECT_EQ(BodyStatus(no_length), 0);
}

TEST(RouterTest, Routes) {
  EXPECT_EQ(MatchRoute("/v1/chat/completions")->route, Route::kChatCompletions);
  EXPECT_EQ(MatchRoute("/v1/models/")->route, Route::kModels);
  EXPECT_EQ(MatchRoute("/v1/models/org/name")->model, "org/name");
  EXPECT_EQ(MatchRoute("/")->route, Route::kRoot);
  EXPECT_EQ(MatchRoute("///")->route, Route::kRoot);
  EXPECT_TRUE(MatchRoute("/live")->open);
  EXPECT_FALSE(MatchRoute("/metrics")->open);
  for (const char* path : {"/v2/models", "/v1", "", "*", "/v1/completionsx", "/health/x"}) {
    EXPECT_FALSE(MatchRoute(path).has_value()) << path;
  }
  EXPECT_TRUE(MatchRoute("/health")->Allows("HEAD"));
  EXPECT_FALSE(MatchRoute("/health")->Allows("POST"));
  EXPECT_FALSE(MatchRoute("/tokenize")->Allows("GET"));
}

TEST(HttpMessageTest, HeadersCannotBeInjected) {
  HttpResponse response;
  response.headers.emplace_back("X-Echo", "a\r\nSet-Cookie: b");
  const std::string head = SerializeHead(response, BodyFraming::kContentLength, 3, true, "id");
  EXPECT_NE(head.find("X-Echo: a  Set-Cookie: b\r\n"), std::string::npos);
  EXPECT_NE(head.find("HTTP/1.1 200 OK\r\n"), std::string::npos);
  EXPECT_NE(head.find("Content-Length: 3\r\n"), std::string::npos);
  EXPECT_NE(head.find("X-Request-Id: id\r\n"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
