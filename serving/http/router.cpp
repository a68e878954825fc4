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

constexpr std::string_view kMessagesPath = "/v1/messages";
constexpr std::string_view kModelPrefix = "/v1/models/";

}  // namespace

std::optional<RouteMatch> MatchRoute(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  for (const Entry& entry : kEntries) {
    if (entry.path == path)
      return RouteMatch{entry.route, entry.path, entry.post, entry.open,
                        {},          entry.put,  entry.admin};
  }
  if (path.size() > kModelPrefix.size() && path.substr(0, kModelPrefix.size()) == kModelPrefix) {
    return RouteMatch{Route::kModel,
                      "/v1/models/{id}",
                      false,
                      false,
                      std::string(path.substr(kModelPrefix.size())),
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
         "POST /tokenize              text or messages to token ids\n"
         "POST /detokenize            token ids to text\n"
         "GET  /tokenizer_info        the special tokens\n"
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
