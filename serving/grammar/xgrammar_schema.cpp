#include "serving/grammar/xgrammar_schema.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "core/base/error.h"
#include "serving/grammar/json_pattern.h"
#include "serving/grammar/subschemas.h"

namespace moesaic {
namespace {

void Respell(Json& schema, const std::string& where) {
  if (!schema.is_object()) return;
  if (const auto pattern = schema.find("pattern");
      pattern != schema.end() && pattern->is_string()) {
    try {
      *pattern = JsonStringPattern(pattern->get_ref<const std::string&>());
    } catch (const Error& error) {
      Fail(error.kind(), "{}/pattern: {}", where, error.what());
    }
  } else if (schema.contains("minLength") || schema.contains("maxLength")) {
    schema["pattern"] = JsonStringOfLength(schema.value("minLength", int64_t{0}),
                                           schema.value("maxLength", int64_t{-1}));
    schema.erase("minLength");
    schema.erase("maxLength");
  }
  ForEachSubschema(
      schema, [&where](Json& part, const std::string& below) { Respell(part, where + below); });
}

void RespellTag(Json& value) {
  if (value.is_array()) {
    for (Json& item : value) RespellTag(item);
  } else if (value.is_object()) {
    for (auto& [name, member] : value.items()) {
      if (name == "json_schema" || name == "schema") {
        Respell(member, "");
      } else {
        RespellTag(member);
      }
    }
  }
}

}  // namespace

Json SchemaForXgrammar(Json schema) {
  Respell(schema, "");
  return schema;
}

Json TagForXgrammar(Json tag) {
  RespellTag(tag);
  return tag;
}

}  // namespace moesaic
