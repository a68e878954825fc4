// Arrays in a state file: what comes back, what is left out, what is refused.
#include "prefetch/predict/learned_section.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace moesaic {
namespace {

// Sizes that end within a block, on its end, and before one.
TEST(LearnedSectionTest, KeepsEveryValueAndLeavesZerosOut) {
  std::vector<float> floats(100, 0.0f);
  std::vector<double> doubles(64, 0.0);
  std::vector<uint32_t> counts(1, 7);
  floats[99] = 2.5f;
  doubles[31] = 1e-300;
  const std::vector<LearnedArray> arrays = {
      {std::span(floats)}, {std::span(doubles)}, {std::span(counts)}};
  const std::vector<std::byte> bytes = LearnedSection("a", 1, arrays).Save();
  EXPECT_EQ(bytes.size(), 3 * 16 + (4 + 32 * 4) + (4 + 32 * 8) + (4 + 32 * 4));

  std::vector<float> floats_back(100, 1.0f);
  std::vector<double> doubles_back(64, 1.0);
  std::vector<uint32_t> counts_back(1, 1);
  LearnedSection back(
      "a", 1, {{std::span(floats_back)}, {std::span(doubles_back)}, {std::span(counts_back)}});
  back.Load(1, bytes);
  EXPECT_EQ(floats_back, floats);
  EXPECT_EQ(doubles_back, doubles);
  EXPECT_EQ(counts_back, counts);
}

std::string Refusal(LearnedSection& section, std::span<const std::byte> bytes) {
  try {
    section.Load(1, bytes);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(LearnedSectionTest, RefusesNumbersThatNobodyLearns) {
  std::vector<float> values(40, 0.0f);
  LearnedSection section("a", 1, {{std::span(values), 0, 100}});
  for (const float bad : {-1.0f, 101.0f, std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()}) {
    values.assign(40, 5.0f);
    values[39] = bad;
    const std::vector<std::byte> bytes = section.Save();
    values.assign(40, 3.0f);
    EXPECT_NE(Refusal(section, bytes).find("a number is"), std::string::npos) << bad;
    EXPECT_EQ(values, std::vector<float>(40, 3.0f));
  }
}

TEST(LearnedSectionTest, RefusesBlocksOutOfOrderAndOutOfRange) {
  std::vector<uint32_t> values(96, 1);
  LearnedSection section("a", 1, {{std::span(values)}});
  const std::vector<std::byte> good = section.Save();
  const size_t second_block = 16 + 4 + 32 * 4;
  for (const uint32_t number : {0u, 2u, 3u, 0xffffffffu}) {  // 2: the third one is not behind it
    std::vector<std::byte> bad = good;
    std::memcpy(bad.data() + second_block, &number, sizeof(number));
    EXPECT_NE(Refusal(section, bad).find("block"), std::string::npos) << number;
  }
  EXPECT_EQ(Refusal(section, good), "");
}

}  // namespace
}  // namespace moesaic
