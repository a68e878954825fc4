#include "serving/api/prepared_request.h"

#include <chrono>
#include <memory>
#include <utility>
#include <variant>

#include "serving/api/answer_parsing.h"
#include "serving/api/api_error.h"
#include "serving/api/api_request.h"
#include "serving/api/chat_format.h"
#include "serving/api/engine_requests.h"
#include "serving/api/held_output.h"
#include "serving/api/messages_request.h"
#include "serving/api/ollama_request.h"
#include "serving/api/prompt_builder.h"
#include "serving/api/random_id.h"
#include "serving/api/replay_store.h"
#include "serving/api/replayed_prompt.h"
#include "serving/api/responses_request.h"
#include "serving/text/tokenizer.h"

namespace moesaic {
namespace {

constexpr int32_t kDefaultCompletionTokens = 16;  // OpenAI's

const char* IdPrefix(ApiDialect dialect) {
  switch (dialect) {
    case ApiDialect::kCompletions:
      return "cmpl-";
    case ApiDialect::kChat:
      return "chatcmpl-";
    case ApiDialect::kMessages:
      return "msg_";
    case ApiDialect::kResponses:
      return "resp_";
    case ApiDialect::kOllamaChat:
    case ApiDialect::kOllamaGenerate:
      break;
  }
  return "";  // has no ids
}

std::variant<CompletionRequest, ChatRequest> Parse(const std::string& body, ApiDialect dialect,
                                                   const std::atomic<bool>& gone) {
  switch (dialect) {
    case ApiDialect::kCompletions:
      return ParseCompletionRequest(body, &gone);
    case ApiDialect::kChat:
      return ParseChatRequest(body, &gone);
    case ApiDialect::kMessages:
      return ParseMessagesRequest(body, &gone);
    case ApiDialect::kResponses:
      return ParseResponsesRequest(body, &gone);
    case ApiDialect::kOllamaChat:
      return ParseOllamaChatRequest(body, &gone);
    case ApiDialect::kOllamaGenerate:
      break;
  }
  return ParseOllamaGenerateRequest(body, &gone);
}

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

int32_t PriorityOf(const ApiRequest& fields, const RequestOwner& owner) {
  const int32_t priority = fields.priority.value_or(owner.priority.value_or(0));
  if (owner.priority && priority < *owner.priority) {
    throw BadParam(
        "priority",
        "priority is {}, but with this API key it must be at least {} (requests of lower "
        "ones go first).",
        priority, *owner.priority);
  }
  return priority;
}

// `spec` has its prompts.
PreparedRequest Finish(const ApiRequest& fields, const ServedModel& model,
                       const PrepareOptions& options, ApiOutputSpec spec) {
  const Engine& engine = *model.engine;
  RequestLimits limits = LimitsOf(engine);
  limits.max_sequences = options.max_sequences;
  if (options.dialect == ApiDialect::kCompletions)
    limits.default_max_tokens = kDefaultCompletionTokens;
  limits.request_id = options.request_id;
  limits.deadline = options.deadline;

  if (options.gone.load()) throw ClientLeft();
  PreparedRequest result;
  result.model = &model;
  result.requests = BuildEngineRequests(fields, spec.prompts, limits);
  const int32_t priority = PriorityOf(fields, options.owner);
  for (EngineRequest& request : result.requests) {
    request.priority = priority;
    request.client = options.owner.client;
    request.return_progress = fields.return_progress && fields.stream;
  }
  result.spell = MakeTokenSpeller(engine.tokenizer(), fields.skip_special_tokens);
  result.stream = fields.stream;
  result.keep_alive = fields.keep_alive;
  result.unknown_fields = fields.unknown_fields;
  spec.dialect = options.dialect;
  spec.id = MakeRandomId(IdPrefix(options.dialect));
  spec.model = fields.model.empty() ? model.names.front() : fields.model;
  spec.created_unix_s = UnixNow();
  spec.n = fields.n;
  spec.logprobs = fields.logprobs;
  spec.prompt_logprobs = fields.prompt_logprobs;
  spec.include_usage = fields.include_usage;
  spec.continuous_usage = fields.continuous_usage;
  spec.return_token_ids = fields.return_token_ids;
  spec.return_moesaic = fields.return_moesaic;
  spec.routed = {fields.routed_experts, fields.routed_experts_start, {}};
  for (int64_t layer = 0; layer < engine.config().num_layers(); ++layer) {
    if (engine.config().is_sparse(layer)) spec.routed.layers.push_back(layer);
  }
  if (fields.response_fields.is_object()) spec.response_fields = fields.response_fields;
  spec.cut_to_context =
      fields.max_tokens.has_value() && result.requests.front().max_tokens < *fields.max_tokens;
  result.spec = std::move(spec);
  return result;
}

PreparedRequest Prepare(const ChatRequest& request, const ModelTable& models,
                        const PrepareOptions& options) {
  const ServedModel& model = models.Get(request.model);
  ApiOutputSpec spec;
  if (options.gone.load()) throw ClientLeft();
  jinja::MarkedText prompt = RenderChat(model, request.chat);
  const auto parsing = ParsingOf(model, request.chat, prompt);
  if (parsing != nullptr && options.dialect == ApiDialect::kMessages) {
    parsing->call_id_prefix = "toolu_";
  }
  if (request.chat.force_call) ForceCall(model, request.chat, prompt, parsing.get());
  spec.prompts.push_back(
      EncodeReplayed(model, request.chat, prompt, request.add_special_tokens.value_or(false)));
  spec.parsing = parsing;
  // An answer whose reasoning is left out could not come back whole.
  if (parsing != nullptr && parsing->parser.calls && parsing->include_reasoning) {
    spec.replay = model.replay;
    spec.prompt_key = PromptKeyOf(prompt.bytes());
    spec.ends_turn = [&tokenizer = model.engine->tokenizer()](int32_t token) {
      return tokenizer.IsSpecial(token);
    };
  }
  PreparedRequest result = Finish(request, model, options, std::move(spec));
  if (request.chat.thinking_budget && !request.chat.force_call) {
    const auto limit = ThinkingLimitOf(model, *request.chat.thinking_budget, prompt);
    for (EngineRequest& sequence : result.requests) sequence.thinking = limit;
  }
  HoldOutput(model, request, prompt, options.gone, result.requests);
  if (result.spec.parsing) {
    for (EngineRequest& sequence : result.requests) {
      sequence.shown_special_tokens = model.chat_format->special_tokens;
    }
  }
  return result;
}

PreparedRequest Prepare(const CompletionRequest& request, const ModelTable& models,
                        const PrepareOptions& options) {
  const ServedModel& model = models.Get(request.model);
  const Tokenizer& tokenizer = model.engine->tokenizer();
  CheckSequences(request.prompts.size(), request.n, options.max_sequences);
  ApiOutputSpec spec;
  spec.prompts = EncodePrompts(request, tokenizer, options.gone);
  PreparedRequest result = Finish(request, model, options, std::move(spec));
  HoldOutput(model, request, options.gone, result.requests);
  if (request.echo) FillEcho(request, tokenizer, result.spec);  // the ids have been checked by now
  return result;
}

}  // namespace

PreparedRequest PrepareRequest(const std::string& body, const ModelTable& models,
                               const PrepareOptions& options) {
  return std::visit(
      [&](const auto& request) {
        try {
          return Prepare(request, models, options);
        } catch (ModelNotLoaded& missing) {
          missing.SetStream(request.stream);
          throw;
        }
      },
      Parse(body, options.dialect, options.gone));
}

}  // namespace moesaic
