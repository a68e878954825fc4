#include "serving/api/prepared_request.h"

#include <chrono>
#include <memory>
#include <utility>
#include <variant>

#include "serving/api/api_error.h"
#include "serving/api/api_request.h"
#include "serving/api/chat_format.h"
#include "serving/api/engine_requests.h"
#include "serving/api/prompt_builder.h"
#include "serving/api/random_id.h"
#include "serving/text/tokenizer.h"

namespace moesaic {
namespace {

constexpr int32_t kDefaultCompletionTokens = 16;  // OpenAI's

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::vector<std::vector<int32_t>> EncodePrompts(const CompletionRequest& request,
                                                const Tokenizer& tokenizer,
                                                const std::atomic<bool>& gone) {
  std::vector<std::vector<int32_t>> prompts;
  for (const PromptInput& input : request.prompts) {
    if (gone.load()) throw ClientLeft();
    if (const auto* text = std::get_if<std::string>(&input)) {
      prompts.push_back(EncodeText(tokenizer, *text, request.add_special_tokens.value_or(true)));
    } else {
      prompts.push_back(std::get<std::vector<int32_t>>(input));
    }
  }
  return prompts;
}

// What an echo repeats: a text as the client sent it, ids as their text, special tokens and all.
void FillEcho(const CompletionRequest& request, const Tokenizer& tokenizer, ApiOutputSpec& spec) {
  spec.echo = true;
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    const std::vector<int32_t>& tokens = spec.prompts[i];
    if (const auto* text = std::get_if<std::string>(&request.prompts[i])) {
      spec.prompt_texts.push_back(*text);
      spec.hidden_prompt_tokens.push_back(CountAddedTokens(tokenizer, tokens, *text));
    } else {
      spec.prompt_texts.push_back(tokenizer.Decode(tokens, false));
      spec.hidden_prompt_tokens.push_back(0);
    }
  }
}

// `spec` has its prompts.
PreparedRequest Finish(const ApiRequest& fields, const ServedModel& model,
                       const PrepareOptions& options, ApiOutputSpec spec) {
  const Engine& engine = *model.engine;
  RequestLimits limits = LimitsOf(engine);
  limits.max_sequences = options.max_sequences;
  if (!options.chat) limits.default_max_tokens = kDefaultCompletionTokens;
  limits.request_id = options.request_id;
  limits.deadline = options.deadline;

  if (options.gone.load()) throw ClientLeft();
  PreparedRequest result;
  result.model = &model;
  result.requests = BuildEngineRequests(fields, spec.prompts, limits);
  result.spell = MakeTokenSpeller(engine.tokenizer(), fields.skip_special_tokens);
  result.stream = fields.stream;
  result.unknown_fields = fields.unknown_fields;
  spec.chat = options.chat;
  spec.id = MakeRandomId(options.chat ? "chatcmpl-" : "cmpl-");
  spec.model = fields.model.empty() ? model.names.front() : fields.model;
  spec.created_unix_s = UnixNow();
  spec.n = fields.n;
  spec.logprobs = fields.logprobs;
  spec.prompt_logprobs = fields.prompt_logprobs;
  spec.include_usage = fields.include_usage;
  spec.continuous_usage = fields.continuous_usage;
  spec.return_token_ids = fields.return_token_ids;
  result.spec = std::move(spec);
  return result;
}

// Null: the answer is text as it comes.
std::shared_ptr<const AnswerParsing> ParsingOf(const ServedModel& model, const ChatInput& chat,
                                               const jinja::MarkedText& prompt) {
  const ChatFormat* format = model.chat_format.get();
  if (format == nullptr) return nullptr;
  const bool calls = !chat.tools.is_null();
  const ReasoningSyntax* reasoning = format->syntax.reasoning;
  const bool has_reasoning = reasoning != nullptr && chat.separate_reasoning;
  const bool has_calls = format->syntax.calls != nullptr && calls;
  if (!has_reasoning && !has_calls && !format->syntax.channels) return nullptr;
  auto parsing = std::make_shared<AnswerParsing>();
  parsing->parser.syntax = format->syntax;
  parsing->parser.tools = ToolSchemas(chat.tools);
  parsing->parser.calls = calls;
  parsing->parser.reasoning = chat.separate_reasoning;
  parsing->parser.begins_in_reasoning = has_reasoning && OpensReasoning(prompt, *reasoning);
  parsing->parser.control_markers = format->control_markers;
  parsing->parallel_calls = chat.parallel_tool_calls;
  parsing->include_reasoning = chat.include_reasoning;
  return parsing;
}

PreparedRequest PrepareChat(const std::string& body, const ModelTable& models,
                            const PrepareOptions& options) {
  const ChatRequest request = ParseChatRequest(body, &options.gone);
  const ServedModel& model = models.Get(request.model);
  ApiOutputSpec spec;
  if (options.gone.load()) throw ClientLeft();
  const jinja::MarkedText prompt = RenderChat(model, request.chat);
  spec.prompts.push_back(
      EncodeMarked(model.engine->tokenizer(), prompt, request.add_special_tokens.value_or(false)));
  spec.parsing = ParsingOf(model, request.chat, prompt);
  PreparedRequest result = Finish(request, model, options, std::move(spec));
  if (result.spec.parsing) {
    for (EngineRequest& sequence : result.requests) {
      sequence.shown_special_tokens = model.chat_format->special_tokens;
    }
  }
  return result;
}

PreparedRequest PrepareCompletion(const std::string& body, const ModelTable& models,
                                  const PrepareOptions& options) {
  const CompletionRequest request = ParseCompletionRequest(body, &options.gone);
  const ServedModel& model = models.Get(request.model);
  const Tokenizer& tokenizer = model.engine->tokenizer();
  CheckSequences(request.prompts.size(), request.n, options.max_sequences);
  ApiOutputSpec spec;
  spec.prompts = EncodePrompts(request, tokenizer, options.gone);
  PreparedRequest result = Finish(request, model, options, std::move(spec));
  if (request.echo) FillEcho(request, tokenizer, result.spec);  // the ids have been checked by now
  return result;
}

}  // namespace

PreparedRequest PrepareRequest(const std::string& body, const ModelTable& models,
                               const PrepareOptions& options) {
  return options.chat ? PrepareChat(body, models, options)
                      : PrepareCompletion(body, models, options);
}

}  // namespace moesaic
