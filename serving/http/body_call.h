// BodyCall: one POST that generates nothing: a body that a function makes of the request's.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "serving/api/served_model.h"
#include "serving/http/call_context.h"
#include "serving/http/exchange.h"

namespace moesaic {

// Throws ApiError (ClientLeft soon after `gone` is set) and Error.
using BodyAnswer = std::string (*)(const ModelTable& models, std::string_view body,
                                   const std::atomic<bool>& gone);

// Runs the function on a worker and answers.
class BodyCall : public Call, public std::enable_shared_from_this<BodyCall> {
 public:
  BodyCall(CallContext& context, ModelSource models, std::shared_ptr<Exchange> exchange,
           BodyAnswer answer);
  void Start();
  void OnWritable() override {}
  void OnQuiet() override {}
  void OnDisconnect() override { gone_.store(true); }
  void OnShutdown() override;

 private:
  // Worker thread. Where a model has to be loaded first, it answers later.
  void Answer(const std::string& body);
  void Respond(HttpResponse response);
  void WaitForModel(const std::string& model, const std::string& body);

  CallContext& context_;
  const ModelSource models_;
  const std::shared_ptr<Exchange> exchange_;
  const std::string path_;
  const BodyAnswer answer_;
  std::atomic<bool> gone_{false};
};

}  // namespace moesaic
