#include "tracer/state_fields.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/base/error.h"

namespace moesaic {
namespace {

TEST(StateFieldsTest, GivesBackWhatWasSet) {
  StateFields fields;
  fields.SetInt("least", std::numeric_limits<int64_t>::min());
  fields.SetInt("most", std::numeric_limits<int64_t>::max());
  fields.SetText("text", std::string("a\0b", 3));
  fields.SetArray<float>("floats", std::vector<float>{1.5f, -2.0f});
  fields.SetArray<uint16_t>("shorts", std::vector<uint16_t>(100000, 65535));
  fields.SetArray<int64_t>("none", {});
  const StateFields back = StateFields::Unpack(fields.Pack(), "test");
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(back.Int("least", kLeast, kMost), kLeast);
  EXPECT_EQ(back.Int("most", kLeast, kMost), kMost);
  EXPECT_EQ(back.Text("text"), std::string("a\0b", 3));
  EXPECT_EQ(back.ArrayOf<float>("floats"), (std::vector<float>{1.5f, -2.0f}));
  EXPECT_EQ(back.ArrayOf<uint16_t>("shorts", 100000), std::vector<uint16_t>(100000, 65535));
  EXPECT_TRUE(back.ArrayOf<int64_t>("none").empty());
  EXPECT_TRUE(back.Has("none"));
  EXPECT_FALSE(back.Has("nothing"));
}

TEST(StateFieldsTest, RefusesOtherTypesRangesAndCounts) {
  StateFields fields;
  fields.SetInt("int", 7);
  fields.SetText("text", "7");
  fields.SetArray<float>("floats", std::vector<float>{1, 2});
  const StateFields back = StateFields::Unpack(fields.Pack(), "section x");
  EXPECT_THROW(back.Int("int", 8, 10), Error);
  EXPECT_THROW(back.Int("text", 0, 10), Error);
  EXPECT_THROW(back.Text("int"), Error);
  EXPECT_THROW(back.ArrayOf<uint32_t>("floats"), Error);
  EXPECT_THROW(back.ArrayOf<double>("floats"), Error);
  EXPECT_THROW(back.ArrayOf<float>("floats", 3), Error);
  try {
    back.Int("missing", 0, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "section x: \"missing\" is missing");
  }
}

TEST(StateFieldsTest, RefusesBytesThatAreNotAMap) {
  StateFields fields;
  fields.SetArray<float>("floats", std::vector<float>(50));
  const std::vector<std::byte> good = fields.Pack();
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_THROW(StateFields::Unpack(std::span(good).first(bytes), "t"), Error) << bytes;
  }
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  EXPECT_THROW(StateFields::Unpack(longer, "t"), Error);
  // An array of 2^32 - 1 elements that are not there; a map with a number for a key; nil.
  const std::vector<std::vector<uint8_t>> bad = {
      {0xdd, 0xff, 0xff, 0xff, 0xff}, {0x81, 0x01, 0x01}, {0xc0}, {0x81, 0xa1, 'a', 0xc3}};
  for (const auto& bytes : bad) {
    EXPECT_THROW(StateFields::Unpack(std::as_bytes(std::span(bytes)), "t"), Error);
  }
}

}  // namespace
}  // namespace moesaic
