#include "serving/api/held_output.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "serving/api/api_error.h"
#include "serving/api/call_grammar.h"
#include "serving/api/chat_format.h"
#include "serving/engine/output_constraint.h"
#include "serving/grammar/grammar_compiler.h"
#include "serving/text/chat_template.h"
#include "serving/text/tokenizer.h"

namespace moesaic {
namespace {

std::shared_ptr<const Grammar> Compile(const ServedModel& model, const GrammarSpec& spec,
                                       const std::string& param, const std::atomic<bool>& gone) {
  if (model.grammars == nullptr) {
    throw BadParam(param,
                   "{} is not supported by this server: it was built without structured output "
                   "(MOESAIC_GRAMMAR).",
                   param);
  }
  try {
    auto grammar = model.grammars->Compile(spec, gone);
    if (grammar == nullptr) throw ClientLeft();
    return grammar;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalidArgument) throw FromEngineError(error);
    throw BadParam(param, "{}: {}.", param, error.what());
  }
}

void AddToken(const Tokenizer& tokenizer, std::string_view text, std::vector<int32_t>& tokens) {
  if (const auto token = tokenizer.TokenToId(text)) tokens.push_back(*token);
}

// Where the grammar of an answer's content begins.
void BeginBehindReasoning(const ServedModel& model, const ChatInput& chat,
                          const jinja::MarkedText& prompt, OutputConstraint& constraint) {
  if (model.chat_format == nullptr) return;
  const ChatSyntax& syntax = model.chat_format->syntax;
  const Tokenizer& tokenizer = model.engine->tokenizer();
  if (syntax.channels) {
    constraint.begins_behind = "<|channel|>final<|message|>";
    constraint.may_end_before = !chat.tools.is_null();
    return;
  }
  if (const ReasoningSyntax* reasoning = syntax.reasoning) {
    constraint.thinking_end = reasoning->end;
    if (reasoning->always || OpensReasoning(prompt, *reasoning)) {
      constraint.begins_behind = reasoning->end;
    } else if (chat.template_kwargs.value("enable_thinking", Json(true)) != Json(false)) {
      AddToken(tokenizer, reasoning->begin, constraint.thinking_tokens);
    }
  }
  if (chat.tools.is_null() || syntax.calls == nullptr) return;
  for (const std::string_view begin : syntax.calls->Begins()) {
    AddToken(tokenizer, begin, constraint.releasing_tokens);
  }
}

// nullopt: it is not known, or the build has no grammars: the model is trusted to write calls as it
// should.
std::optional<CallWriting> CallWritingOf(const ServedModel& model) {
  if (model.grammars == nullptr || model.chat_format == nullptr) return std::nullopt;
  return CallWriting{*model.chat_format, model.engine->tokenizer(), model.chat_template->text()};
}

// Calls that the model begins by itself, where a tool is strict.
void HoldCalls(const ServedModel& model, const ChatInput& chat, const jinja::MarkedText& prompt,
               const std::atomic<bool>& gone, OutputConstraint& constraint) {
  const auto writing = CallWritingOf(model);
  if (!writing) return;
  for (const OpenedCallGrammar& opened : OpenedCallGrammars(*writing, chat)) {
    constraint.calls.push_back(
        {opened.begin, opened.is_control, Compile(model, opened.spec, "tools", gone)});
  }
  if (constraint.calls.empty()) return;
  const ChatSyntax& syntax = model.chat_format->syntax;
  constraint.call_ends_output = syntax.channels;
  if (const ReasoningSyntax* reasoning = syntax.reasoning) {
    constraint.reasoning_begin = reasoning->begin;
    constraint.reasoning_end = reasoning->end;
    constraint.begins_in_reasoning = reasoning->always || OpensReasoning(prompt, *reasoning);
  }
}

}  // namespace

void HoldOutput(const ServedModel& model, const CompletionRequest& request,
                const std::atomic<bool>& gone, std::vector<EngineRequest>& sequences) {
  if (!request.format) return;
  auto constraint = std::make_shared<OutputConstraint>();
  constraint->grammar = Compile(model, request.format->spec, request.format->param, gone);
  for (EngineRequest& sequence : sequences) sequence.constraint = constraint;
}

void HoldOutput(const ServedModel& model, const ChatRequest& request,
                const jinja::MarkedText& prompt, const std::atomic<bool>& gone,
                std::vector<EngineRequest>& sequences) {
  auto constraint = std::make_shared<OutputConstraint>();
  if (request.chat.force_call) {
    const auto writing = CallWritingOf(model);
    const auto spec = writing ? ForcedCallGrammar(*writing, request.chat) : std::nullopt;
    if (!spec) return;
    constraint->grammar = Compile(model, *spec, "tools", gone);
  } else {
    if (request.format) {
      constraint->grammar = Compile(model, request.format->spec, request.format->param, gone);
      BeginBehindReasoning(model, request.chat, prompt, *constraint);
    }
    HoldCalls(model, request.chat, prompt, gone, *constraint);
    if (constraint->grammar == nullptr && constraint->calls.empty()) return;
  }
  for (EngineRequest& sequence : sequences) sequence.constraint = constraint;
}

}  // namespace moesaic
