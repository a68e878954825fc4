#include "serving/text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace moesaic {
namespace {

struct Result {
  std::string text;
  std::optional<size_t> matched;
  bool operator==(const Result&) const = default;
};
void PrintTo(const Result& result, std::ostream* out) {
  *out << '"' << result.text << "\" stop " << (result.matched ? int(*result.matched) : -1);
}

Result Feed(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher(stops);
  Result result;
  for (const std::string& piece : pieces) {
    const bool stopped = matcher.Add(piece, &result.text);
    EXPECT_EQ(stopped, matcher.matched().has_value());
  }
  matcher.Finish(&result.text);
  result.matched = matcher.matched();
  return result;
}

// The definition: the first place where a stop string ends; of several the longest.
Result Expected(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t best = stops.size();
    for (size_t i = 0; i < stops.size(); ++i) {
      if (!std::string_view(text).substr(0, end).ends_with(stops[i])) continue;
      if (best == stops.size() || stops[i].size() > stops[best].size()) best = i;
    }
    if (best < stops.size()) return {text.substr(0, end - stops[best].size()), best};
  }
  return {text, std::nullopt};
}

TEST(StopMatcherTest, WithoutStopsTextPassesAtOnce) {
  StopMatcher matcher({});
  std::string text;
  EXPECT_FALSE(matcher.Add("abc", &text));
  EXPECT_EQ(text, "abc");
}

TEST(StopMatcherTest, OfEqualStopsTheFirstIsNamed) {
  EXPECT_EQ(Feed({"x", "ab", "ab"}, {"cab"}), (Result{"c", 1}));
}

TEST(StopMatcherTest, AnEmptyStopIsRefused) {
  const std::vector<std::string> stops = {"x", ""};
  try {
    StopMatcher matcher(stops);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  }
}

TEST(StopMatcherTest, HoldsBackWhatMayBeginAStop) {
  const std::vector<std::string> stops = {"\nUser:"};
  StopMatcher matcher(stops);
  std::string text;
  EXPECT_FALSE(matcher.Add("hi\nUs", &text));
  EXPECT_EQ(text, "hi");
  EXPECT_EQ(matcher.held(), "\nUs");
  EXPECT_FALSE(matcher.Add("e\n", &text));  // not a stop after all, but a new beginning
  EXPECT_EQ(text, "hi\nUse");
  EXPECT_EQ(matcher.held(), "\n");
  EXPECT_TRUE(matcher.Add("User: more", &text));
  EXPECT_EQ(text, "hi\nUse");
  EXPECT_TRUE(matcher.Add("later", &text));
  matcher.Finish(&text);
  EXPECT_EQ(text, "hi\nUse");
}

TEST(StopMatcherTest, FinishLetsGoOfABeginning) {
  EXPECT_EQ(Feed({"stop"}, {"a sto"}), (Result{"a sto", std::nullopt}));
}

TEST(StopMatcherTest, TheStopThatIsCompleteFirstCounts) {
  EXPECT_EQ(Feed({"abcd", "bc"}, {"xabcd"}), (Result{"xa", 1}));
  EXPECT_EQ(Feed({"c", "bc", "abc"}, {"xab", "c"}), (Result{"x", 2}));
  EXPECT_EQ(Feed({"aab"}, {"a", "a", "a", "b"}), (Result{"a", 0}));
  EXPECT_EQ(Feed({"abab", "ba"}, {"aab", "ab"}), (Result{"aa", 1}));
}

TEST(StopMatcherTest, RandomTextsHoweverTheyAreCut) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto word = [&](size_t max) {
    std::string text;
    for (size_t n = 1 + random() % max; n > 0; --n) text.push_back("ab\n"[random() % 3]);
    return text;
  };
  size_t stopped = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (size_t n = 1 + random() % 4; n > 0; --n) stops.push_back(word(5) + "c"[random() % 2]);
    for (std::string& stop : stops) {
      if (stop.back() == '\0') stop.pop_back();
    }
    const std::string text = word(30) + (random() % 2 == 0 ? "c" : "") + word(5);
    std::vector<std::string> pieces;
    for (size_t i = 0; i < text.size();) {
      const size_t n = random() % 4;
      pieces.push_back(text.substr(i, n));
      i += n;
    }
    const Result result = Feed(stops, pieces);
    Result expected = Expected(stops, text);
    // Of two equal stop strings either index names the same text.
    if (result.matched && expected.matched) {
      EXPECT_EQ(stops[*result.matched], stops[*expected.matched]);
      expected.matched = result.matched;
    }
    ASSERT_EQ(result, expected) << testing::PrintToString(stops) << " in " << text;
    stopped += result.matched.has_value();
  }
  EXPECT_GT(stopped, 1000u);
}

}  // namespace
}  // namespace moesaic
