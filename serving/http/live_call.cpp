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

LiveCall::LiveCall(ModelSource models, std::shared_ptr<Exchange> exchange, bool events,
                   std::function<bool()> draining)
    : models_(std::move(models)),
      exchange_(std::move(exchange)),
      events_(events),
      draining_(std::move(draining)) {}

ServedModel LiveCall::Model() const {
  const auto table = models_();
  if (table == nullptr) throw Unavailable("The model is still being loaded.", "loading", 5);
  return table->Get(QueryValue(exchange_->request().target, "model").value_or(""));
}

bool LiveCall::IsUnloaded() const {
  try {
    return Model().engine != engine_;
  } catch (const ApiError&) {
    return true;
  }
}

void LiveCall::Start() {
  const HttpRequest& request = exchange_->request();
  try {
    const ServedModel served = Model();
    live_ = served.engine->live();
    if (live_ == nullptr) throw NothingToSee(served);
    engine_ = served.engine;
    model_ = LiveModelJson(served);
  } catch (...) {
    done_ = true;
    return exchange_->Respond(ErrorResponse(CurrentApiError(request.path), request.path));
  }
  HttpResponse head;
  head.content_type = kSseMediaType;
  head.headers = {{"Cache-Control", "no-store"}, {"X-Accel-Buffering", "no"}};
  if (events_ && request.method == "HEAD") {
    done_ = true;
    return exchange_->Respond(std::move(head));
  }
  last_ = live_->number();
  watch_.emplace(*live_);
  if (events_) {
    exchange_->StartStream(std::move(head));
    exchange_->Send(NamedSseEvent(model_));
  }
  Look();
}

void LiveCall::Look() {
  if (done_) return;
  if (draining_() || IsUnloaded()) return End();
  if (live_->number() == last_ || (events_ && !exchange_->writable())) return LookLater();
  const std::shared_ptr<const LiveSample> sample = live_->Latest();
  last_ = sample->number;
  if (events_) {
    exchange_->Send(NamedSseEvent(LiveSampleJson(*sample)));
    return LookLater();
  }
  Json json = Json::object();
  json["model"] = model_;
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
  engine_.reset();
}

}  // namespace moesaic
