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

TEST(UnitsTest, WritesSizesThatReadTheSame) {
  EXPECT_EQ(SizeText(0), "0");
  EXPECT_EQ(SizeText(1500), "1500");
  EXPECT_EQ(SizeText(16 << 20), "16MiB");
  EXPECT_EQ(SizeText(3 << 19), "1536KiB");
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{1023}, uint64_t{1} << 40, uint64_t{7} << 52}) {
    EXPECT_EQ(ParseBytes(SizeText(bytes), "--x"), bytes);
  }
}

TEST(UnitsTest, ParsesPercentages) {
  EXPECT_EQ(ParsePercent("25%", "--x"), 25);
  EXPECT_EQ(ParsePercent(" 12.5 % ", "--x"), 12.5);
  EXPECT_EQ(ParsePercent("0%", "--x"), 0);
  EXPECT_EQ(ParsePercent("100%", "--x"), 100);
  for (const char* text : {"101%", "%", "25", "-1%", "x%", "2KiB", "1%%", ""}) {
    EXPECT_THROW(ParsePercent(text, "--x"), Error) << text;
  }
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
  EXPECT_EQ(FormatRate(0), "0 B/s");
  EXPECT_EQ(FormatRate(999), "999 B/s");
  EXPECT_EQ(FormatRate(12345), "12.3 kB/s");
  EXPECT_EQ(FormatRate(1.234e9), "1.23 GB/s");
  EXPECT_EQ(FormatRate(123.4e9), "123 GB/s");
  EXPECT_EQ(FormatCount(11.06e6), "11.1 M");
  EXPECT_EQ(FormatCount(30.5e9), "30.5 G");
  EXPECT_EQ(FormatCount(7), "7");
}

}  // namespace
}  // namespace moesaic
