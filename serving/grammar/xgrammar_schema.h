// Checked schemas (schema_check.h) as xgrammar 0.2.8 keeps them: patterns and lengths of strings in
// a spelling that it gets right (json_pattern.h).
#pragma once

#include "core/base/json.h"

namespace moesaic {

// Throws Error(kInvalidArgument), with a JSON pointer, for a pattern that cannot be kept.
Json SchemaForXgrammar(Json schema);
// The schemas in a structural tag's description.
Json TagForXgrammar(Json tag);

}  // namespace moesaic
