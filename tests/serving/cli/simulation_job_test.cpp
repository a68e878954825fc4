#include "serving/cli/simulation_job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

using Flags = std::vector<std::pair<std::string, std::string>>;

std::string TraceFile() {
  return (std::filesystem::path(MOESAIC_TEST_DATA_DIR) / "traces" / "gpt_oss_20b_part.jsonl.gz")
      .string();
}

nlohmann::ordered_json Simulated(const Flags& flags) {
  SimulationJob job;
  OptionTable table;
  job.AddOptions(table);
  for (const auto& [name, text] : flags) {
    table.Set(name, text, OptionSource::kFlag, "--" + name);
  }
  return job.Run(table);
}

std::string Refused(const Flags& flags) {
  try {
    Simulated(flags);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void WriteFile(const std::filesystem::path& path, const char* text) { std::ofstream(path) << text; }

class SeveralTracesTest : public testing::Test {
 protected:
  SeveralTracesTest() {
    WriteFile(file_, "seconds,prompt_tokens,answer_tokens\n0,8,4\n1,900,4\n2,8,4\n4,8,900\n");
  }
  // `more` takes the place of what it names.
  Flags With(const Flags& more) const {
    Flags flags;
    for (const auto& flag : more) flags.push_back(flag);
    const auto given = [&](const std::string& name) {
      return std::any_of(more.begin(), more.end(), [&](const auto& f) { return f.first == name; });
    };
    const Flags all = {{"trace", TraceFile()},       {"trace", TraceFile()},
                       {"arrivals", file_.string()}, {"memory", "50%"},
                       {"expert-size", "1MiB,2MiB"}, {"layer-compute-us", "100"},
                       {"max-prompt", "16"},         {"max-answer", "4"}};
    for (const auto& flag : all) {
      if (!given(flag.first)) flags.push_back(flag);
    }
    return flags;
  }

  const TempDir directory_;
  const std::filesystem::path file_ = directory_.path() / "arrivals.csv";
};

TEST_F(SeveralTracesTest, AreServedInEachWay) {
  const auto json = Simulated(With({{"warm-up", "0.5"}, {"shares", "0,1"}}));
  EXPECT_EQ(json["arrivals"], 4);
  EXPECT_EQ(json["whole_bytes"], uint64_t{24 * 32 * 3} << 20);
  EXPECT_EQ(json["memory_bytes"], uint64_t{24 * 32 * 3} << 19);
  ASSERT_EQ(json["sharing"].size(), 3u);
  for (const char* name : {"pool", "split", "swap"}) {
    const auto& of = json["sharing"][name];
    EXPECT_EQ(of["requests"], 3) << name;
    EXPECT_EQ(of["models"][0]["requests"], 0) << name;
    EXPECT_LE(of["models"][1]["steps"], 16) << name;  // fewer where some run together
    EXPECT_GT(of["mean_s"], 0) << name;
    EXPECT_LE(of["p50_s"], of["p99_s"]) << name;
  }
  EXPECT_EQ(json["sharing"]["pool"]["models"][1]["steps"], 16);
  EXPECT_EQ(json["sharing"]["swap"]["loads"], 1);
}

TEST_F(SeveralTracesTest, BeginAsServersDoOrCold) {
  const Flags roomy = {{"memory", "100%"}, {"shares", "0,1"}};
  const auto filled = Simulated(With(roomy))["sharing"]["pool"];
  EXPECT_EQ(filled["read_bytes"], 0);
  EXPECT_EQ(filled["hit_rate"], 1);
  Flags cold = roomy;
  cold.emplace_back("preload", "false");
  EXPECT_GT(Simulated(With(cold))["sharing"]["pool"]["read_bytes"], 0);
  // A second of loading, for the one model that is asked.
  Flags slow = roomy;
  slow.emplace_back("load-ms", "0,1000");
  const double more = Simulated(With(slow))["sharing"]["swap"]["p99_s"].get<double>() -
                      Simulated(With(roomy))["sharing"]["swap"]["p99_s"].get<double>();
  EXPECT_NEAR(more, 1, 0.01);
}

TEST_F(SeveralTracesTest, ArrivalsAreStretchedAndCut) {
  // The second one to the last: three, over three seconds, at one a second: over two.
  const auto json = Simulated(With({{"rate", "1"}, {"skip", "1"}, {"warm-up", "1.9"}}));
  EXPECT_EQ(json["arrivals"], 3);
  EXPECT_EQ(json["sharing"]["pool"]["requests"], 1);
  EXPECT_EQ(Simulated(With({{"requests", "2"}}))["arrivals"], 2);
}

TEST_F(SeveralTracesTest, RefusesWhatMakesNoSense) {
  EXPECT_NE(Refused({{"trace", TraceFile()}, {"memory", "50%"}}).find("--memory: takes several"),
            std::string::npos);
  EXPECT_NE(Refused({{"trace", TraceFile()}, {"layer-compute-us", "1,2"}}).find("more than one"),
            std::string::npos);
  EXPECT_NE(Refused(With({{"slots", "25%"}})).find("--slots: is not simulated"), std::string::npos);
  EXPECT_NE(Refused(With({{"predictor", "oracle"}})).find("oracle"), std::string::npos);
  EXPECT_NE(Refused(With({{"expert-size", "1MiB,2MiB,3MiB"}})).find("3 values for 2 traces"),
            std::string::npos);
  EXPECT_NE(Refused(With({{"load-ms", "1,2,3"}})).find("3 values for 2 traces"), std::string::npos);
  EXPECT_NE(Refused(With({{"layer-compute-us", "1,x"}})).find("'x' is no number"),
            std::string::npos);
  EXPECT_NE(Refused(With({{"shares", "1"}})).find("--shares"), std::string::npos);
  EXPECT_NE(Refused(With({{"skip", "4"}})).find("has 4 arrivals"), std::string::npos);
  EXPECT_NE(Refused(With({{"rate", "0.0000001"}})).find("--rate"), std::string::npos);
  EXPECT_NE(Refused(With({{"memory", "1MiB"}})).find("are too little"), std::string::npos);
  WriteFile(file_, "seconds,prompt_tokens,answer_tokens,model\n0,8,4,2\n");
  EXPECT_NE(Refused(With({})).find("names model 2"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
