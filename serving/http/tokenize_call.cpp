#include "serving/http/tokenize_call.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "serving/http/api_error.h"
#include "serving/http/generation_request.h"
#include "serving/http/openai_request.h"
#include "serving/http/prompt_builder.h"
#include "serving/text/tokenizer.h"

namespace moesaic {

std::string Tokenize(const ModelTable& models, std::string_view body,
                     const std::atomic<bool>& gone) {
  const TokenizeRequest request = ParseTokenizeRequest(body, &gone);
  const ServedModel& model = models.Get(request.model);
  const Tokenizer& tokenizer = model.engine->tokenizer();
  std::vector<int32_t> tokens;
  if (gone.load()) throw ClientLeft();
  if (const auto* text = std::get_if<std::string>(&request.input)) {
    tokens = EncodeText(tokenizer, *text, request.add_special_tokens.value_or(true));
  } else {
    tokens = EncodeChat(model, std::get<ChatInput>(request.input),
                        request.add_special_tokens.value_or(false));
  }
  if (gone.load()) throw ClientLeft();
  // Written at once: as values of JSON the tokens of a long text would take many times the text.
  std::string out = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[)", tokens.size(),
                                model.engine->max_context_tokens());
  for (size_t i = 0; i < tokens.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{}{}", i > 0 ? "," : "", tokens[i]);
  }
  if (!request.return_token_strings) return out + R"(],"token_strs":null})";
  out += R"(],"token_strs":[)";
  const TokenSpeller spell = MakeTokenSpeller(tokenizer, false);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) out += ',';
    out += DumpJson(TokenString(spell(tokens[i], false).bytes));
  }
  return out + "]}";
}

std::string Detokenize(const ModelTable& models, std::string_view body,
                       const std::atomic<bool>& gone) {
  const DetokenizeRequest request = ParseDetokenizeRequest(body, &gone);
  const ServedModel& model = models.Get(request.model);
  CheckTokens(request.tokens, model.engine->config().vocab_size, "tokens");
  return DumpJson(Json{{"prompt", model.engine->tokenizer().Decode(request.tokens, false)}});
}

TokenizeCall::TokenizeCall(CallContext& context, std::shared_ptr<const ModelTable> models,
                           std::shared_ptr<Exchange> exchange, bool detokenize)
    : context_(context),
      models_(std::move(models)),
      exchange_(std::move(exchange)),
      detokenize_(detokenize) {}

void TokenizeCall::Start() {
  context_.run_on_worker([self = shared_from_this(), body = std::move(exchange_->request().body)] {
    if (self->gone_.load()) return;
    auto response = std::make_shared<HttpResponse>(self->Answer(body));
    self->exchange_->Post([self, response] { self->exchange_->Respond(std::move(*response)); });
  });
}

void TokenizeCall::OnShutdown() {
  gone_.store(true);
  exchange_->Respond(ErrorResponse(Stopping()));
}

HttpResponse TokenizeCall::Answer(const std::string& body) const {
  try {
    const RequestMemory::Lease lease = context_.request_memory.Reserve(body.size());
    HttpResponse response;
    response.body =
        detokenize_ ? Detokenize(*models_, body, gone_) : Tokenize(*models_, body, gone_);
    return response;
  } catch (...) {
    return ErrorResponse(CurrentApiError(detokenize_ ? "/detokenize" : "/tokenize"));
  }
}

}  // namespace moesaic
