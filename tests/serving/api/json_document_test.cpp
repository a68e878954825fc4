#include "serving/api/json_document.h"

#include <gtest/gtest.h>
#include <simdjson.h>

#include <array>
#include <span>
#include <string>
#include <vector>

#include "serving/api/api_error.h"
#include "tests/serving/api/json_shapes.h"

namespace moesaic {
namespace {

// nlohmann's verdict and value; it takes a NUL outside strings for the end, which we do not.
// Integers of more than 64 bits are doubles to nlohmann, and refused here (below).
void ExpectAsNlohmann(const std::string& text) {
  SCOPED_TRACE(text.substr(0, 100));
  Json expected = Json::parse(text, nullptr, false);
  try {
    const Json value = ParseJson(text);
    ASSERT_FALSE(expected.is_discarded());
    EXPECT_EQ(value, expected);
    EXPECT_EQ(value.dump(), expected.dump());
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    EXPECT_TRUE(expected.is_discarded()) << error.what();
  }
}

const char* const kTexts[] = {
    "0",
    "-0",
    "-1",
    "1.5",
    "1e5",
    "1E+5",
    "1e-5",
    "0.0",
    "-0.0",
    "01",
    "-",
    "+1",
    ".5",
    "1.",
    "1.e5",
    "1e",
    "1e+",
    "0x1",
    "1_0",
    "--1",
    "-01",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551615",
    "1e308",
    "1e309",
    "-1e309",
    "1e-400",
    "4.9e-324",
    "2.2250738585072011e-308",
    "0e999999999999",
    "1e999999999999",
    "1e-999999999999",
    "true",
    "false",
    "null",
    "tru",
    "truee",
    "True",
    "nulll",
    "nul",
    "true false",
    "true,",
    "[true\"a\"]",
    "[1\"a\"]",
    "1\"a,b\"",
    "[\"a\"1]",
    "[\"a\"\"b\"]",
    "[\"a\" \"b\"]",
    "{\"a\"\"b\"}",
    "\"a\"b",
    "\"a\" b",
    "[]",
    "[ ]",
    "[1]",
    "[1,]",
    "[,1]",
    "[1,,2]",
    "[1 2]",
    "[1:2]",
    "[",
    "]",
    "[]]",
    "[[]",
    "[}",
    "{]",
    "{}",
    "{ }",
    "{\"a\":1}",
    "{\"a\":1,}",
    "{,}",
    "{\"a\"}",
    "{\"a\":}",
    "{\"a\":1 \"b\":2}",
    "{\"a\",1}",
    "{1:2}",
    "{a:1}",
    "{\"a\"::1}",
    "{\"a\":1:2}",
    "{null:1}",
    "{\"\":0}",
    "{[]:1}",
    ":",
    ",",
    "\"",
    "\"\\",
    "\"\\\"",
    "\"\\\\\"",
    "\"\\/\"",
    "\"\\b\\f\\n\\r\\t\"",
    "\"\\a\"",
    "\"\\x41\"",
    "\"\\u0041\"",
    "\"\\u00e9\\u20AC\"",
    "\"\\u0000\"",
    "\"\\u12\"",
    "\"\\u12G4\"",
    "\"\\ud83d\\ude00\"",
    "\"\\ud83d\"",
    "\"\\ude00\"",
    "\"\\ud83d\\ud83d\"",
    "\"\\ud83dx\"",
    "\"\\ud83d\\n\"",
    "\"\\ud83d\\u0041\"",
    "\"\\uD83D\\uDE0\"",
    "\"a\nb\"",
    "\"a\tb\"",
    "\"\x1f\"",
    "\"\x7f\"",
    "\"\xc3\xa9\"",
    "\"\xc3\"",
    "\"\xff\"",
    "\"\xc0\x80\"",
    "\"\xed\xa0\x80\"",
    "\"\xf4\x90\x80\x80\"",
    "\"\xf0\x9f\x98\x80\"",
    "\xc3\xa9",
    "[\xc3\xa9]",
    "\xef\xbb\xbf{}",
    "\xef\xbb{}",
    "\xef\xbb\xbf",
    "{}\xef\xbb\xbf",
    " \t\r\n[ 1 , 2 ]\n",
    "\f[]",
    "[1\f]",
    "[1\0322]",
    "[1\x0c,2]",
    "[1\x1a,2]",
    "\v1",
    "[1]\x1a",
    "// c\n1",
    "/**/1",
    "#1",
    "'a'",
    "NaN",
    "Infinity",
    "-Infinity",
    "\"a\" ,",
    "{\"a\":\"b\"}x",
    "[\"\\\"]\"]",
    "[\"\\\\\",\"]\"]",
};

// Each text alone and behind so many characters, for each instruction set that simdjson has here.
void ExpectAsNlohmannBehind(std::span<const size_t> shifts) {
  const simdjson::implementation* const active = simdjson::get_active_implementation();
  for (const simdjson::implementation* implementation : simdjson::get_available_implementations()) {
    if (!implementation->supported_by_runtime_system()) continue;
    SCOPED_TRACE(implementation->name());
    simdjson::get_active_implementation() = implementation;
    for (const char* text : kTexts) {
      ExpectAsNlohmann(text);
      for (const size_t shift : shifts) {
        ExpectAsNlohmann("[\"" + std::string(shift, 'x') + "\"," + text + "]");
        ExpectAsNlohmann(std::string(shift, ' ') + text);
      }
    }
  }
  simdjson::get_active_implementation() = active;
}

// Where a text begins in a block of 64 bytes, ends one, crosses a border, and behind two.
TEST(JsonDocumentTest, AgreesWithNlohmannOnEveryCpu) {
  ExpectAsNlohmannBehind(std::array<size_t, 8>{1, 30, 59, 60, 61, 62, 63, 127});
}

// Behind more than a block, and beginning all over one. Without sanitizers: thousands of exceptions
// take the address sanitizer minutes.
TEST(JsonDocumentTest, AgreesWithNlohmannAllOverABlock) {
  std::vector<size_t> shifts;
  for (size_t shift = 1; shift < 130; shift += 3) shifts.push_back(shift);
  ExpectAsNlohmannBehind(shifts);
}

TEST(JsonDocumentTest, BuildsTheMembersThatAreAskedFor) {
  const JsonDocument document(R"( {"a":[1,{"b":null}],"\u0062":"x\n","c":{},"d":-2.5} )");
  ASSERT_TRUE(document.is_object());
  ASSERT_EQ(document.num_members(), 4u);
  EXPECT_EQ(document.Key(1), "b");
  EXPECT_EQ(document.FindMember("b"), 1u);
  EXPECT_EQ(document.FindMember("x"), 4u);
  EXPECT_EQ(document.FindMember("\\u0062"), 4u);
  EXPECT_EQ(DumpJson(document.BuildMember(0)), R"([1,{"b":null}])");
  EXPECT_EQ(DumpJson(document.BuildMember(1)), R"("x\n")");
  EXPECT_EQ(DumpJson(document.BuildMember(2)), "{}");
  EXPECT_EQ(DumpJson(document.BuildMember(3)), "-2.5");
  EXPECT_FALSE(JsonDocument("[]").is_object());
  EXPECT_EQ(JsonDocument("[]").type_name(), "an array");
}

// The whole text is checked, whoever asks for what.
TEST(JsonDocumentTest, RefusesWhatIsWrongInAMemberThatNobodyReads) {
  for (const char* wrong : {"tru", "01", "[1 2]", "\"\\x\"", "{\"a\":1,\"a\":2}", "1e999", "[}"}) {
    EXPECT_THROW(JsonDocument(std::string(R"({"prompt":"a","zz":)") + wrong + "}"), ApiError)
        << wrong;
  }
}

TEST(JsonDocumentTest, RefusesIntegersOfMoreThan64Bits) {
  for (const char* integer :
       {"-9223372036854775809", "18446744073709551616", "123456789012345678901234567890"}) {
    try {
      const JsonDocument document(integer);
      ADD_FAILURE() << integer;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status(), 400);
      EXPECT_NE(std::string_view(error.what()).find("64 bits"), std::string_view::npos);
    }
  }
}

TEST(JsonDocumentTest, FindsAKeyTwiceAmongFewAndMany) {
  for (const int keys : {1, 2, 16, 17, 1000}) {
    for (const int twice : {0, keys / 2, keys - 1}) {
      std::string text = R"([{"outer":{"0":0}},{)";
      for (int i = 0; i < keys; ++i) text += fmt::format("\"{}\":{{}},", i);
      EXPECT_NO_THROW(JsonDocument(text + R"("outer":0}])"));
      EXPECT_THROW(JsonDocument(text + fmt::format("\"{}\":0}}]", twice)), ApiError)
          << keys << " keys, " << twice;
    }
  }
}

TEST(JsonDocumentTest, TimeGrowsWithTheTextAndNothingElse) {
  constexpr size_t kBytes = 200'000;
  const JsonLimits wide{64, size_t{1} << 24};
  for (const JsonShape& shape : JsonShapes(kBytes)) {
    const JsonDocument document(shape.text, shape.name == kOneWideObject ? wide : JsonLimits());
    EXPECT_LT(document.check_steps(), 4 * shape.text.size()) << shape.name;
  }
}

TEST(JsonDocumentTest, StopsSoonAfterTheClientHasLeft) {
  const std::atomic<bool> gone{true};
  const std::string text = RepeatJson(1 << 20, "0");
  try {
    const JsonDocument document(text, {}, &gone);
    ADD_FAILURE() << "it was checked to the end";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.code(), "client_left");
  }
  std::atomic<bool> gone_later{false};
  const JsonDocument document(text, {}, &gone_later);
  gone_later = true;
  EXPECT_THROW(document.Build(), ApiError);
}

}  // namespace
}  // namespace moesaic
