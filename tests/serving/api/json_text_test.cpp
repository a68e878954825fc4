#include "serving/api/json_text.h"

#include <gtest/gtest.h>

#include "serving/api/api_error.h"

namespace moesaic {
namespace {

std::string ErrorOf(std::string_view text) {
  try {
    ParseJson(text);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    EXPECT_EQ(error.code(), "invalid_json");
    return error.what();
  }
  return "accepted";
}

std::string Nested(int levels) { return std::string(levels, '[') + std::string(levels, ']'); }

TEST(JsonTextTest, KeepsTheOrderOfMembers) {
  EXPECT_EQ(DumpJson(ParseJson(R"({"b":1,"a":{"z":2,"y":[3,null,true,"x"]}})")),
            R"({"b":1,"a":{"z":2,"y":[3,null,true,"x"]}})");
}

TEST(JsonTextTest, ErrorsTellThePosition) {
  EXPECT_NE(ErrorOf("{\n  \"a\": tru\n}").find("line 2, column 11"), std::string::npos)
      << ErrorOf("{\n  \"a\": tru\n}");
  EXPECT_NE(ErrorOf("{\"a\":1").find("byte 6"), std::string::npos) << ErrorOf("{\"a\":1");
}

TEST(JsonTextTest, RefusesWhatIsNotJson) {
  for (const char* text :
       {"", " \n", "{", "[1,]", "{\"a\":NaN}", "{\"a\":Infinity}", "nul", "{'a':1}", "{\"a\":1}x",
        "{\"a\":01}", "\"\\ud800\"", "{\"a\":1e999}", "// c\n1"}) {
    EXPECT_NE(ErrorOf(text), "accepted") << text;
  }
  EXPECT_NE(ErrorOf("\"\xff\xfe\""), "accepted");              // not UTF-8
  EXPECT_NE(ErrorOf(std::string("\"a\0b\"", 5)), "accepted");  // a raw NUL
  EXPECT_NE(ErrorOf(std::string("\0", 1)), "accepted");
}

TEST(JsonTextTest, LimitsDepth) {
  EXPECT_EQ(ErrorOf(Nested(64)), "accepted");
  EXPECT_NE(ErrorOf(Nested(65)).find("64 levels"), std::string::npos);
  EXPECT_NE(ErrorOf(Nested(1'000'000)).find("64 levels"), std::string::npos);
  EXPECT_NE(ErrorOf(std::string(1'000'000, '[')), "accepted");
  EXPECT_NE(ErrorOf(std::string(100'000, '{')), "accepted");
}

TEST(JsonTextTest, RefusesAKeyTwice) {
  EXPECT_NE(ErrorOf(R"({"a":1,"b":{"a":2},"a":3})").find("\"a\" appears twice"), std::string::npos);
  EXPECT_EQ(ErrorOf(R"([{"a":1},{"a":1,"b":{"a":2}}])"), "accepted");
}

TEST(JsonTextTest, LimitsMembersOfAnObject) {
  std::string text = "{";
  for (int i = 0; i < 1025; ++i) text += (i ? ",\"" : "\"") + std::to_string(i) + "\":0";
  EXPECT_NE(ErrorOf(text + "}").find("1024 members"), std::string::npos);
}

TEST(JsonTextTest, WritesInvalidUtf8AsReplacement) {
  EXPECT_EQ(DumpJson(Json("a\xC3(")), "\"a\xEF\xBF\xBD(\"");
}

TEST(JsonTextTest, ExcerptCutsBetweenCharacters) {
  EXPECT_EQ(Excerpt("abc", 3), "abc");
  EXPECT_EQ(Excerpt("ab\xC3\xA9", 3), "ab...");
  EXPECT_EQ(Excerpt("a\nb\x7f", 10), "a b ");
}

}  // namespace
}  // namespace moesaic
