#include "serving/http/body_call.h"

#include <utility>

#include "serving/api/api_error.h"
#include "serving/http/error_response.h"

namespace moesaic {

BodyCall::BodyCall(CallContext& context, ModelSource models, std::shared_ptr<Exchange> exchange,
                   BodyAnswer answer)
    : context_(context),
      models_(std::move(models)),
      exchange_(std::move(exchange)),
      path_(exchange_->request().path),
      answer_(answer) {}

void BodyCall::Start() {
  context_.run_on_worker([self = shared_from_this(), body = std::move(exchange_->request().body)] {
    self->Answer(body);
  });
}

void BodyCall::OnShutdown() {
  gone_.store(true);
  exchange_->Respond(ErrorResponse(Stopping(), path_));
}

void BodyCall::Answer(const std::string& body) {
  if (gone_.load()) return;
  HttpResponse response;
  try {
    const RequestMemory::Lease lease = context_.request_memory.Reserve(body.size());
    response.body = answer_(*models_(), body, gone_);
  } catch (const ModelNotLoaded& missing) {
    if (context_.MayWait(missing)) return WaitForModel(missing.model(), body);
    response = ErrorResponse(missing, path_);
  } catch (...) {
    response = ErrorResponse(CurrentApiError(path_), path_);
  }
  Respond(std::move(response));
}

void BodyCall::WaitForModel(const std::string& model, const std::string& body) {
  context_.models->Load(model, [self = shared_from_this(), body](std::optional<ApiError> why_not) {
    if (why_not.has_value()) return self->Respond(ErrorResponse(*why_not, self->path_));
    self->context_.run_on_worker([self, body] { self->Answer(body); });
  });
}

void BodyCall::Respond(HttpResponse response) {
  auto shared = std::make_shared<HttpResponse>(std::move(response));
  exchange_->Post(
      [self = shared_from_this(), shared] { self->exchange_->Respond(std::move(*shared)); });
}

}  // namespace moesaic
