// Expert deferral: what comes out is what the formula says, whatever the placement; and a deferred
// expert that is missing holds up nobody before the next layer has attended.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/base/tensor.h"
#include "tests/serving/model/model_harness.h"

namespace moesaic {
namespace {

// --- the formula, by hand, in double precision

using Vec = std::vector<double>;
struct Matrix {
  int64_t rows = 0;
  Vec values;  // [rows, columns]

  Vec Times(const Vec& x) const {
    Vec y(static_cast<size_t>(rows), 0);
    for (size_t r = 0; r < y.size(); ++r) {
      for (size_t c = 0; c < x.size(); ++c) y[r] += values[r * x.size() + c] * x[c];
    }
    return y;
  }
};

class ByHand {
 public:
  ByHand(const ModelConfig& config, const TensorSource& tensors) : c_(config), tensors_(tensors) {}

  // What a layer's MLP adds for one row of the residual stream, in two parts: now, and one layer
  // later.
  struct Parts {
    Vec now;
    Vec later;
  };
  Parts Mlp(int64_t layer, const Vec& stream, int64_t defer) const {
    const LayerSpec& spec = c_.layer(layer);
    const auto at = [&](TensorSlot slot) { return c_.tensors.At(slot, layer); };
    const Vec x = Normed(stream, spec.norm,
                         Read(at(TensorSlot::kPostAttentionNorm), 1, c_.hidden_size).values);
    const auto hidden = static_cast<size_t>(c_.hidden_size);
    Parts parts = {Vec(hidden, 0), Vec(hidden, 0)};
    const int64_t dense_width = spec.dense_mlp().width;
    if (!spec.sparse()) {
      Add(1, Swiglu(kDenseMlpSlots, layer, 0, dense_width, x), parts.now);
      return parts;
    }
    Vec p = Read(at(TensorSlot::kRouter), c_.num_experts(), c_.hidden_size).Times(x);
    double sum = 0;
    for (double& value : p) sum += value = std::exp(value);
    for (double& value : p) value /= sum;
    std::vector<size_t> best(p.size());
    std::iota(best.begin(), best.end(), size_t{0});
    std::stable_sort(best.begin(), best.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
    const auto k = static_cast<size_t>(c_.top_k());
    const double scale = spec.experts().router.norm == RouterNorm::kSum
                             ? std::accumulate(best.begin(), best.begin() + c_.top_k(), 0.0,
                                               [&](double all, size_t e) { return all + p[e]; })
                             : 1.0;
    for (size_t slot = 0; slot < k; ++slot) {
      const bool later =
          slot >= 2 && slot + static_cast<size_t>(defer) >= k && layer + 1 < c_.num_layers();
      Add(p[best[slot]] / scale,
          Swiglu(kExpertSlots, layer, static_cast<int64_t>(best[slot]), c_.expert_width(), x),
          later ? parts.later : parts.now);
    }
    if (dense_width > 0) {
      const double gate =
          spec.experts().shared_gate
              ? 1 / (1 +
                     std::exp(-Read(at(TensorSlot::kSharedGate), 1, c_.hidden_size).Times(x)[0]))
              : 1.0;
      Add(gate, Swiglu(kSharedMlpSlots, layer, 0, dense_width, x), parts.now);
    }
    return parts;
  }

  static void Add(double scale, const Vec& x, Vec& y) {
    for (size_t i = 0; i < y.size(); ++i) y[i] += scale * x[i];
  }

 private:
  Matrix Read(const PlannedTensor& tensor, int64_t rows, int64_t columns) const {
    std::vector<int64_t> shape = {rows, columns};
    if (rows == 1 && tensor.name.find("norm") != std::string::npos) shape = {columns};
    const DType dtype = tensors_.Require(tensor, shape);
    const auto count = static_cast<size_t>(rows * columns);
    std::vector<std::byte> raw(count * static_cast<size_t>(DTypeBits(dtype)) / 8);
    if (shape.size() == 1) {
      tensors_.ReadRows(tensor, 0, columns, 1, raw);
    } else {
      tensors_.ReadRows(tensor, 0, rows, columns, raw);
    }
    Matrix matrix = {rows, Vec(count)};
    for (size_t i = 0; i < count; ++i) {
      if (dtype == DType::kF32) {
        matrix.values[i] = reinterpret_cast<const float*>(raw.data())[i];
        continue;
      }
      const uint16_t bits = reinterpret_cast<const uint16_t*>(raw.data())[i];
      matrix.values[i] = dtype == DType::kBF16 ? Bf16ToF32(bits) : F16ToF32(bits);
    }
    return matrix;
  }

  static Vec Normed(const Vec& x, const NormSpec& norm, const Vec& weight) {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + norm.eps);
    Vec out(x.size());
    for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * weight[i];
    return out;
  }

  Vec Swiglu(const MlpSlots& slots, int64_t layer, int64_t expert, int64_t width,
             const Vec& x) const {
    const auto at = [&](TensorSlot slot) { return c_.tensors.At(slot, layer, expert); };
    const Vec up = Read(at(slots[1]), width, c_.hidden_size).Times(x);
    Vec h = Read(at(slots[0]), width, c_.hidden_size).Times(x);
    for (size_t i = 0; i < h.size(); ++i) h[i] = h[i] / (1 + std::exp(-h[i])) * up[i];
    return Read(at(slots[2]), c_.hidden_size, width).Times(h);
  }

  const ModelConfig& c_;
  const TensorSource& tensors_;
};

class DeferralFormulaTest : public testing::TestWithParam<std::string> {};

// O_l = I_l + S_l(I_l) + R_l^imm(I_l) + R_{l-1}^def(I_{l-1}) for each row and layer, with I_l and
// O_l out of the model: the residual stream before and behind the layer's MLP.
TEST_P(DeferralFormulaTest, HoldsInEveryLayer) {
  for (const int64_t defer : {0, 1, 2, 9}) {
    SCOPED_TRACE(defer);
    HarnessOptions options;
    options.weight_type = WeightType::kF32;
    options.kv_type = WeightType::kF32;
    options.defer_experts = defer;
    options.expert_slots = 4;
    ModelHarness harness(GetParam(), options);
    const ModelConfig& config = harness.config();
    const ByHand by_hand(config, harness.tensors());
    Model& model = harness.model();
    ThreadPool& pool = harness.pool();

    // A prompt whose last four tokens are decoded, and one that is all prompt.
    constexpr int64_t kDecodeFrom = 3;
    const auto a = harness.NewSequence(7);
    const auto b = harness.NewSequence(3);
    const std::vector<int32_t> tokens = PromptOf(5, 10, static_cast<int>(config.vocab_size));
    std::vector<SequenceSlice> slices(2);
    slices[0].num_tokens = 7;
    slices[0].blocks = a.blocks;
    slices[0].decode_from = kDecodeFrom;
    slices[1].first_row = 7;
    slices[1].num_tokens = 3;
    slices[1].blocks = b.blocks;
    const RowRange rows = {0, 10};
    const auto streams = [&] {
      std::vector<Vec> out;
      for (int64_t row = 0; row < rows.end; ++row) {
        const float* const x = model.hidden() + row * config.hidden_size;
        out.emplace_back(x, x + config.hidden_size);
      }
      return out;
    };
    std::vector<Vec> later(10, Vec(static_cast<size_t>(config.hidden_size), 0));
    model.BeginPass({tokens, slices});
    for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
      model.PreAttention(layer, rows, pool);
      model.Attend(layer, {0, 2}, pool);
      model.Project(layer, rows, pool);
      std::vector<Vec> expected = streams();
      model.Route(layer, rows, pool);
      model.RunMlp(layer, rows, pool);
      const std::vector<Vec> got = streams();
      for (size_t row = 0; row < 10; ++row) {
        const bool decoded = row >= kDecodeFrom && row < 7;
        ByHand::Parts parts = by_hand.Mlp(layer, expected[row], decoded ? defer : 0);
        ByHand::Add(1, parts.now, expected[row]);
        ByHand::Add(1, later[row], expected[row]);
        later[row] = std::move(parts.later);
        double worst = 0;
        double largest = 0;
        for (size_t i = 0; i < expected[row].size(); ++i) {
          worst = std::max(worst, std::abs(expected[row][i] - got[row][i]));
          largest = std::max(largest, std::abs(expected[row][i]));
        }
        EXPECT_LE(worst, 1e-5 * largest) << "layer " << layer << " row " << row;
      }
    }
    for (const Vec& row : later) {
      EXPECT_TRUE(std::all_of(row.begin(), row.end(), [](double x) { return x == 0; }));
    }
  }
}

// One after another sparse; a dense layer between; shared experts with a gate; five experts.
INSTANTIATE_TEST_SUITE_P(Models, DeferralFormulaTest,
                         testing::Values(FixtureModel("qwen3_moe_bf16_sharded"),
                                         FixtureModel("qwen3_moe_fp16_dense_layers"),
                                         FixtureModel("qwen2_moe_bf16_sparse_step"),
                                         FixtureModel("olmoe_bf16_clip")),
                         [](const testing::TestParamInfo<std::string>& info) {
                           return info.param.substr(info.param.rfind('/') + 1);
                         });

// --- placement

constexpr int kDeferralPrompt = 13;
constexpr int kDeferralSteps = 6;

// The logits of a prompt in chunks, then of decode steps: one by one, or all in one pass, as after
// a preemption.
uint64_t DeferralHash(ModelHarness& model, int64_t chunk, bool at_once = false) {
  const int vocab = static_cast<int>(model.config().vocab_size);
  auto sequence = model.NewSequence(kDeferralPrompt + kDeferralSteps);
  sequence.decode_from = kDeferralPrompt;
  std::vector<float> all = model.Prefill(sequence, PromptOf(1, kDeferralPrompt, vocab), chunk);
  const std::vector<int32_t> forced = PromptOf(2, kDeferralSteps, vocab);
  const std::vector<float> rest = model.Prefill(sequence, forced, at_once ? kDeferralSteps : 1);
  all.insert(all.end(), rest.begin(), rest.end());
  return Hash64(std::as_bytes(std::span(all)));
}

TEST(DeferralTest, DependsOnNothingButTheNumber) {
  std::vector<Isa> isas = SupportedIsas();
  isas.erase(isas.begin(), isas.end() - std::min<std::ptrdiff_t>(2, std::ssize(isas)));
  for (const Isa isa : isas) {
    SCOPED_TRACE(IsaName(isa));
    HarnessOptions base;
    base.isa = isa;
    std::vector<uint64_t> expected;
    for (const int64_t defer : {0, 1, 2}) {
      base.defer_experts = defer;
      ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, base);
      expected.push_back(DeferralHash(model, kDeferralPrompt));
      EXPECT_EQ(model.stats().experts.deferred > 0, defer > 0);  // it starts with an empty cache
    }
    EXPECT_NE(expected[0], expected[1]);
    EXPECT_NE(expected[1], expected[2]);
    const int64_t all = 8 * 32;
    for (const int64_t defer : {0, 1, 2, 3, 50}) {
      for (const int64_t slots : {all, all / 4, int64_t{7}, int64_t{1}}) {
        for (const int threads : {1, 2}) {
          if ((threads == 1) == (slots == all)) continue;  // one of each is enough
          HarnessOptions options = base;
          options.defer_experts = defer;
          options.expert_slots = slots;
          options.threads = threads;
          ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options);
          for (const int64_t chunk : {4, kDeferralPrompt}) {
            for (const bool at_once : {false, true}) {
              // Two of four experts always act at once.
              EXPECT_EQ(DeferralHash(model, chunk, at_once),
                        expected[static_cast<size_t>(std::min<int64_t>(defer, 2))])
                  << "defer " << defer << " slots " << slots << " threads " << threads << " chunk "
                  << chunk << " at once " << at_once;
            }
          }
        }
      }
    }
  }
}

TEST(DeferralTest, DependsNotOnTheBatch) {
  HarnessOptions options;
  options.isa = SupportedIsas().back();
  options.threads = 2;
  options.defer_experts = 1;
  options.expert_slots = 40;
  const auto decode = [](ModelHarness& model, std::vector<ModelHarness::Sequence*> sequences,
                         std::vector<std::vector<float>>& logits) {
    const auto vocab = static_cast<size_t>(model.config().vocab_size);
    for (int step = 0; step < 4; ++step) {
      std::vector<ModelHarness::Piece> pieces;
      for (size_t s = 0; s < sequences.size(); ++s) {
        pieces.push_back({sequences[s],
                          {PromptOf(static_cast<int>(s) + 50, 4,
                                    static_cast<int>(vocab))[static_cast<size_t>(step)]}});
      }
      // The last one is a prompt that begins while the others decode.
      ModelHarness::Sequence newcomer = model.NewSequence(9);
      newcomer.decode_from = 9;
      if (sequences.size() > 1) {
        pieces.push_back({&newcomer, PromptOf(99, 9, static_cast<int>(vocab))});
      }
      const std::vector<float> all = model.Run(pieces);
      for (size_t s = 0; s < sequences.size(); ++s) {
        logits[s].insert(logits[s].end(), all.begin() + static_cast<std::ptrdiff_t>(s * vocab),
                         all.begin() + static_cast<std::ptrdiff_t>((s + 1) * vocab));
      }
    }
  };
  const auto begin = [](ModelHarness& model, int seed) {
    ModelHarness::Sequence sequence = model.NewSequence(16);
    sequence.decode_from = 5 + seed;
    const int vocab = static_cast<int>(model.config().vocab_size);
    model.Prefill(sequence, PromptOf(seed, 5 + seed, vocab), 16);
    return sequence;
  };
  constexpr size_t kSequences = 5;
  std::vector<std::vector<float>> together(kSequences);
  {
    ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options);
    std::vector<ModelHarness::Sequence> sequences;
    for (size_t s = 0; s < kSequences; ++s) {
      sequences.push_back(begin(model, static_cast<int>(s)));
    }
    std::vector<ModelHarness::Sequence*> all;
    all.reserve(sequences.size());
    for (ModelHarness::Sequence& sequence : sequences) all.push_back(&sequence);
    decode(model, all, together);
    EXPECT_GT(model.stats().experts.deferred, 0u);
  }
  // Alone only the first one's tokens are those that `decode` gives it in company.
  ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options);
  ModelHarness::Sequence first = begin(model, 0);
  std::vector<std::vector<float>> alone(1);
  decode(model, {&first}, alone);
  EXPECT_EQ(Hash64(std::as_bytes(std::span(alone[0]))),
            Hash64(std::as_bytes(std::span(together[0]))));
}

TEST(DeferralTest, DevicesChangeNoBit) {
  HarnessOptions base;
  base.isa = SupportedIsas().back();
  base.defer_experts = 2;
  ModelHarness plain(MOESAIC_SAMPLE_MODEL_DIR, base);
  const uint64_t expected = DeferralHash(plain, 4);
  for (const int devices : {1, 2}) {
    for (const MissMode miss : {MissMode::kFetch, MissMode::kHost, MissMode::kAuto}) {
      for (const int64_t slots : {1, 24}) {
        HarnessOptions options = base;
        options.devices = devices;
        options.device_slots = slots;
        options.miss = miss;
        options.link = {1e9, 5};
        ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options);
        EXPECT_EQ(DeferralHash(model, 4), expected)
            << devices << " devices, " << slots << " slots, miss " << static_cast<int>(miss);
        EXPECT_GT(model.stats().experts.deferred, 0u);
      }
    }
  }
  HarnessOptions faulty = base;
  faulty.devices = 2;
  faulty.device_slots = 16;
  faulty.faults = {{.copy_failure_probability = 0.3, .seed = 1}, {.lost_at_copy = 30}};
  ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, faulty);
  EXPECT_EQ(DeferralHash(model, 4), expected);
  EXPECT_TRUE(model.device_status()[1].lost);
}

// --- overlap

// Tells who asked for what, in order.
class TellingProvider : public ExpertProvider {
 public:
  TellingProvider(std::unique_ptr<ExpertProvider> real, std::vector<std::string>& told)
      : real_(std::move(real)), told_(told) {}

  static std::string Of(std::span<const ExpertId> ids) {
    std::string text;
    for (const ExpertId id : ids) {
      text += " " + std::to_string(id.layer) + "." + std::to_string(id.index);
    }
    return text;
  }
  void StepBegan() override { real_->StepBegan(); }
  void StopPrefetching() override { real_->StopPrefetching(); }
  void BeginLayer(std::span<const ExpertId> needed, int64_t pairs) override {
    std::string line = "begin";
    line += Of(needed);
    told_.push_back(std::move(line));
    real_->BeginLayer(needed, pairs);
  }
  void Expect(std::span<const ExpertId> experts) override {
    std::string line = "expect";
    line += Of(experts);
    told_.push_back(std::move(line));
    real_->Expect(experts);
  }
  bool IsResident(ExpertId id) const override { return real_->IsResident(id); }
  bool NextReady(std::vector<PinnedExpert>& out) override { return real_->NextReady(out); }
  void Release(const PinnedExpert& expert) override { real_->Release(expert); }
  ExpertStats EndLayer() override {
    told_.push_back("end");
    return real_->EndLayer();
  }
  int64_t Preload(std::span<const ExpertId> experts,
                  const std::function<bool(int64_t)>& keep_going) override {
    return real_->Preload(experts, keep_going);
  }
  std::vector<ResidentExpert> Residents() const override { return real_->Residents(); }
  int64_t slots() const override { return real_->slots(); }
  int64_t resident() const override { return real_->resident(); }

 private:
  std::unique_ptr<ExpertProvider> real_;
  std::vector<std::string>& told_;
};

class TellingHook : public RoutingHook {
 public:
  explicit TellingHook(std::vector<std::string>& told) : told_(told) {}
  // After the layer's attention.
  void OnRouting(int64_t layer, const ForwardBatch&, std::span<int32_t> experts,
                 std::span<float> weights) override {
    told_.push_back("attended " + std::to_string(layer));
    // One token: the last two of four slots have the lowest weights.
    EXPECT_TRUE(std::is_sorted(weights.rbegin(), weights.rend()));
    routed.emplace_back(experts.begin(), experts.end());
  }
  std::vector<std::vector<int32_t>> routed;

 private:
  std::vector<std::string>& told_;
};

TEST(DeferralTest, MissingExpertsAreFetchedWhileTheNextLayerAttends) {
  std::vector<std::string> told;
  HarnessOptions options;
  options.isa = SupportedIsas().back();
  options.defer_experts = 2;
  options.make_experts = [&](const ExpertSource& source, const ModelConfig& config) {
    ExpertLoaderOptions loader;
    loader.budget_bytes = 256 * source.layout().slot_bytes;
    return std::make_unique<TellingProvider>(
        std::make_unique<ExpertLoader>(source, static_cast<int>(config.num_layers()),
                                       static_cast<int>(config.num_experts()), MakeLruPolicy(256),
                                       loader),
        told);
  };
  ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options);
  TellingHook hook(told);
  auto sequence = model.NewSequence(2);
  sequence.decode_from = 0;
  const ModelHarness::Piece piece = {&sequence, {17}};
  model.Run({&piece, 1}, &hook);
  // The cache was empty, so every deferred expert is missing.
  const auto ids = [&](int64_t layer, size_t begin, size_t end) {
    const std::vector<int32_t>& all = hook.routed[static_cast<size_t>(layer)];
    std::vector<int32_t> some(all.begin() + static_cast<std::ptrdiff_t>(begin),
                              all.begin() + static_cast<std::ptrdiff_t>(end));
    std::sort(some.begin(), some.end());
    std::vector<ExpertId> named;
    named.reserve(some.size());
    for (const int32_t index : some) {
      named.push_back(
          {.layer = static_cast<uint16_t>(layer), .index = static_cast<uint16_t>(index)});
    }
    return TellingProvider::Of(named);
  };
  std::vector<std::string> expected;
  for (int64_t layer = 0; layer < 8; ++layer) {
    const bool last = layer == 7;
    expected.push_back("attended " + std::to_string(layer));
    expected.push_back("begin");
    expected.back() += ids(layer, 0, last ? 4 : 2);
    expected.push_back("expect");
    if (layer > 0) expected.back() += ids(layer - 1, 2, 4);
    if (!last) expected.back() += ids(layer, 2, 4);
    expected.push_back("end");
    if (layer == 0) continue;
    expected.push_back("begin");  // what the layer before has deferred
    expected.back() += ids(layer - 1, 2, 4);
    expected.push_back("end");
  }
  EXPECT_EQ(told, expected);
  EXPECT_EQ(model.stats().experts.deferred, 14u);
}

TEST(DeferralTest, AFailedStepLeavesNothingBehind) {
  HarnessOptions options;
  options.isa = SupportedIsas().back();
  options.defer_experts = 2;
  options.expert_slots = 24;
  ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options);
  const uint64_t expected = DeferralHash(model, 4);
  class Failing : public RoutingHook {
   public:
    void OnRouting(int64_t layer, const ForwardBatch&, std::span<int32_t>,
                   std::span<float>) override {
      if (layer == 4) Fail(ErrorKind::kIo, "on purpose");
    }
  } failing;
  auto sequence = model.NewSequence(2);
  sequence.decode_from = 0;
  const ModelHarness::Piece piece = {&sequence, {17}};
  EXPECT_THROW(model.Run({&piece, 1}, &failing), Error);
  EXPECT_EQ(DeferralHash(model, 4), expected);
}

}  // namespace
}  // namespace moesaic
