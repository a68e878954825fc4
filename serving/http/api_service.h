// ApiService: the routes of the OpenAI-compatible API. It knows nothing of sockets: requests come
// through Exchange, generation runs as CompletionCall.
//
// Owned by the server. Thread contract: all public functions may be called from any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "serving/api/api_error.h"
#include "serving/api/served_model.h"
#include "serving/http/api_keys.h"
#include "serving/http/batch_call.h"
#include "serving/http/call_context.h"
#include "serving/http/exchange.h"
#include "serving/http/rate_limiter.h"
#include "serving/http/request_memory.h"
#include "serving/http/router.h"
#include "serving/http/server_options.h"
#include "serving/http/serving_metrics.h"

namespace moesaic {

class ApiService : public RequestHandler {
 public:
  ApiService(const ServerOptions& options, ServingMetrics& metrics,
             std::function<void(std::function<void()>)> run_on_worker);

  // Ends the loading phase, when it is called first. Throws Error (ModelTable).
  void SetModels(std::vector<ServedModel> models);
  // How much of the model has been read, from 0 to 1, while it is loaded.
  void ShowLoading(double fraction) { load_percent_.store(static_cast<int>(100 * fraction)); }
  // What it does batches with; before requests. Must outlive the service.
  void SetBatches(BatchBackend batches) { batches_ = std::move(batches); }
  // Who loads the models that are not loaded; outlives this. Before the first SetModels.
  void SetManager(ModelManager* manager) { call_context_.models = manager; }
  // A model with its engine; loads it where it is not loaded, and waits for that. Throws ApiError:
  // 404, or why it cannot be had now.
  ServedModel Model(const std::string& name);
  // From now on requests need one of these, where there are any.
  void SetKeys(ApiKeys keys);
  // The server's socket is bound to loopback: who names another host is refused. Before requests.
  void SetLoopbackOnly(bool loopback_only) { loopback_only_ = loopback_only; }
  // Readiness fails and new work is refused from now on; the engines drain.
  void BeginDrain();
  bool draining() const { return state_.load() == State::kDraining; }

  bool IsProbe(const HttpRequest& head) const override;
  std::optional<HttpResponse> CheckHead(const HttpRequest& head) override;
  void DecorateResponse(const HttpRequest& head, HttpResponse& response) override;
  std::shared_ptr<Call> Handle(std::shared_ptr<Exchange> exchange) override;
  void OnResponse(const HttpRequest& request, int status, double seconds,
                  std::string_view log_note) override;

 private:
  enum class State { kLoading, kReady, kDraining };

  std::shared_ptr<const ModelTable> models() const;
  // Those that the key may use; null (no key) may use all.
  std::shared_ptr<const ModelTable> ModelsFor(const ApiKey* key) const;
  std::shared_ptr<const ApiKeys> keys() const;
  // The one that the request carries; null: none, or none of ours.
  std::shared_ptr<const ApiKey> KeyOf(const HttpRequest& request) const;
  // The same where the route counts against a rate; null also when no key has one.
  std::shared_ptr<const ApiKey> LimitedKeyOf(const HttpRequest& request,
                                             const RouteMatch& match) const;
  // Why the request may not have the route, if so.
  std::optional<ApiError> CheckKey(const HttpRequest& request, const RouteMatch& match) const;
  // Why work cannot be accepted now, if so.
  std::optional<ApiError> NotReady() const;
  // `table`: the models that the caller may use; null while they are loaded.
  HttpResponse AnswerGet(const RouteMatch& match, const ModelTable* table);
  HttpResponse Ready() const;
  HttpResponse Metrics();
  // Of the models of the table, which may be null.
  HttpResponse AnswerOfModels(const RouteMatch& match, const ModelTable* table) const;
  void ReportUnknownFields(const std::vector<std::string>& names);

  const ServerOptions& options_;
  ServingMetrics& metrics_;
  RequestMemory request_memory_;
  RateLimiter rates_;
  CallContext call_context_;
  BatchBackend batches_;
  std::atomic<State> state_{State::kLoading};
  std::atomic<int> load_percent_{0};
  bool loopback_only_ = false;

  mutable Mutex mutex_;
  // Shared: a call keeps the table that it began with.
  std::shared_ptr<const ModelTable> models_ GUARDED_BY(mutex_);
  // Shared: a request is judged by the keys that there were when it came.
  std::shared_ptr<const ApiKeys> keys_ GUARDED_BY(mutex_) = std::make_shared<const ApiKeys>();
  std::set<std::string, std::less<>> reported_fields_ GUARDED_BY(mutex_);
};

}  // namespace moesaic
