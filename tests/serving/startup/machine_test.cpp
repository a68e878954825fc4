#include "serving/startup/machine.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace moesaic {
namespace {

TEST(MachineTest, TheUsersCacheHasWhatWasMeasured) {
  const std::vector<std::string> both = {"HOME=/home/a", "XDG_CACHE_HOME=/cache", "PATH=/bin"};
  EXPECT_EQ(ProfilePath(both), "/cache/moesaic/profile.json");
  const std::vector<std::string> home = {"HOMES=/x", "HOME=/home/a"};
  EXPECT_EQ(ProfilePath(home), "/home/a/.cache/moesaic/profile.json");
}

TEST(MachineTest, IsReadWithoutAProfile) {
  const std::vector<std::string> environment = {"XDG_CACHE_HOME=/nonexistent"};
  const Machine machine = ReadMachine(environment);
  EXPECT_FALSE(machine.profile);
  EXPECT_NE(machine.why_no_profile.find("/nonexistent"), std::string::npos);
  EXPECT_EQ(machine.module_costs, "/nonexistent/moesaic/module-costs");
  EXPECT_FALSE(machine.isa_forced);
  EXPECT_FALSE(machine.topology.cpus.empty());
}

TEST(MachineTest, KnowsThatTheInstructionSetIsForced) {
  EXPECT_TRUE(ReadMachine(std::vector<std::string>{"MOESAIC_ISA=avx2"}).isa_forced);
  EXPECT_FALSE(ReadMachine(std::vector<std::string>{"MOESAIC_ISA="}).isa_forced);
}

}  // namespace
}  // namespace moesaic
