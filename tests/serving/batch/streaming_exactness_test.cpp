// Rule 1 for throughput mode: logits have the same bits when experts stream past, whatever the
// buffers, the residents, the size of a pass and the type of the weights.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/hash.h"
#include "serving/batch/streaming_experts.h"
#include "tests/core/base/temp_dir.h"
#include "tests/serving/batch/timeline_checks.h"
#include "tests/serving/model/model_harness.h"

namespace moesaic {
namespace {

constexpr int kSequences = 12;

// A prefill and four decode steps of each sequence, `together` sequences a pass; the hash of each
// sequence's logits.
std::vector<uint64_t> RunAll(ModelHarness& model, int together) {
  const auto vocab = static_cast<int>(model.config().vocab_size);
  std::vector<uint64_t> hashes;
  for (int first = 0; first < kSequences; first += together) {
    std::vector<ModelHarness::Sequence> sequences;
    std::vector<std::vector<float>> logits(static_cast<size_t>(together));
    sequences.reserve(static_cast<size_t>(together));
    for (int s = 0; s < together; ++s) sequences.push_back(model.NewSequence(32));
    for (int step = 0; step < 5; ++step) {
      std::vector<ModelHarness::Piece> pieces;
      for (int s = 0; s < together; ++s) {
        const int seed = 100 * step + first + s;
        pieces.push_back({&sequences[static_cast<size_t>(s)],
                          PromptOf(seed, step == 0 ? 3 + (first + s) % 7 : 1, vocab)});
      }
      const std::vector<float> all = model.Run(pieces);
      auto at = all.begin();
      for (size_t s = 0; s < pieces.size(); ++s) {
        const auto count = static_cast<int64_t>(pieces[s].tokens.size()) * vocab;
        logits[s].insert(logits[s].end(), at, at + count);
        at += count;
      }
    }
    for (const auto& values : logits) {
      hashes.push_back(Hash64(std::as_bytes(std::span(values))));
    }
  }
  return hashes;
}

class StreamingExactnessTest : public ::testing::TestWithParam<WeightType> {};

TEST_P(StreamingExactnessTest, BuffersResidentsAndBatches) {
  const TempDir store;
  HarnessOptions options;
  options.isa = SelectKernels().isa;
  options.weight_type = GetParam();
  const std::string directory = GetParam() == WeightType::kMxfp4
                                    ? FixtureModel("gpt_oss_mxfp4")
                                    : std::string(MOESAIC_SAMPLE_MODEL_DIR);
  options.kv_blocks = 2 * kSequences;
  std::vector<uint64_t> expected;
  {
    ModelHarness model(directory, options);
    expected = RunAll(model, 1);
  }
  for (const int64_t slots : {1, 2, 40, 256}) {
    for (const bool packed : {false, true}) {
      for (const int together : {1, 4, 12}) {
        // What a store changes has nothing to do with the number of slots, and a sequence at a time
        // reads nearly everything anew for each token.
        if ((packed || together == 1) && slots != 40) continue;
        Timeline timeline(1'000'000);
        HarnessOptions streaming = options;
        streaming.threads = 2;
        if (packed) streaming.expert_store = store.path() / "store";
        streaming.make_experts = [&](const ExpertSource& source, const ModelConfig& config) {
          StreamingOptions stream;
          stream.slots = slots;
          stream.buffers = std::max<int64_t>(1, slots / 3);
          stream.timeline = &timeline;
          return std::make_unique<StreamingExperts>(source, static_cast<int>(config.num_layers()),
                                                    static_cast<int>(config.num_experts()), stream);
        };
        {
          ModelHarness model(directory, streaming);
          EXPECT_EQ(RunAll(model, together), expected)
              << slots << " slots, packed " << packed << ", " << together << " together";
        }
        ExpectNoStallWhileIdle(timeline.Take());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, StreamingExactnessTest,
                         ::testing::Values(WeightType::kBf16, WeightType::kF32, WeightType::kInt8,
                                           WeightType::kInt4, WeightType::kMxfp4),
                         [](const auto& info) { return WeightTypeName(info.param); });

}  // namespace
}  // namespace moesaic
