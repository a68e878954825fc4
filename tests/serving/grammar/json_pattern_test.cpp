#include "serving/grammar/json_pattern.h"

#include <gtest/gtest.h>

#include <string>

#include "core/base/error.h"
#include "serving/grammar/xgrammar_schema.h"

namespace moesaic {
namespace {

std::string SpeltOrRefused(const std::string& pattern) {
  try {
    return "spelt " + JsonStringPattern(pattern);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return "";
  }
}

TEST(JsonPattern, KeepsRepetitionsAndGroups) {
  EXPECT_EQ(JsonStringPattern("^ab?c$"), "ab?c");
  EXPECT_EQ(JsonStringPattern("((a)?b|)?"), "((a)?b|)?");
  EXPECT_EQ(JsonStringPattern("[ab]??x*?y+?z{2,3}?w{2,}"), "[a-b]?x*y+z{2,3}w{2,}");
}

TEST(JsonPattern, LeavesOutWhatAStringOnlyHasEscaped) {
  EXPECT_EQ(JsonStringPattern(R"([\s\\"])"), "[\\x20]");
  EXPECT_EQ(JsonStringPattern("[^a]"),
            "[\\x20-\\x21\\x23-\\x5b\\x5d-\\x60b-\\u{d7ff}\\u{e000}-\\u{10ffff}]");
  EXPECT_EQ(JsonStringPattern("."),
            "[\\x20-\\x21\\x23-\\x5b\\x5d-\\u{2027}\\u{202a}-\\u{d7ff}\\u{e000}-\\u{10ffff}]");
  EXPECT_EQ(JsonStringPattern("é[а-я]"), "[\\u{e9}][\\u{430}-\\u{44f}]");
  EXPECT_EQ(JsonStringPattern(R"(\u0041\u{42}\x43\/)"), "ABC[\\x2f]");
}

TEST(JsonPattern, AnchorsOfOptionsAreTheWholeText) {
  EXPECT_EQ(JsonStringPattern("^a$|^(b|c)$"), "a|(b|c)");
  EXPECT_EQ(JsonStringPattern("(?i)^(?:a)(?<name>b)(?P<other>c)$"), "(?i)(a)(b)(c)");
}

TEST(JsonPattern, WhatIsWrongOrCannotBeKeptIsRefused) {
  for (const char* pattern :
       {"\"",     "\\n",    "\\\\",        "a^",    "a$b",   "(^a)",       "(a",
        "a)",     "*a",     "a**",         "a{,2}", "a{x}",  "a{2",        "{",
        "]",      "[]",     "[b-a]",       "[a",    "\\",    "\\b",        "\\1",
        "\\p{L}", "\\xz0",  "\\u{110000}", "\\u{}", "(?=a)", "(?!a)",      "(?<=a)",
        "(?<a",   "(?i:a)", "a|*",         "\xff",  "\xc3",  "[\\d-a]z\\q"}) {
    EXPECT_EQ(SpeltOrRefused(pattern), "") << pattern;
  }
}

TEST(JsonPattern, SchemasAreRespeltWithinAndRefusedWithTheirPlace) {
  const Json schema = SchemaForXgrammar(Json::parse(
      R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"string","maxLength":2}},
          "b":{"anyOf":[{"type":"null"},{"type":"string","pattern":"^x?$"}]}},
          "$defs":{"c":{"type":"string","minLength":1}}})"));
  const std::string any = JsonStringOfLength(0, 2);
  EXPECT_EQ(schema["properties"]["a"]["items"], (Json{{"type", "string"}, {"pattern", any}}));
  EXPECT_EQ(schema["properties"]["b"]["anyOf"][1]["pattern"], "x?");
  EXPECT_EQ(schema["$defs"]["c"]["pattern"], JsonStringOfLength(1, -1));
  const Json tag = TagForXgrammar(Json::parse(
      R"({"type":"structural_tag","format":{"type":"sequence","elements":[
          {"type":"regex","pattern":"^x?$"},
          {"type":"json_schema","json_schema":{"type":"string","pattern":"^x?$"}}]}})"));
  EXPECT_EQ(tag["format"]["elements"][0]["pattern"], "^x?$");
  EXPECT_EQ(tag["format"]["elements"][1]["json_schema"]["pattern"], "x?");
  try {
    SchemaForXgrammar(Json::parse(R"({"items":{"anyOf":[{},{"type":"string","pattern":"\""}]}})"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).rfind("/items/anyOf/1/pattern: ", 0), 0u) << error.what();
  }
}

}  // namespace
}  // namespace moesaic
