// ModelEventsCall: GET /models/events: the status of every model as server-sent events, first as it
// is and then whenever it changes.
//
// What a slow client has not taken is kept as the last status of each model, so that it is bounded
// and never stale. Functions run on the connection's strand unless said otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/base/mutex.h"
#include "serving/api/model_manager.h"
#include "serving/http/call_context.h"
#include "serving/http/exchange.h"

namespace moesaic {

class ModelEventsCall : public Call, public std::enable_shared_from_this<ModelEventsCall> {
 public:
  // draining: whether the server has begun to, when the events end; asked on the strand.
  ModelEventsCall(CallContext& context, ModelSource models, std::shared_ptr<Exchange> exchange,
                  std::function<bool()> draining);
  ~ModelEventsCall() override;
  void Start();
  void OnWritable() override { Flush(); }
  void OnQuiet() override;
  void OnDisconnect() override { Leave(); }
  void OnShutdown() override { End(); }

 private:
  // What the manager holds of a call.
  class Inbox;

  void Flush();
  void EndWhenDraining();
  void End();
  void Leave();

  CallContext& context_;
  const ModelSource models_;
  const std::shared_ptr<Exchange> exchange_;
  const std::function<bool()> draining_;
  const std::shared_ptr<Inbox> inbox_;  // shared with the manager
  uint64_t watch_ = 0;
  bool done_ = false;
};

}  // namespace moesaic
