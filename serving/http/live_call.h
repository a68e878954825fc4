// LiveCall: GET of what an engine is doing (serving/engine/live_view.h), as server-sent events for
// as long as the client stays, or once.
//
// A client that does not read gets no samples, and none wait for it. Streams end when the server
// drains: nobody's work is cut off by that.
//
// Thread contract: as Call; everything runs on the connection's strand.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "serving/api/served_model.h"
#include "serving/engine/live_view.h"
#include "serving/http/exchange.h"

namespace moesaic {

class LiveCall : public Call, public std::enable_shared_from_this<LiveCall> {
 public:
  // How often the view is looked at.
  static constexpr std::chrono::milliseconds kInterval{100};

  // draining: whether the server has begun to; asked on the strand.
  LiveCall(std::shared_ptr<const ModelTable> models, std::shared_ptr<Exchange> exchange,
           bool events, std::function<bool()> draining);

  void Start();
  void OnWritable() override {}
  void OnQuiet() override;
  void OnDisconnect() override { Leave(); }
  void OnShutdown() override { End(); }

 private:
  void Look();
  void LookLater();
  void End();
  void Leave();

  const std::shared_ptr<const ModelTable> models_;
  const std::shared_ptr<Exchange> exchange_;
  const bool events_;
  const std::function<bool()> draining_;
  const ServedModel* model_ = nullptr;
  LiveView* live_ = nullptr;  // the model's
  std::optional<LiveView::Watch> watch_;
  uint64_t last_ = 0;  // number of the sample that was there before, or was sent last
  bool done_ = false;
};

}  // namespace moesaic
