#include "serving/api/tokenize.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "serving/api/api_error.h"
#include "serving/api/engine_requests.h"
#include "serving/api/prompt_builder.h"
#include "serving/api/request_fields.h"
#include "serving/api/token_speller.h"
#include "serving/text/tokenizer.h"

namespace moesaic {

TokenizeRequest ParseTokenizeRequest(std::string_view body, const std::atomic<bool>* gone) {
  const JsonDocument document(body, {}, gone);
  RequestFields fields(document);
  TokenizeRequest request;
  request.model = fields.String("model").value_or("");
  request.add_special_tokens = fields.Bool("add_special_tokens");
  request.return_token_strings = fields.Bool("return_token_strs").value_or(false);
  if (fields.Find("messages") != nullptr) {
    request.input = ParseChatInput(fields);
  } else if (auto prompt = fields.String("prompt")) {
    request.input = std::move(*prompt);
  } else {
    throw BadParam("prompt", "prompt (a string) or messages is needed.");
  }
  return request;
}

DetokenizeRequest ParseDetokenizeRequest(std::string_view body, const std::atomic<bool>* gone) {
  const JsonDocument document(body, {}, gone);
  RequestFields fields(document);
  DetokenizeRequest request;
  request.model = fields.String("model").value_or("");
  auto tokens = fields.TokenIds("tokens");
  if (!tokens.has_value()) throw BadParam("tokens", "tokens (an array of token ids) is missing.");
  request.tokens = std::move(*tokens);
  return request;
}

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

}  // namespace moesaic
