#include "serving/api/call_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/api/answer_parsing.h"
#include "serving/api/api_error.h"
#include "serving/api/chat/call_opening.h"
#include "serving/api/chat_format.h"
#include "serving/api/json_text.h"
#include "serving/grammar/schema_check.h"
#include "serving/text/chat_template.h"
#include "serving/text/tokenizer.h"

namespace moesaic {
namespace {

using Body = CallSyntax::Body;
using Parts = std::vector<GrammarPart>;

// Text of the syntax's own, in which tokens of control are these tokens.
void AddOwn(std::string_view text, const ChatFormat& format, const Tokenizer& tokenizer,
            Parts& parts) {
  while (!text.empty()) {
    size_t first = text.size();
    std::string_view marker;
    for (const std::string_view control : format.control_markers) {
      const size_t found = text.find(control);
      if (found < first || (found == first && control.size() > marker.size())) {
        first = found;
        marker = control;
      }
    }
    if (first > 0) {
      parts.push_back(
          {.kind = GrammarPart::Kind::kText, .text = std::string(text.substr(0, first))});
    }
    if (marker.empty()) return;
    parts.push_back(
        {.kind = GrammarPart::Kind::kToken, .token = tokenizer.TokenToId(marker).value_or(-1)});
    text.remove_prefix(first + marker.size());
  }
}

// nullopt: arguments are not JSON.
std::optional<std::string> Closing(const ChatSyntax& syntax, std::string_view template_text) {
  if (syntax.channels) return "";  // the token that ends a call ends the text
  if (syntax.calls == nullptr) return std::nullopt;
  const CallSyntax& calls = *syntax.calls;
  switch (calls.body) {
    case Body::kNamedJson:
      return fmt::format("}}\n{}{}", calls.call_end, calls.section_end);
    case Body::kHeadedJson:
      return fmt::format("{}{}{}{}", calls.headed.fence.empty() ? "" : "\n", calls.headed.fence_end,
                         calls.call_end, calls.section_end);
    case Body::kMistral:
      return template_text.find("[ARGS]") == std::string_view::npos ? "}]" : "";
    case Body::kParameters:
    case Body::kPairs:
      break;
  }
  return std::nullopt;
}

// A tool without parameters takes an object of any.
GrammarPart Arguments(const Json& tool, size_t number) {
  const std::string at = fmt::format("tools[{}].function.parameters", number);
  const auto parameters = tool["function"].find("parameters");
  Json schema = {{"type", "object"}};
  if (parameters != tool["function"].end() && !parameters->is_null()) schema = *parameters;
  try {
    return {.kind = GrammarPart::Kind::kJsonSchema, .text = DumpJson(CheckSchema(schema))};
  } catch (const Error& error) {
    throw BadParam(at, "{}: {}. With tool_choice \"auto\" the arguments are not held to it.", at,
                   error.what());
  }
}

}  // namespace

std::optional<GrammarSpec> CallGrammar(const ServedModel& model, const ChatInput& chat) {
  const ChatFormat* format = model.chat_format.get();
  if (format == nullptr) return std::nullopt;
  const std::string_view template_text = model.chat_template->text();
  const auto closing = Closing(format->syntax, template_text);
  if (!closing) return std::nullopt;
  const Tokenizer& tokenizer = model.engine->tokenizer();
  CallOpeningOptions options = {.calls_before = CountCalls(chat.messages),
                                .template_text = template_text};
  size_t common = 0;  // bytes of an opening that stand in the prompt, whichever tool it is
  for (const OpeningText& text : CallOpening(format->syntax, options)) common += text.text.size();

  GrammarSpec spec;
  for (size_t i = 0; i < chat.tools.size(); ++i) {
    const Json name = chat.tools[i]["function"].value("name", Json());
    if (!name.is_string() || (!chat.forced_tool.empty() && name != Json(chat.forced_tool)))
      continue;
    Parts parts;
    if (chat.forced_tool.empty()) {
      options.tool = name.get_ref<const std::string&>();
      size_t skip = common;
      for (const OpeningText& text : CallOpening(format->syntax, options)) {
        const size_t cut = std::min(skip, text.text.size());
        skip -= cut;
        const std::string_view rest = std::string_view(text.text).substr(cut);
        if (rest.empty()) continue;
        if (text.from_input) {
          parts.push_back({.kind = GrammarPart::Kind::kText, .text = std::string(rest)});
        } else {
          AddOwn(rest, *format, tokenizer, parts);
        }
      }
    }
    parts.push_back(Arguments(chat.tools[i], i));
    AddOwn(*closing, *format, tokenizer, parts);
    spec.alternatives.push_back(std::move(parts));
  }
  if (spec.alternatives.empty()) return std::nullopt;
  return spec;
}

}  // namespace moesaic
