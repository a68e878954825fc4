// Logits of this commit against those of earlier ones, bit for bit: hashes of every fixture and of
// the sample model, by numerics class, type of weights and of the KV cache. The exactness tests
// compare settings with each other; this file says that a change of the code moved none of them.
//
// MOESAIC_WRITE_HASHES=FILE writes the lines of the classes that this CPU has, after those of the
// other classes in tests/data/logit_hashes.txt: for a commit that means to change numerics, or the
// first run on a CPU with a class that the file lacks.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "core/base/hash.h"
#include "serving/model/fp8_weights.h"
#include "serving/model/packed_int4.h"
#include "tests/serving/model/model_harness.h"

namespace moesaic {
namespace {

// "f32 sample bf16 weights, bf16 kv": 16 hexadecimal digits.
using HashLines = std::map<std::string, std::string>;

const char kHashFile[] = MOESAIC_TEST_DATA_DIR "/logit_hashes.txt";

HashLines ReadHashes() {
  HashLines hashes;
  std::ifstream file(kHashFile);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with('#') || colon == std::string::npos) continue;
    hashes[line.substr(0, colon)] = line.substr(colon + 2);
  }
  return hashes;
}

// The fastest instruction set of each class that this CPU has.
std::map<NumericsClass, Isa> IsaOfClasses() {
  std::map<NumericsClass, Isa> classes;
  for (const Isa isa : SupportedIsas()) classes[KernelsFor(isa).numerics] = isa;
  return classes;
}

// Prefill of 70 tokens in chunks of 32, then 6 decode steps with forced tokens: all logits, and all
// logits of a prompt behind the first chunk of attention, where the model's context allows it.
uint64_t LogitHash(const std::filesystem::path& model_dir, const HarnessOptions& options) {
  ModelHarness model(model_dir, options);
  const auto vocab = static_cast<int>(model.config().vocab_size);
  auto sequence = model.NewSequence(80);
  sequence.decode_from = 70;
  std::vector<float> all = model.Prefill(sequence, PromptOf(11, 70, vocab), 32);
  for (const int32_t token : PromptOf(12, 6, vocab)) {
    const ModelHarness::Piece piece = {&sequence, {token}};
    const std::vector<float> logits = model.Run({&piece, 1});
    all.insert(all.end(), logits.begin(), logits.end());
  }
  if (model.config().max_position >= 600) {
    auto long_sequence = model.NewSequence(600);
    const std::vector<float> logits = model.Prefill(long_sequence, PromptOf(13, 590, vocab), 128);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return Hash64(std::as_bytes(std::span(all)));
}

std::vector<std::filesystem::path> Models() {
  std::vector<std::filesystem::path> models;
  for (const auto& entry : std::filesystem::directory_iterator(MOESAIC_TEST_DATA_DIR "/models")) {
    models.push_back(entry.path());
  }
  std::sort(models.begin(), models.end());
  models.emplace_back(MOESAIC_SAMPLE_MODEL_DIR);
  return models;
}

HashLines ComputeHashes() {
  HashLines hashes;
  for (const auto& entry : IsaOfClasses()) {
    const auto numerics = entry.first;  // clang 14 captures no structured binding
    const Isa isa = entry.second;
    for (const std::filesystem::path& model : Models()) {
      const auto enter = [&](const HarnessOptions& options, const char* suffix = "") {
        const std::string key =
            fmt::format("{} {} {} weights, {} kv{}", NumericsClassName(numerics),
                        model.filename().string(), WeightTypeName(SameBitsAs(options.weight_type)),
                        WeightTypeName(options.kv_type), suffix);
        const std::string hash = fmt::format("{:016x}", LogitHash(model, options));
        const auto first = hashes.emplace(key, hash).first;
        EXPECT_EQ(first->second, hash) << key << ", " << WeightTypeName(options.weight_type);
      };
      HarnessOptions options;
      options.isa = isa;
      options.threads = 2;
      options.max_context_tokens = 600;
      const ModelConfig config = LoadModelConfig(model);
      const bool mxfp4 = config.tensors.HasMxfp4Experts();
      for (const WeightTraits& traits : kWeightTypes) {
        const WeightType type = traits.type;
        if ((type == WeightType::kMxfp4 || type == WeightType::kMxfp4F32) && !mxfp4) continue;
        if (IsGguf(type)) continue;  // of other files
        if (type == WeightType::kFp8 && !HasFp8Experts(config)) continue;
        if (type == WeightType::kW4A16 && !HasW4A16Experts(config)) continue;
        options.weight_type = type;
        options.kv_type = type == WeightType::kF32 ? WeightType::kF32 : WeightType::kBf16;
        enter(options);
      }
      options.weight_type = WeightType::kBf16;
      if (config.FindMixer<LatentSpec>() == nullptr) {
        options.kv_type = WeightType::kInt8;
        enter(options);
      }
      options.kv_type = WeightType::kBf16;
      options.defer_experts = 1;
      enter(options, ", 1 expert deferred");
    }
  }
  return hashes;
}

TEST(GoldenHashesTest, LogitsAreThoseOfEarlierCommits) {
  const HashLines expected = ReadHashes();
  ASSERT_FALSE(expected.empty()) << kHashFile;
  const HashLines computed = ComputeHashes();
  if (const char* path = std::getenv("MOESAIC_WRITE_HASHES")) {
    HashLines all = expected;
    for (const auto& [key, hash] : computed) all[key] = hash;
    std::ofstream file(path);
    file << "# Class, model, types: hash of the logits. golden_hashes_test.cpp writes and reads "
            "it.\n";
    for (const auto& [key, hash] : all) file << key << ": " << hash << "\n";
    ASSERT_TRUE(file.flush()) << path;
    return;
  }
  for (const auto& [numerics, isa] : IsaOfClasses()) {
    const std::string name = NumericsClassName(numerics);
    const auto first = expected.lower_bound(name + " ");
    if (first == expected.end() || !first->first.starts_with(name + " ")) {
      std::printf("SKIPPED: no hashes of class %s are recorded in %s\n", name.c_str(), kHashFile);
      continue;
    }
    std::string unknown;
    for (const auto& [key, hash] : computed) {
      if (!key.starts_with(name + " ")) continue;
      // Of fixtures that were made where there is no such CPU.
      const std::string of_model = key.substr(0, key.find(' ', name.size() + 1) + 1);
      const auto of_file = expected.lower_bound(of_model);
      if (of_file == expected.end() || !of_file->first.starts_with(of_model)) {
        if (of_model != unknown) {
          std::printf("SKIPPED: no hashes of %sare recorded in %s\n", of_model.c_str(), kHashFile);
        }
        unknown = of_model;
        continue;
      }
      const auto found = expected.find(key);
      ASSERT_NE(found, expected.end()) << key << " is not in " << kHashFile;
      EXPECT_EQ(hash, found->second) << key;
    }
  }
}

}  // namespace
}  // namespace moesaic
