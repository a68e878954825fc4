#include "core/base/units.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace moesaic {
namespace {

TEST(UnitsTest, ParsesSizes) {
  EXPECT_EQ(ParseBytes("0", "--x"), 0u);
  EXPECT_EQ(ParseBytes("4096", "--x"), 4096u);
  EXPECT_EQ(ParseBytes("5MiB", "--x"), 5u << 20);
  EXPECT_EQ(ParseBytes("1.5 GiB", "--x"), 1610612736u);
  EXPECT_EQ(ParseBytes("2GB", "--x"), 2000000000u);
  EXPECT_EQ(ParseBytes("3k", "--x"), 3072u);
}

TEST(UnitsTest, RefusesWhatIsNotASize) {
  for (const char* text : {"", "MiB", "-5MiB", "5 parsecs", "1e400", "nan", "inf", "99999999999TiB",
                           "17179869184GiB", "5%"}) {
    EXPECT_THROW(ParseBytes(text, "--x"), Error) << text;
  }
}

TEST(UnitsTest, ParsesPercentages) {
  EXPECT_EQ(ParseBytesOrPercent("25%", 1000, "--x"), 250u);
  EXPECT_EQ(ParseBytesOrPercent("12.5%", 1000, "--x"), 125u);
  EXPECT_EQ(ParseBytesOrPercent("100%", 1000, "--x"), 1000u);
  EXPECT_EQ(ParseBytesOrPercent("2KiB", 1000, "--x"), 2048u);
  EXPECT_THROW(ParseBytesOrPercent("101%", 1000, "--x"), Error);
  EXPECT_THROW(ParseBytesOrPercent("%", 1000, "--x"), Error);
}

TEST(UnitsTest, CheckedArithmetic) {
  EXPECT_EQ(CheckedMul(6, 7, "t"), 42u);
  EXPECT_THROW(CheckedMul(UINT64_MAX / 2, 3, "t"), Error);
  EXPECT_THROW(CheckedAdd(UINT64_MAX, 1, "t"), Error);
}

TEST(UnitsTest, Formats) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(1 << 20), "1.0 MiB");
  EXPECT_EQ(FormatBytes(19818086), "18.9 MiB");
}

}  // namespace
}  // namespace moesaic
