#include "serving/http/api_service.h"

#include <future>
#include <utility>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "serving/api/messages_request.h"
#include "serving/api/ollama_models.h"
#include "serving/api/tokenize.h"
#include "serving/api/utc_text.h"
#include "serving/http/access.h"
#include "serving/http/body_call.h"
#include "serving/http/collection_call.h"
#include "serving/http/completion_call.h"
#include "serving/http/error_response.h"
#include "serving/http/live_call.h"
#include "serving/http/model_events_call.h"
#include "serving/http/model_order_call.h"
#include "serving/http/page.h"
#include "serving/http/request_experts_call.h"
#include "serving/text/tokenizer.h"

namespace moesaic {
namespace {

constexpr size_t kMaxReportedFields =
    100;  // a client that invents names must not fill memory or log

Json ModelJson(const ServedModel& model, const std::string& name) {
  Json json = Json::object();
  json["id"] = name;
  json["object"] = "model";
  json["created"] = model.created_unix_s;
  json["owned_by"] = "moesaic";
  json["root"] = model.names.front();
  json["parent"] = nullptr;
  // What the context comes to is known once it is loaded.
  json["max_model_len"] =
      model.engine != nullptr ? Json(model.engine->max_context_tokens()) : Json(nullptr);
  json["status"] = StatusJson({model.names.front(), model.state, model.memory_bytes,
                               model.why_failed, model.shrunk, model.load_progress});
  // What Anthropic's clients read of the same route.
  json["type"] = "model";
  json["display_name"] = name;
  json["created_at"] = UtcText(model.created_unix_s);
  return json;
}

Json ModelsJson(const ModelTable& table) {
  Json data = Json::array();
  for (const ServedModel& model : table.models()) {
    for (const std::string& name : model.names) data.push_back(ModelJson(model, name));
  }
  Json json = Json::object();
  json["object"] = "list";
  json["data"] = std::move(data);
  json["has_more"] = false;
  // Codex reads its own descriptions of models here and gives up where the member is missing
  // (openai/codex #35758). Models that it has no description of get its defaults; one that lacks a
  // member of a version's description would cost it the list.
  json["models"] = Json::array();
  return json;
}

// The special tokens by role, under Hugging Face's names: what vLLM's route has of it, and what
// lm-evaluation-harness looks for.
Json TokenizerJson(const ServedModel& model) {
  const Tokenizer& tokenizer = model.engine->tokenizer();
  const SpecialTokenIds& ids = tokenizer.special_ids();
  Json json = Json::object();
  const auto add = [&](const char* name, std::optional<int32_t> id) {
    json[name] = id.has_value() ? Json(tokenizer.IdToToken(*id)) : Json(nullptr);
  };
  add("bos_token", ids.bos);
  add("eos_token", ids.eos);
  add("unk_token", ids.unk);
  add("pad_token", ids.pad);
  json["model_max_length"] = model.engine->max_context_tokens();
  return json;
}

// What answers a POST that generates nothing; null: it generates.
BodyAnswer AnswerOf(Route route) {
  switch (route) {
    case Route::kTokenize:
      return Tokenize;
    case Route::kDetokenize:
      return Detokenize;
    case Route::kCountTokens:
      return CountMessageTokens;
    case Route::kOllamaShow:
      return OllamaShow;
    default:
      return nullptr;
  }
}

ApiDialect DialectOf(Route route) {
  switch (route) {
    case Route::kChatCompletions:
      return ApiDialect::kChat;
    case Route::kMessages:
      return ApiDialect::kMessages;
    case Route::kResponses:
      return ApiDialect::kResponses;
    case Route::kOllamaChat:
      return ApiDialect::kOllamaChat;
    case Route::kOllamaGenerate:
      return ApiDialect::kOllamaGenerate;
    default:
      return ApiDialect::kCompletions;
  }
}

HttpResponse JsonResponse(const Json& json) {
  HttpResponse response;
  response.body = DumpJson(json);
  return response;
}

HttpResponse TextResponse(std::string_view text) {
  HttpResponse response;
  response.content_type = "text/plain; charset=utf-8";
  response.body = std::string(text);
  return response;
}

// Any bytes of a client as printable ASCII, for the log.
std::string ForLog(std::string_view text, size_t max_bytes) {
  if (text.empty()) return "-";
  std::string out;
  for (const char c : text.substr(0, max_bytes)) {
    if (c > ' ' && c < 0x7f) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  if (text.size() > max_bytes) out += "...";
  return out;
}

// W3C trace context: version-traceid-parentid-flags in lower-case hex.
bool IsTraceparent(std::string_view value) {
  if (value.size() != 55 || value[2] != '-' || value[35] != '-' || value[52] != '-') return false;
  return value.find_first_not_of("0123456789abcdef-") == std::string_view::npos;
}

}  // namespace

ApiService::ApiService(const ServerOptions& options, ServingMetrics& metrics,
                       std::function<void(std::function<void()>)> run_on_worker)
    : options_(options),
      metrics_(metrics),
      request_memory_(options.request_memory_bytes),
      call_context_{options, metrics, request_memory_, std::move(run_on_worker),
                    [this](const std::vector<std::string>& names) { ReportUnknownFields(names); }} {
}

void ApiService::SetModels(std::vector<ServedModel> models) {
  auto table = std::make_shared<const ModelTable>(std::move(models));
  for (const ServedModel& model : table->models()) metrics_.ForModel(model.names.front());
  {
    MutexLock lock(mutex_);
    models_ = std::move(table);
  }
  State loading = State::kLoading;
  state_.compare_exchange_strong(loading, State::kReady);
  if (draining()) BeginDrain();  // the signal came while the model was loading
}

void ApiService::SetKeys(ApiKeys keys) {
  auto shared = std::make_shared<const ApiKeys>(std::move(keys));
  MutexLock lock(mutex_);
  keys_ = std::move(shared);
}

ServedModel ApiService::Model(const std::string& name) {
  for (bool loaded = false;; loaded = true) {
    const auto table = models();
    if (table == nullptr) throw NotReady().value_or(Stopping());
    try {
      return table->Get(name);
    } catch (const ModelNotLoaded& absent) {
      if (loaded || !call_context_.MayWait(absent)) throw;
    }
    std::promise<std::optional<ApiError>> ended;
    call_context_.models->Load(
        name, [&ended](std::optional<ApiError> why_not) { ended.set_value(std::move(why_not)); });
    if (auto why_not = ended.get_future().get()) throw ApiError(*why_not);
  }
}

void ApiService::BeginDrain() {
  state_.store(State::kDraining);
  const auto table = models();
  if (table == nullptr) return;
  for (const ServedModel& model : table->models()) {
    if (model.engine != nullptr) model.engine->BeginDrain();
  }
}

std::shared_ptr<const ModelTable> ApiService::models() const {
  MutexLock lock(mutex_);
  return models_;
}

std::shared_ptr<const ModelTable> ApiService::ModelsFor(const ApiKey* key) const {
  auto table = models();
  if (table == nullptr || key == nullptr || key->models.empty()) return table;
  return table->Only(key->models);
}

std::shared_ptr<const ApiKeys> ApiService::keys() const {
  MutexLock lock(mutex_);
  return keys_;
}

std::shared_ptr<const ApiKey> ApiService::KeyOf(const HttpRequest& request) const {
  const auto all = keys();
  return {all, all->Find(GivenKey(request))};
}

// All keys are compared for it: only where one of them has a rate.
std::shared_ptr<const ApiKey> ApiService::LimitedKeyOf(const HttpRequest& request,
                                                       const RouteMatch& match) const {
  if (!match.generates() || !keys()->any_limited()) return nullptr;
  return KeyOf(request);
}

std::optional<ApiError> ApiService::CheckKey(const HttpRequest& request,
                                             const RouteMatch& match) const {
  if (match.open || (match.route == Route::kMetrics && options_.metrics_without_key) ||
      (match.route == Route::kRoot && WantsPage(request))) {
    return std::nullopt;
  }
  const auto forbidden = [&match](std::string_view why) {
    return ApiError(403, "permission_error", fmt::format("{} {}", match.label, why), {},
                    "admin_key_needed");
  };
  if (keys()->empty()) {
    // Who may use a server that asks nobody for a key may not change it, unless it is his own.
    if (!match.admin || loopback_only_) return std::nullopt;
    return forbidden(
        "is for administrators: start the server with an --api-key-file that has a key with "
        "\"admin\": true.");
  }
  const auto key = KeyOf(request);
  if (key == nullptr) return KeyError(request);
  if (match.admin && !key->admin) {
    return forbidden("needs a key that has \"admin\": true in the server's --api-key-file.");
  }
  return std::nullopt;
}

std::optional<ApiError> ApiService::NotReady() const {
  switch (state_.load()) {
    case State::kLoading:
      return Unavailable(fmt::format("The model is still being loaded ({}%); try again later.",
                                     load_percent_.load()),
                         "loading", 5);
    case State::kDraining:
      return Unavailable("The server is shutting down and takes no new requests.", "draining", 5);
    case State::kReady:
      break;
  }
  return std::nullopt;
}

bool ApiService::IsProbe(const HttpRequest& head) const {
  const std::optional<RouteMatch> match = MatchRoute(head.path);
  return match.has_value() && match->open && match->Allows(head.method);
}

std::optional<HttpResponse> ApiService::CheckHead(const HttpRequest& head) {
  const std::optional<RouteMatch> match = MatchRoute(head.path);
  const auto refuse = [&head](const ApiError& error) { return ErrorResponse(error, head.path); };
  // Probes of a container's runtime name whatever address they know; what they learn is no secret.
  if (!match.has_value() || !match->open) {
    if (const auto error = CheckHost(head, options_, loopback_only_)) return refuse(*error);
  }
  if (const auto error = CheckOrigin(head, options_)) return refuse(*error);
  if (head.method == "OPTIONS") {
    if (!match.has_value() && head.path != "*") return refuse(RouteNotFound(head.path));
    return AnswerOptions(head, options_,
                         match.has_value() ? match->allow() : "GET, HEAD, POST, OPTIONS");
  }
  if (!match.has_value()) return refuse(RouteNotFound(head.path));
  if (!match->Allows(head.method)) {
    // Codex asks for a WebSocket before it posts: told this it posts at once, told 405 it asks six
    // more times.
    if (AsksForWebSocket(head)) {
      HttpResponse response =
          refuse(ApiError(426, "invalid_request_error",
                          fmt::format("{} is not served over a WebSocket; it takes {}.",
                                      match->label, match->allow()),
                          {}, "websocket_not_supported"));
      response.headers.emplace_back("Upgrade", "HTTP/1.1");
      response.headers.emplace_back("Connection", "Upgrade");
      return response;
    }
    HttpResponse response =
        refuse(ApiError(405, "invalid_request_error",
                        fmt::format("{} does not take {}; it takes {}.", match->label,
                                    Excerpt(head.method, 20), match->allow()),
                        {}, "method_not_allowed"));
    response.headers.emplace_back("Allow", std::string(match->allow()));
    return response;
  }
  if (const auto error = CheckKey(head, *match)) return refuse(*error);
  if (head.method == "POST" || head.method == "PUT") {
    const bool json = head.method == "POST" && match->route != Route::kFiles;
    const auto error = match->route == Route::kBatchCancel ? std::nullopt
                       : json                              ? CheckBodyHeaders(head)
                                                           : CheckBinaryBodyHeaders(head);
    if (error) return refuse(*error);
    if (const auto unready = NotReady()) return refuse(*unready);
    if (const auto key = LimitedKeyOf(head, *match)) {
      if (const auto limit = rates_.Admit(*key)) return refuse(*limit);
    }
  }
  return std::nullopt;
}

void ApiService::DecorateResponse(const HttpRequest& head, HttpResponse& response) {
  AddCorsHeaders(head, options_, response);
  // Anthropic's clients look for it under this name.
  if (IsMessagesPath(head.path)) response.headers.emplace_back("request-id", head.id);
  const std::optional<RouteMatch> match = MatchRoute(head.path);
  if (!match.has_value()) return;
  if (const auto key = LimitedKeyOf(head, *match)) rates_.AddHeaders(*key, response);
}

std::shared_ptr<Call> ApiService::Handle(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request();
  const std::optional<RouteMatch> match = MatchRoute(request.path);
  CHECK(match.has_value());  // CheckHead has refused what has no route
  // Once more: a key may have been withdrawn while the body came.
  if (const auto error = CheckKey(request, *match)) {
    exchange->Respond(ErrorResponse(*error, request.path));
    return nullptr;
  }
  const std::shared_ptr<const ApiKey> key = KeyOf(request);
  const auto table = ModelsFor(key.get());
  if (match->route == Route::kEamc && table != nullptr) {
    auto call = std::make_shared<CollectionCall>(call_context_, table, std::move(exchange));
    call->Start();
    return call;
  }
  if (match->of_batches() && table != nullptr) {
    auto call = std::make_shared<BatchCall>(call_context_, batches_, table, std::move(exchange),
                                            *match, key != nullptr ? key->name : std::string());
    call->Start();
    return call;
  }
  const ModelSource source = [this, key] { return ModelsFor(key.get()); };
  if (match->route == Route::kModelEvents && call_context_.models != nullptr &&
      request.method == "GET") {
    auto call = std::make_shared<ModelEventsCall>(call_context_, source, std::move(exchange),
                                                  [this] { return draining(); });
    call->Start();
    return call;
  }
  const bool events = match->route == Route::kLiveEvents;
  if ((events || match->route == Route::kLiveSnapshot) && table != nullptr) {
    auto call = std::make_shared<LiveCall>(source, std::move(exchange), events,
                                           [this] { return draining(); });
    call->Start();
    return call;
  }
  if (match->route == Route::kRequestExperts && table != nullptr) {
    auto call = std::make_shared<RequestExpertsCall>(table, std::move(exchange), match->model);
    call->Start();
    return call;
  }
  if (match->route == Route::kRoot && WantsPage(request)) {
    exchange->Respond(AnswerPage());
    return nullptr;
  }
  if (!match->post) {
    RouteMatch get = *match;
    if (get.route == Route::kTokenizerInfo) {
      get.model = QueryValue(request.target, "model").value_or("");
    }
    exchange->Respond(AnswerGet(get, table.get()));
    return nullptr;
  }
  CHECK(table != nullptr);
  if (match->route == Route::kLoadModel || match->route == Route::kUnloadModel) {
    auto call = std::make_shared<ModelOrderCall>(call_context_, source, std::move(exchange),
                                                 match->route == Route::kLoadModel);
    call->Start();
    return call;
  }
  if (const BodyAnswer answer = AnswerOf(match->route)) {
    auto call = std::make_shared<BodyCall>(call_context_, source, std::move(exchange), answer);
    call->Start();
    return call;
  }
  CHECK(match->generates());
  RequestOwner owner;
  if (key != nullptr) owner = {ClientOf(*key), key->priority};
  auto call = std::make_shared<CompletionCall>(call_context_, source, std::move(exchange),
                                               DialectOf(match->route), std::move(owner),
                                               [this, key](int64_t tokens) {
                                                 if (key != nullptr) rates_.Spend(*key, tokens);
                                               });
  call->Start();
  return call;
}

HttpResponse ApiService::AnswerGet(const RouteMatch& match, const ModelTable* table) {
  switch (match.route) {
    case Route::kRoot:
      return TextResponse(RootPage());
    case Route::kHealth:
      return JsonResponse(Json{{"status", "ok"}});
    case Route::kVersion:
      return JsonResponse(Json{{"version", options_.version}});
    case Route::kMetrics:
      return Metrics();
    case Route::kReady:
      return Ready();
    case Route::kOllamaVersion:
      return JsonResponse(Json{{"version", kOllamaApiVersion}});
    default:
      return AnswerOfModels(match, table);
  }
}

// An engine that can serve nothing, for good or for now, is not ready, though its requests are
// still taken and end with the reason.
HttpResponse ApiService::Ready() const {
  if (const auto error = NotReady()) return ErrorResponse(*error, {});
  const ModelManager* const manager = call_context_.models;
  if (manager != nullptr && manager->starting()) {
    return ErrorResponse(
        Unavailable("Models are still being loaded; try again later.", "loading", 5), {});
  }
  for (const ServedModel& model : models()->models()) {
    if (model.engine == nullptr) continue;
    const EngineStatus status = model.engine->Status();
    if (status.not_ready.empty()) continue;
    return ErrorResponse(Unavailable(status.not_ready, status.not_ready_code, 60), {});
  }
  return JsonResponse(Json{{"status", "ready"}});
}

HttpResponse ApiService::Metrics() {
  if (const auto table = models()) {
    for (const ServedModel& model : table->models()) {
      metrics_.ForModel(model.names.front())
          .SetStatus(model.engine != nullptr ? model.engine->Status() : EngineStatus());
    }
  }
  HttpResponse response = TextResponse(metrics_.Serialize(options_.metrics_vllm_names));
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  return response;
}

HttpResponse ApiService::AnswerOfModels(const RouteMatch& match, const ModelTable* table) const {
  const bool ollama = match.route == Route::kOllamaTags || match.route == Route::kOllamaPs;
  if (table == nullptr) {
    return ErrorResponse(NotReady().value_or(Unavailable(
                             "The model has just been loaded; try again.", "loading", 1)),
                         match.label);
  }
  if (ollama) {
    HttpResponse response;
    response.body = OllamaModels(*table, match.route == Route::kOllamaPs);
    return response;
  }
  if (match.route == Route::kModelEvents) return ErrorResponse(OneModel(), match.label);
  if (match.route == Route::kModels) return JsonResponse(ModelsJson(*table));
  const ServedModel* const model = table->Find(match.model);
  if (match.route == Route::kTokenizerInfo && !table->models().empty()) {
    const ServedModel& asked =
        match.model.empty() || model == nullptr ? table->models().front() : *model;
    if (asked.engine == nullptr) return ErrorResponse(ModelNotLoaded(asked), match.label);
    return JsonResponse(TokenizerJson(asked));
  }
  if (model == nullptr) return ErrorResponse(table->NotFound(match.model), {});
  return JsonResponse(ModelJson(*model, match.model));
}

void ApiService::ReportUnknownFields(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string shown = Excerpt(name, 60);
    MutexLock lock(mutex_);
    if (reported_fields_.size() >= kMaxReportedFields) return;
    if (!reported_fields_.insert(shown).second) continue;
    LogWarn("requests have the field \"{}\", which this server ignores (told once)", shown);
  }
}

void ApiService::OnResponse(const HttpRequest& request, int status, double seconds,
                            std::string_view log_note) {
  const std::optional<RouteMatch> match = MatchRoute(request.path);
  metrics_.CountResponse(match.has_value() ? match->label : "other", status);
  if (!options_.access_log) return;
  std::string line =
      fmt::format("request {} {} {} {} {:.1f} ms", request.id.empty() ? "-" : request.id,
                  ForLog(request.method, 20), ForLog(request.target, 200), status, seconds * 1e3);
  if (!log_note.empty()) line += fmt::format(" {}", log_note);
  if (const auto key = KeyOf(request); key != nullptr && !key->name.empty()) {
    line += fmt::format(" key={}", key->name);
  }
  const std::string_view traceparent = request.Header("traceparent");
  if (IsTraceparent(traceparent)) line += fmt::format(" traceparent={}", traceparent);
  // Probes come every few seconds and say nothing.
  const bool probe = match.has_value() && (match->open || match->route == Route::kMetrics);
  if (probe) {
    LogDebug("{}", line);
  } else {
    LogInfo("{}", line);
  }
}

}  // namespace moesaic
