// The settings of all rooms together: what users of earlier versions wrote and saw still holds.
// tests/data/settings is the output of the version before settings were registered by their rooms:
// settings may be added to it, none of it may change without a word in the change log.
#include "serving/cli/settings.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/config/settings_yaml.h"
#include "serving/cli/command_line.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

struct Registered {
  Settings settings;
  OptionTable table;
  explicit Registered(SettingScope scope = {true, true}) { AddSettings(settings, scope, table); }
};

std::string ReadData(const std::string& name) {
  std::ifstream file(fs::path(MOESAIC_TEST_DATA_DIR) / "settings" / name);
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_FALSE(text.str().empty()) << name;
  return text.str();
}

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Every line of `expected` is one of `text`.
void ExpectLines(const std::string& text, const std::string& expected) {
  const std::string framed = "\n" + text;
  for (const std::string& line : LinesOf(expected)) {
    EXPECT_NE(framed.find("\n" + line + "\n"), std::string::npos) << line;
  }
}

TEST(SettingsTest, DefaultsAreWhatTheyWere) {
  ExpectLines(DescribeSettings(Registered().table), ReadData("defaults.yaml"));
}

TEST(SettingsTest, AFileWithEverySettingMeansWhatItDid) {
  Registered s;
  ApplyConfigText(ReadData("written.yaml"), "written.yaml", s.table);
  ExpectLines(DescribeSettings(s.table), ReadData("printed.yaml"));

  const EngineOptions& engine = s.settings.engine;
  EXPECT_EQ(engine.model, "models/sample");
  EXPECT_EQ(engine.max_model_len, 100);
  EXPECT_EQ(engine.dtype, WeightType::kInt8);
  EXPECT_EQ(engine.kv_cache_dtype, WeightType::kF32);
  EXPECT_EQ(engine.load_format, LoadFormat::kDummy);
  EXPECT_EQ(engine.seed, 8999999999999999u);
  EXPECT_EQ(engine.expert_memory.BytesOf(0), 500'000'000u);
  EXPECT_EQ(engine.kv_memory.BytesOf(1000), 100u);
  EXPECT_EQ(engine.machine.memory.BytesOf(0), uint64_t{8} << 30);
  EXPECT_EQ(engine.kv_store, "e");
  EXPECT_EQ(engine.share_experts, "pool");
  EXPECT_EQ(engine.kv_store_bytes, uint64_t{5} << 30);
  EXPECT_EQ(engine.expert_store, "/tmp/x y");
  EXPECT_EQ(engine.predictor, "transition");
  EXPECT_EQ(engine.gate_look_ahead, 2);
  EXPECT_EQ(engine.eviction_policy, "lfu");
  EXPECT_FALSE(engine.preload);
  EXPECT_EQ(engine.io_backend, ReadBackend::kMapped);
  EXPECT_EQ(engine.io_depth, 7);
  EXPECT_EQ(engine.io_threads, 3);
  EXPECT_EQ(engine.packet_bytes, 65536u);
  EXPECT_EQ(engine.device_packet_bytes, 65536u);
  EXPECT_EQ(engine.link_bytes_per_s, 1'500'000'000u);
  EXPECT_EQ(engine.route_from, "a");
  EXPECT_EQ(engine.record_trace, "b");
  EXPECT_EQ(engine.state_file, "c");
  EXPECT_DOUBLE_EQ(engine.state_interval_s, 150);
  EXPECT_EQ(engine.machine.threads, 4);
  EXPECT_TRUE(engine.machine.pin_threads);
  EXPECT_EQ(engine.machine.numa, NumaPolicy::kSlice);
  EXPECT_FALSE(engine.exact_numerics);
  EXPECT_EQ(engine.defer_experts, 3);
  EXPECT_EQ(engine.max_num_seqs, 8);
  EXPECT_EQ(engine.max_num_batched_tokens, 64);
  EXPECT_EQ(engine.schedule, ScheduleKind::kOverlapped);
  EXPECT_EQ(engine.micro_batches, 3);
  EXPECT_FALSE(engine.prefix_cache);
  EXPECT_EQ(engine.max_queue, 4);

  const DeviceOptions& devices = engine.devices;
  EXPECT_EQ(devices.count, 2);
  EXPECT_EQ(devices.kind, DeviceKind::kCuda);
  EXPECT_EQ(devices.memory.BytesOf(1000), 250u);
  EXPECT_EQ(devices.gpu_memory.BytesOf(0), uint64_t{16} << 30);
  EXPECT_EQ(devices.dense, DenseMode::kOff);
  EXPECT_TRUE(devices.nccl);
  EXPECT_TRUE(devices.cublas);
  EXPECT_EQ(devices.miss, MissMode::kHost);
  EXPECT_DOUBLE_EQ(devices.emulated_link.bytes_per_s, 5e8);
  EXPECT_DOUBLE_EQ(devices.emulated_link.latency_us, 2.25);
  EXPECT_EQ(devices.emulated_loss_at_copy, 9);

  const ServerOptions& server = s.settings.server;
  EXPECT_EQ(server.host, "0.0.0.0");
  EXPECT_EQ(server.port, 65535);
  EXPECT_EQ(server.api_keys, (std::vector<std::string>{"k1", "k 2"}));
  EXPECT_EQ(server.api_key_file, "keys");
  EXPECT_EQ(server.served_model_names, (std::vector<std::string>{"a", "b c"}));
  EXPECT_EQ(server.request_timeout, std::chrono::seconds(3));
  EXPECT_EQ(server.shutdown_timeout, std::chrono::milliseconds(250));
  EXPECT_EQ(server.max_body_bytes, 1'000'000u);
  EXPECT_EQ(server.allowed_origins, std::vector<std::string>{"*"});
  EXPECT_EQ(server.allowed_hosts, (std::vector<std::string>{"h", "i"}));
  EXPECT_TRUE(server.metrics_vllm_names);

  EXPECT_EQ(s.settings.log.level, LogLevel::kError);
  EXPECT_EQ(s.settings.log.format, LogFormat::kJson);
}

// The paragraph of each flag, and the headings, in their order.
TEST(SettingsTest, HelpSaysWhatItDid) {
  Settings settings;
  CommandLine line({"serve", "MODEL", "", {}});
  line.UseSettings(settings, {true, true});
  line.Parse({{}, {}, "/usr/bin/moesaic"});
  const std::string help = line.Help(100);
  size_t at = 0;
  std::string paragraph;
  const auto expect = [&] {
    const size_t found = help.find(paragraph, at);
    EXPECT_NE(found, std::string::npos) << paragraph;
    if (found != std::string::npos) at = found + paragraph.size();
    paragraph.clear();
  };
  for (const std::string& text : LinesOf(ReadData("help.txt"))) {
    const bool begins = !text.starts_with("      ");
    if (begins && !paragraph.empty()) expect();
    paragraph += text + "\n";
  }
  expect();
}

// "NAME=VALUE", and below it the message that refuses it.
TEST(SettingsTest, RefusalsSayWhatTheyDid) {
  const std::vector<std::string> lines = LinesOf(ReadData("refusals.txt"));
  ASSERT_GT(lines.size(), 100u);
  for (size_t i = 0; i + 1 < lines.size(); i += 2) {
    const size_t equals = lines[i].find('=');
    const std::string name = lines[i].substr(0, equals);
    std::string message = "accepted";
    try {
      Registered().table.Set(name, lines[i].substr(equals + 1), OptionSource::kFlag, "--" + name);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      message = error.what();
    }
    EXPECT_EQ("  " + message, lines[i + 1]);
  }
}

TEST(SettingsTest, MessagesCutWhatTheyQuote) {
  const std::string huge(100'000, 'x');
  const auto is_short = [](const Error& error) {
    return std::string_view(error.what()).size() < 1500;
  };
  Registered all;
  for (const Option& option : all.table.options()) {
    Registered s;
    try {
      s.table.Set(option.name, huge, OptionSource::kFlag, "--" + option.name);
    } catch (const Error& error) {
      EXPECT_TRUE(is_short(error)) << option.name;
    }
  }
  for (const std::string& text : {huge + ": 1", "port: " + huge, huge, "threads: [" + huge + "]"}) {
    try {
      Registered s;
      ApplyConfigText(text, "f.yaml", s.table);
      ADD_FAILURE() << text.substr(0, 20);
    } catch (const Error& error) {
      EXPECT_TRUE(is_short(error)) << text.substr(0, 20);
    }
  }
}

TEST(SettingsTest, EverySettingIsDocumented) {
  Registered s;
  for (const Option& option : s.table.options()) {
    EXPECT_GT(option.help.size(), 10u) << option.name;
    EXPECT_EQ(option.help.back(), '.') << option.name;
    EXPECT_FALSE(option.section.empty()) << option.name;
  }
  const std::string help = s.table.Help(100);
  EXPECT_NE(help.find("env MOESAIC_EXPERT_MEMORY"), std::string::npos);
  EXPECT_NE(help.find("--no-prefix-cache"), std::string::npos);
}

TEST(SettingsTest, ScopeHidesFlagsButNotKeys) {
  Registered s({.engine = true});
  EXPECT_EQ(s.table.Help(100).find("--port"), std::string::npos);
  ApplyConfigText("port: 9\n", "f.yaml", s.table);  // a file that `serve` shares
  EXPECT_EQ(s.settings.server.port, 9);
}

// What start-up may choose itself, it chooses where nothing was asked.
TEST(SettingsTest, PacketsAreWholePages) {
  Registered s;
  s.table.Set("packet-size", "5000", OptionSource::kFlag, "--packet-size");
  EXPECT_EQ(s.settings.engine.packet_bytes, 8192u);
  Registered open;
  open.table.Set("packet-size", "auto", OptionSource::kFlag, "--packet-size");
  EXPECT_EQ(open.settings.engine.packet_bytes, 0u);
  EXPECT_EQ(open.settings.engine.device_packet_bytes, 0u);
}

TEST(SettingsTest, ShippedPresetsAreValid) {
  int presets = 0;
  for (const auto& entry : fs::directory_iterator(MOESAIC_CONFIGS_DIR)) {
    if (entry.path().extension() != ".yaml") continue;
    Registered s;
    ApplyConfigFile(entry.path().string(), {}, s.table);
    ++presets;
  }
  EXPECT_GE(presets, 3);
}

}  // namespace
}  // namespace moesaic
