// ModelOrderCall: POST /models/load and /models/unload: {"model": "..."}, answered when it is done
// with {"success": true}.
//
// Thread contract: as Call; the manager calls back from a thread of its own.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "serving/api/api_error.h"
#include "serving/http/call_context.h"
#include "serving/http/exchange.h"

namespace moesaic {

class ModelOrderCall : public Call, public std::enable_shared_from_this<ModelOrderCall> {
 public:
  ModelOrderCall(CallContext& context, ModelSource models, std::shared_ptr<Exchange> exchange,
                 bool load);
  void Start();
  void OnWritable() override {}
  void OnQuiet() override {}
  void OnDisconnect() override { gone_.store(true); }
  void OnShutdown() override;

 private:
  void Order(const std::string& body);                  // worker thread
  void Answer(const std::optional<ApiError>& why_not);  // any thread

  CallContext& context_;
  const ModelSource models_;
  const std::shared_ptr<Exchange> exchange_;
  const bool load_;
  const std::string path_;
  std::atomic<bool> gone_{false};
};

}  // namespace moesaic
