#include "core/config/settings_environment.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/config/setting_section.h"
#include "core/config/settings_yaml.h"

namespace moesaic {
namespace {

struct EnvironmentValues {
  int threads = 0;
  uint16_t port = 8000;
  bool cache = true;
  int json = 0;
  OptionTable table;

  EnvironmentValues() {
    const SettingSection section(table, "Things", true);
    section.Add({.name = "threads", .target = &threads, .help = "How many.", .min = 0});
    section.Add({.name = "port", .target = &port, .help = "Where."});
    section.Add({.name = "prefix-cache", .target = &cache, .help = "Keep nothing."});
    table.Add({.name = "json", .target = &json, .help = "No setting."});
  }
};

TEST(SettingsEnvironmentTest, FlagsBeatEnvironmentBeatsFileBeatsDefault) {
  EnvironmentValues s;
  s.table.Set("threads", "1", OptionSource::kFlag, "--threads");
  EXPECT_TRUE(ApplyEnvironment({"MOESAIC_THREADS=2", "MOESAIC_PORT=20", "HOME=/root",
                                "MOESAIC_ISA=avx2", "MOESAIC_JSON=1"},
                               s.table)
                  .empty());
  ApplyConfigText("threads: 3\nport: 30\nprefix-cache: false\n", "f.yaml", s.table);
  EXPECT_EQ(s.threads, 1);
  EXPECT_EQ(s.port, 20);
  EXPECT_FALSE(s.cache);
  EXPECT_EQ(s.json, 0);  // a flag that is no setting
  EXPECT_EQ(s.table.origin("port"), "MOESAIC_PORT");
  EXPECT_EQ(s.table.origin("json"), "default");
}

TEST(SettingsEnvironmentTest, ErrorsAndWarnings) {
  EnvironmentValues s;
  EXPECT_THROW(ApplyEnvironment({"MOESAIC_THREADS=x"}, s.table), Error);
  const auto warnings = ApplyEnvironment(
      {"MOESAIC_PORT=tcp://10.0.0.1:80", "MOESAIC_THREDS=2", "MOESAIC_SERVICE_HOST=10.0.0.1"},
      s.table);
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_NE(warnings[0].find("Kubernetes"), std::string::npos);
  EXPECT_NE(warnings[1].find("MOESAIC_THREADS"), std::string::npos);
  EXPECT_EQ(s.port, 8000);
}

}  // namespace
}  // namespace moesaic
