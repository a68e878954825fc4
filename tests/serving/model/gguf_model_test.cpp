// Models in GGUF files: the same bits as the Hugging Face checkpoint that llama.cpp's converter
// made them of, and as a checkpoint of the values of their blocks
// (tests/reference/make_gguf_fixtures.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <variant>
#include <vector>

#include "core/base/error.h"
#include "core/config/gguf_config.h"
#include "core/io/gguf.h"
#include "kernels/cpu/gguf_blocks.h"
#include "serving/model/gguf_weights.h"
#include "serving/model/weights.h"
#include "tests/core/base/caught.h"
#include "tests/core/base/temp_dir.h"
#include "tests/serving/model/model_harness.h"
#include "tests/serving/model/reference_util.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

const fs::path kData = fs::path(MOESAIC_TEST_DATA_DIR);
const fs::path kMixed = kData / "gguf" / "mixed.gguf";
const fs::path kFused = kData / "gguf" / "fused.gguf";

std::vector<int32_t> Tokens() {
  std::vector<int32_t> tokens(33);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 29 % 90);
  return tokens;
}

std::vector<float> LogitsOf(const fs::path& model_path, WeightType type, int64_t expert_slots,
                            const std::function<void(ModelConfig&)>& change_config = {}) {
  HarnessOptions options;
  options.change_config = change_config;
  options.weight_type = type;
  options.kv_type = type == WeightType::kF32 ? WeightType::kF32 : WeightType::kBf16;
  options.expert_slots = expert_slots;
  options.kv_blocks = 8;
  ModelHarness model(model_path, options);
  auto sequence = model.NewSequence(40);
  const std::vector<int32_t> tokens = Tokens();
  return model.Prefill(sequence, tokens, 10);
}

void ExpectSameBits(const std::vector<float>& logits, const std::vector<float>& expected) {
  ASSERT_TRUE(std::isfinite(std::accumulate(expected.begin(), expected.end(), 0.0)));
  ASSERT_EQ(logits.size(), expected.size());
  EXPECT_EQ(std::memcmp(logits.data(), expected.data(), logits.size() * sizeof(float)), 0);
}

class GgufConvertedTest : public testing::TestWithParam<const char*> {};

// Mixtral's rows of queries and keys are turned in the file, GLM has a correction and dense layers.
TEST_P(GgufConvertedTest, SameBitsAsTheOriginal) {
  const std::string name = GetParam();
  // llama.cpp's converter leaves OLMoE's clip_qkv out.
  const auto without_clip = [&name](ModelConfig& config) {
    if (!name.starts_with("olmoe")) return;
    for (LayerSpec& layer : config.layers) {
      if (auto* const spec = std::get_if<GroupedQuerySpec>(&layer.mixer)) spec->clip_qkv = 0.0;
    }
  };
  ExpectSameBits(LogitsOf(kData / "gguf" / "models" / (name + ".gguf"), WeightType::kF32, 0),
                 LogitsOf(kData / "models" / name, WeightType::kF32, 0, without_clip));
}

INSTANTIATE_TEST_SUITE_P(
    Models, GgufConvertedTest,
    testing::Values("mixtral_fp32_defaults", "qwen3_moe_bf16_sharded", "olmoe_bf16_clip",
                    "glm4_moe_fp32_groups", "minimax_m2_bf16_rotary_dim", "gpt_oss_bf16_window",
                    "gpt_oss_mxfp4", "deepseek_v3_bf16_groups", "deepseek_v32_fp32_odd",
                    "glm_moe_dsa_fp16_groups", "qwen3_next_bf16", "granitemoe_bf16",
                    "granitemoe_shared_bf16", "dbrx_bf16_clip", "arctic_bf16", "ernie4_5_moe_bf16"),
    [](const auto& test) { return std::string(test.param); });

// Value heads lie in another order, in which the output projection adds them up.
TEST(GgufModelTest, ValueHeadsByTurnsAreTheSameModel) {
  const std::string name = "qwen3_5_moe_bf16";
  const std::vector<float> logits =
      LogitsOf(kData / "gguf" / "models" / (name + ".gguf"), WeightType::kF32, 0);
  const std::vector<float> expected = LogitsOf(kData / "models" / name, WeightType::kF32, 0);
  ASSERT_EQ(logits.size(), expected.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    ASSERT_NEAR(logits[i], expected[i], 2e-4) << i;
  }
}

// The Hugging Face names of a tensor of kMixed or kFused; of several its rows are in equal parts.
std::vector<std::string> OriginalNames(const std::string& name, int64_t expert) {
  static const std::map<std::string, std::string> kOfModel = {
      {"token_embd.weight", "model.embed_tokens.weight"},
      {"output.weight", "lm_head.weight"},
      {"output_norm.weight", "model.norm.weight"}};
  static const std::map<std::string, std::string> kOfLayer = {
      {"attn_norm", "input_layernorm"},
      {"ffn_norm", "post_attention_layernorm"},
      {"attn_q", "self_attn.q_proj"},
      {"attn_k", "self_attn.k_proj"},
      {"attn_v", "self_attn.v_proj"},
      {"attn_output", "self_attn.o_proj"},
      {"attn_q_norm", "self_attn.q_norm"},
      {"attn_k_norm", "self_attn.k_norm"},
      {"ffn_gate_inp", "mlp.gate"},
      {"ffn_gate_exps", "mlp.experts.{}.gate_proj"},
      {"ffn_up_exps", "mlp.experts.{}.up_proj"},
      {"ffn_down_exps", "mlp.experts.{}.down_proj"}};
  if (const auto found = kOfModel.find(name); found != kOfModel.end()) return {found->second};
  const size_t begin = name.find('.', 4);
  const size_t end = name.rfind('.');
  const std::string part = name.substr(begin + 1, end - begin - 1);
  const auto original = [&](const std::string& of) {
    return fmt::format("model.layers.{}.{}.weight", name.substr(4, begin - 4),
                       fmt::format(fmt::runtime(kOfLayer.at(of)), expert));
  };
  if (part == "ffn_gate_up_exps") return {original("ffn_gate_exps"), original("ffn_up_exps")};
  return {original(part)};
}

// A Hugging Face checkpoint of the values that the file's blocks stand for, in f32.
void WriteValues(const GgufHeader& header, const File& file, const fs::path& directory) {
  std::ofstream(directory / "config.json") << GgufConfigJson(header, "mixed.gguf");
  nlohmann::json tensors;
  std::string data;
  for (const auto& [name, info] : header.tensors) {
    std::vector<std::byte> blocks(info.extent.bytes);
    ASSERT_EQ(file.ReadAt(info.extent.offset, blocks), blocks.size());
    const GgufType& type = *FindGgufType(info.dtype_name);
    std::vector<float> values(blocks.size() / static_cast<size_t>(type.block_bytes) *
                              static_cast<size_t>(type.block_values));
    DequantiseGguf(type, blocks, values);
    std::vector<int64_t> shape = info.shape;
    std::vector<std::string> parts = OriginalNames(name, 0);
    shape[shape.size() == 3 ? 1 : 0] /= std::ssize(parts);
    if (shape.size() == 3) {
      for (int64_t expert = 1; expert < shape.front(); ++expert) {
        for (std::string& part : OriginalNames(name, expert)) parts.push_back(std::move(part));
      }
      shape.erase(shape.begin());
    }
    const size_t bytes = values.size() * sizeof(float) / parts.size();
    for (size_t i = 0; i < parts.size(); ++i) {
      tensors[parts[i]] = {
          {"dtype", "F32"}, {"shape", shape}, {"data_offsets", {data.size(), data.size() + bytes}}};
      data.append(reinterpret_cast<const char*>(values.data()) + i * bytes, bytes);
    }
  }
  const std::string text = tensors.dump();
  const uint64_t length = text.size();
  std::ofstream out(directory / "model.safetensors", std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), sizeof(length));
  out << text << data;
}

// All kinds of blocks, of which the matrices of one expert and the layers have different ones.
TEST(GgufModelTest, SameBitsAsTheValuesOfItsBlocks) {
  const TempDir values;
  const File file(kMixed);
  WriteValues(ReadGgufHeader(file), file, values.path());
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kInt8}) {
    const std::vector<float> expected = LogitsOf(values.path(), type, 0);
    for (const int64_t slots : {0, 3}) {
      SCOPED_TRACE(fmt::format("{}, {} slots", WeightTypeName(type), slots));
      ExpectSameBits(LogitsOf(kMixed, type, slots), expected);
    }
  }
}

// Experts whose gate and up matrices are one tensor.
TEST(GgufModelTest, FusedExpertsGiveTheBitsOfTheirValues) {
  const TempDir values;
  const File file(kFused);
  WriteValues(ReadGgufHeader(file), file, values.path());
  const std::vector<float> expected = LogitsOf(values.path(), WeightType::kF32, 0);
  for (const int64_t slots : {0, 2}) {
    SCOPED_TRACE(slots);
    ExpectSameBits(LogitsOf(kFused, WeightType::kF32, slots), expected);
  }
  HarnessOptions kept;
  kept.isa = IsasOf(NumericsClass::kF32).front();
  kept.weight_type = WeightType::kGgufF32;
  kept.kv_type = WeightType::kF32;
  kept.kv_blocks = 8;
  const std::vector<int32_t> tokens = Tokens();
  for (const int64_t slots : {0, 2}) {
    SCOPED_TRACE(fmt::format("kept, {} slots", slots));
    kept.expert_slots = slots;
    ModelHarness model(kFused, kept);
    auto sequence = model.NewSequence(40);
    ExpectSameBits(model.Prefill(sequence, tokens, 10), expected);
  }
}

// Queries, keys and values of a layer are of three types, and stay so.
TEST(GgufModelTest, RowsOfSeveralTypesStayInTheirBlocks) {
  const ModelConfig config = LoadModelConfig(kMixed);
  const ModelWeights shapes = ModelWeights::Shapes(config, WeightType::kGguf);
  const std::vector<PackedMatrix>& qkv = shapes.layers[0].attention().qkv.matrices;
  ASSERT_EQ(qkv.size(), size_t{3});
  const std::vector<std::pair<const char*, int64_t>> expected = {
      {"Q5_K", 64}, {"Q4_K", 32}, {"Q6_K", 32}};
  for (size_t i = 0; i < qkv.size(); ++i) {
    EXPECT_EQ(qkv[i].type, WeightType::kGguf);
    EXPECT_EQ(qkv[i].form, GgufFormOf(*FindGgufType(expected[i].first)));
    EXPECT_EQ(qkv[i].n, expected[i].second);
  }
  // Those of one type are one matrix.
  ModelConfig same = config;
  same.gguf_types["blk.0.attn_k.weight"] = same.gguf_types.at("blk.0.attn_q.weight");
  const ModelWeights merged = ModelWeights::Shapes(same, WeightType::kGguf);
  EXPECT_EQ(merged.layers[0].attention().qkv.matrices.size(), size_t{2});
  EXPECT_EQ(merged.layers[0].attention().qkv.n(), 128);
}

// Kept as they are, with f32 activations: products are those of the values in f32, wherever experts
// are and however many rows come at once.
TEST(GgufModelTest, KeptBlocksGiveTheBitsOfTheirValues) {
  const std::vector<float> expected = LogitsOf(kMixed, WeightType::kF32, 0);
  const TempDir store;
  const std::vector<int32_t> tokens = Tokens();
  for (const Isa isa : IsasOf(NumericsClass::kF32)) {
    HarnessOptions options;
    options.isa = isa;
    options.weight_type = WeightType::kGgufF32;
    options.kv_type = WeightType::kF32;
    options.kv_blocks = 16;
    for (const int64_t slots : {0, 3, 1}) {
      options.expert_slots = slots;
      options.threads = slots == 1 ? 2 : 1;
      if (slots == 1) options.expert_store = store.path() / IsaName(isa);
      ModelHarness model(kMixed, options);
      for (const int64_t chunk : {1, 10, 33}) {
        SCOPED_TRACE(fmt::format("{}, {} slots, {} rows", IsaName(isa), slots, chunk));
        auto sequence = model.NewSequence(40);
        ExpectSameBits(model.Prefill(sequence, tokens, chunk), expected);
      }
    }
  }
}

// In all classes kept blocks are the same on every way.
TEST(GgufModelTest, KeptBlocksAreExactInEveryClass) {
  for (const Isa isa : SupportedIsas()) {
    for (const WeightType type : {WeightType::kGguf, WeightType::kGgufF32}) {
      HarnessOptions options;
      options.isa = isa;
      options.weight_type = type;
      options.kv_blocks = 16;
      std::vector<int32_t> tokens(33, 7);
      std::vector<float> expected;
      for (const int64_t slots : {0, 2}) {
        options.expert_slots = slots;
        ModelHarness model(kMixed, options);
        for (const int64_t chunk : {1, 9, 32}) {
          SCOPED_TRACE(fmt::format("{}, {}, {} slots, {} rows", IsaName(isa), WeightTypeName(type),
                                   slots, chunk));
          auto sequence = model.NewSequence(40);
          const std::vector<float> logits = model.Prefill(sequence, tokens, chunk);
          if (expected.empty()) expected = logits;
          ExpectSameBits(logits, expected);
        }
      }
    }
  }
}

// With int8 activations the instruction sets of a class agree, wherever experts are, also out of a
// store that was written for f32 activations; and logits are near those of f32 activations.
TEST(GgufModelTest, IntegerActivationsGiveTheSameBitsOnEveryIsa) {
  const std::vector<float> f32 = LogitsOf(kMixed, WeightType::kGgufF32, 0);
  const TempDir store;
  const std::vector<int32_t> tokens = Tokens();
  std::vector<float> expected;
  for (const Isa isa : IsasOf(NumericsClass::kF32)) {
    HarnessOptions options;
    options.isa = isa;
    options.kv_type = WeightType::kF32;
    options.kv_blocks = 16;
    options.expert_store = store.path() / IsaName(isa);
    options.expert_slots = 1;
    for (const WeightType type : {WeightType::kGgufF32, WeightType::kGguf}) {
      SCOPED_TRACE(fmt::format("{}, {}", IsaName(isa), WeightTypeName(type)));
      options.weight_type = type;
      ModelHarness model(kMixed, options);
      auto sequence = model.NewSequence(40);
      const std::vector<float> logits = model.Prefill(sequence, tokens, 10);
      if (type == WeightType::kGgufF32) continue;
      if (expected.empty()) expected = logits;
      ExpectSameBits(logits, expected);
    }
  }
  double error = 0.0;
  double magnitude = 0.0;
  for (size_t i = 0; i < f32.size(); ++i) {
    const double off = expected[i] - f32[i];
    error += off * off;
    magnitude += static_cast<double>(f32[i]) * f32[i];
  }
  EXPECT_GT(error, 0.0);
  EXPECT_LT(error, 0.01 * magnitude);
}

class GgufBlocksTest : public testing::TestWithParam<const char*> {};

// Every family whose fixture has rows of whole blocks (tests/reference/make_gguf_blocks.py): kept
// with f32 activations they give the bits of their values, and with int8 activations the same bits
// on every ISA, wherever experts are and however many rows come at once.
TEST_P(GgufBlocksTest, KeptBlocksGiveTheSameBitsEverywhere) {
  const fs::path path = kData / "gguf" / "blocks" / (std::string(GetParam()) + ".gguf");
  const std::vector<int32_t> tokens = Tokens();
  for (const WeightType type : {WeightType::kGgufF32, WeightType::kGguf}) {
    std::vector<float> expected;
    if (type == WeightType::kGgufF32) expected = LogitsOf(path, WeightType::kF32, 0);
    for (const Isa isa : IsasOf(NumericsClass::kF32)) {
      HarnessOptions options;
      options.isa = isa;
      options.weight_type = type;
      options.kv_type = WeightType::kF32;
      options.kv_blocks = 16;
      for (const int64_t slots : {0, 4}) {
        options.expert_slots = slots;
        ModelHarness model(path, options);
        for (const int64_t chunk : {1, 10, 33}) {
          SCOPED_TRACE(fmt::format("{}, {}, {} slots, {} rows", IsaName(isa), WeightTypeName(type),
                                   slots, chunk));
          auto sequence = model.NewSequence(40);
          const std::vector<float> logits = model.Prefill(sequence, tokens, chunk);
          if (expected.empty()) expected = logits;
          ExpectSameBits(logits, expected);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GgufBlocksTest,
                         testing::Values("arctic_bf16", "dbrx_bf16_clip", "deepseek_v2_lite",
                                         "deepseek_v3_bf16_groups", "ernie4_5_moe_bf16",
                                         "gpt_oss_mxfp4", "granitemoe_bf16",
                                         "mixtral_fp32_defaults", "olmoe_bf16_clip",
                                         "qwen3_5_moe_bf16", "qwen3_moe_bf16_sharded",
                                         "qwen3_next_bf16"),
                         [](const auto& test) { return std::string(test.param); });

// What queries and what attention finds are multiplied with, head by head.
TEST(GgufModelTest, HeadsOfLatentAttentionStayInTheirBlocks) {
  const fs::path path = kData / "gguf" / "blocks" / "deepseek_v2_lite.gguf";
  const ModelConfig config = LoadModelConfig(path);
  const LatentSpec& spec = *config.FindMixer<LatentSpec>();
  const ModelWeights shapes = ModelWeights::Shapes(config, WeightType::kGguf);
  const auto& w = std::get<LatentWeights>(shapes.layers[1].mixer);
  EXPECT_EQ(w.query.type, WeightType::kGguf);
  const std::pair<PackedMatrix, int64_t> heads[] = {{w.KeysOf(spec, 3), spec.nope_dim},
                                                    {w.ValuesOf(spec, 3), spec.kv_rank}};
  for (const auto& [matrix, inputs] : heads) {
    EXPECT_EQ(matrix.type, WeightType::kGguf);
    EXPECT_EQ(matrix.k, inputs);
    EXPECT_EQ(matrix.form, GgufFormOf(*FindGgufType("Q5_0")));
  }
  // Rows of plain floats are widened.
  ModelConfig plain = config;
  plain.gguf_types["blk.1.attn_k_b.weight"] = FindGgufType("F16")->id;
  const ModelWeights widened = ModelWeights::Shapes(plain, WeightType::kGguf);
  EXPECT_EQ(std::get<LatentWeights>(widened.layers[1].mixer).keys.type, WeightType::kF32);
}

TEST(GgufModelTest, PlainFloatsTakeF32Activations) {
  ModelConfig config = LoadModelConfig(kMixed);
  EXPECT_TRUE(HasGgufExperts(config));
  EXPECT_TRUE(AllGgufExpertsInBlocks(config));
  ASSERT_EQ(config.gguf_types.count("blk.0.ffn_up_exps.weight"), size_t{1});
  config.gguf_types["blk.0.ffn_up_exps.weight"] = FindGgufType("F16")->id;
  EXPECT_TRUE(HasGgufExperts(config));
  EXPECT_FALSE(AllGgufExpertsInBlocks(config));

  PackedMatrix gate = {nullptr, WeightType::kGguf, 16, 256};
  PackedMatrix up = gate;
  TakeSameActivations({&gate, &up});
  EXPECT_EQ(gate.type, WeightType::kGguf);
  up.type = WeightType::kGgufF32;
  TakeSameActivations({&gate, &up});
  EXPECT_EQ(gate.type, WeightType::kGgufF32);
}

// --- configurations

nlohmann::json Metadata() {
  return {{"general.architecture", "qwen3moe"},
          {"qwen3moe.block_count", 3},
          {"qwen3moe.nextn_predict_layers", 1},
          {"qwen3moe.context_length", 4096},
          {"qwen3moe.embedding_length", 64},
          {"qwen3moe.feed_forward_length", 96},
          {"qwen3moe.expert_feed_forward_length", 32},
          {"qwen3moe.expert_count", 8},
          {"qwen3moe.expert_used_count", 2},
          {"qwen3moe.attention.head_count", {4, 4, 4}},
          {"qwen3moe.attention.head_count_kv", 2},
          {"qwen3moe.attention.key_length", 16},
          {"qwen3moe.attention.layer_norm_rms_epsilon", 1e-6},
          {"qwen3moe.rope.freq_base", 1e6},
          {"qwen3moe.rope.scaling.type", "yarn"},
          {"qwen3moe.rope.scaling.factor", 4.0},
          {"qwen3moe.rope.scaling.original_context_length", 1024},
          {"tokenizer.ggml.eos_token_id", 5},
          {"tokenizer.ggml.eot_token_id", 7},
          {"tokenizer.ggml.padding_token_id", 0xffffffffu}};
}

GgufHeader HeaderOf(nlohmann::json metadata) {
  GgufHeader header;
  header.metadata = std::move(metadata);
  TensorInfo embedding;
  embedding.shape = {100, 64};
  header.tensors["token_embd.weight"] = embedding;
  return header;
}

TEST(GgufConfigTest, WhatTheMetadataSay) {
  const ModelConfig model = ParseGgufConfig(HeaderOf(Metadata()), "m.gguf");
  EXPECT_EQ(model.architecture, "Qwen3MoeForCausalLM");
  EXPECT_EQ(model.num_layers(), 2);
  EXPECT_EQ(model.vocab_size, 100);
  EXPECT_EQ(model.hidden_size, 64);
  EXPECT_EQ(model.max_position, 4096);
  EXPECT_TRUE(model.tie_word_embeddings);
  EXPECT_EQ(model.eos_token_ids, (std::vector<int32_t>{5, 7}));
  EXPECT_EQ(model.bos_token_id, -1);
  EXPECT_EQ(model.pad_token_id, -1);
  EXPECT_EQ(model.num_experts(), 8);
  EXPECT_EQ(model.top_k(), 2);
  EXPECT_EQ(model.expert_width(), 32);
  EXPECT_EQ(model.experts().router.norm, RouterNorm::kSum);
  const GroupedQuerySpec& attention = model.attention();
  EXPECT_EQ(attention.heads, 4);
  EXPECT_EQ(attention.kv_heads, 2);
  EXPECT_EQ(attention.head_dim, 16);
  EXPECT_FALSE(attention.qkv_bias);
  EXPECT_EQ(attention.rope.kind, RopeKind::kYarn);
  EXPECT_EQ(attention.rope.factor, 4.0);
  EXPECT_EQ(attention.rope.original_max_position, 1024);
  EXPECT_NEAR(attention.rope.attention_factor, 0.1 * std::log(4.0) + 1.0, 1e-12);
}

void ExpectRefused(const nlohmann::json& change, const std::string& part, ErrorKind kind) {
  nlohmann::json metadata = Metadata();
  metadata.update(change);
  for (const auto& [key, value] : change.items()) {
    if (value.is_null()) metadata.erase(key);
  }
  const Error error = Caught([&] { ParseGgufConfig(HeaderOf(metadata), "m.gguf"); });
  EXPECT_EQ(error.kind(), kind) << error.what();
  EXPECT_TRUE(Contains(error, "m.gguf") && Contains(error, part)) << error.what();
}

TEST(GgufConfigTest, WhatIsRefused) {
  ExpectRefused({{"general.architecture", "newmoe"}}, "\"newmoe\"; served are qwen3moe",
                ErrorKind::kUnsupported);
  ExpectRefused({{"general.architecture", nullptr}}, "general.architecture: is missing",
                ErrorKind::kCorrupt);
  ExpectRefused({{"qwen3moe.block_count", nullptr}}, "qwen3moe.block_count: is missing",
                ErrorKind::kCorrupt);
  ExpectRefused({{"qwen3moe.expert_count", 0}}, "qwen3moe.expert_count", ErrorKind::kCorrupt);
  ExpectRefused({{"qwen3moe.attention.head_count", {4, 2, 4}}}, "differs between layers",
                ErrorKind::kUnsupported);
  ExpectRefused({{"qwen3moe.attention.value_length", 8}}, "value_length", ErrorKind::kUnsupported);
  ExpectRefused({{"qwen3moe.rope.scaling.type", "longrope"}}, "\"longrope\"",
                ErrorKind::kUnsupported);
  ExpectRefused({{"qwen3moe.attention.head_count_kv", 3}}, "num_key_value_heads",
                ErrorKind::kCorrupt);
}

// GLM-5 of three layers and one that predicts further tokens.
nlohmann::json GlmMetadata() {
  return {{"general.architecture", "glm-dsa"},
          {"glm-dsa.block_count", 4},
          {"glm-dsa.nextn_predict_layers", 1},
          {"glm-dsa.context_length", 4096},
          {"glm-dsa.embedding_length", 64},
          {"glm-dsa.feed_forward_length", 96},
          {"glm-dsa.expert_feed_forward_length", 32},
          {"glm-dsa.expert_count", 8},
          {"glm-dsa.expert_used_count", 2},
          {"glm-dsa.expert_weights_norm", true},
          {"glm-dsa.attention.head_count", 4},
          {"glm-dsa.attention.head_count_kv", 1},
          {"glm-dsa.attention.q_lora_rank", 24},
          {"glm-dsa.attention.kv_lora_rank", 32},
          {"glm-dsa.attention.key_length", 40},
          {"glm-dsa.attention.key_length_mla", 20},
          {"glm-dsa.attention.value_length", 32},
          {"glm-dsa.attention.value_length_mla", 16},
          {"glm-dsa.attention.indexer.head_count", 3},
          {"glm-dsa.attention.indexer.key_length", 12},
          {"glm-dsa.attention.indexer.top_k", 7},
          {"glm-dsa.attention.layer_norm_rms_epsilon", 1e-5},
          {"glm-dsa.rope.dimension_count", 8},
          {"glm-dsa.rope.freq_base", 1e6}};
}

// The layers of GLM-5 with an indexer are those of a list, else those with its tensors.
TEST(GgufConfigTest, LayersThatShareAChoice) {
  const auto heads_of = [](const GgufHeader& header) {
    std::vector<int64_t> heads;
    for (const LayerSpec& layer : ParseGgufConfig(header, "m.gguf").layers) {
      const auto& latent = std::get<LatentSpec>(layer.mixer);
      EXPECT_EQ(latent.top_k, 7);
      EXPECT_EQ(latent.query_dim(), 20);
      heads.push_back(latent.indexer.heads);
    }
    return heads;
  };
  GgufHeader header = HeaderOf(GlmMetadata());
  const Error error = Caught([&] { ParseGgufConfig(header, "m.gguf"); });
  EXPECT_TRUE(Contains(error, "first layer without an indexer")) << error.what();

  header.tensors["blk.0.indexer.attn_k.weight"] = {};
  header.tensors["blk.2.indexer.attn_k.weight"] = {};
  header.tensors["blk.3.indexer.attn_k.weight"] = {};
  EXPECT_EQ(heads_of(header), (std::vector<int64_t>{3, 0, 3}));
  header.metadata["glm-dsa.attention.indexer.types"] = {true, true, false, true};
  EXPECT_EQ(heads_of(header), (std::vector<int64_t>{3, 3, 0}));

  for (const nlohmann::json& wrong :
       {nlohmann::json({true, false}), nlohmann::json("full"), nlohmann::json({true, 1, false})}) {
    header.metadata["glm-dsa.attention.indexer.types"] = wrong;
    const Error refused = Caught([&] { ParseGgufConfig(header, "m.gguf"); });
    EXPECT_EQ(refused.kind(), ErrorKind::kCorrupt) << wrong;
    EXPECT_TRUE(Contains(refused, "glm-dsa.attention.indexer.types")) << refused.what();
  }
}

TEST(GgufConfigTest, ALlamaWithoutExperts) {
  const nlohmann::json metadata = {{"general.architecture", "llama"}, {"llama.block_count", 2}};
  const Error error = Caught([&] { ParseGgufConfig(HeaderOf(metadata), "m.gguf"); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(Contains(error, "a model without experts")) << error.what();
}

}  // namespace
}  // namespace moesaic
