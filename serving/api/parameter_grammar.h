// ParameterFormat: the parameters of a call in a syntax of tags, held to the tool's schema, as
// xgrammar's description of a grammar (a `format` of its structural tags).
//
// What the grammar lets through is of the schema once ParameterCall or PairCall has read it: a text
// is only there where it is read as a string, no value has its closing tag in it, and what could
// not be kept so is refused. It lets through less than the schema where a text would be read as
// something else. Pure.
#pragma once

#include <string>
#include <string_view>

#include "core/base/function_ref.h"
#include "core/base/json.h"
#include "serving/api/chat/chat_syntax.h"
#include "serving/api/chat/tool_schema.h"

namespace moesaic {

// `schema`: the tool's parameters as CheckSchema left them. `types`: as the parser has them. `own`:
// the format of a text of the syntax's own, in which tokens of control are tokens. Throws
// Error(kInvalidArgument) with a JSON pointer for what cannot be kept in tags. null: there are no
// parameters.
Json ParameterFormat(const CallSyntax& calls, const Json& schema, const ToolSchemas& types,
                     const std::string& tool, FunctionRef<Json(std::string_view)> own);

// `part`, of the schema `root`, for a document that will have `definitions` as its $defs: where it
// has references they go on meaning the same, and `root` becomes the definition `name`.
Json SchemaWithin(const Json& root, const std::string& name, Json part, Json& definitions);

}  // namespace moesaic
