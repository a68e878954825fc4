#include "serving/http/router.h"

namespace moesaic {
namespace {

struct Entry {
  std::string_view path;
  Route route;
  bool post;
  bool open;
  bool put = false;
  bool admin = false;
};

constexpr Entry kEntries[] = {
    {"/", Route::kRoot, false, false},
    {"/health", Route::kHealth, false, true},
    {"/live", Route::kHealth, false, true},
    {"/ready", Route::kReady, false, true},
    {"/version", Route::kVersion, false, false},
    {"/metrics", Route::kMetrics, false, false},
    {"/v1/models", Route::kModels, false, false},
    {"/models", Route::kModels, false, false},
    {"/models/events", Route::kModelEvents, false, false},
    {"/models/sse", Route::kModelEvents, false, false},  // llama.cpp's name
    {"/models/load", Route::kLoadModel, true, false, false, true},
    {"/models/unload", Route::kUnloadModel, true, false, false, true},
    {"/v1/completions", Route::kCompletions, true, false},
    {"/v1/chat/completions", Route::kChatCompletions, true, false},
    {"/v1/responses", Route::kResponses, true, false},
    {"/v1/messages", Route::kMessages, true, false},
    {"/v1/messages/count_tokens", Route::kCountTokens, true, false},
    {"/api/chat", Route::kOllamaChat, true, false},
    {"/api/generate", Route::kOllamaGenerate, true, false},
    {"/api/show", Route::kOllamaShow, true, false},
    {"/api/tags", Route::kOllamaTags, false, false},
    {"/api/ps", Route::kOllamaPs, false, false},
    {"/api/version", Route::kOllamaVersion, false, false},
    {"/tokenize", Route::kTokenize, true, false},
    {"/detokenize", Route::kDetokenize, true, false},
    {"/tokenizer_info", Route::kTokenizerInfo, false, false},
    {"/v1/moesaic/eamc", Route::kEamc, false, false, true, true},
    {"/v1/moesaic/events", Route::kLiveEvents, false, false},
    {"/v1/moesaic/snapshot", Route::kLiveSnapshot, false, false},
};

// OpenAI's Files and Batch APIs: lists, and their members by id.
struct ListEntry {
  std::string_view path;
  Route list;
  Route member;
  std::string_view member_label;
  std::string_view member_also;
  std::string_view action;  // behind the id
  Route action_route;
  std::string_view action_label;
  bool action_post;
};
constexpr ListEntry kLists[] = {
    {"/v1/files", Route::kFiles, Route::kFile, "/v1/files/{id}", "DELETE", "/content",
     Route::kFileContent, "/v1/files/{id}/content", false},
    {"/v1/batches",
     Route::kBatches,
     Route::kBatch,
     "/v1/batches/{id}",
     {},
     "/cancel",
     Route::kBatchCancel,
     "/v1/batches/{id}/cancel",
     true},
};

std::optional<RouteMatch> MatchList(std::string_view path) {
  for (const ListEntry& entry : kLists) {
    if (path == entry.path) {
      RouteMatch match{entry.list, entry.path};
      match.also = "POST";
      return match;
    }
    if (!path.starts_with(entry.path) || path[entry.path.size()] != '/') continue;
    std::string_view id = path.substr(entry.path.size() + 1);
    RouteMatch match{entry.member, entry.member_label};
    match.also = entry.member_also;
    if (id.ends_with(entry.action)) {
      match = RouteMatch{entry.action_route, entry.action_label, entry.action_post};
      id.remove_suffix(entry.action.size());
    }
    if (id.empty() || id.find('/') != std::string_view::npos) return std::nullopt;
    match.id = std::string(id);
    return match;
  }
  return std::nullopt;
}

constexpr std::string_view kMessagesPath = "/v1/messages";
constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr std::string_view kRequestPrefix = "/v1/moesaic/requests/";

}  // namespace

std::optional<RouteMatch> MatchRoute(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  for (const Entry& entry : kEntries) {
    if (entry.path == path)
      return RouteMatch{entry.route, entry.path, entry.post, entry.open,
                        {},          entry.put,  entry.admin};
  }
  if (auto match = MatchList(path)) return match;
  if (path.size() > kModelPrefix.size() && path.substr(0, kModelPrefix.size()) == kModelPrefix) {
    return RouteMatch{Route::kModel,
                      "/v1/models/{id}",
                      false,
                      false,
                      std::string(path.substr(kModelPrefix.size())),
                      false};
  }
  if (path.size() > kRequestPrefix.size() && path.starts_with(kRequestPrefix)) {
    return RouteMatch{Route::kRequestExperts,
                      "/v1/moesaic/requests/{id}",
                      false,
                      false,
                      std::string(path.substr(kRequestPrefix.size())),
                      false};
  }
  return std::nullopt;
}

bool IsMessagesPath(std::string_view path) {
  return path.starts_with(kMessagesPath) &&
         (path.size() == kMessagesPath.size() || path[kMessagesPath.size()] == '/');
}

bool IsOllamaPath(std::string_view path) { return path.starts_with("/api/"); }

std::string_view RootPage() {
  return "Moesaic: an OpenAI-compatible server for mixture-of-experts models.\n"
         "\n"
         "POST /v1/chat/completions   chat, plain or streamed\n"
         "POST /v1/completions        text completion; echo, log-probabilities, token ids\n"
         "POST /v1/responses          the Responses API, without state\n"
         "POST /v1/messages           Anthropic's Messages API; /v1/messages/count_tokens\n"
         "POST /api/chat  /api/generate  /api/show, GET /api/tags  /api/ps  /api/version: "
         "Ollama's\n"
         "GET  /v1/models             the models served; /v1/models/{id} for one\n"
         "POST /models/load  /models/unload, GET /models/events: of several models\n"
         "POST /tokenize              text or messages to token ids\n"
         "POST /detokenize            token ids to text\n"
         "GET  /tokenizer_info        the special tokens\n"
         "POST /v1/files             files for batches; GET lists them, /v1/files/{id}/content\n"
         "POST /v1/batches           batches; GET lists them, POST /v1/batches/{id}/cancel\n"
         "GET  /v1/moesaic/eamc       what an eamc predictor has learned; PUT gives it another\n"
         "GET  /v1/moesaic/events     what the engine does, as server-sent events; "
         "/v1/moesaic/snapshot\n"
         "GET  /                      in a browser: a page that shows it\n"
         "GET  /metrics               Prometheus metrics\n"
         "GET  /health  /live         the process is alive\n"
         "GET  /ready                 requests are accepted (503: loading, draining, a lost GPU or "
         "disk)\n"
         "GET  /version               version of this server\n";
}

}  // namespace moesaic
