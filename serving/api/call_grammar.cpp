#include "serving/api/call_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "serving/api/answer_parsing.h"
#include "serving/api/api_error.h"
#include "serving/api/chat/call_opening.h"
#include "serving/api/json_text.h"
#include "serving/api/parameter_grammar.h"
#include "serving/grammar/schema_check.h"
#include "serving/text/tokenizer.h"

namespace moesaic {
namespace {

using Body = CallSyntax::Body;
using Kind = GrammarPart::Kind;
using Parts = std::vector<GrammarPart>;

constexpr std::string_view kHeadedArguments = "[ARGS]";  // Mistral's
constexpr std::string_view kHarmonyCall = "<|channel|>commentary to=functions.";
constexpr std::string_view kHarmonyArguments = " <|constrain|>json<|message|>";
constexpr std::string_view kTagSpace = "[ \\n]{0,4}";  // a model's own, between two tags

bool IsStrict(const Json& tool) {
  return tool["function"].value("strict", Json()) == Json(true) ||
         tool.value("strict", Json()) == Json(true);
}

const std::string* NameOf(const Json& tool) {
  const auto name = tool["function"].find("name");
  return name == tool["function"].end() ? nullptr : name->get_ptr<const std::string*>();
}

class CallGrammars {
 public:
  CallGrammars(const CallWriting& writing, const ChatInput& chat)
      : format_(writing.format),
        syntax_(writing.format.syntax),
        tokenizer_(writing.tokenizer),
        template_text_(writing.template_text),
        chat_(chat),
        types_(chat.tools) {}

  std::optional<GrammarSpec> Forced() const {
    if (!syntax_.channels && syntax_.calls == nullptr) return std::nullopt;
    CallOpeningOptions options = {.calls_before = CountCalls(chat_.messages),
                                  .template_text = template_text_};
    size_t common = 0;  // bytes of an opening that stand in the prompt, whichever tool it is
    for (const OpeningText& text : CallOpening(syntax_, options)) common += text.text.size();

    GrammarSpec spec;
    for (size_t i = 0; i < chat_.tools.size(); ++i) {
      const std::string* name = NameOf(chat_.tools[i]);
      if (name == nullptr || (!chat_.forced_tool.empty() && *name != chat_.forced_tool)) continue;
      Parts parts;
      if (chat_.forced_tool.empty()) {
        options.tool = *name;
        size_t skip = common;
        for (const OpeningText& text : CallOpening(syntax_, options)) {
          const size_t cut = std::min(skip, text.text.size());
          skip -= cut;
          const std::string_view rest = std::string_view(text.text).substr(cut);
          if (rest.empty()) continue;
          if (text.from_input) {
            AddText(rest, parts);
          } else {
            AddOwn(rest, parts);
          }
        }
      }
      AddArguments(i, true, ForcedClosing(), parts);
      spec.alternatives.push_back(std::move(parts));
    }
    if (spec.alternatives.empty()) return std::nullopt;
    return spec;
  }

  std::vector<OpenedCallGrammar> Opened() const {
    std::vector<OpenedCallGrammar> grammars;
    const auto add = [&](std::string_view begin, GrammarSpec spec) {
      if (spec.alternatives.empty()) return;
      const bool control = std::find(format_.control_markers.begin(), format_.control_markers.end(),
                                     begin) != format_.control_markers.end();
      grammars.push_back({std::string(begin), control, std::move(spec)});
    };
    if (std::none_of(chat_.tools.begin(), chat_.tools.end(), IsStrict)) return grammars;
    if (syntax_.channels) {
      add(kHarmonyCall, OfEachTool([this](size_t i, Parts& parts) {
            AddText(*NameOf(chat_.tools[i]), parts);
            AddOwn(kHarmonyArguments, parts);
            AddArguments(i, IsStrict(chat_.tools[i]), "", parts);
          }));
    }
    if (syntax_.calls == nullptr) return grammars;
    const CallSyntax& calls = *syntax_.calls;
    const bool list =
        calls.body == Body::kJsonList || (calls.body == Body::kMistral && !HasHeadedArguments());
    // Within a section each call has a beginning of its own, which is the tag of parameters where
    // there is no other.
    for (const std::string_view begin : {calls.call_begin, calls.older_begin}) {
      if (begin.empty()) continue;
      add(begin, list ? ListOfCalls()
                      : OfEachTool([this](size_t i, Parts& parts) { AddCall(i, false, parts); }));
    }
    if (calls.body == Body::kParameters && (calls.may_begin_bare || calls.call_begin.empty())) {
      add(calls.parameters.open,
          OfEachTool([this](size_t i, Parts& parts) { AddCall(i, true, parts); }));
    }
    return grammars;
  }

 private:
  template <typename Add>
  GrammarSpec OfEachTool(const Add& add) const {
    GrammarSpec spec;
    for (size_t i = 0; i < chat_.tools.size(); ++i) {
      if (NameOf(chat_.tools[i]) == nullptr) continue;
      add(i, spec.alternatives.emplace_back());
    }
    return spec;
  }

  bool HasHeadedArguments() const {
    return template_text_.find(kHeadedArguments) != std::string_view::npos;
  }

  void AddText(std::string_view text, Parts& parts) const {
    parts.push_back({.kind = Kind::kText, .text = std::string(text)});
  }
  void AddPattern(std::string_view pattern, Parts& parts) const {
    parts.push_back({.kind = Kind::kRegex, .text = std::string(pattern)});
  }

  // Text of the syntax's own, in which tokens of control (whole markers, and parts of them) are
  // these tokens.
  template <typename OnText, typename OnToken>
  void SplitOwn(std::string_view text, const OnText& on_text, const OnToken& on_token) const {
    while (!text.empty()) {
      size_t first = text.size();
      int32_t token = -1;
      std::string_view bytes;
      for (const int32_t special : format_.special_tokens) {
        const std::string_view control = tokenizer_.TokenBytes(special);
        const size_t found = text.find(control);
        if (found > first || (found == first && control.size() <= bytes.size())) continue;
        if (found == std::string_view::npos) continue;
        first = found;
        token = special;
        bytes = control;
      }
      if (first > 0) on_text(text.substr(0, first));
      if (token < 0) return;
      on_token(token);
      text.remove_prefix(first + bytes.size());
    }
  }

  void AddOwn(std::string_view text, Parts& parts) const {
    SplitOwn(
        text, [&](std::string_view plain) { AddText(plain, parts); },
        [&](int32_t token) { parts.push_back({.kind = Kind::kToken, .token = token}); });
  }

  Json OwnFormat(std::string_view text) const {
    Json elements = Json::array();
    SplitOwn(
        text,
        [&](std::string_view plain) {
          elements.push_back({{"type", "const_string"}, {"value", plain}});
        },
        [&](int32_t token) {
          elements.push_back({{"type", "token"}, {"token", token}});
        });
    if (elements.size() == 1) return elements[0];
    return {{"type", "sequence"}, {"elements", std::move(elements)}};
  }

  // The end of a call that was forced. Which syntax has what between its tags its template says.
  std::string ForcedClosing() const {
    if (syntax_.channels) return "";  // the token that ends a call ends the text
    const CallSyntax& calls = *syntax_.calls;
    switch (calls.body) {
      case Body::kNamedJson:
        return fmt::format("}}\n{}{}", calls.call_end, calls.section_end);
      case Body::kHeadedJson:
        return HeadedClosing() + std::string(calls.section_end);
      case Body::kJsonList:
        return "}]";
      case Body::kMistral:
        return HasHeadedArguments() ? "" : "}]";
      case Body::kParameters:
        return fmt::format("{}\n{}{}", calls.parameters.close, calls.call_end, calls.section_end);
      case Body::kPairs:
        break;
    }
    return std::string(calls.call_end);
  }

  std::string HeadedClosing() const {
    const CallSyntax& calls = *syntax_.calls;
    return fmt::format("{}{}{}", calls.headed.fence.empty() ? "" : "\n", calls.headed.fence_end,
                       calls.call_end);
  }

  // What is wrong with a schema is the field's fault.
  template <typename Work>
  auto OfTool(size_t number, const Work& work) const {
    try {
      return work();
    } catch (const Error& error) {
      const std::string at = fmt::format("tools[{}].function.parameters", number);
      throw BadParam(at,
                     "{}: {}. With tool_choice \"auto\" and without strict the arguments are not "
                     "held to it.",
                     at, error.what());
    }
  }

  // A tool without parameters takes an object of any.
  Json SchemaOf(size_t number, bool held) const {
    const Json& function = chat_.tools[number]["function"];
    const auto parameters = function.find("parameters");
    Json schema = {{"type", "object"}};
    if (held && parameters != function.end() && !parameters->is_null()) schema = *parameters;
    return OfTool(number, [&schema] { return CheckSchema(schema); });
  }

  // With the `closing` behind them. In tags both are one part: xgrammar 0.2.8 loses the token of a
  // part behind some structural tags.
  void AddArguments(size_t number, bool held, std::string_view closing, Parts& parts) const {
    const Json schema = SchemaOf(number, held);
    const bool tags = syntax_.calls != nullptr && (syntax_.calls->body == Body::kParameters ||
                                                   syntax_.calls->body == Body::kPairs);
    if (!tags) {
      parts.push_back({.kind = Kind::kJsonSchema, .text = DumpJson(schema)});
      return AddOwn(closing, parts);
    }
    Json format = OfTool(number, [&] {
      const auto own = [this](std::string_view text) { return OwnFormat(text); };
      return ParameterFormat(*syntax_.calls, schema, types_, *NameOf(chat_.tools[number]), own);
    });
    Json elements = Json::array();
    if (!format.is_null()) elements.push_back(std::move(format));
    elements.push_back(OwnFormat(closing));
    parts.push_back(
        {.kind = Kind::kStructuralTag,
         .text = DumpJson(Json{{"type", "structural_tag"},
                               {"format", {{"type", "sequence"}, {"elements", elements}}}})});
  }

  // {"name": NAME, "arguments": {...}} of one tool, as a part of a document with `definitions`.
  Json NamedCall(size_t number, Json& definitions) const {
    const Json schema = SchemaOf(number, IsStrict(chat_.tools[number]));
    Json properties;
    properties["name"] = {{"const", *NameOf(chat_.tools[number])}};
    properties["arguments"] =
        SchemaWithin(schema, fmt::format("tool{}", number), schema, definitions);
    return {{"type", "object"},
            {"properties", std::move(properties)},
            {"required", Json::array({"name", "arguments"})},
            {"additionalProperties", false}};
  }

  GrammarSpec ListOfCalls() const {
    Json calls = Json::array();
    Json definitions;
    for (size_t i = 0; i < chat_.tools.size(); ++i) {
      if (NameOf(chat_.tools[i]) != nullptr) calls.push_back(NamedCall(i, definitions));
    }
    if (calls.empty()) return {};
    Json list = {{"type", "array"}, {"items", {{"anyOf", std::move(calls)}}}, {"minItems", 1}};
    if (!definitions.is_null()) list["$defs"] = std::move(definitions);
    GrammarSpec spec;
    Parts& parts = spec.alternatives.emplace_back();
    AddPattern(kTagSpace, parts);
    parts.push_back({.kind = Kind::kJsonSchema, .text = DumpJson(list)});
    return spec;
  }

  // `bare`: the tag of parameters has begun the call.
  void AddCall(size_t number, bool bare, Parts& parts) const {
    const CallSyntax& calls = *syntax_.calls;
    const std::string& name = *NameOf(chat_.tools[number]);
    const bool strict = IsStrict(chat_.tools[number]);
    switch (calls.body) {
      case Body::kNamedJson: {
        Json definitions;
        Json call = NamedCall(number, definitions);
        if (!definitions.is_null()) call["$defs"] = std::move(definitions);
        AddPattern(kTagSpace, parts);
        parts.push_back({.kind = Kind::kJsonSchema, .text = DumpJson(call)});
        AddPattern(kTagSpace, parts);
        return AddOwn(calls.call_end, parts);
      }
      case Body::kHeadedJson: {
        const HeadedForm& form = calls.headed;
        if (!form.type_end.empty()) AddOwn(fmt::format("function{}", form.type_end), parts);
        AddOwn(form.name_prefix, parts);
        AddText(name, parts);
        if (form.numbered) AddPattern(":[0-9]{1,4}", parts);
        AddOwn(form.name_end, parts);
        if (!form.fence.empty()) AddOwn(fmt::format("{}\n", form.fence), parts);
        return AddArguments(number, strict, HeadedClosing(), parts);
      }
      case Body::kJsonList:
        return;  // ListOfCalls
      case Body::kMistral:
        AddText(name, parts);
        AddOwn(kHeadedArguments, parts);
        return AddArguments(number, strict, "", parts);
      case Body::kParameters: {
        const ParameterForm& form = calls.parameters;
        if (!bare) {
          AddPattern(kTagSpace, parts);
          AddOwn(form.open, parts);
        }
        AddText(name, parts);
        AddOwn(fmt::format("{}{}", form.name_end, form.name_end == ">" ? "" : ">"), parts);
        AddPattern("\\n?", parts);
        const bool ends = bare || calls.call_end.empty();
        return AddArguments(
            number, strict,
            ends ? std::string(form.close) : fmt::format("{}\n{}", form.close, calls.call_end),
            parts);
      }
      case Body::kPairs:
        break;
    }
    AddPattern(kTagSpace, parts);
    AddText(name, parts);
    AddPattern("\\n?", parts);
    AddArguments(number, strict, calls.call_end, parts);
  }

  const ChatFormat& format_;
  const ChatSyntax& syntax_;
  const Tokenizer& tokenizer_;
  const std::string_view template_text_;
  const ChatInput& chat_;
  const ToolSchemas types_;
};

}  // namespace

std::optional<GrammarSpec> ForcedCallGrammar(const CallWriting& writing, const ChatInput& chat) {
  return CallGrammars(writing, chat).Forced();
}

std::vector<OpenedCallGrammar> OpenedCallGrammars(const CallWriting& writing,
                                                  const ChatInput& chat) {
  if (!chat.tools.is_array()) return {};
  return CallGrammars(writing, chat).Opened();
}

}  // namespace moesaic
