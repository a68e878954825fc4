// TokenizeCall: one POST to /tokenize or /detokenize.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "serving/api/served_model.h"
#include "serving/http/call_context.h"
#include "serving/http/exchange.h"

namespace moesaic {

// Runs Tokenize or Detokenize on a worker and answers.
class TokenizeCall : public Call, public std::enable_shared_from_this<TokenizeCall> {
 public:
  TokenizeCall(CallContext& context, std::shared_ptr<const ModelTable> models,
               std::shared_ptr<Exchange> exchange, bool detokenize);
  void Start();
  void OnWritable() override {}
  void OnQuiet() override {}
  void OnDisconnect() override { gone_.store(true); }
  void OnShutdown() override;

 private:
  HttpResponse Answer(const std::string& body) const;

  CallContext& context_;
  const std::shared_ptr<const ModelTable> models_;
  const std::shared_ptr<Exchange> exchange_;
  const bool detokenize_;
  std::atomic<bool> gone_{false};
};

}  // namespace moesaic
