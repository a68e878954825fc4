// Several models of different families in one process: an answer has the bits that it has when its
// model is alone, whatever the others do.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/metrics.h"
#include "prefetch/link/resizable_slots.h"
#include "serving/engine/resizable_kv.h"
#include "serving/engine/step_turns.h"
#include "serving/multi/model_registry.h"
#include "serving/online/create_engine.h"
#include "serving/startup/resolve_engine.h"
#include "tests/serving/engine/collector.h"
#include "tests/serving/startup/made_up_machine.h"

namespace moesaic {
namespace {

using Bits = std::vector<std::pair<int32_t, float>>;

constexpr int kRequests = 6;

EngineOptions OptionsFor(const std::string& model, const MemorySize& expert_memory) {
  EngineOptions options;
  options.model = model;
  options.tokenizer = MOESAIC_SAMPLE_MODEL_DIR;  // fixtures have none
  options.expert_memory = expert_memory;
  options.kv_memory = "1MiB";
  options.max_model_len = 96;
  options.machine.threads = 2;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 16;
  return options;
}

std::vector<int32_t> Prompt(int request) {
  std::vector<int32_t> prompt;
  prompt.reserve(64);
  for (int i = 0; i < 5 + 7 * request; ++i) prompt.push_back((17 * i + 29 * request + 3) % 120);
  return prompt;
}

EngineRequest RequestNumber(int request) {
  EngineRequest asked = Greedy(Prompt(request), 12);
  asked.logprobs = 3;
  asked.ignore_eos = true;
  return asked;
}

Bits BitsOf(Collector& output) {
  Bits bits;
  for (const GeneratedToken& token : output.Wait().tokens) {
    bits.emplace_back(token.token, token.logprob);
    for (const TokenLogprob& other : token.top) bits.emplace_back(other.token, other.logprob);
  }
  EXPECT_EQ(output.error, "");
  return bits;
}

std::vector<Bits> Alone(const std::string& model) {
  MetricsRegistry metrics;
  const auto engine =
      CreateEngine(ResolveEngine(OptionsFor(model, MemorySize("100%")), MadeUpMachine()), metrics);
  std::vector<Bits> all;
  all.reserve(kRequests);
  for (int r = 0; r < kRequests; ++r) all.push_back(BitsOf(*SubmitOne(*engine, RequestNumber(r))));
  return all;
}

void ExpectBitsOfEach(const std::vector<std::string>& names) {
  std::vector<std::string> models;
  models.reserve(names.size());
  for (const std::string& name : names) {
    models.push_back(std::string(MOESAIC_TEST_DATA_DIR "/models/") + name);
  }
  std::vector<std::vector<Bits>> alone;
  alone.reserve(models.size());
  for (const std::string& model : models) alone.push_back(Alone(model));

  MetricsRegistry metrics;
  // They outlive the engines, which let go of their turns last.
  const SteadyClock clock;
  const auto turns = std::make_shared<StepTurns>(clock);
  std::vector<std::shared_ptr<Engine>> engines(models.size());
  std::vector<ModelRegistry::Model> entries;
  for (size_t m = 0; m < models.size(); ++m) {
    ModelRegistry::Model entry;
    entry.names = {names[m]};
    entry.rules.need = {1, 1};
    entry.start_bytes = 1;
    entries.push_back(entry);
  }
  std::vector<std::unique_ptr<MetricsRegistry>> views;
  views.reserve(names.size());
  for (const std::string& name : names) {
    views.push_back(std::make_unique<MetricsRegistry>(metrics, MetricLabels{{"model_name", name}}));
  }
  ModelRegistry registry(
      models.size(), entries,
      [&](size_t m, uint64_t, const ModelRegistry::Loading& loading) {
        ServedModel served;
        served.engine = loading.hold(
            CreateEngine(ResolveEngine(OptionsFor(models[m], MemorySize("15%")), MadeUpMachine()),
                         *views[m], {}, turns->Join(m == 0 ? 1 : 0)));
        return served;
      },
      [&](const std::vector<ServedModel>& now) {
        for (size_t m = 0; m < now.size(); ++m) engines[m] = now[m].engine;
      });
  registry.Start();
  ASSERT_TRUE(registry.WaitStarted(std::chrono::steady_clock::time_point::max()));
  registry.Stop();
  // All at once, twice: the second time prefixes are in the caches.
  for (int round = 0; round < 2; ++round) {
    std::vector<std::vector<std::shared_ptr<Collector>>> outputs(models.size());
    for (int r = 0; r < kRequests; ++r) {
      for (size_t m = 0; m < models.size(); ++m) {
        ASSERT_NE(engines[m], nullptr) << names[m];
        outputs[m].push_back(SubmitOne(*engines[m], RequestNumber(r)));
      }
    }
    for (size_t m = 0; m < models.size(); ++m) {
      for (int r = 0; r < kRequests; ++r) {
        EXPECT_EQ(BitsOf(*outputs[m][static_cast<size_t>(r)]), alone[m][static_cast<size_t>(r)])
            << names[m] << ", request " << r;
      }
    }
  }
  const std::string text = metrics.Serialize();
  for (const std::string& name : names) {
    EXPECT_NE(text.find("moe_steps_total{model_name=\"" + name + "\"}"), std::string::npos);
  }
}

// Memory of experts, and of keys and values, moves between them all the time, faster than any
// server would move it.
void ExpectBitsWhileMemoryMoves(const std::vector<std::string>& names) {
  MetricsRegistry metrics;
  const SteadyClock clock;
  const auto turns = std::make_shared<StepTurns>(clock);
  std::vector<std::vector<Bits>> alone;
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<std::unique_ptr<MetricsRegistry>> views;
  for (const std::string& name : names) {
    const std::string model = std::string(MOESAIC_TEST_DATA_DIR "/models/") + name;
    alone.push_back(Alone(model));
    EngineOptions options = OptionsFor(model, MemorySize("40%"));
    options.most_expert_bytes = uint64_t{1} << 30;
    options.kv_memory = MemorySize();
    options.most_kv_bytes = uint64_t{64} << 20;
    views.push_back(std::make_unique<MetricsRegistry>(metrics, MetricLabels{{"model_name", name}}));
    engines.push_back(
        CreateEngine(ResolveEngine(options, MadeUpMachine()), *views.back(), {}, turns->Join(0)));
  }
  std::atomic<bool> stop{false};
  std::atomic<int64_t> moves{0};
  std::thread mover([&] {
    std::mt19937_64 random(7);
    std::vector<uint32_t> uses;
    while (!stop) {
      for (const auto& engine : engines) {
        ResizableSlots* const slots = engine->resizable_slots();
        const SlotsInUse now = slots->LookAtSlots(uses);
        EXPECT_GE(now.held, now.usable);
        const auto choices = static_cast<uint64_t>(now.most - now.least + 1);
        slots->SetSlots(now.least + static_cast<int64_t>(random() % choices));
        ResizableKv* const kv = engine->resizable_kv();
        const KvInUse blocks = kv->LookAtKv();
        EXPECT_GE(blocks.held, blocks.usable);
        EXPECT_LT(blocks.least, blocks.most);
        const auto slabs =
            static_cast<uint64_t>((blocks.most - blocks.least) / blocks.slab_blocks + 1);
        kv->SetKvBlocks(blocks.least + static_cast<int64_t>(random() % slabs) * blocks.slab_blocks);
        ++moves;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  for (int round = 0; round < 2; ++round) {
    std::vector<std::vector<std::shared_ptr<Collector>>> outputs(engines.size());
    for (int r = 0; r < kRequests; ++r) {
      for (size_t m = 0; m < engines.size(); ++m) {
        outputs[m].push_back(SubmitOne(*engines[m], RequestNumber(r)));
      }
    }
    for (size_t m = 0; m < engines.size(); ++m) {
      for (int r = 0; r < kRequests; ++r) {
        EXPECT_EQ(BitsOf(*outputs[m][static_cast<size_t>(r)]), alone[m][static_cast<size_t>(r)])
            << names[m] << ", request " << r;
      }
    }
  }
  stop = true;
  mover.join();
  EXPECT_GT(moves, 10);
}

TEST(SeveralModelsTest, TwoModelsKeepTheirBitsWhileMemoryMoves) {
  ExpectBitsWhileMemoryMoves({"qwen3_moe_bf16_window", "gpt_oss_mxfp4"});
}

TEST(SeveralModelsTest, ThreeModelsKeepTheirBitsWhileMemoryMoves) {
  ExpectBitsWhileMemoryMoves({"olmoe_bf16_clip", "deepseek_v2_bf16_lite", "qwen3_next_bf16"});
}

TEST(SeveralModelsTest, TwoModelsGiveTheBitsOfEachAlone) {
  ExpectBitsOfEach({"qwen3_moe_bf16_window", "gpt_oss_mxfp4"});
}

TEST(SeveralModelsTest, ThreeModelsOfDifferentFamilies) {
  ExpectBitsOfEach({"olmoe_bf16_clip", "deepseek_v2_bf16_lite", "qwen3_next_bf16"});
}

}  // namespace
}  // namespace moesaic
