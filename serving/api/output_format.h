// OutputFormat: what a client wants an output held to, as the source of a grammar. The readers are
// pure and throw ApiError (400), also for what an output could not be held to, with a JSON pointer
// into the schema.
#pragma once

#include <string>
#include <string_view>

#include "serving/api/request_fields.h"
#include "serving/grammar/grammar_spec.h"

namespace moesaic {

struct ApiRequest;

struct OutputFormat {
  std::string param;  // the field that asked for it
  GrammarSpec spec;
};

// response_format; structured_outputs and guided_* (vLLM); grammar and json_schema (llama.cpp). At
// most one of them.
void ParseOutputFormat(RequestFields& fields, ApiRequest& request);

// For readers of other dialects.
// {"type": "text" | "json_object" | "json_schema", ...}: OpenAI's and, with `schema` beside the
// type, that of others.
void ReadResponseFormat(const Json& format, std::string_view param, ApiRequest& request);
void SetJsonFormat(const Json& schema, std::string_view param, ApiRequest& request);
void SetAnyJsonFormat(std::string_view param, ApiRequest& request);

}  // namespace moesaic
