// What becomes of requests whose experts cannot be read, and of the engine's readiness.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/metrics.h"
#include "core/base/thread_pool.h"
#include "core/io/expert_store.h"
#include "kernels/cpu/kernels.h"
#include "serving/engine/engine.h"
#include "serving/model/expert_sources.h"
#include "serving/online/create_engine.h"
#include "serving/online/part_options.h"
#include "serving/online/read_health.h"
#include "tests/core/base/caught.h"
#include "tests/core/base/temp_dir.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

// The experts of these options' model and type.
void WriteStore(const EngineOptions& options, const std::filesystem::path& store) {
  const ModelFiles files = OpenModelFiles(options);
  ThreadPool pool(2, {});
  const WeightType type = ChooseWeightType(options);
  WriteExpertStore(files.config, type, *files.tensors, SelectKernels(type), pool, store,
                   [](int64_t, int64_t) {});
}

// The bytes of `from` into `to`, whose inode stays.
void CopyInPlace(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::ifstream in(from, std::ios::binary);
  std::fstream out(to, std::ios::binary | std::ios::in | std::ios::out);
  out << in.rdbuf();
}

// The answer to a request after the file was mended. Reads that failed steps had begun may have
// seen the damage and end after that: each of them can fail one request, of that damage, and there
// are no more of them than experts.
std::shared_ptr<Collector> UntilRead(Engine& engine, const EngineRequest& request,
                                     const std::string& damage) {
  const int64_t experts = engine.config().num_sparse_layers() * engine.config().num_experts();
  std::shared_ptr<Collector> done = SubmitOne(engine, request);
  for (int64_t failures = 0; !done->Wait().error.empty() && failures < experts; ++failures) {
    EXPECT_NE(done->error.find(damage), std::string::npos) << done->error;
    done = SubmitOne(engine, request);
  }
  EXPECT_EQ(done->Wait().error, "");
  return done;
}

TEST(EngineTest, NotReadyAfterThreeUnreadableExpertsUntilOneIsRead) {
  const TempDir dir;
  const auto model = dir.path() / "model";
  std::filesystem::copy(MOESAIC_SAMPLE_MODEL_DIR, model, std::filesystem::copy_options::recursive);
  EngineOptions options = SmallOptions();
  options.model_dir = model;
  options.preload = false;
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options, metrics);
  const auto prompt = ReferencePrompts()[5].prompt;
  const auto file = model / "model.safetensors";
  const auto bytes = std::filesystem::file_size(file);
  const auto original = std::filesystem::path(MOESAIC_SAMPLE_MODEL_DIR) / "model.safetensors";
  const auto ready = [&] { return engine->Status().not_ready.empty(); };
  const auto damage = [&] { std::filesystem::resize_file(file, bytes / 8); };
  const auto mend = [&] {
    std::filesystem::resize_file(file, bytes);
    CopyInPlace(original, file);
  };
  // What comes next has to read again: other prompts evict most of this one's experts.
  const auto evict = [&] {
    for (const auto& other : ReferencePrompts()) {
      EXPECT_EQ(SubmitOne(*engine, Greedy(other.prompt, 8))->Wait().error, "");
    }
  };
  // Failures before a request that could read count no more.
  damage();
  for (int failures = 1; failures <= 2; ++failures) {
    EXPECT_NE(SubmitOne(*engine, Greedy(prompt, 40))->Wait().error, "");
  }
  mend();
  UntilRead(*engine, Greedy(prompt, 40), "model.safetensors");
  evict();
  for (const bool by_request : {true, false}) {
    damage();
    for (int failures = 1; failures <= 4; ++failures) {
      EXPECT_NE(SubmitOne(*engine, Greedy(prompt, 40))->Wait().error, "");
      EXPECT_EQ(ready(), failures < 3) << failures;
    }
    EXPECT_NE(engine->Status().not_ready.find("model.safetensors"), std::string::npos);
    EXPECT_EQ(engine->Status().not_ready_code, "read_failed");
    mend();
    if (by_request) {
      UntilRead(*engine, Greedy(prompt, 40), "model.safetensors");
    }
    // Else nobody asks for more than the status, and the engine finds out by itself.
    while (!ready()) std::this_thread::yield();
    EXPECT_EQ(SubmitOne(*engine, Greedy(prompt, 4))->Wait().error, "");
    EXPECT_TRUE(ready());
    evict();
  }
}

// Of two stores with the same experts one may be damaged, cut short or gone: answers stay the same.
TEST(EngineTest, WhatOneOfTwoStoresCannotGiveComesFromTheOther) {
  const TempDir dir;
  const auto first = dir.path() / "first";
  const auto second = dir.path() / "second";
  EngineOptions options = SmallOptions();
  options.dtype = WeightType::kF32;  // as the reference
  WriteStore(options, first);
  std::filesystem::copy(first, second);
  options.expert_store = first.string() + "," + second.string();
  options.preload = false;
  const ReferencePrompt reference = ReferencePrompts()[0];
  const auto ask = [&](Engine& engine) {
    const auto done = SubmitOne(engine, Greedy(reference.prompt, 12));
    EXPECT_EQ(done->Wait().error, "");
    EXPECT_EQ(done->Ids(),
              std::vector<int32_t>(reference.greedy.begin(), reference.greedy.begin() + 12));
  };
  const auto data = ExpertStoreDataFile(second);
  const auto bytes = std::filesystem::file_size(data);
  {
    // The second one's first half is not what was written.
    std::fstream file(data, std::ios::binary | std::ios::in | std::ios::out);
    file << std::string(static_cast<size_t>(bytes / 2), '\x5a');
  }
  MetricsRegistry metrics;
  {
    const auto engine = CreateEngine(options, metrics);
    ask(*engine);
    const std::vector<ReaderLink> links = engine->Status().links;
    ASSERT_EQ(links.size(), 2u);
    EXPECT_EQ(links[0].name, first.string());
    EXPECT_GT(links[0].bytes, 0u);
    EXPECT_EQ(links[0].failed + links[1].failed, 0u);
    // Then it is cut short.
    std::filesystem::resize_file(data, bytes / 8 / 4096 * 4096);
    ask(*engine);
    // It is asked sooner or later, as the measured rates have it.
    const auto prompts = ReferencePrompts();
    for (size_t i = 0; i < 2000 && engine->Status().links[1].failed == 0; ++i) {
      const auto& other = prompts[i % prompts.size()];
      EXPECT_EQ(SubmitOne(*engine, Greedy(other.prompt, 8))->Wait().error, "");
    }
    EXPECT_GT(engine->Status().links[1].failed, 0u);
    EXPECT_TRUE(engine->Status().not_ready.empty());
    const std::string text = metrics.Serialize();
    for (const char* part : {"moe_expert_store_failed_reads_total",
                             "moe_expert_store_read_bytes_total", "moe_expert_store_set_aside"}) {
      EXPECT_NE(text.find(fmt::format("{}{{store=\"{}\"}}", part, second.string())),
                std::string::npos)
          << text;
    }
  }
  // One that cannot be opened is left out.
  ask(*CreateEngine(options, metrics));
  // But what has other experts is refused, and so is every store when none can be opened.
  options.dtype = WeightType::kBf16;
  EXPECT_TRUE(Contains(Caught([&] { CreateEngine(options, metrics); }), "are f32 and not"));
  options.expert_store = (dir.path() / "nowhere").string() + "," + second.string();
  EXPECT_TRUE(Contains(Caught([&] { CreateEngine(options, metrics); }), "experts.bin: has"));
}

// What is read of a store is compared with its checksums: a damaged expert fails the requests that
// need it, and only those.
TEST(EngineTest, DamagedExpertsOfAStoreFailTheRequestAndNothingElse) {
  const TempDir dir;
  const auto store = dir.path() / "store";
  EngineOptions options = SmallOptions();
  options.dtype = WeightType::kF32;  // as the reference
  WriteStore(options, store);
  options.expert_store = store;
  options.preload = false;
  const ReferencePrompt reference = ReferencePrompts()[0];
  const auto& prompt = reference.prompt;
  const auto data = ExpertStoreDataFile(store);
  const auto flip = [&](uint64_t slot_bytes) {
    const uint64_t experts = std::filesystem::file_size(data) / slot_bytes;
    std::fstream file(data, std::ios::binary | std::ios::in | std::ios::out);
    for (uint64_t e = 0; e < experts; ++e) {
      const auto at = static_cast<std::streamoff>(e * slot_bytes + slot_bytes / 3);
      file.seekg(at);
      const int byte = file.get();
      file.seekp(at);
      file.put(static_cast<char>(byte ^ 1));
    }
  };
  const uint64_t slot_bytes = PlanEngine(options).slot_bytes;
  flip(slot_bytes);
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options, metrics);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(engine->Status().not_ready.empty());
    const auto failed = SubmitOne(*engine, Greedy(prompt, 4));
    EXPECT_NE(failed->Wait().error.find(data.string() + ": expert "), std::string::npos)
        << failed->error;
    EXPECT_NE(failed->error.find("run `moesaic pack` again"), std::string::npos);
  }
  EXPECT_FALSE(engine->Status().not_ready.empty());
  flip(slot_bytes);
  const auto right = UntilRead(*engine, Greedy(prompt, 4), data.string());
  EXPECT_EQ(right->Ids(),
            std::vector<int32_t>(reference.greedy.begin(), reference.greedy.begin() + 4));
}

TEST(ReadHealthTest, CountsFailuresOfOneCauseInARow) {
  ReadHealth health;
  ExpertId expert;
  expert.index = 7;
  const ExpertError io(ErrorKind::kIo, "disk", expert);
  const ExpertError corrupt(ErrorKind::kCorrupt, "file", expert);
  health.Failed(io);
  health.Failed(io);
  health.Succeeded();
  health.Failed(io);
  health.Failed(io);
  health.Failed(corrupt);
  health.Failed(corrupt);
  EXPECT_TRUE(health.ready());
  EXPECT_EQ(health.WhyNotReady(), "");
  EXPECT_FALSE(health.LastFailed().has_value());
  health.Failed(corrupt);
  EXPECT_FALSE(health.ready());
  EXPECT_NE(health.WhyNotReady().find("3 steps in a row failed; the last one: file"),
            std::string::npos);
  EXPECT_EQ(health.LastFailed()->index, 7);
  health.Succeeded();
  EXPECT_TRUE(health.ready());
}

}  // namespace
}  // namespace moesaic
