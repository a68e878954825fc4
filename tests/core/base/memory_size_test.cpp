#include "core/base/memory_size.h"

#include <gtest/gtest.h>

#include <string>

#include "core/base/error.h"

namespace moesaic {
namespace {

std::string Refusal(const std::string& text) {
  try {
    MemorySize::Parse(text, "--memory");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

TEST(MemorySizeTest, IsASizeAShareOrAuto) {
  EXPECT_TRUE(MemorySize().is_auto());
  EXPECT_TRUE(MemorySize("auto").is_auto());
  EXPECT_EQ(MemorySize("2KiB").BytesOf(1000), 2048u);
  EXPECT_FALSE(MemorySize("2KiB").is_share());
  EXPECT_EQ(MemorySize("25%").BytesOf(1000), 250u);
  EXPECT_EQ(MemorySize("12.5%").BytesOf(1000), 125u);
  EXPECT_EQ(MemorySize("33%").BytesOf(10), 3u);  // rounded down
  EXPECT_EQ(MemorySize("0%").BytesOf(UINT64_MAX), 0u);
}

TEST(MemorySizeTest, KnowsWhatIsAll) {
  EXPECT_TRUE(MemorySize("100%").is_all());
  for (const char* text : {"99%", "auto", "100"}) EXPECT_FALSE(MemorySize(text).is_all()) << text;
}

TEST(MemorySizeTest, KeepsItsSpelling) {
  for (const char* text : {"auto", "8192MiB", "8 GiB", "12.50%"}) {
    EXPECT_EQ(MemorySize(text).text(), text);
  }
  EXPECT_EQ(MemorySize("1GiB"), MemorySize("1GiB"));
  EXPECT_FALSE(MemorySize("1GiB") == MemorySize("50%"));
}

TEST(MemorySizeTest, RefusesOtherText) {
  EXPECT_EQ(Refusal("lots"), "--memory: 'lots' is not a size; write for example 512MiB or 4GiB");
  EXPECT_EQ(Refusal("101%"), "--memory: '101%' is more than 100%");
  EXPECT_EQ(Refusal("x%"), "--memory: 'x%' is not a percentage; write for example 25%");
  EXPECT_NE(Refusal(""), "accepted");
  EXPECT_NE(Refusal("Auto"), "accepted");
}

}  // namespace
}  // namespace moesaic
