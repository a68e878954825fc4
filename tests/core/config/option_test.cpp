#include "core/config/option.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/error.h"

namespace moesaic {
namespace {

enum class Pace { kSlow, kQuick };
constexpr Named<Pace> kPaces[] = {{"slow", Pace::kSlow}, {"quick", Pace::kQuick}};

// What a text makes of the option, or why it is refused.
std::string Give(const Option& option, std::string_view text, bool negated = false) {
  try {
    return AssignOption(option, {.text = text, .what = "--x", .negated = negated});
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
}

TEST(OptionTest, NumbersKeepWithinTheirTypeAndRange) {
  int small = 1;
  const Option narrow{.name = "n", .target = &small};
  EXPECT_EQ(Give(narrow, "-7"), "-7");
  EXPECT_EQ(small, -7);
  EXPECT_EQ(Give(narrow, "2147483648"), "--x: expected an integer, not '2147483648'");
  uint16_t port = 80;
  const Option bounded{.name = "port", .target = &port, .min = 1, .max = 65535};
  EXPECT_EQ(Give(bounded, "0"), "--x: expected an integer from 1 to 65535, not '0'");
  EXPECT_EQ(Give(bounded, "65536"), "--x: expected an integer from 1 to 65535, not '65536'");
  EXPECT_EQ(Give(bounded, "65535"), "65535");
  uint64_t seed = 0;
  const Option large{.name = "seed", .target = &seed, .min = 0, .max = 9e15};
  EXPECT_EQ(Give(large, "-1"), "--x: expected an integer of at least 0, not '-1'");
  EXPECT_EQ(Give(large, "8999999999999999"), "8999999999999999");
  EXPECT_EQ(seed, 8999999999999999u);
  EXPECT_EQ(small, -7);
  EXPECT_EQ(port, 65535);
}

TEST(OptionTest, MillisecondsAreWrittenInSeconds) {
  std::chrono::milliseconds time{2500};
  const Option option{.name = "timeout", .target = &time, .min = 0, .max = 1e6};
  EXPECT_EQ(OptionText(option), "2.5");
  EXPECT_EQ(Give(option, "0.25"), "0.25");
  EXPECT_EQ(time.count(), 250);
  EXPECT_EQ(Give(option, "-1"), "--x: expected a number from 0 to 1e+06, not '-1'");
  EXPECT_EQ(Give(option, "1e7"), "--x: expected a number from 0 to 1e+06, not '1e7'");
  EXPECT_EQ(OptionValueName(option), "X");
}

TEST(OptionTest, PathsAndMemorySizes) {
  std::filesystem::path path;
  const Option file{.name = "file", .target = &path};
  EXPECT_EQ(OptionText(file), "");
  EXPECT_EQ(Give(file, "/a b"), "/a b");
  EXPECT_EQ(path, "/a b");
  MemorySize memory;
  const Option size{.name = "memory", .target = &memory};
  EXPECT_EQ(OptionText(size), "auto");
  EXPECT_EQ(Give(size, "12.5%"), "12.5%");
  EXPECT_EQ(memory.BytesOf(1000), 125u);
  EXPECT_EQ(Give(size, "101%"), "--x: '101%' is more than 100%");
  EXPECT_EQ(memory.text(), "12.5%");
  EXPECT_EQ(OptionValueName(size), "SIZE");
}

TEST(OptionTest, SizesInBytesKeepTheirSpelling) {
  uint64_t bytes = 16 << 20;
  const Option option{.name = "body", .target = SizeInBytes(&bytes)};
  EXPECT_EQ(OptionText(option), "16MiB");
  EXPECT_EQ(Give(option, "1024KiB"), "1024KiB");
  EXPECT_EQ(bytes, 1u << 20);
  EXPECT_EQ(Give(option, "25%"), "--x: '25%' is not a size; write for example 512MiB or 4GiB");
  EXPECT_EQ(OptionValueName(option), "SIZE");
}

TEST(OptionTest, ValuesInOtherUnits) {
  double bytes_per_s = 12e9;
  const Option option{.name = "gbps", .target = InUnits(&bytes_per_s, 1e9, 0, 100)};
  EXPECT_EQ(OptionText(option), "12");
  EXPECT_EQ(Give(option, "0.50"), "0.5");
  EXPECT_DOUBLE_EQ(bytes_per_s, 5e8);
  EXPECT_EQ(Give(option, "101"), "--x: expected a number from 0 to 100, not '101'");
  EXPECT_DOUBLE_EQ(bytes_per_s, 5e8);
}

TEST(OptionTest, ChoicesAreAListOfNames) {
  Pace pace = Pace::kQuick;
  const Option option{.name = "pace", .target = OneOf(&pace, kPaces)};
  EXPECT_EQ(OptionText(option), "quick");
  EXPECT_EQ(OptionValueName(option), "slow|quick");
  EXPECT_EQ(Give(option, "slow"), "slow");
  EXPECT_EQ(pace, Pace::kSlow);
  EXPECT_EQ(Give(option, "qick"), "--x: expected one of slow, quick, not 'qick'");

  std::optional<Pace> chosen;
  const Option open{.name = "pace", .target = AutoOrOneOf(&chosen, kPaces)};
  EXPECT_EQ(OptionText(open), "auto");
  EXPECT_EQ(OptionValueName(open), "auto|slow|quick");
  EXPECT_EQ(Give(open, "quick"), "quick");
  EXPECT_EQ(chosen, Pace::kQuick);
  EXPECT_EQ(Give(open, "auto"), "auto");
  EXPECT_EQ(chosen, std::nullopt);
}

TEST(OptionTest, FlagsAndLists) {
  bool cache = true;
  const Option flag{.name = "cache", .target = &cache};
  EXPECT_EQ(Give(flag, "true", true), "false");
  EXPECT_FALSE(cache);
  std::vector<std::string> tags = {"a"};
  const Option list{.name = "tags", .target = &tags};
  EXPECT_EQ(AssignOption(list, {.text = "b, c", .what = "--x", .append = true}), "a,b,c");
  EXPECT_EQ(Give(list, "d"), "d");
  EXPECT_EQ(tags, std::vector<std::string>{"d"});
}

TEST(OptionTest, ACheckComesFirstAndASecretIsNotQuoted) {
  std::string mode = "a";
  Option option{.name = "mode", .target = &mode, .choices = {"a", "b"}, .secret = true};
  EXPECT_EQ(Give(option, "hunter2"), "--x: expected one of a, b, not '***'");
  option.check = [](std::string_view, std::string_view what) {
    Fail(ErrorKind::kInvalidArgument, "{}: no", what);
  };
  EXPECT_EQ(Give(option, "b"), "--x: no");
  EXPECT_EQ(mode, "a");
}

}  // namespace
}  // namespace moesaic
