// LiveCall: GET of what an engine is doing (serving/engine/live_view.h), as server-sent events for
// as long as the client stays, or once.
//
// A client that does not read gets no samples, and none wait for it. Streams end when the server
// drains: nobody's work is cut off by that. They end, too, when the model is unloaded, which a
// reader must not hold in memory.
//
// Thread contract: as Call; everything runs on the connection's strand.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "serving/api/json_text.h"
#include "serving/api/served_model.h"
#include "serving/engine/live_view.h"
#include "serving/http/call_context.h"
#include "serving/http/exchange.h"

namespace moesaic {

class LiveCall : public Call, public std::enable_shared_from_this<LiveCall> {
 public:
  // How often the view is looked at.
  static constexpr std::chrono::milliseconds kInterval{100};

  // draining: whether the server has begun to; asked on the strand.
  LiveCall(ModelSource models, std::shared_ptr<Exchange> exchange, bool events,
           std::function<bool()> draining);

  void Start();
  void OnWritable() override {}
  void OnQuiet() override;
  void OnDisconnect() override { Leave(); }
  void OnShutdown() override { End(); }

 private:
  // Of the call's model, as it is now. Throws ApiError: it is not there, or not loaded.
  ServedModel Model() const;
  bool IsUnloaded() const;
  void Look();
  void LookLater();
  void End();
  void Leave();

  const ModelSource models_;
  const std::shared_ptr<Exchange> exchange_;
  const bool events_;
  const std::function<bool()> draining_;
  std::shared_ptr<Engine> engine_;  // shared as long as the model is loaded; null once done
  LiveView* live_ = nullptr;        // the engine's
  Json model_;                      // LiveModelJson
  std::optional<LiveView::Watch> watch_;
  uint64_t last_ = 0;  // number of the sample that was there before, or was sent last
  bool done_ = false;
};

}  // namespace moesaic
