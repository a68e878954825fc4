#include "serving/http/body_call.h"

#include <utility>

#include "serving/api/api_error.h"
#include "serving/http/error_response.h"

namespace moesaic {

BodyCall::BodyCall(CallContext& context, std::shared_ptr<const ModelTable> models,
                   std::shared_ptr<Exchange> exchange, BodyAnswer answer)
    : context_(context),
      models_(std::move(models)),
      exchange_(std::move(exchange)),
      answer_(answer) {}

void BodyCall::Start() {
  HttpRequest& request = exchange_->request();
  context_.run_on_worker(
      [self = shared_from_this(), body = std::move(request.body), path = request.path] {
        if (self->gone_.load()) return;
        auto response = std::make_shared<HttpResponse>(self->Answer(body, path));
        self->exchange_->Post([self, response] { self->exchange_->Respond(std::move(*response)); });
      });
}

void BodyCall::OnShutdown() {
  gone_.store(true);
  exchange_->Respond(ErrorResponse(Stopping(), exchange_->request().path));
}

HttpResponse BodyCall::Answer(const std::string& body, const std::string& path) const {
  try {
    const RequestMemory::Lease lease = context_.request_memory.Reserve(body.size());
    HttpResponse response;
    response.body = answer_(*models_, body, gone_);
    return response;
  } catch (...) {
    return ErrorResponse(CurrentApiError(path), path);
  }
}

}  // namespace moesaic
