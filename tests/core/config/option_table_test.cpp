#include "core/config/option_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace moesaic {
namespace {

struct Values {
  std::string name = "none";
  std::string mode = "slow";
  int64_t count = 3;
  double rate = 1.5;
  bool fast = false;
  bool cache = true;
  std::vector<std::string> tags;
  OptionTable table;

  Values() {
    table.Add({"name", &name, "NAME", "A name.", "First"});
    table.Add({"mode", &mode, "", "A mode.", "First", 'm', {"slow", "quick"}});
    table.Add({"count", &count, "", "How many.", "Second", 0, {}, 1, 10});
    table.Add({"rate", &rate, "", "How fast.", "Second", 0, {}, 0});
    table.Add({"fast", &fast, "", "Hurry.", "Second"});
    table.Add({"cache", &cache, "", "Keep nothing.", "Second"});
    table.Add({"tags", &tags, "", "Words.", "Second"});
  }
  void Set(const std::string& key, const std::string& text) {
    table.Set(key, text, OptionSource::kFlag, "--" + key);
  }
  std::string Refusal(const std::string& key, const std::string& text) {
    try {
      Set(key, text);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.what();
    }
    return "accepted";
  }
};

TEST(OptionTableTest, ConvertsEveryType) {
  Values v;
  v.Set("name", "x");
  v.Set("mode", "quick");
  v.Set("count", "10");
  v.Set("rate", "0.25");
  v.Set("fast", "on");
  v.Set("cache", "False");
  v.Set("tags", "a, b");
  v.Set("tags", "c");
  EXPECT_EQ(v.name, "x");
  EXPECT_EQ(v.mode, "quick");
  EXPECT_EQ(v.count, 10);
  EXPECT_DOUBLE_EQ(v.rate, 0.25);
  EXPECT_TRUE(v.fast);
  EXPECT_FALSE(v.cache);
  EXPECT_EQ(v.tags, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(v.table.ValueText("tags"), "a,b,c");
  v.Set("rate", "inf");
  EXPECT_TRUE(std::isinf(v.rate));
}

TEST(OptionTableTest, AnOptionCanTakeAnothersPlace) {
  Values v;
  std::vector<std::string> counts = {"1"};
  v.table.Replace({"count", &counts, "LIST", "", "Section"});
  EXPECT_EQ(v.table.ValueText("count"), "1");
  v.Set("count", "2,3");
  EXPECT_EQ(counts, (std::vector<std::string>{"2", "3"}));
  EXPECT_EQ(v.table.options().size(), Values().table.options().size());
}

TEST(OptionTableTest, SaysWhatIsExpected) {
  Values v;
  EXPECT_EQ(v.Refusal("count", "11"), "--count: expected an integer from 1 to 10, not '11'");
  EXPECT_EQ(v.Refusal("count", "ten"), "--count: expected an integer from 1 to 10, not 'ten'");
  EXPECT_EQ(v.Refusal("count", "1.5"), "--count: expected an integer from 1 to 10, not '1.5'");
  EXPECT_EQ(v.Refusal("count", "99999999999999999999"),
            "--count: expected an integer from 1 to 10, not '99999999999999999999'");
  EXPECT_EQ(v.Refusal("rate", "-1"), "--rate: expected a number of at least 0, not '-1'");
  EXPECT_EQ(v.Refusal("rate", "nan"), "--rate: expected a number of at least 0, not 'nan'");
  EXPECT_EQ(v.Refusal("fast", "maybe"), "--fast: expected true or false, not 'maybe'");
  EXPECT_EQ(v.Refusal("mode", "qick"), "--mode: expected one of slow, quick, not 'qick'");
  EXPECT_EQ(v.count, 3);
  EXPECT_EQ(v.table.origin("count"), "default");
}

TEST(OptionTableTest, NoPrefixNegatesFlagsOnly) {
  Values v;
  v.Set("no-cache", "true");
  EXPECT_FALSE(v.cache);
  v.Set("no_cache", "false");
  EXPECT_TRUE(v.cache);
  EXPECT_EQ(v.table.Find("no-name"), nullptr);
  EXPECT_EQ(v.table.Find("no-cache"), v.table.Find("cache"));
}

TEST(OptionTableTest, EarlierSourcesWin) {
  Values v;
  v.table.Set("count", "4", OptionSource::kFile, "file");
  v.table.Set("count", "5", OptionSource::kFlag, "flag");
  v.table.Set("count", "6", OptionSource::kEnvironment, "environment");
  EXPECT_EQ(v.count, 5);
  EXPECT_EQ(v.table.origin("count"), "flag");
  // A list of a stronger source replaces one of a weaker source.
  v.table.Set("tags", "a", OptionSource::kFile, "file");
  v.table.Set("tags", "b", OptionSource::kEnvironment, "environment");
  v.table.Set("tags", "c", OptionSource::kEnvironment, "environment");
  EXPECT_EQ(v.tags, (std::vector<std::string>{"b", "c"}));
}

TEST(OptionTableTest, SecretsAreNotShown) {
  std::string key;
  OptionTable table;
  Option option{"key", &key, "", "A key.", "S"};
  option.secret = true;
  table.Add(option);
  table.Set("key", "hunter2", OptionSource::kFlag, "--key");
  EXPECT_EQ(table.ValueText("key"), "***");
}

TEST(OptionTableTest, EditDistance) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("abc", ""), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("prot", "port"), 1);  // a swap
}

TEST(OptionTableTest, NearestName) {
  Values v;
  EXPECT_EQ(v.table.NearestName("cuont"), "count");
  EXPECT_EQ(v.table.NearestName("c_ount"), "count");
  EXPECT_EQ(v.table.NearestName("zebra-crossing"), "");
  EXPECT_EQ(NearestOf("memory", {"expert-memory", "port"}), "expert-memory");
  EXPECT_EQ(NearestOf("memory", {"expert-memory", "kv-memory"}), "");  // neither is meant more
}

TEST(OptionTableTest, HelpIsGroupedAlignedAndWrapped) {
  Values v;
  const std::string help = v.table.Help(80);
  EXPECT_NE(help.find("\nFirst:\n  --name NAME                   A name. [default none]\n"),
            std::string::npos)
      << help;
  EXPECT_NE(help.find("  -m, --mode slow|quick         A mode. [default slow]\n"),
            std::string::npos)
      << help;
  EXPECT_NE(help.find("  --no-cache"), std::string::npos) << help;
  EXPECT_EQ(help.find("--cache"), std::string::npos) << help;
  for (size_t begin = 0; begin < help.size();) {
    const size_t end = help.find('\n', begin);
    EXPECT_LE(end - begin, 80u);
    begin = end + 1;
  }
}

TEST(OptionTableTest, WrapsText) {
  EXPECT_EQ(WrapText("one two three", 7), (std::vector<std::string>{"one two", "three"}));
  EXPECT_EQ(WrapText("", 7), (std::vector<std::string>{""}));
  EXPECT_EQ(WrapText("unbreakable", 3), (std::vector<std::string>{"unbreakable"}));
}

}  // namespace
}  // namespace moesaic
