#include "serving/http/model_order_call.h"

#include <utility>

#include "serving/api/request_fields.h"
#include "serving/http/error_response.h"

namespace moesaic {

ModelOrderCall::ModelOrderCall(CallContext& context, ModelSource models,
                               std::shared_ptr<Exchange> exchange, bool load)
    : context_(context),
      models_(std::move(models)),
      exchange_(std::move(exchange)),
      load_(load),
      path_(exchange_->request().path) {}

void ModelOrderCall::Start() {
  context_.run_on_worker([self = shared_from_this(), body = std::move(exchange_->request().body)] {
    if (!self->gone_.load()) self->Order(body);
  });
}

void ModelOrderCall::Order(const std::string& body) {
  try {
    const JsonDocument document(body, {}, &gone_);
    RequestFields fields(document);
    const std::string model = fields.RequiredString("model");
    if (context_.models == nullptr) throw OneModel();
    // Of those that the key may use.
    if (const auto table = models_(); table->Find(model) == nullptr) throw table->NotFound(model);
    const auto done = [self = shared_from_this()](const std::optional<ApiError>& why_not) {
      self->Answer(why_not);
    };
    if (load_) {
      context_.models->Load(model, done);
    } else {
      context_.models->Unload(model, done);
    }
  } catch (...) {
    Answer(CurrentApiError(path_));
  }
}

void ModelOrderCall::Answer(const std::optional<ApiError>& why_not) {
  auto response = std::make_shared<HttpResponse>();
  if (why_not.has_value()) {
    *response = ErrorResponse(*why_not, path_);
  } else {
    response->body = DumpJson(Json{{"success", true}});
  }
  exchange_->Post([self = shared_from_this(), response] {
    if (!self->gone_.load()) self->exchange_->Respond(std::move(*response));
  });
}

void ModelOrderCall::OnShutdown() {
  gone_.store(true);
  exchange_->Respond(ErrorResponse(Stopping(), path_));
}

}  // namespace moesaic
