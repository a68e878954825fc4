// BatchCall: one request of OpenAI's Files and Batch APIs. What touches the disk runs on a worker;
// the content of a file is sent piece by piece, as the client takes it.
//
// Thread contract: as Call; its own steps run on the connection's strand and on a worker, one after
// the other.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/base/file.h"
#include "core/base/json.h"
#include "serving/api/served_model.h"
#include "serving/http/call_context.h"
#include "serving/http/exchange.h"
#include "serving/http/router.h"
#include "serving/jobs/batch_store.h"

namespace moesaic {

// What the server does batches with.
struct BatchBackend {
  BatchStore* store = nullptr;  // null: it does none
  std::function<void()> wake;   // there is something new in it
};

class BatchCall : public Call, public std::enable_shared_from_this<BatchCall> {
 public:
  // `models`: those that the caller may use. `owner`: the name of his key.
  BatchCall(CallContext& context, const BatchBackend& backend,
            std::shared_ptr<const ModelTable> models, std::shared_ptr<Exchange> exchange,
            RouteMatch match, std::string owner);
  void Start();
  void OnWritable() override { SendMore(); }
  void OnQuiet() override {}
  void OnDisconnect() override { gone_.store(true); }
  void OnShutdown() override;

 private:
  HttpResponse Answer(const std::string& body);  // on a worker
  Json Upload(std::string_view body) const;
  Json Create(std::string_view body) const;
  Json FileList() const;
  Json BatchList() const;
  std::string ModelOf(const std::string& file_id) const;
  void SendMore();

  CallContext& context_;
  const BatchBackend& backend_;
  const std::shared_ptr<const ModelTable> models_;
  const std::shared_ptr<Exchange> exchange_;
  const RouteMatch match_;
  const std::string owner_;
  std::atomic<bool> gone_{false};
  // Of a content that is being sent.
  std::optional<File> content_;
  uint64_t offset_ = 0;
  bool reading_ = false;
};

}  // namespace moesaic
