#include "serving/http/live_call.h"

#include <fmt/format.h>

#include <utility>

#include "serving/api/live_json.h"
#include "serving/api/sse_event.h"
#include "serving/http/error_response.h"

namespace moesaic {
namespace {

ApiError NothingToSee(const ServedModel& model) {
  return ApiError(
      404, "NotFoundError",
      fmt::format("The engine of the model `{}` has no live view.", model.names.front()), {},
      "no_live_view");
}

}  // namespace

LiveCall::LiveCall(std::shared_ptr<const ModelTable> models, std::shared_ptr<Exchange> exchange,
                   bool events, std::function<bool()> draining)
    : models_(std::move(models)),
      exchange_(std::move(exchange)),
      events_(events),
      draining_(std::move(draining)) {}

void LiveCall::Start() {
  const HttpRequest& request = exchange_->request();
  try {
    model_ = &models_->Get(QueryValue(request.target, "model").value_or(""));
    live_ = model_->engine->live();
    if (live_ == nullptr) throw NothingToSee(*model_);
  } catch (...) {
    done_ = true;
    return exchange_->Respond(ErrorResponse(CurrentApiError(request.path), request.path));
  }
  last_ = live_->number();
  watch_.emplace(*live_);
  if (events_) {
    HttpResponse head;
    head.content_type = kSseMediaType;
    head.headers = {{"Cache-Control", "no-store"}, {"X-Accel-Buffering", "no"}};
    exchange_->StartStream(std::move(head));
    exchange_->Send(NamedSseEvent(LiveModelJson(*model_)));
  }
  Look();
}

void LiveCall::Look() {
  if (done_) return;
  if (draining_()) return End();
  if (live_->number() == last_ || (events_ && !exchange_->writable())) return LookLater();
  const std::shared_ptr<const LiveSample> sample = live_->Latest();
  last_ = sample->number;
  if (events_) {
    exchange_->Send(NamedSseEvent(LiveSampleJson(*sample)));
    return LookLater();
  }
  Json json = Json::object();
  json["model"] = LiveModelJson(*model_);
  json["sample"] = LiveSampleJson(*sample);
  HttpResponse response;
  response.headers = {{"Cache-Control", "no-store"}};
  response.body = DumpJson(json);
  Leave();
  exchange_->Respond(std::move(response));
}

void LiveCall::LookLater() {
  exchange_->PostAfter(kInterval, [self = shared_from_this()] { self->Look(); });
}

void LiveCall::OnQuiet() {
  if (!done_ && events_) exchange_->Send(kSseComment);
}

void LiveCall::End() {
  if (done_) return;
  Leave();
  if (events_) return exchange_->FinishStream();
  exchange_->Respond(ErrorResponse(Stopping(), exchange_->request().path));
}

void LiveCall::Leave() {
  done_ = true;
  watch_.reset();
}

}  // namespace moesaic
