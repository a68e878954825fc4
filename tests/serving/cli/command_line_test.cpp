#include "serving/cli/command_line.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace moesaic {
namespace {

struct Fixture {
  Settings settings;
  std::string output;
  bool verbose = false;
  CommandLine line{{"test", "MODEL", "A command.", {"moesaic test x"}}};

  explicit Fixture(SettingScope scope = {true, false}) {
    line.table().Add({"output", &output, "FILE", "Where to.", "Options", 'o'});
    line.table().Add({"verbose", &verbose, "", "More words.", "Options", 'v'});
    line.UseSettings(settings, scope);
  }
  bool Parse(std::vector<std::string> arguments, std::vector<std::string> environment = {}) {
    return line.Parse({std::move(arguments), std::move(environment), "/usr/bin/moesaic"});
  }
  std::string Refusal(std::vector<std::string> arguments,
                      std::vector<std::string> environment = {}) {
    try {
      Parse(std::move(arguments), std::move(environment));
    } catch (const Error& error) {
      EXPECT_EQ(ExitCode(error.kind()), 2);
      return error.what();
    }
    return "accepted";
  }
};

TEST(CommandLineTest, FlagsAndPositionals) {
  Fixture f;
  EXPECT_TRUE(f.Parse({"model", "--threads", "3", "-v", "-o", "out", "--max-num-seqs=7", "words",
                       "--no-prefix-cache", "-5", "-", "--", "--threads", "-x"}));
  EXPECT_EQ(f.settings.engine.machine.threads, 3);
  EXPECT_EQ(f.settings.engine.max_num_seqs, 7);
  EXPECT_FALSE(f.settings.engine.prefix_cache);
  EXPECT_TRUE(f.verbose);
  EXPECT_EQ(f.output, "out");
  EXPECT_EQ(f.line.positionals(),
            (std::vector<std::string>{"model", "words", "-5", "-", "--threads", "-x"}));
}

TEST(CommandLineTest, AValueMayLookLikeAFlag) {
  Fixture f;
  EXPECT_TRUE(f.Parse({"-o", "--strange", "--output=-x"}));
  EXPECT_EQ(f.output, "-x");
}

TEST(CommandLineTest, Refusals) {
  EXPECT_EQ(Fixture().Refusal({"--thread", "3"}), "unknown flag --thread; did you mean --threads?");
  EXPECT_EQ(Fixture().Refusal({"--expert_memoy=1"}),
            "unknown flag --expert_memoy; did you mean --expert-memory?");
  EXPECT_EQ(Fixture().Refusal({"--zzzzzzzzz"}),
            "unknown flag --zzzzzzzzz; `moesaic test --help` lists them");
  EXPECT_EQ(Fixture().Refusal({"-x"}), "unknown flag -x; `moesaic test --help` lists them");
  EXPECT_EQ(Fixture().Refusal({"--threads"}), "--threads: a value is missing");
  EXPECT_EQ(Fixture().Refusal({"--threads", "many"}),
            "--threads: expected an integer from 0 to 4096, not 'many'");
  EXPECT_EQ(Fixture().Refusal({"--verbose=perhaps"}),
            "--verbose: expected true or false, not 'perhaps'");
  // A setting of another command is not unknown.
  EXPECT_NE(Fixture().Refusal({"--port", "80"}).find("has no use for this setting"),
            std::string::npos);
  EXPECT_EQ(Fixture().Refusal({}, {"MOESAIC_THREADS=-1"}),
            "MOESAIC_THREADS: expected an integer from 0 to 4096, not '-1'");
  EXPECT_NE(Fixture().Refusal({"--config", "/nowhere.yaml"}).find("no such file"),
            std::string::npos);
}

TEST(CommandLineTest, PrecedenceOverAllFourSources) {
  std::string name = (std::filesystem::temp_directory_path() / "moesaic_config_XXXXXX").string();
  const int fd = mkstemp(name.data());
  ASSERT_GE(fd, 0);
  close(fd);
  std::ofstream(name) << "threads: 3\nmax-num-seqs: 30\nport: 3000\n";
  Fixture f;
  EXPECT_TRUE(f.Parse({"--threads", "1", "--config", name},
                      {"MOESAIC_THREADS=2", "MOESAIC_MAX_NUM_SEQS=20"}));
  EXPECT_EQ(f.settings.engine.machine.threads, 1);
  EXPECT_EQ(f.settings.engine.max_num_seqs, 20);
  EXPECT_EQ(f.settings.server.port, 3000);
  EXPECT_EQ(f.settings.engine.max_queue, 256);

  Fixture by_variable;
  EXPECT_TRUE(by_variable.Parse({}, {"MOESAIC_CONFIG=" + name}));
  EXPECT_EQ(by_variable.settings.engine.machine.threads, 3);
  std::filesystem::remove(name);
}

TEST(CommandLineTest, TakesTheModel) {
  {
    Fixture f;
    f.Parse({"dir", "prompt"});
    std::vector<std::string> rest = f.line.positionals();
    EXPECT_EQ(TakeModel(f.line, f.settings.engine, rest), "dir");
    EXPECT_EQ(rest, std::vector<std::string>{"prompt"});
  }
  {
    Fixture f;  // with --model the arguments are all prompt
    f.Parse({"prompt", "--model", "dir"});
    std::vector<std::string> rest = f.line.positionals();
    EXPECT_EQ(TakeModel(f.line, f.settings.engine, rest), "dir");
    EXPECT_EQ(rest, std::vector<std::string>{"prompt"});
  }
  {
    Fixture f;  // the environment's is a default only
    f.Parse({"dir"}, {"MOESAIC_MODEL=other"});
    std::vector<std::string> rest = f.line.positionals();
    EXPECT_EQ(TakeModel(f.line, f.settings.engine, rest), "dir");
  }
  {
    Fixture f;
    f.Parse({}, {"MOESAIC_MODEL=other"});
    std::vector<std::string> rest;
    EXPECT_EQ(TakeModel(f.line, f.settings.engine, rest), "other");
  }
  {
    Fixture f;
    f.Parse({});
    std::vector<std::string> rest;
    EXPECT_THROW(TakeModel(f.line, f.settings.engine, rest), Error);
  }
}

TEST(CommandLineTest, RefusesMoreArgumentsThanItKnows) {
  Fixture f;
  f.Parse({"a", "b"});
  EXPECT_NO_THROW(f.line.RequireAtMost(2));
  EXPECT_THROW(f.line.RequireAtMost(1), Error);
}

TEST(CommandLineTest, HelpHasUsageExamplesOptionsAndPrecedence) {
  Fixture f;
  f.Parse({});
  const std::string help = f.line.Help(100);
  for (const char* part :
       {"Usage: moesaic test MODEL [options]", "A command.", "moesaic test x", "-o, --output FILE",
        "--expert-memory SIZE", "env MOESAIC_EXPERT_MEMORY", "-h, --help", "overrules"}) {
    EXPECT_NE(help.find(part), std::string::npos) << part << "\n" << help;
  }
  EXPECT_EQ(help.find("--port"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
