// Rule 1: placement never changes the answer. Logits are compared bit for bit over budgets, stores,
// threads, chunk sizes, batch mates and, within the f32 class, instruction sets.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/hash.h"
#include "serving/model/fp8_weights.h"
#include "serving/model/packed_int4.h"
#include "tests/core/base/temp_dir.h"
#include "tests/serving/model/model_harness.h"

namespace moesaic {
namespace {

uint64_t HashOf(const std::vector<float>& values) {
  return Hash64(std::as_bytes(std::span(values)));
}

// Prefill of 70 tokens in chunks, then 6 decode steps with forced tokens; all logits.
std::vector<float> RunOne(ModelHarness& model, int seed, int64_t chunk) {
  const int vocab = static_cast<int>(model.config().vocab_size);
  auto sequence = model.NewSequence(80);
  std::vector<float> all = model.Prefill(sequence, PromptOf(seed, 70, vocab), chunk);
  for (const int32_t token : PromptOf(seed + 1000, 6, vocab)) {
    const ModelHarness::Piece piece = {&sequence, {token}};
    const std::vector<float> logits = model.Run({&piece, 1});
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

class ExactnessTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ExactnessTest, BudgetsThreadsChunksAndStores) {
  const TempDir store;
  for (const Isa isa : SupportedIsas()) {
    HarnessOptions base;
    base.isa = isa;
    base.kv_blocks = 64;
    uint64_t expected = 0;
    {
      ModelHarness model(GetParam(), base);
      expected = HashOf(RunOne(model, 1, 70));
    }
    const ModelConfig config = LoadModelConfig(GetParam());
    const int64_t all = config.num_sparse_layers() * config.num_experts();
    for (const int64_t slots : {all, all / 2, all / 5, int64_t{1}}) {
      for (const int threads : {1, 2}) {
        for (const bool packed : {false, true}) {
          // Scalar runs are slow; one of each setting is enough there.
          if (isa == Isa::kScalar && (threads == 1) == packed) continue;
          HarnessOptions options = base;
          options.expert_slots = slots;
          options.threads = threads;
          if (packed) options.expert_store = store.path() / (std::string("store") + IsaName(isa));
          ModelHarness model(GetParam(), options);
          for (const int64_t chunk : {1, 7, 32, 70}) {
            // Seventy passes: with each budget once, by turns from the checkpoint and from a store.
            if (chunk == 1 &&
                (isa == Isa::kScalar || packed != (slots < all / 2) || threads == 1)) {
              continue;
            }
            EXPECT_EQ(HashOf(RunOne(model, 1, chunk)), expected)
                << IsaName(isa) << " slots " << slots << " threads " << threads << " packed "
                << packed << " chunk " << chunk;
          }
          if (slots < all) {
            EXPECT_GT(model.stats().experts.evictions, 0u);
          }
        }
      }
    }
  }
}

// Nodes that this machine does not have, and one of its own taken for two.
TEST_P(ExactnessTest, NumaNodes) {
  for (const Isa isa : SupportedIsas()) {
    if (isa == Isa::kScalar) continue;
    for (const WeightType type : {WeightType::kBf16, WeightType::kInt8}) {
      HarnessOptions options;
      options.isa = isa;
      options.weight_type = type;
      options.kv_blocks = 64;
      options.threads = 2;
      uint64_t expected = 0;
      {
        ModelHarness model(GetParam(), options);
        expected = HashOf(RunOne(model, 4, 70));
      }
      for (const std::vector<int>& nodes : {std::vector<int>{0, 0}, {0, 1}, {0, 4000, 4001}}) {
        options.thread_layout = {};
        options.thread_layout.nodes = nodes;
        for (int node = 0; node < std::ssize(nodes); ++node) {
          options.thread_layout.places.push_back({{}, node});
        }
        for (const int threads : {1, 3}) {
          options.threads = threads;
          options.expert_slots = threads == 1 ? 0 : 7;
          ModelHarness model(GetParam(), options);
          for (const int64_t chunk : {9, 70}) {
            EXPECT_EQ(HashOf(RunOne(model, 4, chunk)), expected)
                << IsaName(isa) << " " << WeightTypeName(type) << " " << nodes.size()
                << " nodes, threads " << threads << " chunk " << chunk;
          }
        }
      }
    }
  }
}

TEST_P(ExactnessTest, KeysAndValuesInInt8) {
  if (LoadModelConfig(GetParam()).FindMixer<LatentSpec>() != nullptr) {
    GTEST_SKIP() << "latent attention has no int8 cache";
  }
  for (const Isa isa : SupportedIsas()) {
    if (isa == Isa::kScalar) continue;
    HarnessOptions options;
    options.isa = isa;
    options.kv_blocks = 64;
    std::vector<float> bf16;
    {
      ModelHarness model(GetParam(), options);
      bf16 = RunOne(model, 5, 70);
    }
    options.kv_type = WeightType::kInt8;
    uint64_t expected = 0;
    {
      ModelHarness model(GetParam(), options);
      const std::vector<float> int8 = RunOne(model, 5, 70);
      expected = HashOf(int8);
      EXPECT_NE(expected, HashOf(bf16));
      if (GetParam() == MOESAIC_SAMPLE_MODEL_DIR) {  // random weights flip experts by a hair
        double error = 0;
        double norm = 0;
        for (size_t i = 0; i < int8.size(); ++i) {
          error += std::pow(static_cast<double>(int8[i]) - bf16[i], 2);
          norm += std::pow(static_cast<double>(bf16[i]), 2);
        }
        EXPECT_LT(std::sqrt(error / norm), 0.03);
      }
    }
    for (const int threads : {1, 3}) {
      options.threads = threads;
      ModelHarness model(GetParam(), options);
      for (const int64_t chunk : {1, 9, 70}) {
        EXPECT_EQ(HashOf(RunOne(model, 5, chunk)), expected)
            << IsaName(isa) << " threads " << threads << " chunk " << chunk;
      }
    }
  }
}

// With one thread a row takes all KV heads through a part of its context, with several one head.
TEST_P(ExactnessTest, LongContexts) {
  for (const Isa isa : SupportedIsas()) {
    if (isa == Isa::kScalar) continue;
    uint64_t expected = 0;
    for (const int threads : {1, 3}) {
      HarnessOptions options;
      options.isa = isa;
      options.threads = threads;
      options.max_batch_tokens = 600;
      options.max_context_tokens = 1024;
      options.kv_blocks = 64;
      ModelHarness model(GetParam(), options);
      const int vocab = static_cast<int>(model.config().vocab_size);
      if (model.config().max_position < options.max_context_tokens) return;
      auto sequence = model.NewSequence(1024);
      model.Prefill(sequence, PromptOf(6, 1020, vocab), 600);
      std::vector<float> all;
      for (const int32_t token : PromptOf(7, 4, vocab)) {
        const ModelHarness::Piece piece = {&sequence, {token}};
        const std::vector<float> logits = model.Run({&piece, 1});
        all.insert(all.end(), logits.begin(), logits.end());
      }
      if (threads == 1) expected = HashOf(all);
      EXPECT_EQ(HashOf(all), expected) << IsaName(isa);
    }
  }
}

TEST_P(ExactnessTest, BatchMates) {
  for (const Isa isa : SupportedIsas()) {
    if (isa == Isa::kScalar) continue;
    HarnessOptions options;
    options.isa = isa;
    options.threads = 2;
    options.kv_blocks = 128;
    options.expert_slots = 16;
    ModelHarness model(GetParam(), options);
    const int vocab = static_cast<int>(model.config().vocab_size);
    // Eight sequences of different lengths alone, one after another...
    std::vector<std::vector<float>> alone;
    for (int s = 0; s < 8; ++s) {
      auto sequence = model.NewSequence(32);
      std::vector<float> logits = model.Prefill(sequence, PromptOf(s, 5 + s, vocab), 16);
      for (const int32_t token : PromptOf(s + 100, 4, vocab)) {
        const ModelHarness::Piece piece = {&sequence, {token}};
        const std::vector<float> step = model.Run({&piece, 1});
        logits.insert(logits.end(), step.begin(), step.end());
      }
      alone.push_back(std::move(logits));
    }
    // ... and together: prefills in one batch, then decode steps of all.
    std::vector<ModelHarness::Sequence> sequences;
    sequences.reserve(8);
    for (int s = 0; s < 8; ++s) sequences.push_back(model.NewSequence(32));
    std::vector<ModelHarness::Piece> pieces;
    pieces.reserve(8);
    for (int s = 0; s < 8; ++s) {
      pieces.push_back({&sequences[static_cast<size_t>(s)], PromptOf(s, 5 + s, vocab)});
    }
    std::vector<std::vector<float>> together(8);
    const auto take = [&](const std::vector<float>& logits) {
      size_t at = 0;
      for (size_t s = 0; s < pieces.size(); ++s) {
        const size_t count = pieces[s].tokens.size() * static_cast<size_t>(vocab);
        together[s].insert(together[s].end(), logits.begin() + static_cast<int64_t>(at),
                           logits.begin() + static_cast<int64_t>(at + count));
        at += count;
      }
    };
    take(model.Run(pieces));
    for (size_t step = 0; step < 4; ++step) {
      for (int s = 0; s < 8; ++s) {
        pieces[static_cast<size_t>(s)].tokens = {PromptOf(s + 100, 4, vocab)[step]};
      }
      take(model.Run(pieces));
    }
    for (size_t s = 0; s < 8; ++s) {
      EXPECT_EQ(HashOf(alone[s]), HashOf(together[s])) << IsaName(isa) << " sequence " << s;
    }
  }
}

// Prompts in blocks through one layer after another, with steps of another sequence in between,
// have the bits of chunks through all layers: in the last row, and in what is decoded behind it.
TEST_P(ExactnessTest, PromptsByLayers) {
  const ModelConfig config = LoadModelConfig(GetParam());
  const int64_t all = config.num_sparse_layers() * config.num_experts();
  const int vocab = static_cast<int>(config.vocab_size);
  using Sequence = ModelHarness::Sequence;
  constexpr int kSteps = 16;  // of the other sequence
  for (const Isa isa : SupportedIsas()) {
    if (isa == Isa::kScalar) continue;
    const auto run = [&](bool by_layers, int64_t slots) {
      HarnessOptions options;
      options.isa = isa;
      options.threads = 2;
      options.kv_blocks = 64;
      options.max_batch_tokens = 24;
      options.expert_slots = slots;
      ModelHarness model(GetParam(), options);
      Sequence other = model.NewSequence(80);
      Sequence first = model.NewSequence(80);
      Sequence second = model.NewSequence(80);
      model.Prefill(other, PromptOf(1, 9, vocab), 9);
      model.Prefill(first, PromptOf(2, 5, vocab), 5);  // what is known of it already
      std::vector<float> results;
      std::vector<float> others;
      const std::vector<int32_t> decoded = PromptOf(3, kSteps, vocab);
      const auto decode_other = [&] {
        if (std::ssize(others) == kSteps * config.vocab_size) return;
        const auto at = others.size() / static_cast<size_t>(vocab);
        const ModelHarness::Piece piece = {&other, {decoded[at]}};
        const std::vector<float> logits = model.Run({&piece, 1});
        others.insert(others.end(), logits.begin(), logits.end());
      };
      const std::vector<ModelHarness::Piece> pieces = {{&first, PromptOf(4, 50, vocab)},
                                                       {&second, PromptOf(5, 37, vocab)}};
      if (by_layers) {
        int blocks = 0;
        results = model.RunByLayers(pieces, [&] {
          if (++blocks % 2 == 0) decode_other();
        });
        EXPECT_GT(others.size(), 0u);
      } else {
        for (const ModelHarness::Piece& piece : pieces) {
          const std::vector<float> logits = model.Prefill(*piece.sequence, piece.tokens, 24);
          results.insert(results.end(), logits.end() - vocab, logits.end());
        }
      }
      while (std::ssize(others) < kSteps * config.vocab_size) decode_other();
      results.insert(results.end(), others.begin(), others.end());
      for (Sequence* sequence : {&first, &second}) {
        for (const int32_t token : PromptOf(6, 3, vocab)) {
          const ModelHarness::Piece piece = {sequence, {token}};
          const std::vector<float> logits = model.Run({&piece, 1});
          results.insert(results.end(), logits.begin(), logits.end());
        }
      }
      return HashOf(results);
    };
    const uint64_t expected = run(false, all);
    // With two slots the blocks of a layer read its experts again; the bits are the same.
    for (const int64_t slots : {std::max<int64_t>(1, all / 3), int64_t{2}}) {
      if (slots == 2 && all > 100) continue;  // it takes long
      EXPECT_EQ(run(true, slots), expected) << IsaName(isa) << " slots " << slots;
    }
  }
}

TEST_P(ExactnessTest, F32ClassIsOneAcrossInstructionSets) {
  std::vector<uint64_t> hashes;
  for (const Isa isa : SupportedIsas()) {
    if (KernelsFor(isa).numerics != NumericsClass::kF32) continue;
    HarnessOptions options;
    options.isa = isa;
    options.kv_blocks = 64;
    ModelHarness model(GetParam(), options);
    hashes.push_back(HashOf(RunOne(model, 3, 32)));
    EXPECT_EQ(hashes.back(), hashes.front()) << IsaName(isa);
  }
}

// Integer sums are exact, so that quantised products have the same bits on every instruction set.
// Products with mxfp4_f32 are f32's, those with fp8 the same in a class.
TEST_P(ExactnessTest, QuantisedWeights) {
  const TempDir store;
  const ModelConfig config = LoadModelConfig(GetParam());
  const int64_t all = config.num_sparse_layers() * config.num_experts();
  std::vector<WeightType> types = {WeightType::kInt8, WeightType::kInt4};
  if (config.tensors.HasMxfp4Experts()) {
    types.insert(types.end(), {WeightType::kMxfp4, WeightType::kMxfp4F32});
  }
  if (HasFp8Experts(config)) types.push_back(WeightType::kFp8);
  if (HasW4A16Experts(config)) types.push_back(WeightType::kW4A16);
  types.push_back(WeightType::kBf16Coded);  // that of bf16 itself: golden_hashes_test.cpp
  for (const WeightType type : types) {
    uint64_t expected = 0;
    for (const Isa isa : SupportedIsas()) {
      HarnessOptions options;
      options.isa = isa;
      options.weight_type = type;
      options.kv_blocks = 64;
      uint64_t plain = 0;
      {
        ModelHarness model(GetParam(), options);
        plain = HashOf(RunOne(model, 2, 70));
      }
      if (expected == 0) expected = plain;
      // The router's products are in the class of the instruction set.
      if (KernelsFor(isa).numerics == NumericsClass::kF32) {
        EXPECT_EQ(plain, expected) << IsaName(isa);
      }
      options.threads = 2;
      options.expert_slots = std::max<int64_t>(1, all / 5);
      options.expert_store = store.path() / (std::string(WeightTypeName(type)) + IsaName(isa));
      ModelHarness model(GetParam(), options);
      for (const int64_t chunk : {1, 7, 32}) {
        EXPECT_EQ(HashOf(RunOne(model, 2, chunk)), plain)
            << WeightTypeName(type) << " " << IsaName(isa) << " chunk " << chunk;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, ExactnessTest,
    ::testing::Values(std::string(MOESAIC_SAMPLE_MODEL_DIR),
                      FixtureModel("qwen2_moe_bf16_sparse_step"),
                      FixtureModel("mixtral_bf16_window"), FixtureModel("olmoe_bf16_clip"),
                      FixtureModel("glm4_moe_bf16_air"), FixtureModel("minimax_m2_bf16_rotary_dim"),
                      FixtureModel("gpt_oss_bf16_window"), FixtureModel("gpt_oss_mxfp4"),
                      FixtureModel("qwen3_next_bf16"), FixtureModel("qwen3_5_moe_bf16"),
                      FixtureModel("deepseek_v2_fp32_groups"),
                      FixtureModel("deepseek_v3_bf16_groups"), FixtureModel("glm4_moe_lite_bf16"),
                      FixtureModel("deepseek_v3_fp8"), FixtureModel("glm_moe_dsa_bf16_shared"),
                      FixtureModel("granitemoe_bf16"), FixtureModel("dbrx_bf16_clip"),
                      FixtureModel("arctic_bf16")),
    [](const auto& param) { return std::filesystem::path(param.param).filename().string(); });

}  // namespace
}  // namespace moesaic
