// Which route a path is, and what it allows. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace moesaic {

enum class Route {
  kRoot,
  kHealth,  // /health and /live: the process answers
  kReady,
  kVersion,
  kMetrics,
  kModels,
  kModel,
  kCompletions,
  kChatCompletions,
  kMessages,
  kResponses,
  kOllamaChat,
  kOllamaGenerate,
  kOllamaShow,
  kOllamaTags,
  kOllamaPs,
  kOllamaVersion,
  kCountTokens,
  kTokenize,
  kDetokenize,
  kTokenizerInfo,
  kEamc,
  kLiveEvents,
  kLiveSnapshot,
};

struct RouteMatch {
  Route route = Route::kRoot;
  std::string_view label;  // the pattern, for metrics: "/v1/models/{id}"
  bool post = false;       // POST; otherwise GET and HEAD
  bool open = false;       // never asks for a key
  std::string model = {};  // of kModel; may contain slashes
  bool put = false;        // PUT beside GET and HEAD
  bool admin = false;      // asks for a key of an administrator

  std::string_view allow() const {
    if (put) return "GET, HEAD, PUT, OPTIONS";
    return post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
  }
  bool Allows(std::string_view method) const {
    if (post) return method == "POST";
    return method == "GET" || method == "HEAD" || (put && method == "PUT");
  }
};

// nullopt: there is no such route. `path` is decoded.
std::optional<RouteMatch> MatchRoute(std::string_view path);

// The path is of Anthropic's API, whether there is such a route or not.
bool IsMessagesPath(std::string_view path);
// Likewise of Ollama's.
bool IsOllamaPath(std::string_view path);

// The page at "/".
std::string_view RootPage();

}  // namespace moesaic
