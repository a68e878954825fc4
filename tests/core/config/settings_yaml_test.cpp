#include "core/config/settings_yaml.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/config/setting_section.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

struct YamlValues {
  std::string model;
  MemorySize memory;
  int threads = 0;
  bool cache = true;
  double timeout_s = 0;
  std::vector<std::string> names;
  std::vector<std::string> keys;
  OptionTable table;

  YamlValues() {
    const SettingSection section(table, "Things", true);
    section.Add({.name = "model", .target = &model, .help = "A model."});
    section.Add({.name = "expert-memory", .target = &memory, .help = "How much."});
    section.Add({.name = "threads", .target = &threads, .help = "How many.", .min = 0, .max = 9});
    section.Add({.name = "prefix-cache", .target = &cache, .help = "Keep nothing."});
    section.Add({.name = "request-timeout", .target = &timeout_s, .help = "How long."});
    section.Add({.name = "served-model-name", .target = &names, .help = "Which."});
    section.Add({.name = "api-key", .target = &keys, .help = "Hidden.", .secret = true});
    table.Add({.name = "json", .target = &cache_only_, .help = "No setting."});
  }
  std::string Refusal(const std::string& yaml) {
    try {
      ApplyConfigText(yaml, "f.yaml", table);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.what();
    }
    return "accepted";
  }

 private:
  bool cache_only_ = false;
};

TEST(SettingsYamlTest, ReadsYaml) {
  YamlValues s;
  ApplyConfigText(
      "# a comment\n"
      "expert_memory: 25%\n"
      "threads: 8\n"
      "no-prefix-cache: true\n"
      "served-model-name: [a, b]\n"
      "request-timeout: 2.5\n"
      "api-key: \"k1\"\n",
      "f.yaml", s.table);
  EXPECT_EQ(s.memory.text(), "25%");
  EXPECT_EQ(s.threads, 8);
  EXPECT_FALSE(s.cache);
  EXPECT_EQ(s.names, (std::vector<std::string>{"a", "b"}));
  EXPECT_DOUBLE_EQ(s.timeout_s, 2.5);
  EXPECT_EQ(s.keys, std::vector<std::string>{"k1"});
  EXPECT_EQ(s.table.origin("threads"), "f.yaml:3: threads");
  ApplyConfigText("", "empty.yaml", s.table);
}

TEST(SettingsYamlTest, YamlErrorsNameFileLineKeyAndExpectation) {
  YamlValues s;
  EXPECT_EQ(s.Refusal("threads: 2\nexpert_memry: 1GiB\n"),
            "f.yaml:2: unknown setting 'expert_memry'; did you mean 'expert-memory'?");
  EXPECT_EQ(s.Refusal("zzzzzz: 1\n"),
            "f.yaml:1: unknown setting 'zzzzzz'; `moesaic serve --help` lists them");
  EXPECT_EQ(s.Refusal("\nthreads: many\n"),
            "f.yaml:2: threads: expected an integer from 0 to 9, not 'many'");
  EXPECT_EQ(s.Refusal("threads: [1, 2]\n"), "f.yaml:1: threads: expected one value, not a list");
  EXPECT_EQ(s.Refusal("threads: {a: 1}\n"), "f.yaml:1: threads: expected one value, not a mapping");
  EXPECT_EQ(s.Refusal("threads:\n"), "f.yaml:1: threads: expected one value, not nothing");
  EXPECT_EQ(s.Refusal("threads: 1\nthreads: 2\n"), "f.yaml:2: 'threads' is given twice");
  EXPECT_EQ(s.Refusal("prefix-cache: true\nno-prefix-cache: true\n"),
            "f.yaml:2: 'prefix-cache' is given twice");
  EXPECT_EQ(s.Refusal("- threads\n"),
            "f.yaml: expected one mapping of settings, for example `threads: 8`");
  EXPECT_EQ(s.Refusal("served-model-name: [[a]]\n"),
            "f.yaml:1: served-model-name: expected a list of plain values");
  EXPECT_EQ(s.Refusal("? [a]\n: 1\n"), "f.yaml:1: a key must be the name of a setting");
  EXPECT_EQ(s.Refusal("a: b: c\n").substr(0, 19), "f.yaml:1: not YAML:");
  EXPECT_EQ(s.Refusal("expert-memory: lots\n"),
            "f.yaml:1: expert-memory: 'lots' is not a size; write for example 512MiB or 4GiB");
  EXPECT_EQ(s.Refusal("expert-memory: 101%\n"),
            "f.yaml:1: expert-memory: '101%' is more than 100%");
  EXPECT_EQ(s.memory.text(), "auto");
}

TEST(SettingsYamlTest, SurvivesHostileYaml) {
  YamlValues s;
  EXPECT_NE(s.Refusal(std::string(100000, '[')), "accepted");
  EXPECT_NE(s.Refusal(std::string("threads: \xff\xfe\x00", 12)), "accepted");
  EXPECT_NE(s.Refusal("threads: *missing\n"), "accepted");
}

TEST(SettingsYamlTest, DescriptionGivesTheSameSettings) {
  YamlValues s;
  s.table.Set("expert-memory", "25%", OptionSource::kFlag, "--expert-memory");
  s.table.Set("served-model-name", "a,b", OptionSource::kFlag, "--served-model-name");
  s.table.Set("prefix-cache", "false", OptionSource::kFlag, "--no-prefix-cache");
  const std::string yaml = DescribeSettings(s.table);
  YamlValues again;
  ApplyConfigText(yaml, "described.yaml", again.table);
  EXPECT_EQ(again.memory.text(), "25%");
  EXPECT_EQ(again.names, s.names);
  EXPECT_FALSE(again.cache);
  EXPECT_NE(yaml.find("# --expert-memory"), std::string::npos);
}

TEST(SettingsYamlTest, DescriptionQuotesWhatYamlWouldReadOtherwise) {
  for (const char* text : {"a #b", "null", "~", "- x", "k: v", "*a", "%b", "\"", "'", "\\", "\n",
                           "", "\u00e9", "\x87 raw"}) {
    YamlValues s;
    s.table.Set("model", text, OptionSource::kFlag, "--model");
    s.table.Set("served-model-name", fmt::format("{},[b", text), OptionSource::kFlag, "--names");
    s.table.Set("request-timeout", "123456.789", OptionSource::kFlag, "--request-timeout");
    s.table.Set("api-key", "k", OptionSource::kFlag, "--api-key");
    YamlValues again;
    ApplyConfigText(DescribeSettings(s.table), "described.yaml", again.table);
    EXPECT_EQ(again.model, text);
    EXPECT_EQ(again.names, s.names);
    EXPECT_EQ(again.timeout_s, 123456.789);
    EXPECT_EQ(again.keys, std::vector<std::string>{"***"});
  }
}

TEST(SettingsYamlTest, FindsPresetsAndListsThem) {
  std::string name = (fs::temp_directory_path() / "moesaic_presets_XXXXXX").string();
  const fs::path directory = mkdtemp(name.data());
  std::ofstream(directory / "tiny.yaml") << "threads: 7\n";
  YamlValues s;
  ApplyConfigFile("tiny", {directory}, s.table);
  EXPECT_EQ(s.threads, 7);
  ApplyConfigFile((directory / "tiny.yaml").string(), {}, s.table);
  try {
    ApplyConfigFile("huge", {directory}, s.table);
    ADD_FAILURE() << "found a preset that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
    EXPECT_STREQ(error.what(), "--config huge: no such file; presets: tiny");
  }
  fs::remove_all(directory);
}

}  // namespace
}  // namespace moesaic
