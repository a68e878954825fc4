#include "serving/multi/models_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/core/base/caught.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

const std::string kModels = MOESAIC_TEST_DATA_DIR "/models/";
const std::string kSample = MOESAIC_SAMPLE_MODEL_DIR;

std::vector<ModelEntry> Parse(const std::string& yaml, const EngineOptions& options = {}) {
  return ParseModels(yaml, "m.yaml", options, {});
}
Error Refused(const std::string& yaml) {
  return Caught([&] {
    std::vector<ModelEntry> entries = Parse(yaml);
    PrepareEntries(entries);
  });
}

TEST(ModelsFileTest, SaysAllThatThereIsToSayOfAModel) {
  EngineOptions all;
  all.max_num_seqs = 7;
  all.kv_memory = "16MiB";
  const std::vector<ModelEntry> entries = Parse(R"(
models:
  - id: big
    path: org/Big
    aliases: [gpt-4o, best]
    pin: true
    min-experts: 4GiB
    priority: 2
    kv-memory: 1GiB
    reasoning-parser: none
  - path: org/small
    load: demand
    idle-unload: 1.5
    dtype: int8
)",
                                                all);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].names(), (std::vector<std::string>{"big", "gpt-4o", "best"}));
  EXPECT_EQ(entries[0].place, "m.yaml:3");
  EXPECT_EQ(entries[0].engine.model, "org/Big");
  EXPECT_TRUE(entries[0].pin);
  EXPECT_EQ(entries[0].min_experts, MemorySize("4GiB"));
  EXPECT_EQ(entries[0].priority, 2);
  EXPECT_EQ(entries[0].load, LoadTime::kStart);
  EXPECT_EQ(entries[0].engine.kv_memory, MemorySize("1GiB"));
  EXPECT_EQ(entries[0].engine.max_num_seqs, 7);
  EXPECT_EQ(entries[0].chat.reasoning_parser, "none");
  EXPECT_EQ(entries[1].names(), (std::vector<std::string>{"org/small"}));
  EXPECT_EQ(entries[1].load, LoadTime::kDemand);
  EXPECT_EQ(entries[1].idle_unload.count(), 1500);
  EXPECT_EQ(entries[1].engine.kv_memory, MemorySize("16MiB"));
  EXPECT_EQ(entries[1].engine.dtype, WeightType::kInt8);
  EXPECT_EQ(entries[1].min_experts, MemorySize("5%"));
}

TEST(ModelsFileTest, WhatIsWrongIsToldWithItsPlace) {
  struct Case {
    std::string yaml;
    std::vector<std::string> parts;
  };
  const std::string sample = "{id: a, path: " + kSample + "}";
  const Case cases[] = {
      {"models: [", {"m.yaml:", "not YAML"}},
      {"", {"m.yaml", "`models:`"}},
      {"models: []", {"`models:`"}},
      {"model: x", {"`models:`"}},
      {"models:\n  - just-a-name\n", {"m.yaml:2", "mapping"}},
      {"models:\n  - {path: x, alias: y}\n", {"m.yaml:2", "'alias'", "'aliases'"}},
      {"models:\n  - {path: x, memory: 1GiB}\n", {"m.yaml:2: memory", "--memory"}},
      {"models:\n  - {path: x, load: later}\n", {"m.yaml:2: load", "start", "demand"}},
      {"models:\n  - {path: x, idle-unload: -1}\n", {"m.yaml:2: idle-unload"}},
      {"models:\n  - {id: x}\n", {"m.yaml:2", "`path`"}},
      {"models:\n  - {path: x, model: y}\n", {"path and model"}},
      {"models:\n  - " + sample + "\n  - {id: a, path: y}\n", {"m.yaml:3", "'a'", "m.yaml:2"}},
      {"models:\n  - {id: a, aliases: [b, b], path: x}\n", {"'b'", "twice"}},
      {"models:\n  - {id: a, path: " + kModels + "gone}\n", {"m.yaml:2", "gone"}},
      {"models:\n  - {id: a, pin: true, idle-unload: 5, path: " + kSample + "}\n",
       {"m.yaml:2", "pin", "idle-unload"}},
      {"models:\n  - " + sample + "\n  - {id: b, path: " + kSample + "/.}\n",
       {"m.yaml:3", "there already", "aliases"}},
  };
  for (const Case& one : cases) {
    const Error error = Refused(one.yaml);
    EXPECT_TRUE(error.kind() == ErrorKind::kInvalidArgument || error.kind() == ErrorKind::kNotFound)
        << one.yaml << "\n" << error.what();
    for (const std::string& part : one.parts) {
      EXPECT_TRUE(Contains(error, part)) << one.yaml << "\n" << part << "\n" << error.what();
    }
  }
}

TEST(ModelsFileTest, AFileThatIsNotThere) {
  const Error error = Caught([] { ReadModelsFile("/nonexistent/models.yaml", {}, {}); });
  EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
  EXPECT_TRUE(Contains(error, "--models /nonexistent/models.yaml")) << error.what();
}

TEST(ModelsFileTest, TheSameWeightsInAnotherTypeAreAnotherModel) {
  std::vector<ModelEntry> entries = Parse("models:\n  - {id: a, path: " + kSample +
                                          "}\n  - {id: b, dtype: int8, path: " + kSample + "}\n");
  PrepareEntries(entries);
  EXPECT_EQ(entries[0].engine.model_dir, entries[1].engine.model_dir);
}

TEST(ModelEntryTest, FilesOfOneModelAreNotThoseOfSeveral) {
  EngineOptions options;
  options.expert_store = "/store";
  std::vector<ModelEntry> entries =
      EntriesOf({kSample, kModels + "olmoe_bf16_clip"}, options, {});
  const Error error = Caught([&] { PrepareEntries(entries); });
  EXPECT_TRUE(Contains(error, "expert-store /store")) << error.what();

  EngineOptions devices;
  devices.devices.count = 1;
  entries = EntriesOf({kSample, kModels + "olmoe_bf16_clip"}, devices, {});
  EXPECT_TRUE(Contains(Caught([&] { PrepareEntries(entries); }), "devices"));
}

TEST(ModelEntryTest, EachModelHasItsStateFile) {
  const fs::path directory =
      fs::path(::testing::TempDir()) / ("multi_state_" + std::to_string(::getpid()));
  EngineOptions options;
  options.state_file = directory / "learned";
  std::vector<ModelEntry> entries =
      EntriesOf({kSample, kModels + "olmoe_bf16_clip"}, options, {});
  PrepareEntries(entries);
  EXPECT_TRUE(fs::is_directory(directory / "learned"));
  EXPECT_EQ(entries[0].engine.state_file,
            directory / "learned" / (FileNameOf(kSample) + ".state"));
  EXPECT_NE(entries[0].engine.state_file, entries[1].engine.state_file);

  // A file is there already.
  std::ofstream(directory / "file") << "x";
  options.state_file = directory / "file";
  entries = EntriesOf({kSample, kModels + "olmoe_bf16_clip"}, options, {});
  EXPECT_TRUE(Contains(Caught([&] { PrepareEntries(entries); }), "--state-file"));
  fs::remove_all(directory);
}

TEST(ModelEntryTest, NamesAsFiles) {
  EXPECT_EQ(FileNameOf("Qwen/Qwen3-30B_A3B.v1"), "Qwen%2FQwen3-30B_A3B.v1");
  EXPECT_EQ(FileNameOf("../x"), "%2E.%2Fx");
  EXPECT_EQ(FileNameOf("\xc3\xa4 b"), "%C3%A4%20b");
}

}  // namespace
}  // namespace moesaic
