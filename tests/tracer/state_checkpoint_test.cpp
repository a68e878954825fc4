// The state file: what is saved comes back; what is damaged or foreign is refused and kept; a
// process that is killed while saving leaves a whole file.
#include "tracer/state_checkpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/file.h"
#include "kernels/cpu/kernels.h"
#include "tests/core/base/temp_dir.h"
#include "tracer/eam_collection_section.h"
#include "tracer/residency_list.h"
#include "tracer/state_fields.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMax = 1 << 26;

// A number, and ballast that shows a torn file.
class Counter : public StateSection {
 public:
  explicit Counter(std::string name = "counter", size_t ballast = 0)
      : name_(std::move(name)), ballast_(ballast) {}
  std::string_view name() const override { return name_; }
  uint32_t version() const override { return 3; }
  std::vector<std::byte> Save() const override {
    StateFields fields;
    fields.SetInt("value", value);
    fields.SetArray<int64_t>("ballast", std::vector<int64_t>(ballast_, value));
    return fields.Pack();
  }
  void Load(uint32_t stored_version, std::span<const std::byte> bytes) override {
    if (stored_version != version()) Fail(ErrorKind::kUnsupported, "version {}", stored_version);
    const StateFields fields = StateFields::Unpack(bytes, name_);
    const int64_t stored = fields.Int("value", 0, 1'000'000'000);
    for (const int64_t v : fields.ArrayOf<int64_t>("ballast", ballast_)) {
      if (v != stored) Fail(ErrorKind::kCorrupt, "torn: {} and {}", v, stored);
    }
    value = stored;
  }

  bool any_thread() const override { return of_any_thread; }

  int64_t value = 0;
  bool of_any_thread = false;

 private:
  std::string name_;
  size_t ballast_;
};

ModelFingerprint Model() {
  ModelFingerprint model;
  model.family = "qwen3_moe";
  model.num_layers = 4;
  model.moe_layers = 3;
  model.num_experts = 8;
  model.top_k = 2;
  return model;
}

void Overwrite(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << text;
}

TEST(StateCheckpointTest, RestoresItsSections) {
  const TempDir dir;
  const fs::path file = dir.path() / "model.state";
  Counter a("a");
  Counter b("b");
  a.value = 5;
  b.value = 6;
  StateCheckpoint saving(file, Model(), {&a, &b});
  EXPECT_FALSE(saving.Load().found);
  const StateWriteResult written = saving.Save();
  EXPECT_TRUE(written.aside.empty());
  EXPECT_EQ(written.bytes, fs::file_size(file));
  EXPECT_TRUE(IsStateFile(file));

  Counter c("b");
  Counter d("new");
  d.value = 9;
  StateCheckpoint loading(file, Model(), {&c, &d});
  const StateLoadResult result = loading.Load();
  EXPECT_TRUE(result.found);
  EXPECT_EQ(result.sections_loaded, 1);
  EXPECT_TRUE(result.problems.empty());
  EXPECT_EQ(c.value, 6);
  EXPECT_EQ(d.value, 9);
  EXPECT_EQ(DescribeFingerprint(ReadStateFile(file).model),
            "qwen3_moe, 3 layers of 8 experts, top 2");
}

// tests/data/stored/README.md says who wrote it.
TEST(StateCheckpointTest, AFileOfAnEarlierBuildHasItsChecksum) {
  const StoredState state =
      ReadStateFile(fs::path(MOESAIC_TEST_DATA_DIR) / "stored" / "sample.state");
  EXPECT_EQ(DescribeFingerprint(state.model), "qwen3_moe, 8 layers of 32 experts, top 4");
  ASSERT_EQ(state.sections.size(), 1u);
  EXPECT_EQ(state.sections[0].name, "residency");
  EXPECT_GT(state.sections[0].bytes.size(), 2000u);
}

TEST(StateCheckpointTest, WhatIsNotKnownOfAModelDoesNotMatter) {
  const TempDir dir;
  const fs::path file = dir.path() / "s";
  Counter counter;
  counter.value = 1;
  ModelFingerprint from_trace = Model();
  from_trace.family.clear();
  from_trace.num_layers = 0;
  StateCheckpoint(file, from_trace, {&counter}).Save();
  ModelFingerprint more = Model();
  more.hidden_size = 64;
  EXPECT_TRUE(StateCheckpoint(file, more, {&counter}).Load().problems.empty());
}

// A state file that cannot be used: refused with a reason, renamed before the first save.
TEST(StateCheckpointTest, RefusedFilesAreKept) {
  const TempDir dir;
  const fs::path file = dir.path() / "s";
  Counter counter;
  counter.value = 4;
  StateCheckpoint(file, Model(), {&counter}).Save();
  const std::string good = ReadTextFile(file, kMax);
  std::string flipped = good;
  flipped[good.size() - 3] = static_cast<char>(flipped[good.size() - 3] ^ 1);
  std::string newer = good;
  newer[1 + 1 + 13] = 2;  // the format's version
  std::string older = good;
  older[1 + 1 + 13] = 0;
  struct Case {
    std::string content;
    const char* reason;
  };
  const std::vector<Case> cases = {{good.substr(0, good.size() / 2), "not a whole"},
                                   {flipped, "checksum"},
                                   {good + "x", "follow"},
                                   {newer, "version 2"},
                                   {older, "version 0"}};
  int rejected = 0;
  for (const Case& c : cases) {
    for (const bool load_first : {true, false}) {
      Overwrite(file, c.content);
      counter.value = 7;
      StateCheckpoint checkpoint(file, Model(), {&counter});
      if (load_first) {
        const StateLoadResult result = checkpoint.Load();
        EXPECT_TRUE(result.found);
        EXPECT_EQ(result.sections_loaded, 0);
        ASSERT_EQ(result.problems.size(), 1u) << c.reason;
        EXPECT_NE(result.problems[0].find(c.reason), std::string::npos) << result.problems[0];
        EXPECT_EQ(counter.value, 7);
        EXPECT_EQ(ReadTextFile(file, kMax), c.content);  // untouched until something is saved
      }
      const fs::path aside = checkpoint.Save().aside;
      EXPECT_EQ(aside, file.string() + ".rejected-" + std::to_string(++rejected));
      EXPECT_EQ(ReadTextFile(aside, kMax), c.content);
      EXPECT_EQ(ReadStateFile(file).sections.size(), 1u);
      EXPECT_TRUE(checkpoint.Save().aside.empty());  // its own file is replaced
    }
  }
}

// What is somebody else's stays where and as it is, whether something was loaded before or not.
TEST(StateCheckpointTest, OtherFilesAreLeftAlone) {
  const TempDir dir;
  const fs::path file = dir.path() / "config.json";
  Counter counter;
  StateCheckpoint(dir.path() / "good", Model(), {&counter}).Save();
  const std::string good = ReadTextFile(dir.path() / "good", kMax);
  for (const std::string& content :
       {std::string(R"({"model_type": "qwen3_moe"})"), std::string("{"), good.substr(0, 14),
        good.substr(1), std::string(64, '\0')}) {
    Overwrite(file, content);
    StateCheckpoint checkpoint(file, Model(), {&counter});
    for (const auto& use : std::vector<std::function<void()>>{[&] { checkpoint.Load(); },
                                                              [&] { checkpoint.Save(); }}) {
      try {
        use();
        FAIL() << "took " << content;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
        EXPECT_NE(std::string(error.what()).find(file.string()), std::string::npos);
      }
    }
    EXPECT_EQ(ReadTextFile(file, kMax), content);
  }
  // One that comes while the process learns, too.
  fs::remove(file);
  StateCheckpoint checkpoint(file, Model(), {&counter});
  EXPECT_FALSE(checkpoint.Load().found);
  checkpoint.Save();
  Overwrite(file, "precious");
  EXPECT_THROW(checkpoint.Save(), Error);
  EXPECT_EQ(ReadTextFile(file, kMax), "precious");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 2);
}

TEST(StateCheckpointTest, AnEmptyFileIsAsNone) {
  const TempDir dir;
  const fs::path file = dir.path() / "s";
  for (const bool load_first : {true, false}) {
    Overwrite(file, "");
    Counter counter;
    StateCheckpoint checkpoint(file, Model(), {&counter});
    if (load_first) {
      const StateLoadResult result = checkpoint.Load();
      EXPECT_FALSE(result.found);
      EXPECT_TRUE(result.problems.empty());
    }
    EXPECT_TRUE(checkpoint.Save().aside.empty());
    EXPECT_TRUE(IsStateFile(file));
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);
}

TEST(StateCheckpointTest, AnotherModelsFileIsRefused) {
  const TempDir dir;
  const fs::path file = dir.path() / "s";
  Counter counter;
  counter.value = 4;
  StateCheckpoint(file, Model(), {&counter}).Save();
  ModelFingerprint other = Model();
  other.num_experts = 16;
  counter.value = 0;
  StateCheckpoint checkpoint(file, other, {&counter});
  const StateLoadResult result = checkpoint.Load();
  ASSERT_EQ(result.problems.size(), 1u);
  EXPECT_NE(result.problems[0].find("experts per layer: 8 against 16"), std::string::npos)
      << result.problems[0];
  EXPECT_EQ(counter.value, 0);
  EXPECT_FALSE(checkpoint.Save().aside.empty());
}

TEST(StateCheckpointTest, OneRefusedSectionSpoilsNoOther) {
  const TempDir dir;
  const fs::path file = dir.path() / "s";
  Counter good("good");
  Counter bad("bad", 100);
  good.value = bad.value = 3;
  StateCheckpoint(file, Model(), {&bad, &good}).Save();
  Counter other("bad", 99);  // refuses the number of elements
  good.value = 0;
  StateCheckpoint checkpoint(file, Model(), {&other, &good});
  const StateLoadResult result = checkpoint.Load();
  EXPECT_EQ(result.sections_loaded, 1);
  EXPECT_EQ(good.value, 3);
  EXPECT_EQ(other.value, 0);
  ASSERT_EQ(result.problems.size(), 1u);
  EXPECT_NE(result.problems[0].find("bad"), std::string::npos);
  EXPECT_FALSE(checkpoint.Save().aside.empty());
}

// Whoever saves replaces its own sections; what others learned stays.
TEST(StateCheckpointTest, SectionsOfOthersAreKept) {
  const TempDir dir;
  const fs::path file = dir.path() / "s";
  Counter mine("mine");
  Counter others("others");
  mine.value = 1;
  others.value = 2;
  StateCheckpoint(file, Model(), {&mine, &others}).Save();
  for (const bool load_first : {true, false}) {
    StateCheckpoint checkpoint(file, Model(), {&mine});
    if (load_first) {
      EXPECT_EQ(checkpoint.Load().sections_loaded, 1);
    }
    ++mine.value;
    checkpoint.Save();
    checkpoint.Save();
    others.value = 0;
    StateCheckpoint(file, Model(), {&others}).Load();
    EXPECT_EQ(others.value, 2);
    EXPECT_EQ(ReadStateFile(file).sections.size(), 2u);
  }
}

// They are as they are when the file is written; files from before there were such sections load.
TEST(StateCheckpointTest, SectionsOfAnyThreadAreCopiedLast) {
  const TempDir dir;
  const fs::path file = dir.path() / "s";
  Counter mine("mine");
  Counter shared("shared");
  shared.of_any_thread = true;
  mine.value = 1;
  StateCheckpoint(file, Model(), {&mine}).Save();  // as an older program did
  StateCheckpoint checkpoint(file, Model(), {&mine, &shared});
  const StateLoadResult older = checkpoint.Load();
  EXPECT_EQ(older.sections_loaded, 1);
  EXPECT_TRUE(older.problems.empty());
  shared.value = 2;
  StoredState snapshot = checkpoint.Snapshot();
  ASSERT_EQ(snapshot.sections.size(), 1u);
  EXPECT_EQ(snapshot.sections[0].name, "mine");
  mine.value = 10;
  shared.value = 20;
  EXPECT_TRUE(checkpoint.Write(std::move(snapshot)).aside.empty());
  EXPECT_EQ(StateCheckpoint(file, Model(), {&mine, &shared}).Load().sections_loaded, 2);
  EXPECT_EQ(mine.value, 1);
  EXPECT_EQ(shared.value, 20);
}

// Wherever they lie in the file: a process that knows more writes them in an order of its own.
TEST(StateCheckpointTest, SectionsOfOthersAreKeptInAnyOrder) {
  const TempDir dir;
  const fs::path file = dir.path() / "s";
  Counter mine("mine");
  Counter first("first");
  Counter second("second");
  first.value = 2;
  second.value = 3;
  for (const std::vector<StateSection*>& order :
       {std::vector<StateSection*>{&first, &second, &mine},
        {&first, &mine, &second},
        {&mine, &first, &second}}) {
    for (const bool load_first : {true, false}) {
      mine.value = 1;
      StateCheckpoint(file, Model(), order).Save();
      StateCheckpoint checkpoint(file, Model(), {&mine});
      if (load_first) {
        EXPECT_EQ(checkpoint.Load().sections_loaded, 1);
      }
      mine.value = 4;
      checkpoint.Save();
      Counter loaded("mine");
      Counter others("first");
      Counter more("second");
      EXPECT_EQ(StateCheckpoint(file, Model(), {&loaded, &others, &more}).Load().sections_loaded,
                3);
      EXPECT_EQ(loaded.value, 4);
      EXPECT_EQ(others.value, 2);
      EXPECT_EQ(more.value, 3);
    }
  }
}

TEST(StateCheckpointTest, EveryTruncationIsRefused) {
  Counter counter("counter", 20);
  const TempDir dir;
  const std::vector<std::byte> good =
      PackState(StateCheckpoint(dir.path() / "s", Model(), {&counter}).Snapshot());
  EXPECT_EQ(ParseState(good, "t").sections.size(), 1u);
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_THROW(ParseState(std::span(good).first(bytes), "t"), Error) << bytes;
  }
}

TEST(StateCheckpointTest, SurvivesKillAtAnyMoment) {
  const TempDir dir;
  const fs::path file = dir.path() / "s";
  constexpr size_t kBallast = 40000;  // 320 KB, so that writing takes a while
  Counter first("counter", kBallast);
  StateCheckpoint(file, Model(), {&first}).Save();
  std::mt19937 random(1);
  int64_t last = 0;
  int interrupted = 0;  // killed between opening the temporary file and renaming it
  for (int kill_number = 0; kill_number < 120; ++kill_number) {
    int saved[2];
    ASSERT_EQ(pipe(saved), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Counter counter("counter", kBallast);
      StateCheckpoint checkpoint(file, Model(), {&counter});
      if (!checkpoint.Load().problems.empty()) _exit(1);
      for (;;) {
        ++counter.value;
        checkpoint.Save();
        if (write(saved[1], "s", 1) != 1) _exit(1);
      }
    }
    close(saved[1]);
    // Every other child has saved before, however slow the machine.
    char byte = 0;
    if (kill_number % 2 == 1) {
      ASSERT_EQ(read(saved[0], &byte, 1), 1) << "the child ended";
    }
    usleep(std::uniform_int_distribution<useconds_t>(1000, 12000)(random));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child refused the file that its predecessor left";
    close(saved[0]);
    if (fs::exists(file.string() + ".tmp")) ++interrupted;
    Counter counter("counter", kBallast);
    const StateLoadResult result = StateCheckpoint(file, Model(), {&counter}).Load();
    ASSERT_EQ(result.sections_loaded, 1) << (result.problems.empty() ? "" : result.problems[0]);
    ASSERT_GE(counter.value, last);
    last = counter.value;
  }
  RecordProperty("saves", static_cast<int>(last));
  RecordProperty("interrupted", interrupted);
  EXPECT_GT(last, 0);
  EXPECT_GT(interrupted, 0);
}

TEST(EamCollectionSectionTest, RestoresIntoTheSameALargerAndASmallerCollection) {
  const CpuKernels& kernels = KernelsFor(Isa::kScalar);
  EamCollection collection(3, 8, 10, kernels);
  for (int i = 0; i < 7; ++i) {
    ExpertActivationMatrix eam(3, 8);
    for (int layer = 0; layer < 3; ++layer) {
      eam.Add(layer, i, static_cast<uint32_t>(300 * i + 1));
      eam.Add(layer, (i + layer) % 8, 5);
    }
    collection.Insert(eam);
  }
  const std::vector<std::byte> saved = EamCollectionSection(collection).Save();

  EamCollection same(3, 8, 10, kernels);
  same.Insert([] {
    ExpertActivationMatrix eam(3, 8);
    eam.Add(0, 0);
    return eam;
  }());
  EamCollectionSection(same).Load(1, saved);
  ASSERT_EQ(same.size(), 7);
  EXPECT_EQ(EamCollectionSection(same).Save(), saved);

  EamCollection deeper(5, 8, 20, kernels);
  EamCollectionSection(deeper).Load(1, saved);
  ASSERT_EQ(deeper.size(), 7);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(deeper.scale(i), collection.scale(i));
    EXPECT_TRUE(
        std::equal(deeper.Row(i, 2).begin(), deeper.Row(i, 2).end(), collection.Row(i, 2).begin()));
    EXPECT_EQ(deeper.Entry(i).row_sum(4), 0u);
  }

  EamCollection smaller(3, 8, 4, kernels);
  EamCollectionSection(smaller).Load(1, saved);
  EXPECT_EQ(smaller.size(), 4);

  EamCollection other(3, 9, 4, kernels);
  EXPECT_THROW(EamCollectionSection(other).Load(1, saved), Error);
  EamCollection shallow(2, 8, 4, kernels);
  EXPECT_THROW(EamCollectionSection(shallow).Load(1, saved), Error);
  EXPECT_THROW(EamCollectionSection(same).Load(2, saved), Error);
  EXPECT_EQ(same.size(), 7);
}

TEST(EamCollectionSectionTest, MergesBesideWhatThereIs) {
  const auto eam = [](int expert) {
    ExpertActivationMatrix matrix(2, 8);
    matrix.Add(0, expert, 5);
    matrix.Add(1, expert, 5);
    return matrix;
  };
  EamCollection one(2, 8, 3, SelectKernels());
  EamCollection two(2, 8, 3, SelectKernels());
  one.Insert(eam(1));
  one.Insert(eam(2));
  two.Insert(eam(3));
  two.Insert(eam(2));
  EamCollectionSection section(one);
  section.Merge(1, EamCollectionSection(two).Save());
  ASSERT_EQ(one.size(), 3);
  for (const int expert : {1, 2, 3}) {  // the 2 that came took the place of the one that was there
    const EamMatch match = one.Nearest(eam(expert));
    EXPECT_FLOAT_EQ(match.similarity, 1) << expert;
  }
  const std::vector<std::byte> before = section.Save();
  EamCollection wider(2, 9, 3, SelectKernels());
  EXPECT_THROW(section.Merge(1, EamCollectionSection(wider).Save()), Error);
  EXPECT_THROW(section.Merge(2, EamCollectionSection(two).Save()), Error);
  EXPECT_EQ(section.Save(), before);
}

TEST(ResidencyListSectionTest, KeepsOrderAndRefusesNonsense) {
  ResidencyList list;
  list.experts = {{{0, Stack::kDecoder, 2, 7}, 3.5f}, {{0, Stack::kDecoder, 0, 1}, 1.0f}};
  ResidencyListSection section(list, 3, 8);
  const std::vector<std::byte> saved = section.Save();
  ResidencyList loaded;
  ResidencyListSection(loaded, 3, 8).Load(1, saved);
  ASSERT_EQ(loaded.experts.size(), 2u);
  EXPECT_EQ(loaded.experts[0].id, list.experts[0].id);
  EXPECT_EQ(loaded.experts[0].worth, 3.5f);
  EXPECT_EQ(loaded.experts[1].id, list.experts[1].id);
  EXPECT_THROW(ResidencyListSection(loaded, 2, 8).Load(1, saved), Error);
  EXPECT_THROW(ResidencyListSection(loaded, 3, 7).Load(1, saved), Error);
  EXPECT_THROW(section.Load(0, saved), Error);
  std::swap(list.experts[0], list.experts[1]);  // ascending
  EXPECT_THROW(ResidencyListSection(loaded, 3, 8).Load(1, section.Save()), Error);
  EXPECT_EQ(loaded.experts.size(), 2u);
}

}  // namespace
}  // namespace moesaic
