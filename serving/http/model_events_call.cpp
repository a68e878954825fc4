#include "serving/http/model_events_call.h"

#include <chrono>
#include <functional>
#include <utility>

#include "serving/api/sse_event.h"

namespace moesaic {
namespace {

constexpr std::chrono::milliseconds kAskDraining{200};

std::string EventOf(const ModelStatus& status) {
  Json json = Json::object();
  json["type"] = "model_status";
  json["model"] = status.id;
  json["status"] = StatusJson(status);
  return NamedSseEvent(json);
}

}  // namespace

class ModelEventsCall::Inbox {
 public:
  void Open(std::function<void()> notice) {
    MutexLock lock(mutex_);
    notice_ = std::move(notice);
  }
  void Close() {
    std::function<void()> last;  // holds the call, which must not end under the lock
    MutexLock lock(mutex_);
    std::swap(last, notice_);
  }
  // Any thread.
  void Put(const ModelStatus& status) {
    MutexLock lock(mutex_);
    const bool first = statuses_.empty();
    statuses_[status.id] = status;
    if (first && notice_) notice_();
  }
  std::map<std::string, ModelStatus> Take() {
    MutexLock lock(mutex_);
    return std::exchange(statuses_, {});
  }

 private:
  Mutex mutex_;
  std::function<void()> notice_ GUARDED_BY(mutex_);
  std::map<std::string, ModelStatus> statuses_ GUARDED_BY(mutex_);  // by model's id
};

ModelEventsCall::ModelEventsCall(CallContext& context, ModelSource models,
                                 std::shared_ptr<Exchange> exchange, std::function<bool()> draining)
    : context_(context),
      models_(std::move(models)),
      exchange_(std::move(exchange)),
      draining_(std::move(draining)),
      inbox_(std::make_shared<Inbox>()) {}

ModelEventsCall::~ModelEventsCall() { Leave(); }

void ModelEventsCall::Start() {
  HttpResponse head;
  head.content_type = kSseMediaType;
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  exchange_->StartStream(std::move(head));
  inbox_->Open([self = shared_from_this()] { self->exchange_->Post([self] { self->Flush(); }); });
  watch_ =
      context_.models->Watch([inbox = inbox_](const ModelStatus& status) { inbox->Put(status); });
  EndWhenDraining();
}

void ModelEventsCall::Flush() {
  if (done_ || !exchange_->writable()) return;
  const std::map<std::string, ModelStatus> statuses = inbox_->Take();
  if (statuses.empty()) return;
  std::string out;
  const auto table = models_();  // of the key
  for (const auto& [id, status] : statuses) {
    if (table != nullptr && table->Find(id) != nullptr) out += EventOf(status);
  }
  if (!out.empty()) exchange_->Send(out);
}

void ModelEventsCall::OnQuiet() {
  if (!done_) exchange_->Send(kSseComment);
}

void ModelEventsCall::EndWhenDraining() {
  if (done_) return;
  if (draining_()) return End();
  exchange_->PostAfter(kAskDraining, [self = shared_from_this()] { self->EndWhenDraining(); });
}

void ModelEventsCall::End() {
  if (done_) return;
  Leave();
  exchange_->FinishStream();
}

void ModelEventsCall::Leave() {
  if (std::exchange(done_, true)) return;
  inbox_->Close();
  if (watch_ != 0) context_.models->Unwatch(watch_);
}

}  // namespace moesaic
