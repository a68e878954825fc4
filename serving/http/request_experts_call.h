// RequestExpertsCall: GET of the experts that a request has used
// (serving/engine/request_experts.h). The engine's thread copies them between two steps and leaves
// them where the call looks.
//
// Thread contract: as Call; everything runs on the connection's strand, but for what the engine
// does.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "serving/api/served_model.h"
#include "serving/engine/request_experts.h"
#include "serving/http/exchange.h"

namespace moesaic {

class RequestExpertsCall : public Call, public std::enable_shared_from_this<RequestExpertsCall> {
 public:
  // How often it is looked whether the engine has answered.
  static constexpr std::chrono::milliseconds kInterval{20};

  // `request` is the number of the path, as the client wrote it.
  RequestExpertsCall(std::shared_ptr<const ModelTable> models, std::shared_ptr<Exchange> exchange,
                     std::string request);
  void Start();
  void OnWritable() override {}
  void OnQuiet() override {}
  void OnDisconnect() override { done_ = true; }
  void OnShutdown() override;

 private:
  struct Letterbox;  // shared with the engine, which may be late

  void Look();

  const std::shared_ptr<const ModelTable> models_;
  const std::shared_ptr<Exchange> exchange_;
  const std::string request_;
  const std::shared_ptr<Letterbox> letterbox_;
  bool done_ = false;
};

}  // namespace moesaic
