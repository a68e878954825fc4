#include "serving/api/answer_parsing.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "serving/api/api_error.h"
#include "serving/api/chat/call_opening.h"
#include "serving/api/chat_format.h"
#include "serving/api/engine_requests.h"
#include "serving/api/prompt_builder.h"
#include "serving/engine/thinking_budget.h"
#include "serving/text/chat_template.h"

namespace moesaic {

size_t CountCalls(const Json& messages) {
  size_t count = 0;
  for (const Json& message : messages) {
    if (const auto calls = message.find("tool_calls"); calls != message.end()) {
      count += calls->size();
    }
  }
  return count;
}

std::shared_ptr<AnswerParsing> ParsingOf(const ServedModel& model, const ChatInput& chat,
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

std::shared_ptr<const ThinkingLimit> ThinkingLimitOf(const ServedModel& model, int32_t max_tokens,
                                                     const jinja::MarkedText& prompt) {
  if (model.chat_format == nullptr) return nullptr;
  const ChatSyntax& syntax = model.chat_format->syntax;
  auto limit = std::make_shared<ThinkingLimit>();
  limit->max_tokens = max_tokens;
  std::string ending;
  if (syntax.channels) {
    limit->begin = "<|channel|>analysis";
    limit->end = "<|end|>";
    ending = "<|end|><|start|>assistant<|channel|>final<|message|>";
  } else if (syntax.reasoning != nullptr) {
    limit->begin = syntax.reasoning->begin;
    limit->end = syntax.reasoning->end;
    limit->begun = syntax.reasoning->always || OpensReasoning(prompt, *syntax.reasoning);
    ending = fmt::format("\n{}\n\n", limit->end);
  } else {
    return nullptr;
  }
  limit->end_tokens = EncodeText(model.engine->tokenizer(), ending, false);
  CheckTokens(limit->end_tokens, model.engine->config().vocab_size, "thinking_token_budget");
  return limit;
}

void ForceCall(const ServedModel& model, const ChatInput& chat, jinja::MarkedText& prompt,
               AnswerParsing* parsing) {
  std::vector<OpeningText> opening;
  if (parsing != nullptr) {
    const ReasoningSyntax* reasoning = parsing->parser.syntax.reasoning;
    opening =
        CallOpening(parsing->parser.syntax,
                    {.tool = chat.forced_tool,
                     .in_reasoning = reasoning != nullptr && OpensReasoning(prompt, *reasoning),
                     .calls_before = CountCalls(chat.messages),
                     .template_text = model.chat_template->text()});
  }
  if (opening.empty()) {
    throw BadParam(
        "tool_choice",
        "How the model `{}` writes calls is not known (--tool-call-parser), so that none "
        "can be forced; \"auto\" and \"none\" work.",
        model.names.front());
  }
  for (const OpeningText& part : opening) {
    prompt.Append(part.text, part.from_input);
    parsing->opening += part.text;
  }
}

}  // namespace moesaic
