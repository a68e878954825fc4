// CheckSchema: a client's JSON schema as grammars are made of it. What a grammar could not hold an
// output to is refused, never dropped; what is said of the schema itself (title, default, ...) is
// left out. Pure.
#pragma once

#include <cstddef>

#include "core/base/json.h"

namespace moesaic {

struct SchemaLimits {
  size_t max_bytes = 256 << 10;  // written out
  size_t max_depth = 32;         // of schemas in schemas
  size_t max_schemas = 4096;
  size_t max_branches = 4096;  // options of anyOf and oneOf, and values of enum, in all
  int64_t max_count = 10'000;  // minLength, maxLength, minItems, ...
};

// Objects have only the properties that are named, unless additionalProperties says otherwise or
// none is named. Throws Error(kInvalidArgument) with the JSON pointer of what is refused.
Json CheckSchema(const Json& schema, const SchemaLimits& limits = {});

}  // namespace moesaic
