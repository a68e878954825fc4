// Tied embeddings whose checkpoint has an output matrix as well.
#include "serving/model/tied_head.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>

#include "tests/core/base/temp_dir.h"
#include "tests/serving/model/model_harness.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

// A tied fixture with `head` [vocab, hidden] f32 beside it.
void WriteModel(const fs::path& to, const std::vector<float>& head, int64_t vocab, int64_t hidden) {
  const fs::path from = FixtureModel("glm4_moe_fp32_groups");
  fs::copy_file(from / "config.json", to / "config.json");
  fs::copy_file(from / "model.safetensors", to / "a.safetensors");
  const std::string header =
      fmt::format(R"({{"lm_head.weight":{{"dtype":"F32","shape":[{},{}],"data_offsets":[0,{}]}}}})",
                  vocab, hidden, head.size() * sizeof(float));
  const uint64_t header_bytes = header.size();
  std::ofstream file(to / "b.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  file << header;
  file.write(reinterpret_cast<const char*>(head.data()),
             static_cast<std::streamsize>(head.size() * sizeof(float)));
}

std::vector<float> LogitsOf(const fs::path& model_dir, bool* tied) {
  HarnessOptions options;
  options.weight_type = WeightType::kF32;
  options.kv_blocks = 8;
  ModelHarness model(model_dir, options);
  *tied = model.config().tie_word_embeddings;
  auto sequence = model.NewSequence(20);
  return model.Prefill(sequence, PromptOf(1, 9, static_cast<int>(model.config().vocab_size)), 9);
}

TEST(TiedHeadTest, AnOutputMatrixThatIsThereCounts) {
  const fs::path fixture = FixtureModel("glm4_moe_fp32_groups");
  const ModelConfig config = LoadModelConfig(fixture);
  ASSERT_TRUE(config.tie_word_embeddings);
  const Checkpoint checkpoint = Checkpoint::Open(fixture);
  const TensorInfo& embedding = *checkpoint.Find("model.embed_tokens.weight");
  std::vector<float> head(static_cast<size_t>(config.vocab_size * config.hidden_size));
  checkpoint.Read(embedding, std::as_writable_bytes(std::span(head)));
  bool tied = false;
  const std::vector<float> expected = LogitsOf(fixture, &tied);
  EXPECT_TRUE(tied);
  {
    const TempDir directory;
    WriteModel(directory.path(), head, config.vocab_size, config.hidden_size);
    EXPECT_EQ(LogitsOf(directory.path(), &tied), expected);
    EXPECT_TRUE(tied);
  }
  for (float& weight : head) weight *= -2;
  const TempDir directory;
  WriteModel(directory.path(), head, config.vocab_size, config.hidden_size);
  const std::vector<float> logits = LogitsOf(directory.path(), &tied);
  EXPECT_FALSE(tied);
  ASSERT_EQ(logits.size(), expected.size());
  for (size_t i = 0; i < logits.size(); ++i) ASSERT_EQ(logits[i], -2 * expected[i]) << i;
}

}  // namespace
}  // namespace moesaic
