// ChatSyntax: how a model writes reasoning and calls of tools, as data. Found by the text of the
// model's chat template, which was written for it, or by the names that vLLM has for them.
//
// Immutable; any thread.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "serving/api/chat/call_body.h"
#include "serving/api/chat/json_call.h"
#include "serving/api/chat/parameter_call.h"

namespace moesaic {

struct CallSyntax {
  enum class Body { kNamedJson, kHeadedJson, kJsonList, kMistral, kParameters, kPairs };

  Body body = Body::kNamedJson;
  // Around all calls of an answer; empty: nothing is.
  std::string_view section_begin = {};
  std::string_view section_end = {};
  // Around each call; without a begin it is the tag of `parameters`.
  std::string_view call_begin = {};
  std::string_view call_end = {};
  // What earlier models of the family write in place of `call_begin`; empty: nothing.
  std::string_view older_begin = {};
  // A call may come without what stands in front of it: models forget it.
  bool may_begin_bare = false;
  HeadedForm headed = {};
  ParameterForm parameters = {};
  PairForm pairs = {};
  // Ids have to be of nine letters and digits: the template refuses others.
  bool short_ids = false;

  // What may begin a call, or calls, in other text.
  std::vector<std::string_view> Begins() const;
  std::unique_ptr<CallBody> MakeBody(const ToolSchemas& schemas) const;
};

struct ReasoningSyntax {
  std::string_view begin;
  std::string_view end;
  bool always = false;  // every answer begins with it, also without `begin`
};

struct ChatSyntax {
  const CallSyntax* calls = nullptr;           // null: not known
  const ReasoningSyntax* reasoning = nullptr;  // null: none
  bool channels = false;                       // harmony, which has both; the others are null then

  bool empty() const { return calls == nullptr && reasoning == nullptr && !channels; }
  // Everything that has a meaning. Special tokens that are part of one of these must be shown.
  std::vector<std::string_view> Markers() const;
};

// `tool_parser`, `reasoning_parser`: "auto", "none", or vLLM's names, which these functions list.
// Throws Error(kInvalidArgument) for others, with those that there are.
std::vector<std::string_view> ToolParserNames();
std::vector<std::string_view> ReasoningParserNames();
ChatSyntax FindChatSyntax(std::string_view template_text, std::string_view tool_parser = "auto",
                          std::string_view reasoning_parser = "auto");

}  // namespace moesaic
