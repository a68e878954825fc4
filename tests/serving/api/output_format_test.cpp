#include "serving/api/output_format.h"

#include <gtest/gtest.h>

#include <string>

#include "serving/api/api_request.h"

namespace moesaic {
namespace {

using Kind = GrammarPart::Kind;

ApiRequest Parse(const std::string& fields) {
  return ParseCompletionRequest(R"({"prompt":"a",)" + fields + "}");
}

GrammarPart PartOf(const std::string& fields) {
  const ApiRequest request = Parse(fields);
  EXPECT_TRUE(request.format.has_value()) << fields;
  return request.format ? request.format->spec.alternatives.at(0).at(0) : GrammarPart();
}

// What is wrong; empty: nothing.
std::string Param(const std::string& fields) {
  try {
    Parse(fields);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.param();
  }
  return "";
}

TEST(OutputFormat, NoneWithoutAFieldOrForText) {
  EXPECT_FALSE(Parse(R"("n":1)").format.has_value());
  EXPECT_FALSE(Parse(R"("response_format":{"type":"text"})").format.has_value());
  EXPECT_FALSE(Parse(R"("response_format":null,"grammar":"")").format.has_value());
}

TEST(OutputFormat, AllNamesOfASchemaMeanTheSame) {
  const std::string schema = R"({"type":"integer","title":"T"})";
  for (const std::string& fields :
       {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)" + schema +
            "}}",
        R"("response_format":{"type":"json_object","schema":)" + schema + "}",
        R"("structured_outputs":{"json":)" + schema + "}",
        R"("structured_outputs":{"json":)" + Json(schema).dump() + "}",
        R"("guided_json":)" + schema, R"("json_schema":)" + schema}) {
    const GrammarPart part = PartOf(fields);
    EXPECT_EQ(part.kind, Kind::kJsonSchema) << fields;
    EXPECT_EQ(part.text, R"({"type":"integer"})") << fields;
  }
}

TEST(OutputFormat, JsonObjectsAreObjectsOfAnything) {
  for (const char* fields : {R"("response_format":{"type":"json_object"})",
                             R"("structured_outputs":{"json_object":true})"}) {
    EXPECT_EQ(PartOf(fields).text, R"({"type":"object","additionalProperties":true})");
  }
}

TEST(OutputFormat, OtherKinds) {
  EXPECT_EQ(PartOf(R"("structured_outputs":{"regex":"a+"})").kind, Kind::kRegex);
  EXPECT_EQ(PartOf(R"("guided_regex":"a+")").text, "a+");
  EXPECT_EQ(PartOf(R"("guided_grammar":"root ::= 1")").kind, Kind::kEbnf);
  EXPECT_EQ(PartOf(R"("grammar":"root ::= 1")").kind, Kind::kEbnf);
  const ApiRequest choice = Parse(R"("guided_choice":["a","b"])");
  ASSERT_EQ(choice.format->spec.alternatives.size(), 2u);
  EXPECT_EQ(choice.format->spec.alternatives[1][0].text, "b");
}

TEST(OutputFormat, SchemasInStructuralTagsAreCheckedAndTheirSpacesBounded) {
  const std::string tag = R"({"type":"structural_tag","format":{"type":"json_schema",)"
                          R"("json_schema":{"type":"integer","title":"T"}}})";
  const Json format =
      Json::parse(PartOf(R"("structured_outputs":{"structural_tag":)" + tag + "}").text)["format"];
  EXPECT_EQ(format["json_schema"], Json::parse(R"({"type":"integer"})"));
  EXPECT_EQ(format["max_whitespace_cnt"], 16);
  EXPECT_EQ(Param(R"("structured_outputs":{"structural_tag":{"structures":)"
                  R"([{"begin":"a","schema":{"not":{}},"end":"b"}]}})"),
            "structured_outputs.structural_tag");
}

TEST(OutputFormat, WhatIsWrongIsNamed) {
  EXPECT_EQ(Param(R"("response_format":{"type":"json_schema"})"), "response_format.json_schema");
  EXPECT_EQ(Param(R"("response_format":{"type":"yaml"})"), "response_format.type");
  EXPECT_EQ(Param(R"("guided_regex":7)"), "guided_regex");
  EXPECT_EQ(Param(R"("guided_choice":[])"), "guided_choice");
  EXPECT_EQ(Param(R"("guided_choice":["a",""])"), "guided_choice");
  EXPECT_EQ(Param(R"("guided_json":{"not":{}})"), "guided_json");
  EXPECT_EQ(Param(R"("guided_json":{},"guided_regex":"a")"), "guided_regex");
  EXPECT_EQ(Param(R"("response_format":{"type":"json_object"},"json_schema":{})"), "json_schema");
  EXPECT_EQ(Param(R"x("grammar":"((a{900}){900})")x"), "grammar");
}

}  // namespace
}  // namespace moesaic
