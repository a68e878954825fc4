// POST /tokenize and /detokenize, in vLLM's shapes.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "serving/http/call_context.h"
#include "serving/http/exchange.h"
#include "serving/http/served_model.h"

namespace moesaic {

// Bodies in, bodies out. They throw ApiError (ClientLeft soon after `gone` is set), and Error from
// the tokenizer.
std::string Tokenize(const ModelTable& models, std::string_view body,
                     const std::atomic<bool>& gone);
std::string Detokenize(const ModelTable& models, std::string_view body,
                       const std::atomic<bool>& gone);

// Runs one of them on a worker and answers.
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
