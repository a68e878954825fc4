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
  const std::vector<std::string> keys = {"first", "second-key"};
  EXPECT_TRUE(HasApiKey(With({{"authorization", "Bearer first"}}), keys));
  EXPECT_TRUE(HasApiKey(With({{"authorization", "bearer  second-key"}}), keys));
  EXPECT_TRUE(HasApiKey(With({{"x-api-key", "second-key"}}), keys));
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer firs", "Bearer firstt", "Bearer FIRST",
                            "Basic first", "first", "Bearer firstfirst"}) {
    EXPECT_FALSE(HasApiKey(With({{"authorization", wrong}}), keys)) << wrong;
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
