#include "serving/http/json_document.h"

#include <gtest/gtest.h>
#include <simdjson.h>

#include <set>

#include "serving/http/api_error.h"
#include "serving/http/json_key_set.h"
#include "tests/serving/http/json_shapes.h"

namespace moesaic {
namespace {

// nlohmann's verdict and value; it takes a NUL outside strings for the end, which we do not.
void ExpectAsNlohmann(const std::string& text) {
  SCOPED_TRACE(text.substr(0, 100));
  Json expected = Json::parse(text, nullptr, false);
  try {
    const Json value = ParseJson(text);
    ASSERT_FALSE(expected.is_discarded());
    EXPECT_EQ(value, expected);
    EXPECT_EQ(value.dump(), expected.dump());
    EXPECT_EQ(value.type(), expected.type());
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
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "123456789012345678901234567890",
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
    "[1\x1a"
    "2]",
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

TEST(JsonDocumentTest, AgreesWithNlohmannOnEveryCpu) {
  const simdjson::implementation* const active = simdjson::get_active_implementation();
  for (const simdjson::implementation* implementation : simdjson::get_available_implementations()) {
    if (!implementation->supported_by_runtime_system()) continue;
    SCOPED_TRACE(implementation->name());
    simdjson::get_active_implementation() = implementation;
    for (const char* text : kTexts) {
      ExpectAsNlohmann(text);
      // The same behind more than a block of 64 bytes, and where it begins at each byte of one.
      for (size_t shift = 1; shift < 130; shift += 3) {
        ExpectAsNlohmann("[\"" + std::string(shift, 'x') + "\"," + text + "]");
        ExpectAsNlohmann(std::string(shift, ' ') + text);
      }
    }
  }
  simdjson::get_active_implementation() = active;
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

TEST(JsonKeySetTest, FindsAKeyTwiceAmongFewAndMany) {
  for (const size_t keys : {1, 2, 15, 16, 17, 18, 40, 1000}) {
    for (const size_t twice : {size_t{0}, keys / 2, keys - 1}) {
      uint64_t steps = 0;
      JsonKeySet set(steps);
      set.OpenObject();
      EXPECT_TRUE(set.Add("outer", false));
      set.OpenObject();
      for (size_t i = 0; i < keys; ++i) {
        const std::string key = std::to_string(i);
        ASSERT_TRUE(set.Add(key, true)) << i;
      }
      EXPECT_EQ(set.size(), keys);
      EXPECT_FALSE(set.Add(std::to_string(twice), true)) << keys << " keys, " << twice;
      set.CloseObject();
      EXPECT_EQ(set.size(), 1u);
      EXPECT_FALSE(set.Add("outer", false));
      // The next object beside it knows nothing of the first.
      set.OpenObject();
      for (size_t i = 0; i < keys; ++i) ASSERT_TRUE(set.Add(std::to_string(i), true));
    }
  }
}

// Values of another implementation: CPython's hash() of bytes, whose key is zero with
// PYTHONHASHSEED=0.
TEST(JsonKeySetTest, SipHashIsSipHash) {
  EXPECT_EQ(SipHash13("a", 0, 0), 0x407448d2b89b1813u);
  EXPECT_EQ(SipHash13("abcdefgh", 0, 0), 0x3f7b849c0b8e35eau);
  EXPECT_EQ(SipHash13("moesaic counts keys", 0, 0), 0xb1005d63329432eeu);
}

TEST(JsonKeySetTest, SipHashDependsOnEveryByteAndTheKey) {
  std::set<uint64_t> seen;
  for (size_t length = 0; length < 40; ++length) {
    std::string text(length, '\0');
    EXPECT_TRUE(seen.insert(SipHash13(text, 1, 2)).second);
    EXPECT_TRUE(seen.insert(SipHash13(text, 1, 3)).second);
    EXPECT_TRUE(seen.insert(SipHash13(text, 2, 2)).second);
    for (size_t i = 0; i < length; ++i) {
      text[i] = 'x';
      EXPECT_TRUE(seen.insert(SipHash13(text, 1, 2)).second);
      text[i] = '\0';
    }
  }
}

}  // namespace
}  // namespace moesaic
