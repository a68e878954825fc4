// CollectionCall: GET and PUT of the collection of request EAMs that a model's engine learns
// (serving/engine/collection_file.h). What is heavy runs on a worker; the engine's thread copies
// the collection or updates it between two steps.
//
// Thread contract: as Call; its own steps run on the connection's strand, a worker, the engine's
// thread and a worker again, one after the other.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "core/base/mutex.h"
#include "serving/api/served_model.h"
#include "serving/engine/collection_file.h"
#include "serving/http/call_context.h"
#include "serving/http/exchange.h"

namespace moesaic {

class CollectionCall : public Call, public std::enable_shared_from_this<CollectionCall> {
 public:
  CollectionCall(CallContext& context, std::shared_ptr<const ModelTable> models,
                 std::shared_ptr<Exchange> exchange);
  void Start();
  void OnWritable() override {}
  void OnQuiet() override {}
  void OnDisconnect() override { Leave(); }
  void OnShutdown() override;

 private:
  // What the engine holds of a call: a way back that the call takes away when its connection goes,
  // as the engine may be late.
  class WayBack;

  void Get();
  void Put(const std::string& body);
  void Answer(std::function<HttpResponse()> make);  // any thread
  void Respond(HttpResponse response);              // any thread
  void Leave();

  CallContext& context_;
  const std::shared_ptr<const ModelTable> models_;
  const std::shared_ptr<Exchange> exchange_;
  const std::string path_;
  const std::shared_ptr<WayBack> way_back_;  // shared with the engine
  const ServedModel* model_ = nullptr;
  CollectionUpdate update_ = CollectionUpdate::kReplace;
  std::atomic<bool> gone_{false};
};

}  // namespace moesaic
