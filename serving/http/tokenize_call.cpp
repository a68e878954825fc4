#include "serving/http/tokenize_call.h"

#include <utility>

#include "serving/api/api_error.h"
#include "serving/api/tokenize.h"
#include "serving/http/error_response.h"

namespace moesaic {

TokenizeCall::TokenizeCall(CallContext& context, std::shared_ptr<const ModelTable> models,
                           std::shared_ptr<Exchange> exchange, bool detokenize)
    : context_(context),
      models_(std::move(models)),
      exchange_(std::move(exchange)),
      detokenize_(detokenize) {}

void TokenizeCall::Start() {
  context_.run_on_worker([self = shared_from_this(), body = std::move(exchange_->request().body)] {
    if (self->gone_.load()) return;
    auto response = std::make_shared<HttpResponse>(self->Answer(body));
    self->exchange_->Post([self, response] { self->exchange_->Respond(std::move(*response)); });
  });
}

void TokenizeCall::OnShutdown() {
  gone_.store(true);
  exchange_->Respond(ErrorResponse(Stopping()));
}

HttpResponse TokenizeCall::Answer(const std::string& body) const {
  try {
    const RequestMemory::Lease lease = context_.request_memory.Reserve(body.size());
    HttpResponse response;
    response.body =
        detokenize_ ? Detokenize(*models_, body, gone_) : Tokenize(*models_, body, gone_);
    return response;
  } catch (...) {
    return ErrorResponse(CurrentApiError(detokenize_ ? "/detokenize" : "/tokenize"));
  }
}

}  // namespace moesaic
