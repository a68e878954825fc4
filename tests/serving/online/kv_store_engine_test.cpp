// Engines with a store of prefixes: what another engine has computed is read, after a restart and
// when the pools have used its blocks for others, and no bit of an answer tells; a store that is
// damaged or somebody else's costs time only.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/metrics.h"
#include "serving/model/model.h"
#include "tests/core/base/caught.h"
#include "tests/core/base/temp_dir.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

EngineOptions StoreOptions(const fs::path& store, const std::string& model = "") {
  EngineOptions options = SmallOptions();
  if (!model.empty()) {
    options.model_dir = std::string(MOESAIC_TEST_DATA_DIR "/models/") + model;
    options.tokenizer = MOESAIC_SAMPLE_MODEL_DIR;
  }
  options.kv_store = store;
  options.kv_store_bytes = uint64_t{64} << 20;
  return options;
}

std::vector<int32_t> StorePrompt(uint32_t seed, int length) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < length; ++i) {
    seed = seed * 1664525u + 1013904223u;
    tokens.push_back(static_cast<int32_t>((seed >> 8) % 150));
  }
  return tokens;
}

struct StoreAnswer {
  std::vector<float> bits;  // tokens and their log-probabilities
  std::vector<int32_t> tokens;
  int64_t cached = 0;
};

StoreAnswer WaitFor(Collector& collector) {
  StoreAnswer answer;
  EXPECT_EQ(collector.Wait().error, "");
  for (const GeneratedToken& token : collector.tokens) {
    answer.bits.push_back(static_cast<float>(token.token));
    answer.bits.push_back(token.logprob);
    answer.tokens.push_back(token.token);
  }
  answer.cached = collector.usage.cached_tokens;
  return answer;
}

std::shared_ptr<Collector> AskStore(Engine& engine, std::vector<int32_t> prompt,
                                    int32_t tokens = 12) {
  EngineRequest request = Greedy(std::move(prompt), tokens);
  request.ignore_eos = true;
  request.logprobs = 0;
  return SubmitOne(engine, request);
}

StoreAnswer AskAlone(const EngineOptions& options, const std::vector<int32_t>& prompt,
                     std::string* metrics_text = nullptr) {
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options, metrics);
  StoreAnswer answer = WaitFor(*AskStore(*engine, prompt));
  if (metrics_text != nullptr) *metrics_text = metrics.Serialize();
  return answer;
}

// Every kind of keys and values: of all of the context, of windows, latent with the keys of an
// indexer in some layers, and rounded to int8.
TEST(KvStoreEngineTest, ARestartedEngineGoesOnWithTheSameBits) {
  const std::pair<const char*, std::optional<WeightType>> kinds[] = {
      {"", std::nullopt},
      {"", WeightType::kInt8},
      {"", WeightType::kF32},
      {"gpt_oss_bf16_window", std::nullopt},
      {"glm_moe_dsa_bf16_shared", std::nullopt},
  };
  for (const auto& [model, cache] : kinds) {
    SCOPED_TRACE(std::string(model) + (cache ? WeightTypeName(*cache) : ""));
    const TempDir dir;
    EngineOptions options = StoreOptions(dir.path() / "store", model);
    options.kv_cache_dtype = cache;
    EngineOptions without = options;
    without.kv_store.clear();
    const std::vector<int32_t> prompt = StorePrompt(1, 650);
    const StoreAnswer first = AskAlone(without, prompt);
    const StoreAnswer computed = AskAlone(options, prompt);
    EXPECT_EQ(computed.bits, first.bits);
    EXPECT_EQ(computed.cached, 0);

    std::string metrics;
    const StoreAnswer restored = AskAlone(options, prompt, &metrics);
    EXPECT_EQ(restored.bits, first.bits);
    EXPECT_EQ(restored.cached, 640);
    EXPECT_NE(metrics.find("moe_prefix_cache_tokens_total{tier=\"disk\"} 640\n"),
              std::string::npos);
    EXPECT_NE(metrics.find("moe_kv_store_failures_total{operation=\"read\"} 0\n"),
              std::string::npos);
    // The next turn, whose prompt has the answer, and one that leaves the first within a block.
    std::vector<int32_t> next = prompt;
    next.insert(next.end(), first.tokens.begin(), first.tokens.end());
    for (const int32_t token : StorePrompt(2, 9)) next.push_back(token);
    std::vector<int32_t> other(prompt.begin(), prompt.begin() + 100);
    for (const int32_t token : StorePrompt(3, 40)) other.push_back(token);
    const StoreAnswer of_next = AskAlone(options, next);
    EXPECT_EQ(of_next.bits, AskAlone(without, next).bits);
    EXPECT_EQ(of_next.cached, 656);  // 661 positions were computed
    const StoreAnswer of_other = AskAlone(options, other);
    EXPECT_EQ(of_other.bits, AskAlone(without, other).bits);
    EXPECT_EQ(of_other.cached, 96);
  }
}

// Prompts that take turns in pools that hold one of them: each is read when it comes back, beside
// others that run, some of which are preempted or leave.
TEST(KvStoreEngineTest, ManyRequestsShareLittleMemory) {
  const TempDir dir;
  EngineOptions options = StoreOptions(dir.path());
  options.max_num_batched_tokens = 48;
  options.max_model_len = 0;
  const uint64_t block_bytes =
      Model::KvBlockBytes(LoadModelConfig(options.model_dir), WeightType::kBf16);
  options.kv_memory = std::to_string(24 * block_bytes) + "B";
  std::vector<std::vector<int32_t>> prompts;
  for (uint32_t p = 0; p < 6; ++p) {
    prompts.push_back(StorePrompt(p % 3, 200));  // pairs begin alike
    for (const int32_t token : StorePrompt(100 + p, 20 + static_cast<int>(p))) {
      prompts.back().push_back(token);
    }
  }
  std::vector<std::vector<float>> expected;
  EngineOptions without = options;
  without.kv_store.clear();
  {
    MetricsRegistry metrics;
    const auto engine = CreateEngine(without, metrics);
    for (const auto& prompt : prompts)
      expected.push_back(WaitFor(*AskStore(*engine, prompt, 60)).bits);
  }
  int64_t cached = 0;
  for (int round = 0; round < 2; ++round) {
    MetricsRegistry metrics;
    const auto engine = CreateEngine(options, metrics);
    for (int turn = 0; turn < 2; ++turn) {
      std::vector<std::shared_ptr<Collector>> together;
      for (const auto& prompt : prompts) together.push_back(AskStore(*engine, prompt, 60));
      RequestId id = 0;
      const auto cancelled = SubmitOne(*engine, Greedy(prompts[0], 60), &id);
      engine->Cancel(id);
      for (size_t p = 0; p < prompts.size(); ++p) {
        const StoreAnswer answer = WaitFor(*together[p]);
        EXPECT_EQ(answer.bits, expected[p]) << p;
        if (round == 1) cached += answer.cached;
      }
      cancelled->Wait();
    }
    // One that ends while blocks may be on their way.
    SubmitOne(*engine, Greedy(prompts[2], 60));
  }
  // All but the last block of each prompt was there.
  int64_t most = 0;
  for (const auto& prompt : prompts) most += 2 * (std::ssize(prompt) - 1) / 16 * 16;
  EXPECT_GT(cached, most * 9 / 10);
}

// What recurrent layers carry is read with the keys and values before it.
TEST(KvStoreEngineTest, RecurrentLayersGoOnFromAStoredState) {
  for (const char* const model : {"qwen3_next_bf16", "qwen3_5_moe_bf16"}) {
    SCOPED_TRACE(model);
    const TempDir dir;
    const EngineOptions options = StoreOptions(dir.path() / "store", model);
    EngineOptions without = options;
    without.kv_store.clear();
    without.prefix_cache = false;
    const std::vector<int32_t> prompt = StorePrompt(1, 250);
    const StoreAnswer first = AskAlone(without, prompt);
    const StoreAnswer computed = AskAlone(options, prompt);
    EXPECT_EQ(computed.bits, first.bits);
    EXPECT_EQ(computed.cached, 0);
    // The same prompt goes on behind its last whole block, the next turn behind the answer's.
    std::vector<int32_t> next = prompt;
    next.insert(next.end(), first.tokens.begin(), first.tokens.end());
    for (const int32_t token : StorePrompt(2, 9)) next.push_back(token);
    const StoreAnswer of_next = AskAlone(options, next);
    EXPECT_EQ(of_next.bits, AskAlone(without, next).bits);
    EXPECT_EQ(of_next.cached, 256);  // 261 positions were computed
    std::string metrics;
    const StoreAnswer restored = AskAlone(options, prompt, &metrics);
    EXPECT_EQ(restored.bits, first.bits);
    EXPECT_EQ(restored.cached, 240);
    EXPECT_NE(metrics.find("moe_prefix_cache_tokens_total{tier=\"disk\"} 240\n"),
              std::string::npos);
    // One that leaves the first where no state was kept, and has one of its own behind that.
    std::vector<int32_t> other(prompt.begin(), prompt.begin() + 100);
    for (const int32_t token : StorePrompt(3, 40)) other.push_back(token);
    const StoreAnswer of_other = AskAlone(options, other);
    EXPECT_EQ(of_other.bits, AskAlone(without, other).bits);
    EXPECT_EQ(of_other.cached, 0);
    EXPECT_EQ(AskAlone(options, other).cached, 128);
    // Without a whole state the prompt is computed, and has one again.
    for (const auto& file : fs::directory_iterator(dir.path() / "store")) {
      if (file.path().extension() != ".blocks") continue;
      const auto bytes = static_cast<std::streamoff>(fs::file_size(file.path()));
      std::fstream blocks(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      for (std::streamoff at = 0; at < bytes; at += 512) blocks.seekp(at) << "damage";
    }
    const StoreAnswer anew = AskAlone(options, prompt);
    EXPECT_EQ(anew.bits, first.bits);
    EXPECT_EQ(anew.cached, 0);
    const StoreAnswer again = AskAlone(options, prompt);
    EXPECT_EQ(again.bits, first.bits);
    EXPECT_EQ(again.cached, 240);
  }
}

// The store's memory alone, beyond pools that hold one prompt.
TEST(KvStoreEngineTest, MemoryBeyondThePoolsHasWhatTheyHaveLost) {
  EngineOptions options = StoreOptions("");
  options.kv_store_memory_bytes = uint64_t{32} << 20;
  options.max_model_len = 0;
  options.kv_memory = std::to_string(16 * Model::KvBlockBytes(LoadModelConfig(options.model_dir),
                                                              WeightType::kBf16)) +
                      "B";
  EXPECT_GE(PlanEngine(options).ledger.bytes("KV store"), uint64_t{31} << 20);
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options, metrics);
  std::vector<StoreAnswer> first;
  for (uint32_t p = 0; p < 3; ++p) {
    first.push_back(WaitFor(*AskStore(*engine, StorePrompt(p, 200))));
  }
  for (uint32_t p = 0; p < 3; ++p) {
    const StoreAnswer again = WaitFor(*AskStore(*engine, StorePrompt(p, 200)));
    EXPECT_EQ(again.bits, first[p].bits);
    EXPECT_EQ(again.cached, 192);
  }
  EXPECT_EQ(metrics.Serialize().find("moe_kv_store_hits_total{tier=\"memory\"} 0\n"),
            std::string::npos);
  EXPECT_NE(metrics.Serialize().find("moe_kv_store_read_bytes_total 0\n"), std::string::npos);
}

TEST(KvStoreEngineTest, ADamagedStoreIsComputedAgain) {
  const TempDir dir;
  const EngineOptions options = StoreOptions(dir.path());
  const std::vector<int32_t> prompt = StorePrompt(5, 300);
  const StoreAnswer first = AskAlone(options, prompt);
  for (const auto& file : fs::directory_iterator(dir.path())) {
    if (file.path().extension() != ".blocks") continue;
    std::fstream blocks(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    blocks.seekp(static_cast<std::streamoff>(fs::file_size(file.path()) / 2));
    blocks << "damage";
  }
  const StoreAnswer second = AskAlone(options, prompt);
  EXPECT_EQ(second.bits, first.bits);
  EXPECT_GT(second.cached, 0);
  EXPECT_LT(second.cached, 288);
  const StoreAnswer third = AskAlone(options, prompt);
  EXPECT_EQ(third.bits, first.bits);
  EXPECT_EQ(third.cached, 288);
}

TEST(KvStoreEngineTest, ASecondEngineReadsTheFirstOnesStore) {
  const TempDir dir;
  const EngineOptions options = StoreOptions(dir.path());
  const std::vector<int32_t> prompt = StorePrompt(5, 200);
  const StoreAnswer first = AskAlone(options, prompt);
  MetricsRegistry metrics;
  const auto writer = CreateEngine(options, metrics);
  const StoreAnswer second = AskAlone(options, prompt);
  EXPECT_EQ(second.bits, first.bits);
  EXPECT_EQ(second.cached, 192);
  // What would change bits has blocks of its own.
  EngineOptions other = options;
  other.dtype = WeightType::kInt8;
  EXPECT_EQ(AskAlone(other, prompt).cached, 0);
}

TEST(KvStoreEngineTest, WhatCannotBeKeptIsRefusedOrSkipped) {
  const TempDir dir;
  EngineOptions options = StoreOptions(dir.path());
  std::ofstream(dir.path() / "precious") << "data";
  EXPECT_TRUE(Contains(Caught([&] { AskAlone(options, {1, 2}); }), "not a store"));
  options.kv_store = dir.path() / "new";
  options.kv_store_bytes = 5000;
  EXPECT_TRUE(Contains(Caught([&] { AskAlone(options, {1, 2}); }), "--kv-store-size"));
  options.prefix_cache = false;
  EXPECT_TRUE(Contains(Caught([&] { PlanEngine(options); }), "--no-prefix-cache"));
  // The ledger knows it; without a state of recurrent layers there is nothing to be kept.
  options = StoreOptions(dir.path() / "new");
  EXPECT_GT(PlanEngine(options).ledger.bytes("KV store"), uint64_t{1} << 20);
  options = StoreOptions(dir.path() / "none", "qwen3_next_bf16");
  options.state_snapshots = 0;
  AskAlone(options, StorePrompt(1, 40));
  EXPECT_FALSE(fs::exists(dir.path() / "none"));
}

}  // namespace
}  // namespace moesaic
