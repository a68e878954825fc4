#include "serving/http/request_experts_call.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "core/base/mutex.h"
#include "serving/api/live_json.h"
#include "serving/http/error_response.h"

namespace moesaic {
namespace {

ApiError UnknownRequest(const std::string& request) {
  return ApiError(404, "NotFoundError",
                  fmt::format("There is no request {}: it has not begun, or has ended; of those "
                              "that have ended the last ones are kept while somebody watches.",
                              Excerpt(request)),
                  {}, "unknown_request");
}

}  // namespace

struct RequestExpertsCall::Letterbox {
  Mutex mutex;
  bool answered GUARDED_BY(mutex) = false;
  std::shared_ptr<const RequestExperts> experts GUARDED_BY(mutex);  // null: there is no such one
};

RequestExpertsCall::RequestExpertsCall(std::shared_ptr<const ModelTable> models,
                                       std::shared_ptr<Exchange> exchange, std::string request)
    : models_(std::move(models)),
      exchange_(std::move(exchange)),
      request_(std::move(request)),
      letterbox_(std::make_shared<Letterbox>()) {}

void RequestExpertsCall::Start() {
  const HttpRequest& request = exchange_->request();
  try {
    const ServedModel& model = models_->Get(QueryValue(request.target, "model").value_or(""));
    const bool nearest = QueryValue(request.target, "nearest").value_or("true") != "false";
    RequestId id = 0;
    const char* const end = request_.data() + request_.size();
    const auto [stop, error] = std::from_chars(request_.data(), end, id);
    if (error != std::errc() || stop != end) throw UnknownRequest(request_);
    model.engine->WithRequest(
        id, nearest, [letterbox = letterbox_](std::shared_ptr<const RequestExperts> experts) {
          MutexLock lock(letterbox->mutex);
          letterbox->answered = true;
          letterbox->experts = std::move(experts);
        });
  } catch (...) {
    done_ = true;
    return exchange_->Respond(ErrorResponse(CurrentApiError(request.path), request.path));
  }
  Look();
}

void RequestExpertsCall::Look() {
  if (done_) return;
  std::shared_ptr<const RequestExperts> experts;
  {
    MutexLock lock(letterbox_->mutex);
    if (!letterbox_->answered) {
      return exchange_->PostAfter(kInterval, [self = shared_from_this()] { self->Look(); });
    }
    experts = std::move(letterbox_->experts);
  }
  done_ = true;
  if (experts == nullptr) {
    return exchange_->Respond(ErrorResponse(UnknownRequest(request_), exchange_->request().path));
  }
  HttpResponse response;
  response.headers = {{"Cache-Control", "no-store"}};
  response.body = DumpJson(RequestExpertsJson(*experts));
  exchange_->Respond(std::move(response));
}

void RequestExpertsCall::OnShutdown() {
  if (std::exchange(done_, true)) return;
  exchange_->Respond(ErrorResponse(Stopping(), exchange_->request().path));
}

}  // namespace moesaic
