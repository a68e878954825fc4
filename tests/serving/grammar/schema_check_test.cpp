#include "serving/grammar/schema_check.h"

#include <gtest/gtest.h>

#include <string>

#include "core/base/error.h"

namespace moesaic {
namespace {

std::string Refusal(const std::string& schema, const SchemaLimits& limits = {}) {
  try {
    CheckSchema(Json::parse(schema), limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(SchemaCheck, KeepsWhatBindsAndLeavesOutWhatIsSaidOfTheSchema) {
  const Json schema = Json::parse(R"({"title": "T", "$schema": "x", "type": "object",
      "properties": {"a": {"type": "integer", "minimum": 3, "default": 4, "x-mine": 1},
                     "b": {"type": ["string", "null"], "maxLength": 5, "description": "d"}},
      "required": ["a"], "additionalProperties": false})");
  EXPECT_EQ(CheckSchema(schema), Json::parse(R"({"type": "object",
      "properties": {"a": {"type": "integer", "minimum": 3},
                     "b": {"type": ["string", "null"], "maxLength": 5}},
      "additionalProperties": false, "required": ["a"]})"));
}

TEST(SchemaCheck, ObjectsAndArraysOfNothingNamedTakeAnything) {
  EXPECT_EQ(CheckSchema(Json::parse(R"({"type": "object"})")),
            Json::parse(R"({"type": "object", "additionalProperties": true})"));
  EXPECT_EQ(CheckSchema(Json::parse(R"({"type": "array"})")),
            Json::parse(R"({"type": "array", "items": true})"));
  EXPECT_EQ(CheckSchema(true), Json::object());
}

TEST(SchemaCheck, WhatConstrainsWithoutATypeImpliesIt) {
  EXPECT_EQ(CheckSchema(Json::parse(R"({"minLength": 2})"))["type"], "string");
  EXPECT_EQ(CheckSchema(Json::parse(R"({"minimum": 2})"))["type"], "number");
  EXPECT_NE(Refusal(R"({"minimum": 2, "maxLength": 4})"), "");
}

struct RefusedCase {
  const char* schema;
  const char* pointer;  // that the message begins with
};

TEST(SchemaCheck, WhatWouldBeDroppedIsRefusedWithItsPointer) {
  const RefusedCase cases[] = {
      {R"({"type": "array", "uniqueItems": true})", "/uniqueItems: "},
      {R"({"properties": {"a/b": {"not": {}}}})", "/properties/a~1b/not: "},
      {R"({"type": "object", "patternProperties": {}})", "/patternProperties: "},
      {R"({"type": "array", "contains": {}})", "/contains: "},
      {R"({"type": "number", "multipleOf": 2})", "/multipleOf: "},
      {R"({"type": "string", "pattern": "a", "maxLength": 3})", "/maxLength: "},
      {R"({"type": "string", "format": "date", "minLength": 3})", "/minLength: "},
      {R"({"type": "string", "format": "color"})", "/format: "},
      {R"x({"type": "string", "pattern": "(((a{900}){900}))"})x", "/pattern: "},
      {R"({"type": "object", "anyOf": [{"type": "object"}]})", "/type: "},
      {R"({"allOf": [{}, {}]})", "/allOf: "},
      {R"({"type": "string", "enum": ["a", 1]})", "/enum: "},
      {R"({"enum": []})", "/enum: "},
      {R"({"type": "object", "properties": {"a": {}}, "required": ["b"]})", "/required: "},
      {R"({"type": "object", "minProperties": 2})", "/minProperties: "},
      {R"({"type": "integer", "minimum": 0.5})", "/minimum: "},
      {R"({"type": "string", "minLength": -1})", "/minLength: "},
      {R"({"type": "string", "maxLength": 1000000})", "/maxLength: "},
      {R"({"type": "text"})", "/type: "},
      {R"({"items": [1]})", "/items: "},
      {R"({"properties": {"a": false}})", "/properties/a: "},
      {R"({"$ref": "other.json#/a"})", "/$ref: "},
      {R"(7)", "the schema: "},
  };
  for (const RefusedCase& item : cases) {
    EXPECT_EQ(Refusal(item.schema).rfind(item.pointer, 0), 0u)
        << item.schema << " -> " << Refusal(item.schema);
  }
}

TEST(SchemaCheck, ReferencesMustLeadToSchemasThatEnd) {
  const std::string tree = R"({"type": "object", "properties": {"v": {"type": "integer"},
      "left": {"$ref": "#"}}, "required": ["v"]})";
  EXPECT_EQ(Refusal(tree), "");
  EXPECT_NE(Refusal(R"({"$ref": "#"})"), "");
  EXPECT_NE(Refusal(R"({"$ref": "#/$defs/none"})"), "");
  EXPECT_NE(Refusal(R"({"anyOf": [{"type": "null"}, {"$ref": "#"}]})"), "");
  // Each holds another one, for ever.
  EXPECT_NE(Refusal(R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})"),
            "");
  EXPECT_NE(Refusal(R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})"), "");
  EXPECT_EQ(Refusal(R"({"type": "array", "items": {"$ref": "#"}})"), "");
  EXPECT_EQ(Refusal(R"({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties":
      {"b": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}}, "required": ["b"]}}})"),
            "");
}

TEST(SchemaCheck, Limits) {
  Json deep = {{"type", "null"}};
  for (int i = 0; i < 32; ++i) deep = {{"type", "array"}, {"items", deep}};
  EXPECT_EQ(Refusal(deep.dump()), "");
  deep = {{"type", "array"}, {"items", deep}};
  EXPECT_NE(Refusal(deep.dump()), "");
  SchemaLimits limits;
  limits.max_branches = 3;
  EXPECT_EQ(Refusal(R"({"enum": [1, 2, 3]})", limits), "");
  EXPECT_NE(Refusal(R"({"enum": [1, 2, 3, 4]})", limits), "");
  limits = {};
  limits.max_schemas = 2;
  EXPECT_NE(Refusal(R"({"anyOf": [{}, {}]})", limits), "");
  limits = {};
  limits.max_bytes = 10;
  EXPECT_NE(Refusal(R"({"type": "string"})", limits), "");
}

}  // namespace
}  // namespace moesaic
