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
  kModelEvents,
  kLoadModel,
  kUnloadModel,
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
  kRequestExperts,
  kFiles,
  kFile,
  kFileContent,
  kBatches,
  kBatch,
  kBatchCancel,
};

struct RouteMatch {
  Route route = Route::kRoot;
  std::string_view label;  // the pattern, for metrics: "/v1/models/{id}"
  bool post = false;       // POST; otherwise GET and HEAD
  bool open = false;       // never asks for a key
  std::string model = {};  // of kModel, may contain slashes; of kRequestExperts: which request
  bool put = false;        // PUT beside GET and HEAD
  bool admin = false;      // asks for a key of an administrator
  std::string id = {};     // of kFile, kFileContent, kBatch, kBatchCancel
  // Beside GET and HEAD: POST, of a list, or DELETE, of one of its members.
  std::string_view also = {};

  std::string_view allow() const {
    if (put) return "GET, HEAD, PUT, OPTIONS";
    if (also == "POST") return "GET, HEAD, POST, OPTIONS";
    if (also == "DELETE") return "GET, HEAD, DELETE, OPTIONS";
    return post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
  }
  bool Allows(std::string_view method) const {
    if (post) return method == "POST";
    return method == "GET" || method == "HEAD" || (put && method == "PUT") ||
           (!also.empty() && method == also);
  }
  // Answers with what a model generates.
  bool generates() const { return route >= Route::kCompletions && route <= Route::kOllamaGenerate; }
  // Of OpenAI's Files and Batch APIs.
  bool of_batches() const { return route >= Route::kFiles; }
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
