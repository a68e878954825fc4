// The dense part on devices: sharded over several it has the bits of one, whatever the model's
// shapes and however uneven the shares. Linked twice, as model_test.cpp is.
#include "serving/model/device_dense.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/config/kv_groups.h"
#include "kernels/cuda/gemm.h"
#include "serving/model/device_operator.h"
#include "serving/model/expert_sources.h"
#include "tests/core/base/caught.h"
#include "tests/core/config/made_up_layers.h"
#include "tests/gpu/kernel_machine.h"
#include "tests/serving/model/model_harness.h"
#include "tests/serving/model/odd_model.h"
#include "tests/serving/model/relative_distance.h"

namespace moesaic {
namespace {

ModelLimits Limits() {
  ModelLimits limits;
  limits.max_batch_tokens = 16;
  limits.max_context_tokens = 288;
  limits.num_kv_blocks = 24 * static_cast<int64_t>(KvGroupsOf(OddModel()).count());
  limits.max_logit_rows = 16;
  limits.max_sequences = 3;
  return limits;
}

constexpr std::string_view kFp8Blocks =
    R"({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})";

class DeviceDenseTest : public testing::Test {
 protected:
  void UseDevices(int devices, uint64_t capacity_bytes = uint64_t{16} << 20) {
    std::string why_not;
    machine_ = MakeKernelMachine(capacity_bytes, why_not, static_cast<size_t>(devices));
    if (machine_ == nullptr) GTEST_SKIP() << "SKIPPED: " << why_not;
    devices_.clear();
    for (size_t d = 0; d < static_cast<size_t>(devices); ++d) {
      devices_.push_back(&machine_->device(d));
    }
  }

  ModelWeights Weights(const ModelConfig& config, WeightType type) {
    ThreadPool pool(1);
    return ModelWeights::Load(config, type, MadeUpTensors(), KernelsFor(Isa::kScalar), pool);
  }

  // One forward pass; logits and greedy tokens of all rows go to seen_. Experts multiply by a
  // number.
  void Step(DensePart& dense, DeviceOperator& experts, const ModelConfig& config,
            const ForwardBatch& batch) {
    const auto rows = static_cast<int64_t>(batch.tokens.size());
    const auto pairs = static_cast<size_t>(rows * config.top_k());
    const RowRange all_rows = {0, rows};
    std::vector<int32_t> ids(pairs);
    std::vector<float> weights(pairs);
    dense.Begin(batch, nullptr);
    for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
      dense.PreAttention(layer, all_rows, pool_);
      dense.Attend(layer, {0, std::ssize(batch.slices)}, pool_);
      dense.Project(layer, all_rows, pool_);
      dense.Route(layer, all_rows, ids.data(), weights.data(), true, pool_);
      if (!config.is_sparse(layer)) {
        dense.AddMlp(layer, all_rows, {}, {}, pool_);
        continue;
      }
      const ExpertInputs inputs = dense.OpenExperts(all_rows);
      ExpectSameRows(inputs.there, rows, config.hidden_size);
      experts.BeginLayerThere(inputs.there[0], {}, true);
      auto* const out = reinterpret_cast<float*>(experts.host_out().data());
      for (size_t pair = 0; pair < pairs; ++pair) {
        const size_t row = pair / static_cast<size_t>(config.top_k());
        for (size_t i = 0; i < static_cast<size_t>(config.hidden_size); ++i) {
          out[pair * static_cast<size_t>(config.hidden_size) + i] =
              inputs.x[row * static_cast<size_t>(inputs.x_stride) + i] *
              (0.5f + 0.25f * static_cast<float>(ids[pair]));
        }
      }
      seen_.insert(seen_.end(), inputs.x, inputs.x + rows * config.hidden_size);
      std::vector<int32_t> pair_rows(pairs);
      std::iota(pair_rows.begin(), pair_rows.end(), 0);
      const ExpertOutputs outputs = {.weights = weights.data(),
                                     .device = &experts,
                                     .others = static_cast<int64_t>(pairs),
                                     .pair_rows = pair_rows};
      dense.AddMlp(layer, all_rows, outputs, {}, pool_);
    }
    dense.End();
    std::vector<int32_t> all(static_cast<size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    std::vector<float> logits(static_cast<size_t>(rows * config.vocab_size));
    dense.Head(all, logits.data());
    seen_.insert(seen_.end(), logits.begin(), logits.end());
    if (!with_tokens_) return;
    std::vector<int32_t> tokens(all.size());
    dense.Greedy(all, tokens.data());
    seen_.insert(seen_.end(), tokens.begin(), tokens.end());
  }

  void ExpectSameRows(std::span<const DeviceSpan> there, int64_t rows, int64_t hidden) {
    std::vector<std::byte> expected;
    for (const DeviceSpan& x : there) {
      std::vector<std::byte> bytes(static_cast<size_t>(rows * cuda::ActivationStride(hidden)) *
                                   sizeof(uint16_t));
      const std::unique_ptr<Stream> stream = x.device()->CreateStream();
      stream->CopyToHost(bytes, x.Subspan(0, bytes.size()));
      ASSERT_EQ(stream->Synchronize(), std::nullopt);
      if (x.data() == there.front().data()) expected = bytes;
      ASSERT_TRUE(bytes == expected);
    }
  }

  // A prompt in two pieces beside another sequence, and decode steps, the last of a context of more
  // than one chunk of attention.
  std::vector<float> Run(DensePart& dense, const ModelConfig& config, WeightType type) {
    const ExpertLayout layout = MakeCpuExpertLayout(config, type);
    DeviceOperator experts(*devices_.front(), machine_->kernels(), layout, config,
                           Limits().max_batch_tokens);
    seen_.clear();
    const auto token = [&](int64_t i) { return static_cast<int32_t>((i * 37 + 5) % 171); };
    const std::vector<int32_t> blocks_a = {3, 1};
    std::vector<int32_t> blocks_b = {2};
    const auto step = [&](int64_t a_from, int64_t a_count, int64_t b_from, int64_t b_count) {
      std::vector<int32_t> tokens;
      for (int64_t i = 0; i < a_count; ++i) tokens.push_back(token(a_from + i));
      for (int64_t i = 0; i < b_count; ++i) tokens.push_back(token(100 + b_from + i));
      const std::vector<SequenceSlice> slices = {
          {.first_row = 0, .num_tokens = a_count, .start_position = a_from, .blocks = blocks_a},
          {.first_row = a_count,
           .num_tokens = b_count,
           .start_position = b_from,
           .blocks = blocks_b}};
      Step(dense, experts, config, {tokens, slices});
    };
    step(0, 9, 0, 2);
    step(9, 10, 2, 1);
    step(19, 1, 3, 1);
    // As if one full block had been computed many times before.
    for (int64_t from = 4; from < 16; from += 12) step(20, 1, from, 12);
    blocks_b.insert(blocks_b.begin(), 16, 2);
    blocks_b.push_back(4);
    step(21, 1, 272, 1);
    return seen_;
  }

  ThreadPool pool_{1};
  std::unique_ptr<KernelMachine> machine_;
  std::vector<Device*> devices_;
  std::vector<float> seen_;
  bool with_tokens_ = true;
};

TEST_F(DeviceDenseTest, AnyNumberOfDevicesHasTheBitsOfOne) {
  struct Case {
    const char* what;
    WeightType type;
    void (*change)(ModelConfig& config);
  };
  const Case cases[] = {
      {"five KV heads, a gated shared expert", WeightType::kBf16, [](ModelConfig&) {}},
      {"norm over all heads", WeightType::kInt8,
       [](ModelConfig& c) {
         ChangeAttention(c, [](GroupedQuerySpec& spec) { spec.qk_norm = QkNorm::kProjection; });
         ChangeExperts(c, [](ExpertsSpec& spec) { spec.shared_gate = false; });
       }},
      {"norm by head, one KV head, tied", WeightType::kInt4,
       [](ModelConfig& c) {
         ChangeAttention(c, [](GroupedQuerySpec& spec) {
           spec.qk_norm = QkNorm::kPerHead;
           spec.kv_heads = 1;
           spec.heads = 3;
         });
         c.tie_word_embeddings = true;
       }},
      {"no shared expert, dense last", WeightType::kBf16,
       [](ModelConfig& c) {
         ChangeExperts(c, [](ExpertsSpec& spec) {
           spec.shared.width = 0;
           spec.shared_gate = false;
         });
         std::swap(c.layers[0].mlp, c.layers[2].mlp);
       }},
      {"fp8", WeightType::kFp8, [](ModelConfig& c) { c = OddModel(kFp8Blocks); }},
      {"biases, half-rotated heads, groups of experts", WeightType::kInt8,
       [](ModelConfig& c) { c = OddGroupsModel(); }},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.what);
    ModelConfig config = OddModel();
    test.change(config);
    const ModelWeights weights = Weights(config, test.type);
    std::vector<float> expected;
    // One device captures its decode steps, or queues them kernel by kernel.
    for (const auto& [devices, capture] :
         {std::pair(1, true), {1, false}, {2, true}, {3, true}, {5, true}}) {
      SCOPED_TRACE(testing::Message() << devices << " devices, " << capture);
      UseDevices(devices);
      if (machine_ == nullptr) return;
      DeviceDense dense(devices_, machine_->kernels(), config, test.type, weights, Limits(),
                        DeviceDenseOptions{.capture = capture});
      const std::vector<float> seen = Run(dense, config, test.type);
      EXPECT_EQ(dense.captured() > 0, devices == 1 && capture);
      if (expected.empty()) {
        expected = seen;
        for (const float value : expected) ASSERT_TRUE(std::isfinite(value));
      }
      ASSERT_TRUE(seen == expected);
    }
  }
}

// Rounded to three bits of mantissa, and nothing else.
TEST_F(DeviceDenseTest, Fp8IsCloseToBf16) {
  const ModelConfig config = OddModel(kFp8Blocks);
  with_tokens_ = false;  // of nearly the same logits the largest may be another
  const auto run = [&](WeightType type) {
    UseDevices(1);
    if (machine_ == nullptr) return std::vector<float>();
    const ModelWeights weights = Weights(config, type);
    const LayerWeights& layer = weights.layers.front();
    EXPECT_EQ(layer.attention().qkv.whole().type, type);
    EXPECT_EQ(layer.down.type, type);
    EXPECT_EQ(weights.embedding.type, WeightType::kBf16);
    DeviceDense dense(devices_, machine_->kernels(), config, type, weights, Limits());
    return Run(dense, config, type);
  };
  const std::vector<float> bf16 = run(WeightType::kBf16);
  if (machine_ == nullptr) return;
  const std::vector<float> fp8 = run(WeightType::kFp8);
  EXPECT_GT(RelativeDistance(fp8, bf16), 0.0);
  EXPECT_LT(RelativeDistance(fp8, bf16), 0.1);
}

// A library in the place of cuBLAS where there is none: our own products in another order.
class VectorGemm : public cuda::Gemm {
 public:
  explicit VectorGemm(const cuda::Kernels& kernels) : kernels_(kernels) {}
  LaunchResult Product(const cuda::ProductArgs& args, cuda::StreamHandle stream) override {
    return kernels_.product(args, cuda::ProductPath::kVector, stream);
  }

 private:
  const cuda::Kernels& kernels_;
};

// What it was asked, whoever does it. Emulated devices ask on threads of their own.
std::atomic<int> g_made{0};
std::atomic<int> g_products{0};
std::atomic<int64_t> g_least_rows{0};
const cuda::Kernels* g_kernels = nullptr;

class CountingGemm : public cuda::Gemm {
 public:
  explicit CountingGemm(std::unique_ptr<cuda::Gemm> gemm) : gemm_(std::move(gemm)) {}
  LaunchResult Product(const cuda::ProductArgs& args, cuda::StreamHandle stream) override {
    ++g_products;
    if (args.rows < g_least_rows) g_least_rows = args.rows;
    return gemm_->Product(args, stream);
  }

 private:
  const std::unique_ptr<cuda::Gemm> gemm_;
};

std::unique_ptr<cuda::Gemm> MakeCountingGemm(Stream& stream, const DeviceSpan& workspace) {
  ++g_made;
  if (stream.device().kind() == DeviceKind::kCuda && cuda::WhyNoCublas().empty()) {
    return std::make_unique<CountingGemm>(cuda::MakeCublas(stream, workspace));
  }
  return std::make_unique<CountingGemm>(std::make_unique<VectorGemm>(*g_kernels));
}

// What it takes is what it says; one device takes more when it captures whole steps.
TEST_F(DeviceDenseTest, MemoryIsAccounted) {
  const ModelConfig config = OddModel();
  const ModelWeights weights = Weights(config, WeightType::kBf16);
  for (const auto& [devices, library] : {std::pair(1, false), {3, false}, {1, true}, {3, true}}) {
    UseDevices(devices, uint64_t{64} << 20);
    if (machine_ == nullptr) return;
    g_kernels = &machine_->kernels();
    ModelLimits limits = Limits();
    limits.gemm_library = library;
    const DeviceDense dense(devices_, machine_->kernels(), config, WeightType::kBf16, weights,
                            limits, DeviceDenseOptions{.make_gemm = MakeCountingGemm});
    uint64_t kv_bytes = 0;
    for (int d = 0; d < devices; ++d) {
      kv_bytes += DeviceDense::KvBytes(config, limits, devices, d);
      const uint64_t steps = devices == 1 ? StepExperts::DeviceBytes(config, limits) : 0;
      EXPECT_EQ(devices_[static_cast<size_t>(d)]->used_bytes() + steps,
                RoundUp(DeviceDense::WeightBytes(config, WeightType::kBf16, devices, d),
                        Device::kAlignment) +
                    RoundUp(DeviceDense::KvBytes(config, limits, devices, d), Device::kAlignment) +
                    DeviceDense::WorkspaceBytes(config, limits, devices, d))
          << d << " of " << devices;
    }
    EXPECT_EQ(kv_bytes, Model::KvBlockBytes(config, WeightType::kBf16) *
                            static_cast<uint64_t>(Limits().num_kv_blocks));
  }
}

// A prompt of many rows, a step of few, and decode steps of 64 sequences, which one device
// captures. What a library multiplies is within the class's tolerance, but where it tips the choice
// of an expert; the exact class asks for none. Compiled for the host, where 64 rows take long, the
// prompts only.
TEST_F(DeviceDenseTest, ALibraryMultipliesManyRows) {
  ModelConfig config = OddModel();
  config.layers.resize(2);
  ModelLimits limits = Limits();
  limits.max_batch_tokens = limits.max_logit_rows = limits.max_sequences = 64;
  limits.num_kv_blocks = 80 * static_cast<int64_t>(KvGroupsOf(config).count());
  const std::vector<int32_t> prompt_blocks = {70, 71, 72, 73};
  std::vector<int32_t> blocks(64);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::vector<int32_t> tokens(64);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>((i * 37 + 5) % 171);
  with_tokens_ = false;
  for (const auto& [type, devices] : {std::pair(WeightType::kBf16, 1), {WeightType::kInt8, 2}}) {
    SCOPED_TRACE(testing::Message() << WeightTypeName(type) << ", " << devices << " devices");
    const ModelWeights weights = Weights(config, type);
    const ExpertLayout layout = MakeCpuExpertLayout(config, type);
    UseDevices(devices, uint64_t{64} << 20);
    if (machine_ == nullptr) return;
    const bool decodes = devices_.front()->kind() == DeviceKind::kCuda;
    if (!decodes && devices > 1) continue;
    g_kernels = &machine_->kernels();
    std::vector<float> exact;
    for (const bool library : {false, true}) {
      limits.gemm_library = library;
      g_made = g_products = 0;
      g_least_rows = 1000;
      DeviceDense dense(devices_, machine_->kernels(), config, type, weights, limits,
                        DeviceDenseOptions{.make_gemm = MakeCountingGemm});
      DeviceOperator experts(*devices_.front(), machine_->kernels(), layout, config,
                             limits.max_batch_tokens);
      seen_.clear();
      const auto prompt = [&](int64_t rows) {
        const std::vector<SequenceSlice> slices = {
            {.first_row = 0, .num_tokens = rows, .start_position = 0, .blocks = prompt_blocks}};
        const int before = g_products;
        Step(dense, experts, config, {std::span(tokens).first(static_cast<size_t>(rows)), slices});
        return g_products - before;
      };
      EXPECT_EQ(prompt(64) > 0, library);
      EXPECT_EQ(prompt(5), 0);
      const int of_prompts = g_products;
      for (int64_t step = 0; step < (decodes ? 2 : 0); ++step) {
        std::vector<SequenceSlice> slices(tokens.size());
        for (size_t s = 0; s < slices.size(); ++s) {
          slices[s] = {.first_row = static_cast<int64_t>(s),
                       .num_tokens = 1,
                       .start_position = step,
                       .blocks = std::span(blocks).subspan(s, 1)};
        }
        Step(dense, experts, config, {tokens, slices});
      }
      EXPECT_EQ(dense.captured() > 0, decodes && devices == 1);
      EXPECT_EQ(g_products > of_prompts, decodes && library);
      EXPECT_EQ(g_made, library ? devices : 0);
      if (!library) {
        exact = seen_;
        continue;
      }
      EXPECT_GE(g_least_rows, cuda::Gemm::kLeastRows);
      ASSERT_EQ(seen_.size(), exact.size());
      double squares = 0;
      for (const float value : exact) squares += static_cast<double>(value) * value;
      const double near = 0x1p-6 * std::sqrt(squares / static_cast<double>(exact.size()));
      size_t far_away = 0;
      for (size_t i = 0; i < exact.size(); ++i) far_away += !(std::abs(seen_[i] - exact[i]) < near);
      EXPECT_LT(far_away, exact.size() / 10);
      EXPECT_FALSE(seen_ == exact);
    }
  }
}

TEST_F(DeviceDenseTest, WhatCannotBeCutIsRefused) {
  const auto refusal = [](const ModelConfig& config, int devices) -> std::string {
    try {
      DeviceDense::CheckSupported(config, WeightType::kBf16, WeightType::kBf16, devices);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      return error.what();
    }
    return "";
  };
  ModelConfig config = OddModel();
  EXPECT_EQ(refusal(config, 3), "");
  EXPECT_NE(refusal(config, 17).find("at most 16 devices"), std::string::npos);
  ChangeAttention(config, [](GroupedQuerySpec& spec) { spec.head_dim = spec.rotary_dim = 24; });
  EXPECT_NE(refusal(config, 3).find("heads of 24 values"), std::string::npos);
  config = OddModel();
  ChangeAttention(config, [](GroupedQuerySpec& spec) { spec.output_bias = true; });
  EXPECT_NE(refusal(config, 3).find("biases"), std::string::npos);
}

// What specs can say and no kernel is told yet.
TEST_F(DeviceDenseTest, WhatDevicesDoNotComputeIsRefusedByName) {
  const std::pair<void (*)(RouterSpec & router), const char*> routers[] = {
      {[](RouterSpec& router) { router.score = ScoreFunction::kLogit; }, "other than softmax"},
      {[](RouterSpec& router) { router.logit_bias = true; }, "biases of routers"},
      {[](RouterSpec& router) { router.num_groups = 64; }, "groups of experts"},
      {[](RouterSpec& router) { router.norm = RouterNorm::kSumAtLeastEps; }, "normalised"}};
  for (const auto& [change, named] : routers) {
    ModelConfig config = OddModel();
    change(std::get<ExpertsSpec>(config.layers[2].mlp).router);
    const Error error = Caught(
        [&] { DeviceDense::CheckSupported(config, WeightType::kBf16, WeightType::kBf16, 1); });
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_TRUE(Contains(error, named)) << error.what();
    EXPECT_TRUE(Contains(error, "--gpu-dense")) << error.what();
  }
  ModelConfig config = OddModel();
  ChangeAttention(config, [](GroupedQuerySpec& spec) { spec.sinks = true; });
  const Error error =
      Caught([&] { DeviceDense::CheckSupported(config, WeightType::kBf16, WeightType::kBf16, 1); });
  EXPECT_TRUE(Contains(error, "sinks of attention")) << error.what();
}

TEST_F(DeviceDenseTest, LayersThatDevicesDoNotComputeAreRefusedByName) {
  const std::pair<void (*)(ModelConfig & config), const char*> models[] = {
      {[](ModelConfig& config) { config.layers[1].residual_scale = 0.5; }, "scaled residuals"},
      {[](ModelConfig& config) { config.layers[1].norm.centred = true; }, "subtract the mean"},
      {[](ModelConfig& config) { std::get<ExpertsSpec>(config.layers[2].mlp).read_input = true; },
       "read a layer's input"},
      {[](ModelConfig& config) { config.embedding_scale = 12; }, "scaled embeddings and logits"},
      {[](ModelConfig& config) { config.logit_divisor = 6; }, "scaled embeddings and logits"}};
  for (const auto& [change, named] : models) {
    ModelConfig config = OddModel();
    change(config);
    const Error error = Caught(
        [&] { DeviceDense::CheckSupported(config, WeightType::kBf16, WeightType::kBf16, 1); });
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_TRUE(Contains(error, named) && Contains(error, "--gpu-dense")) << error.what();
  }
}

}  // namespace
}  // namespace moesaic
