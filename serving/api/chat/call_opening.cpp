#include "serving/api/chat/call_opening.h"

#include <fmt/format.h>

#include "core/base/json.h"

namespace moesaic {
namespace {

using Body = CallSyntax::Body;

class Writer {
 public:
  void Own(std::string_view text) { Add(text, false); }
  void Name(std::string_view name) { Add(name, true); }
  // {"name": "NAME", "arguments": as far as it is known.
  void NamedJson(std::string_view tool) {
    Own("{\"name\": \"");
    if (tool.empty()) return;
    const std::string quoted = Json(tool).dump(-1, ' ', false, Json::error_handler_t::replace);
    Name(std::string_view(quoted).substr(1, quoted.size() - 2));
    Own("\", \"arguments\": ");
  }
  std::vector<OpeningText> Take() { return std::move(texts_); }

 private:
  void Add(std::string_view text, bool from_input) {
    if (text.empty()) return;
    if (texts_.empty() || texts_.back().from_input != from_input)
      texts_.push_back({{}, from_input});
    texts_.back().text += text;
  }

  std::vector<OpeningText> texts_;
};

void OpenHarmony(std::string_view tool, Writer& out) {
  out.Own("<|channel|>commentary to=functions.");
  if (tool.empty()) return;
  out.Name(tool);
  out.Own(" <|constrain|>json<|message|>");
}

void OpenHeaded(const HeadedForm& form, const CallOpeningOptions& options, Writer& out) {
  if (!form.type_end.empty()) out.Own(fmt::format("function{}", form.type_end));
  out.Own(form.name_prefix);
  if (options.tool.empty()) return;
  out.Name(options.tool);
  if (form.numbered) out.Own(fmt::format(":{}", options.calls_before));
  out.Own(form.name_end);
  if (!form.fence.empty()) out.Own(fmt::format("{}\n", form.fence));
}

void OpenList(std::string_view tool, Writer& out) {
  out.Own("[");
  out.NamedJson(tool);
}

void OpenMistral(const CallOpeningOptions& options, Writer& out) {
  constexpr std::string_view kArguments = "[ARGS]";
  if (options.template_text.find(kArguments) == std::string_view::npos) {
    return OpenList(options.tool, out);
  }
  if (options.tool.empty()) return;
  out.Name(options.tool);
  out.Own(kArguments);
}

void OpenParameters(const ParameterForm& form, std::string_view tool, Writer& out) {
  out.Own(form.open);
  if (tool.empty()) return;
  out.Name(tool);
  out.Own(form.name_end);
  if (form.name_end != ">") out.Own(">");
  out.Own("\n");
}

}  // namespace

std::vector<OpeningText> CallOpening(const ChatSyntax& syntax, const CallOpeningOptions& options) {
  Writer out;
  if (syntax.channels) {
    OpenHarmony(options.tool, out);
    return out.Take();
  }
  if (syntax.calls == nullptr) return {};
  const CallSyntax& calls = *syntax.calls;
  if (syntax.reasoning != nullptr && (options.in_reasoning || syntax.reasoning->always)) {
    // Empty reasoning, as templates write it.
    if (!options.in_reasoning) out.Own(fmt::format("{}\n", syntax.reasoning->begin));
    out.Own(fmt::format("\n{}\n\n", syntax.reasoning->end));
  }
  out.Own(calls.section_begin);
  if (calls.body == Body::kParameters && !calls.section_begin.empty()) out.Own("\n");
  out.Own(calls.call_begin);
  switch (calls.body) {
    case Body::kNamedJson:
      out.Own("\n");
      out.NamedJson(options.tool);
      break;
    case Body::kHeadedJson:
      OpenHeaded(calls.headed, options, out);
      break;
    case Body::kJsonList:
      OpenList(options.tool, out);
      break;
    case Body::kMistral:
      OpenMistral(options, out);
      break;
    case Body::kParameters:
      if (!calls.call_begin.empty()) out.Own("\n");
      OpenParameters(calls.parameters, options.tool, out);
      break;
    case Body::kPairs:
      if (options.tool.empty()) break;
      out.Name(options.tool);
      out.Own("\n");
      break;
  }
  return out.Take();
}

}  // namespace moesaic
