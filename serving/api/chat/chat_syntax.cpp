#include "serving/api/chat/chat_syntax.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <iterator>
#include <string>

#include "core/base/error.h"
#include "serving/api/chat/harmony_parser.h"

namespace moesaic {
namespace {

using Body = CallSyntax::Body;

constexpr CallSyntax kHermes = {
    .body = Body::kNamedJson, .call_begin = "<tool_call>", .call_end = "</tool_call>"};

constexpr CallSyntax kQwenCoder = {.body = Body::kParameters,
                                   .call_begin = "<tool_call>",
                                   .call_end = "</tool_call>",
                                   .may_begin_bare = true,
                                   .parameters = {.open = "<function=",
                                                  .close = "</function>",
                                                  .parameter_open = "<parameter=",
                                                  .parameter_close = "</parameter>",
                                                  .name_end = ">",
                                                  .own_lines = true}};

constexpr CallSyntax kMiniMax = {.body = Body::kParameters,
                                 .section_begin = "<minimax:tool_call>",
                                 .section_end = "</minimax:tool_call>",
                                 .parameters = {.open = "<invoke name=\"",
                                                .close = "</invoke>",
                                                .parameter_open = "<parameter name=\"",
                                                .parameter_close = "</parameter>",
                                                .name_end = "\""}};

constexpr ParameterForm kDsmlParameters = {.open = "<｜DSML｜invoke name=\"",
                                           .close = "</｜DSML｜invoke>",
                                           .parameter_open = "<｜DSML｜parameter name=\"",
                                           .parameter_close = "</｜DSML｜parameter>",
                                           .name_end = "\"",
                                           .text_attribute = "string"};
constexpr CallSyntax kDsmlFunctionCalls = {.body = Body::kParameters,
                                           .section_begin = "<｜DSML｜function_calls>",
                                           .section_end = "</｜DSML｜function_calls>",
                                           .parameters = kDsmlParameters};
constexpr CallSyntax kDsmlToolCalls = {.body = Body::kParameters,
                                       .section_begin = "<｜DSML｜tool_calls>",
                                       .section_end = "</｜DSML｜tool_calls>",
                                       .parameters = kDsmlParameters};

constexpr CallSyntax kDeepSeekFenced = {.body = Body::kHeadedJson,
                                        .section_begin = "<｜tool▁calls▁begin｜>",
                                        .section_end = "<｜tool▁calls▁end｜>",
                                        .call_begin = "<｜tool▁call▁begin｜>",
                                        .call_end = "<｜tool▁call▁end｜>",
                                        .may_begin_bare = true,
                                        .headed = {.type_end = "<｜tool▁sep｜>",
                                                   .name_end = "\n",
                                                   .name_prefix = "",
                                                   .fence = "```json",
                                                   .fence_end = "```"}};
constexpr CallSyntax kDeepSeek = {.body = Body::kHeadedJson,
                                  .section_begin = "<｜tool▁calls▁begin｜>",
                                  .section_end = "<｜tool▁calls▁end｜>",
                                  .call_begin = "<｜tool▁call▁begin｜>",
                                  .call_end = "<｜tool▁call▁end｜>",
                                  .may_begin_bare = true,
                                  .headed = {.type_end = "",
                                             .name_end = "<｜tool▁sep｜>",
                                             .name_prefix = "",
                                             .fence = "",
                                             .fence_end = ""}};

constexpr CallSyntax kKimi = {.body = Body::kHeadedJson,
                              .section_begin = "<|tool_calls_section_begin|>",
                              .section_end = "<|tool_calls_section_end|>",
                              .call_begin = "<|tool_call_begin|>",
                              .call_end = "<|tool_call_end|>",
                              .may_begin_bare = true,
                              .headed = {.type_end = "",
                                         .name_end = "<|tool_call_argument_begin|>",
                                         .name_prefix = "functions.",
                                         .numbered = true,
                                         .fence = "",
                                         .fence_end = ""}};

constexpr CallSyntax kGlm = {.body = Body::kPairs,
                             .call_begin = "<tool_call>",
                             .call_end = "</tool_call>",
                             .pairs = {.key_open = "<arg_key>",
                                       .key_close = "</arg_key>",
                                       .value_open = "<arg_value>",
                                       .value_close = "</arg_value>"}};

constexpr CallSyntax kMistral = {
    .body = Body::kMistral, .call_begin = "[TOOL_CALLS]", .short_ids = true};

constexpr CallSyntax kGranite = {
    .body = Body::kJsonList, .call_begin = "<|tool_call|>", .older_begin = "<tool_call>"};

constexpr ReasoningSyntax kThink = {"<think>", "</think>"};
constexpr ReasoningSyntax kThinkAlways = {"<think>", "</think>", true};
constexpr ReasoningSyntax kMistralThink = {"[THINK]", "[/THINK]"};

struct NamedCalls {
  std::string_view name;
  const CallSyntax* syntax;  // null: harmony
  // All of these are in a template that wants this syntax. The first one that fits counts.
  std::array<std::string_view, 2> signs;
};

constexpr std::string_view kChannelSign = "<|channel|>";

// Some syntaxes hold others' signs: from the special to the general.
constexpr std::array<NamedCalls, 14> kCalls = {{
    {"openai", nullptr, {kChannelSign, "<|message|>"}},
    {"kimi_k2", &kKimi, {"<|tool_calls_section_begin|>"}},
    {"deepseek_v32", &kDsmlFunctionCalls, {"｜DSML｜", "function_calls"}},
    {"deepseek_v4", &kDsmlToolCalls, {"｜DSML｜"}},
    {"deepseek_v3", &kDeepSeekFenced, {"<｜tool▁calls▁begin｜>", "```json"}},
    {"deepseek_v31", &kDeepSeek, {"<｜tool▁calls▁begin｜>"}},
    {"mistral", &kMistral, {"[TOOL_CALLS]"}},
    {"granite", &kGranite, {"<|tool_call|>"}},
    {"minimax_m2", &kMiniMax, {"<minimax:tool_call>"}},
    {"glm45", &kGlm, {"<arg_key>"}},
    {"glm47", &kGlm, {"<arg_key>"}},
    {"qwen3_coder", &kQwenCoder, {"<function=", "<parameter="}},
    {"qwen3_xml", &kQwenCoder, {"<function=", "<parameter="}},
    {"hermes", &kHermes, {"<tool_call>"}},
}};

struct NamedReasoning {
  std::string_view name;
  const ReasoningSyntax* syntax;  // null: harmony
};

constexpr std::array<NamedReasoning, 8> kReasoning = {{{"openai_gptoss", nullptr},
                                                       {"mistral", &kMistralThink},
                                                       {"deepseek_r1", &kThinkAlways},
                                                       {"deepseek_v3", &kThink},
                                                       {"qwen3", &kThink},
                                                       {"glm45", &kThink},
                                                       {"kimi_k2", &kThink},
                                                       {"minimax_m2", &kThink}}};

[[noreturn]] void FailUnknown(std::string_view flag, std::string_view name,
                              const std::vector<std::string_view>& known) {
  Fail(ErrorKind::kInvalidArgument, "{} {}: there is no such parser; there are auto, none, {}",
       flag, name, fmt::join(known, ", "));
}

bool HasSigns(std::string_view text, const NamedCalls& calls) {
  for (const std::string_view sign : calls.signs) {
    if (!sign.empty() && text.find(sign) == std::string_view::npos) return false;
  }
  return true;
}

const NamedCalls* FindCalls(std::string_view text, std::string_view name) {
  if (name == "none") return nullptr;
  for (const NamedCalls& calls : kCalls) {
    if (name == "auto" ? HasSigns(text, calls) : name == calls.name) return &calls;
  }
  if (name != "auto") FailUnknown("--tool-call-parser", name, ToolParserNames());
  return nullptr;
}

// Whether it is harmony's; *syntax stays null where there is none.
bool FindReasoning(std::string_view text, std::string_view name, const ReasoningSyntax** syntax) {
  const auto has = [text](std::string_view sign) { return text.find(sign) != text.npos; };
  if (name == "none") return false;
  if (name == "auto") {
    if (has(kChannelSign) && has("<|message|>")) return true;
    *syntax = has("[THINK]") ? &kMistralThink : has("</think>") ? &kThink : nullptr;
    return false;
  }
  for (const NamedReasoning& reasoning : kReasoning) {
    if (name != reasoning.name) continue;
    *syntax = reasoning.syntax;
    return reasoning.syntax == nullptr;
  }
  FailUnknown("--reasoning-parser", name, ReasoningParserNames());
}

}  // namespace

std::vector<std::string_view> CallSyntax::Begins() const {
  std::vector<std::string_view> begins;
  if (!section_begin.empty()) begins.push_back(section_begin);
  if (!call_begin.empty() && (section_begin.empty() || may_begin_bare)) {
    begins.push_back(call_begin);
  }
  if (!older_begin.empty()) begins.push_back(older_begin);
  if (body == Body::kParameters && may_begin_bare) begins.push_back(parameters.open);
  return begins;
}

std::unique_ptr<CallBody> CallSyntax::MakeBody(const ToolSchemas& schemas) const {
  switch (body) {
    case Body::kNamedJson:
      return std::make_unique<NamedJsonCall>();
    case Body::kHeadedJson:
      return std::make_unique<HeadedJsonCall>(headed, call_end);
    case Body::kJsonList:
      return std::make_unique<JsonListCall>(false);
    case Body::kMistral:
      return std::make_unique<JsonListCall>(true);
    case Body::kParameters:
      return std::make_unique<ParameterCall>(parameters, schemas);
    case Body::kPairs:
      break;
  }
  return std::make_unique<PairCall>(pairs, call_end, schemas);
}

std::vector<std::string_view> ChatSyntax::Markers() const {
  std::vector<std::string_view> markers;
  const auto add = [&](std::string_view marker) {
    if (!marker.empty()) markers.push_back(marker);
  };
  if (channels) {
    for (const std::string_view marker : HarmonyParser::kMarkers) add(marker);
  }
  if (reasoning != nullptr) {
    add(reasoning->begin);
    add(reasoning->end);
  }
  if (calls == nullptr) return markers;
  for (const std::string_view marker : {calls->section_begin, calls->section_end, calls->call_begin,
                                        calls->older_begin, calls->call_end}) {
    add(marker);
  }
  const HeadedForm& headed = calls->headed;
  if (headed.name_end.size() > 1) add(headed.name_end);
  add(headed.type_end);
  const ParameterForm& tags = calls->parameters;
  for (const std::string_view marker :
       {tags.open, tags.close, tags.parameter_open, tags.parameter_close}) {
    add(marker);
  }
  const PairForm& pairs = calls->pairs;
  for (const std::string_view marker :
       {pairs.key_open, pairs.key_close, pairs.value_open, pairs.value_close}) {
    add(marker);
  }
  if (calls->body == CallSyntax::Body::kMistral) {
    add("[ARGS]");
    add("[CALL_ID]");
  }
  return markers;
}

std::vector<std::string_view> ToolParserNames() {
  std::vector<std::string_view> names;
  names.reserve(names.size() + std::size(kCalls));
  for (const NamedCalls& calls : kCalls) names.push_back(calls.name);
  return names;
}

std::vector<std::string_view> ReasoningParserNames() {
  std::vector<std::string_view> names;
  names.reserve(names.size() + std::size(kReasoning));
  for (const NamedReasoning& reasoning : kReasoning) names.push_back(reasoning.name);
  return names;
}

ChatSyntax FindChatSyntax(std::string_view template_text, std::string_view tool_parser,
                          std::string_view reasoning_parser) {
  ChatSyntax syntax;
  const NamedCalls* calls = FindCalls(template_text, tool_parser);
  syntax.channels = FindReasoning(template_text, reasoning_parser, &syntax.reasoning);
  if (calls != nullptr && calls->syntax == nullptr) syntax.channels = true;
  if (syntax.channels) {
    syntax.reasoning = nullptr;
  } else if (calls != nullptr) {
    syntax.calls = calls->syntax;
  }
  return syntax;
}

}  // namespace moesaic
