#include "core/config/runtime_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

struct Settings {
  RuntimeConfig config;
  OptionTable table;
  Settings() { AddRuntimeSettings(config, {true, true}, table); }

  std::string Refusal(const std::string& yaml) {
    try {
      ApplyConfigText(yaml, "f.yaml", table);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.what();
    }
    return "accepted";
  }
};

TEST(RuntimeConfigTest, ReadsYaml) {
  Settings s;
  ApplyConfigText(
      "# a comment\n"
      "expert-memory: 25%\n"
      "max_num_seqs: 8\n"
      "no-prefix-cache: true\n"
      "served-model-name: [a, b]\n"
      "request-timeout: 2.5\n"
      "api-key: \"k1\"\n",
      "f.yaml", s.table);
  EXPECT_EQ(s.config.expert_memory, "25%");
  EXPECT_EQ(s.config.max_num_seqs, 8);
  EXPECT_FALSE(s.config.prefix_cache);
  EXPECT_EQ(s.config.served_model_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_DOUBLE_EQ(s.config.request_timeout_s, 2.5);
  EXPECT_EQ(s.config.api_keys, std::vector<std::string>{"k1"});
  EXPECT_EQ(s.table.origin("max-num-seqs"), "f.yaml:3: max_num_seqs");
  ApplyConfigText("", "empty.yaml", s.table);
}

TEST(RuntimeConfigTest, ReadsDevices) {
  Settings s;
  ApplyConfigText(
      "devices: 2\n"
      "device-memory: 25%\n"
      "miss: host\n"
      "emulated-link-gbps: 0.5\n",
      "f.yaml", s.table);
  EXPECT_EQ(s.config.devices, 2);
  EXPECT_EQ(s.config.device_kind, "emulated");
  EXPECT_EQ(s.config.device_memory, "25%");
  EXPECT_EQ(s.config.miss, "host");
  EXPECT_DOUBLE_EQ(s.config.emulated_link_gbps, 0.5);
  EXPECT_EQ(s.Refusal("miss: never\n"),
            "f.yaml:1: miss: expected one of fetch, host, auto, not 'never'");
}

TEST(RuntimeConfigTest, YamlErrorsNameFileLineKeyAndExpectation) {
  Settings s;
  EXPECT_EQ(s.Refusal("threads: 2\nexpert_memry: 1GiB\n"),
            "f.yaml:2: unknown setting 'expert_memry'; did you mean 'expert-memory'?");
  EXPECT_EQ(s.Refusal("zzzzzz: 1\n"),
            "f.yaml:1: unknown setting 'zzzzzz'; `moesaic serve --help` lists them");
  EXPECT_EQ(s.Refusal("\nthreads: many\n"),
            "f.yaml:2: threads: expected an integer from 0 to 4096, not 'many'");
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
  EXPECT_EQ(s.config.expert_memory, "auto");
}

TEST(RuntimeConfigTest, SurvivesHostileYaml) {
  Settings s;
  EXPECT_NE(s.Refusal(std::string(100000, '[')), "accepted");
  EXPECT_NE(s.Refusal(std::string("threads: \xff\xfe\x00", 12)), "accepted");
  EXPECT_NE(s.Refusal("threads: *missing\n"), "accepted");
}

TEST(RuntimeConfigTest, FlagsBeatEnvironmentBeatsFileBeatsDefault) {
  Settings s;
  s.table.Set("threads", "1", OptionSource::kFlag, "--threads");
  EXPECT_TRUE(ApplyEnvironment({"MOESAIC_THREADS=2", "MOESAIC_MAX_NUM_SEQS=20", "HOME=/root",
                                "MOESAIC_PREFIX_CACHE=off", "MOESAIC_ISA=avx2"},
                               s.table)
                  .empty());
  ApplyConfigText("threads: 3\nmax-num-seqs: 30\nport: 31\n", "f.yaml", s.table);
  EXPECT_EQ(s.config.threads, 1);
  EXPECT_EQ(s.config.max_num_seqs, 20);
  EXPECT_EQ(s.config.port, 31);
  EXPECT_FALSE(s.config.prefix_cache);
  EXPECT_EQ(s.config.max_queue, 256);
  EXPECT_EQ(s.table.origin("max-num-seqs"), "MOESAIC_MAX_NUM_SEQS");
  EXPECT_EQ(s.table.origin("max-queue"), "default");
}

// A message quotes the beginning of a value, not a hundred thousand bytes of it.
TEST(RuntimeConfigTest, MessagesCutWhatTheyQuote) {
  const std::string huge(100'000, 'x');
  const auto is_short = [](const Error& error) {
    return std::string_view(error.what()).size() < 1500;
  };
  Settings all;
  for (const Option& option : all.table.options()) {
    Settings s;
    try {
      s.table.Set(option.name, huge, OptionSource::kFlag, "--" + option.name);
    } catch (const Error& error) {
      EXPECT_TRUE(is_short(error)) << option.name;
    }
  }
  for (const std::string& text : {huge + ": 1", "port: " + huge, huge, "threads: [" + huge + "]"}) {
    try {
      Settings s;
      ApplyConfigText(text, "f.yaml", s.table);
      ADD_FAILURE() << text.substr(0, 20);
    } catch (const Error& error) {
      EXPECT_TRUE(is_short(error)) << text.substr(0, 20);
    }
  }
}

TEST(RuntimeConfigTest, EnvironmentErrorsAndWarnings) {
  Settings s;
  EXPECT_THROW(ApplyEnvironment({"MOESAIC_THREADS=x"}, s.table), Error);
  const auto warnings = ApplyEnvironment(
      {"MOESAIC_PORT=tcp://10.0.0.1:80", "MOESAIC_THREDS=2", "MOESAIC_SERVICE_HOST=10.0.0.1"},
      s.table);
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_NE(warnings[0].find("Kubernetes"), std::string::npos);
  EXPECT_NE(warnings[1].find("MOESAIC_THREADS"), std::string::npos);
  EXPECT_EQ(s.config.port, 8000);
}

TEST(RuntimeConfigTest, EverySettingIsDocumented) {
  Settings s;
  for (const Option& option : s.table.options()) {
    EXPECT_GT(option.help.size(), 10u) << option.name;
    EXPECT_EQ(option.help.back(), '.') << option.name;
    EXPECT_FALSE(option.section.empty()) << option.name;
  }
  const std::string help = s.table.Help(100);
  EXPECT_NE(help.find("env MOESAIC_EXPERT_MEMORY"), std::string::npos);
  EXPECT_NE(help.find("--no-prefix-cache"), std::string::npos);
}

TEST(RuntimeConfigTest, ScopeHidesFlagsButNotKeys) {
  RuntimeConfig config;
  OptionTable table;
  AddRuntimeSettings(config, {true, false}, table);
  EXPECT_EQ(table.Help(100).find("--port"), std::string::npos);
  ApplyConfigText("port: 9\n", "f.yaml", table);  // a file that `serve` shares
  EXPECT_EQ(config.port, 9);
}

TEST(RuntimeConfigTest, DescriptionGivesTheSameSettings) {
  Settings s;
  s.table.Set("expert-memory", "25%", OptionSource::kFlag, "--expert-memory");
  s.table.Set("served-model-name", "a,b", OptionSource::kFlag, "--served-model-name");
  s.table.Set("prefix-cache", "false", OptionSource::kFlag, "--no-prefix-cache");
  const std::string yaml = DescribeSettings(s.table);
  Settings again;
  ApplyConfigText(yaml, "described.yaml", again.table);
  EXPECT_EQ(again.config.expert_memory, "25%");
  EXPECT_EQ(again.config.served_model_names, s.config.served_model_names);
  EXPECT_FALSE(again.config.prefix_cache);
  EXPECT_EQ(again.config.max_body, s.config.max_body);
  EXPECT_NE(yaml.find("# --expert-memory"), std::string::npos);
}

TEST(RuntimeConfigTest, DescriptionQuotesWhatYamlWouldReadOtherwise) {
  for (const char* text : {"a #b", "null", "~", "- x", "k: v", "*a", "%b", "\"", "'", "\\", "\n",
                           "", "\u00e9", "\x87 raw"}) {
    Settings s;
    s.table.Set("model", text, OptionSource::kFlag, "--model");
    s.table.Set("served-model-name", fmt::format("{},[b", text), OptionSource::kFlag, "--names");
    s.table.Set("request-timeout", "123456.789", OptionSource::kFlag, "--request-timeout");
    s.table.Set("api-key", "k", OptionSource::kFlag, "--api-key");
    Settings again;
    ApplyConfigText(DescribeSettings(s.table), "described.yaml", again.table);
    EXPECT_EQ(again.config.model, text);
    EXPECT_EQ(again.config.served_model_names, s.config.served_model_names);
    EXPECT_EQ(again.config.request_timeout_s, 123456.789);
    EXPECT_EQ(again.config.api_keys, std::vector<std::string>{"***"});
  }
}

TEST(RuntimeConfigTest, FindsPresetsAndListsThem) {
  std::string name = (fs::temp_directory_path() / "moesaic_presets_XXXXXX").string();
  const fs::path directory = mkdtemp(name.data());
  std::ofstream(directory / "tiny.yaml") << "threads: 7\n";
  Settings s;
  ApplyConfigFile("tiny", {directory}, s.table);
  EXPECT_EQ(s.config.threads, 7);
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

TEST(RuntimeConfigTest, SizesInBytes) {
  Settings s;
  EXPECT_EQ(s.config.max_body_bytes(), 16u << 20);
  EXPECT_EQ(s.config.packet_bytes(), 0u);
  s.table.Set("packet-size", "1MiB", OptionSource::kFlag, "--packet-size");
  EXPECT_EQ(s.config.packet_bytes(), 1u << 20);
}

TEST(RuntimeConfigTest, ShippedPresetsAreValid) {
  int presets = 0;
  for (const auto& entry : fs::directory_iterator(MOESAIC_CONFIGS_DIR)) {
    if (entry.path().extension() != ".yaml") continue;
    Settings s;
    ApplyConfigFile(entry.path().string(), {}, s.table);
    ++presets;
  }
  EXPECT_GE(presets, 3);
}

}  // namespace
}  // namespace moesaic
