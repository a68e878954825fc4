#include "core/base/json_fields.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/core/base/caught.h"

namespace moesaic {
namespace {

using nlohmann::json;

std::string Message(const std::function<void()>& call) { return Caught(call).what(); }

TEST(JsonFieldsTest, MembersAndTheirFallbacks) {
  const json document = json::parse(
      R"({"int": -3, "number": 2.5, "flag": true, "text": "x", "none": null, "ints": [4, 5]})");
  const JsonFields fields(document, "f.json");
  EXPECT_EQ(fields.Int("int", 7, -3, 5), -3);
  EXPECT_EQ(fields.Int("int", 7, -5, -3), -3);
  EXPECT_EQ(fields.Int("absent", 7, -5, 5), 7);
  EXPECT_EQ(fields.Number("number", 0, 0, 10), 2.5);
  EXPECT_TRUE(fields.Bool("flag", false));
  EXPECT_EQ(fields.String("text", ""), "x");
  EXPECT_EQ(fields.String("absent", "fallback"), "fallback");
  EXPECT_EQ(fields.OptionalInt("none", 9, 0, 9), std::nullopt);
  EXPECT_EQ(fields.OptionalInt("absent", 9, 0, 9), 9);
  EXPECT_EQ(fields.OptionalBool("flag"), true);
  EXPECT_EQ(fields.OptionalBool("none"), std::nullopt);
  EXPECT_EQ(fields.OptionalString("text"), "x");
  EXPECT_EQ(fields.OptionalString("absent"), std::nullopt);
  EXPECT_EQ(fields.Ints("ints", 0, 9), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(fields.Ints("int", -9, 9), std::vector<int64_t>{-3});
  EXPECT_TRUE(fields.Ints("none", 0, 9).empty());
}

TEST(JsonFieldsTest, MessagesNameFilePlaceValueAndExpectation) {
  const json document = json::parse(
      R"({"a": {"list": [{"n": 1}, {"n": "two"}], "big": 18446744073709551615}, "none": null})");
  const JsonFields root(document, "dir/f.json");
  const JsonFields a = root.At("a");
  EXPECT_EQ(a.At("list").Element(0).At("n").Int(0, 5), 1);
  EXPECT_EQ(Message([&] { a.At("list").Elements().at(1).At("n").Int(0, 5); }),
            "dir/f.json: a.list[1].n: is \"two\", expected an integer from 0 to 5");
  EXPECT_EQ(Message([&] { a.Int("big", 0, -1, 5); }),  // 2^64 - 1 is not -1
            "dir/f.json: a.big: is 18446744073709551615, expected an integer from -1 to 5");
  EXPECT_EQ(Message([&] { a.Elements(); }), "dir/f.json: a: is an object, expected a list");
  EXPECT_EQ(Message([&] { a.At("list").Elements(1); }),
            "dir/f.json: a.list: has 2 items, expected at most 1");
  EXPECT_EQ(Message([&] { a.At("list").At("x"); }),
            "dir/f.json: a.list: is a list, expected an object");
  EXPECT_EQ(Message([&] { root.At("none"); }), "dir/f.json: none: is missing");
  EXPECT_EQ(Message([&] { root.Refuse("is odd"); }), "dir/f.json: is odd");
  EXPECT_EQ(Message([&] { JsonFields(document["a"], "g", "path.").String("big", ""); }),
            "g: path.big: is 18446744073709551615, expected a string");
  const json list = json::array({1});
  EXPECT_EQ(Message([&] { JsonFields(list, "g").Int("x", 1, 0, 2); }),
            "g: is a list, expected an object");
  EXPECT_EQ(JsonFields(list, "g").Element(0).Where(), "g: [0]");
}

TEST(JsonFieldsTest, DocumentsAreCheckedBeforeTheyAreUsed) {
  EXPECT_EQ(ParseJsonDocument("[1]", "f"), json::array({1}));
  EXPECT_EQ(Message([] { ParseJsonObject("[1]", "f"); }),
            "f: expected a JSON object, found a list");
  EXPECT_TRUE(Message([] { ParseJsonObject("{", "f"); }).starts_with("f: is not valid JSON: "));
  const std::string deepest = std::string(64, '[') + std::string(64, ']');
  EXPECT_NO_THROW(ParseJsonDocument(deepest, "f"));
  EXPECT_EQ(Message([&] { ParseJsonDocument("[" + deepest + "]", "f"); }),
            "f: the JSON is nested more than 64 deep");
  EXPECT_NO_THROW(ParseJsonDocument(R"({"a": ")" + std::string(100, '[') + "\\\"\"}", "f"));
}

}  // namespace
}  // namespace moesaic
