// The schemas that stand in a schema.
#pragma once

#include <string>

#include "core/base/json.h"

namespace moesaic {

// visit(part, where): `where` is the part's JSON pointer within `schema`, "/properties/a".
template <typename Visit>
void ForEachSubschema(Json& schema, const Visit& visit) {
  for (const char* name : {"properties", "$defs", "definitions"}) {
    if (!schema.contains(name)) continue;
    for (auto& [key, member] : schema[name].items()) {
      visit(member, std::string("/") + name + "/" + key);
    }
  }
  for (const char* name : {"anyOf", "oneOf", "allOf", "prefixItems"}) {
    if (!schema.contains(name)) continue;
    size_t number = 0;
    for (Json& member : schema[name]) {
      visit(member, std::string("/") + name + "/" + std::to_string(number++));
    }
  }
  for (const char* name : {"items", "additionalProperties"}) {
    if (schema.contains(name)) visit(schema[name], std::string("/") + name);
  }
}

}  // namespace moesaic
