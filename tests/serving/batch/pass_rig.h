// PassRig: a PassRunner with a model and its experts, driven by hand: no engine, no scheduler. For
// tests of passes.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/config/kv_groups.h"
#include "serving/batch/batch_experts.h"
#include "serving/batch/pass_runner.h"
#include "tests/serving/model/model_harness.h"

namespace moesaic {

constexpr int kPassSequences = 7;
constexpr int kPassSteps = 4;  // a prefill, then decode
constexpr int64_t kPassBlocks = 2;

struct PassSetting {
  ScheduleKind schedule;
  int64_t groups;
  int64_t slots;  // of each device
  int devices;
  EmulatedLink link = {};
  int steps = kPassSteps;
  std::function<void(EngineOptions&)> adjust = {};
  uint32_t packet_bytes = 0;  // that the plan has; 0: none
};

// [sequences] logits of all positions of each, one after another.
using PassLogits = std::vector<std::vector<float>>;

inline std::vector<int32_t> PassTokens(int sequence, int step, int vocab) {
  return PromptOf(100 * step + sequence, step == 0 ? 3 + sequence % 5 : 1, vocab);
}

struct PassRig {
  explicit PassRig(const PassSetting& setting)
      : options(OptionsOf(setting)),
        files(OpenModelFiles(options)),
        plan(PlanOf(setting)),
        pool(options.threads),
        experts(options, plan, files, pool, timeline),
        model(MakeModel()),
        runner(*model, pool, experts.streams(), experts.dense_device(), setting.schedule,
               &timeline),
        steps(setting.steps) {}

  std::unique_ptr<Model> MakeModel() {
    ModelWeights weights =
        ModelWeights::Load(files.config, WeightType::kBf16, *files.tensors, SelectKernels(), pool);
    return std::make_unique<Model>(
        files.config,
        experts.MakeDense(options, plan, files.config, std::move(weights), SelectKernels()),
        files.experts->layout(), experts.TakePlaces(), SelectKernels(), pool,
        LimitsOf(options, plan));
  }

  static EngineOptions OptionsOf(const PassSetting& setting) {
    EngineOptions engine;
    engine.model_dir = MOESAIC_SAMPLE_MODEL_DIR;
    engine.threads = 2;
    engine.packet_bytes = 16384;
    engine.devices.count = setting.devices;
    engine.devices.emulated_link = setting.link;
    if (setting.adjust) setting.adjust(engine);
    return engine;
  }

  BatchPlan PlanOf(const PassSetting& setting) {
    BatchSizes sizes;
    sizes.schedule = setting.schedule;
    sizes.micro_batches = setting.groups;
    sizes.max_num_seqs = kPassSequences;
    sizes.max_batch_tokens = 64;
    sizes.max_context_tokens = kPassBlocks * kKvBlockTokens;
    sizes.num_kv_blocks =
        kPassBlocks * kPassSequences * static_cast<int64_t>(KvGroupsOf(files.config).count());
    sizes.expert_slots = setting.slots;
    sizes.buffers = std::max<int64_t>(1, setting.slots / 2);
    sizes.packet_bytes = setting.packet_bytes;
    options.devices.memory =
        std::to_string(static_cast<uint64_t>(setting.slots) * files.experts->layout().slot_bytes);
    return LedgerOf(options, files, sizes);
  }

  // Sequences of different lengths: a prefill, then decode steps, all in one pass each.
  PassLogits RunAll(RoutingHook* hook = nullptr) {
    const auto vocab = static_cast<int>(files.config.vocab_size);
    std::vector<std::vector<int32_t>> blocks;
    blocks.reserve(kPassSequences);
    for (int32_t s = 0; s < kPassSequences; ++s) blocks.push_back({2 * s, 2 * s + 1});
    std::vector<int64_t> lengths(kPassSequences, 0);
    PassLogits logits(kPassSequences);
    std::vector<SliceRange> groups;
    const int64_t count = std::min<int64_t>(plan.sizes.micro_batches, kPassSequences);
    for (int64_t g = 0; g < count; ++g) {
      groups.push_back({kPassSequences * g / count, kPassSequences * (g + 1) / count});
    }
    for (int step = 0; step < steps; ++step) {
      std::vector<int32_t> tokens;
      std::vector<SequenceSlice> slices;
      for (size_t s = 0; s < kPassSequences; ++s) {
        const std::vector<int32_t> own = PassTokens(static_cast<int>(s), step, vocab);
        SequenceSlice slice;
        slice.first_row = std::ssize(tokens);
        slice.num_tokens = std::ssize(own);
        slice.start_position = lengths[s];
        slice.blocks = blocks[s];
        slices.push_back(slice);
        lengths[s] += slice.num_tokens;
        tokens.insert(tokens.end(), own.begin(), own.end());
      }
      runner.Run({tokens, slices}, groups, hook);
      for (size_t s = 0; s < kPassSequences; ++s) {
        for (int64_t t = 0; t < slices[s].num_tokens; ++t) {
          const auto row = static_cast<int32_t>(slices[s].first_row + t);
          std::vector<float> out(static_cast<size_t>(vocab));
          model->Logits({&row, 1}, out.data());
          logits[s].insert(logits[s].end(), out.begin(), out.end());
        }
      }
    }
    experts.StopPrefetching();
    return logits;
  }

  EngineOptions options;
  ModelFiles files;
  BatchPlan plan;
  Timeline timeline{1'000'000};
  ThreadPool pool;
  BatchExperts experts;
  std::unique_ptr<Model> model;
  PassRunner runner;
  const int steps;
};

inline std::vector<uint64_t> HashesOf(const PassLogits& logits) {
  std::vector<uint64_t> hashes;
  for (const auto& values : logits) hashes.push_back(Hash64(std::as_bytes(std::span(values))));
  return hashes;
}

}  // namespace moesaic
