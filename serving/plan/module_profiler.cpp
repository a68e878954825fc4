#include "serving/plan/module_profiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/perf/linear_fit.h"
#include "prefetch/link/expert_loader.h"
#include "serving/model/model.h"
#include "serving/model/weights.h"
#include "serving/plan/batch_prediction.h"
#include "serving/plan/head_measuring.h"
#include "serving/plan/link_measuring.h"
#include "serving/plan/measuring.h"
#include "serving/plan/pass_meter.h"
#include "serving/plan/routing_curve.h"

namespace moesaic {
namespace {

constexpr int kRepeats = 3;
constexpr int kRounds = 7;
constexpr size_t kCopiedBytes = size_t{8} << 20;
constexpr double kLinkShare = 1.3;   // of the time for measuring, and beside it
constexpr int64_t kTimedLayers = 4;  // several: caches are as cold as in a pass
constexpr int64_t kTimedRows = 4096;
constexpr int64_t kTimedDecodeRows = 1024;
constexpr int64_t kFewestContexts = 16;
// For what is read, and as much for computing, while routing is looked at.
constexpr double kRoutingSeconds = 20;
constexpr int64_t kRoutingRows = 4096;      // of a pass
constexpr int64_t kRoutingSequences = 128;  // a decode step has a row of each
constexpr int kRoutingSteps = 3;            // of decoding; each may read all experts

std::string PlacesText(const ThreadLayout& layout) {
  const bool pinned = !layout.places.empty() && layout.places.front().cpus.size() == 1;
  std::string text = pinned ? "pinned" : "free";
  if (layout.nodes.size() > 1) text += fmt::format(", {} slices", layout.nodes.size());
  return text;
}

// The projection behind a layer's mixer.
const PackedMatrix& OutputOf(const LayerWeights& layer) {
  return std::visit([](const auto& mixer) -> const PackedMatrix& { return mixer.output; },
                    layer.mixer);
}

std::string SizesText(const GroupedQuerySpec& spec) {
  return fmt::format("{} {} {}", spec.heads, spec.kv_heads, spec.head_dim);
}
std::string SizesText(const LatentSpec& spec) {
  std::string text = fmt::format("latent {} {} {} {} {} {}", spec.heads, spec.q_rank, spec.kv_rank,
                                 spec.nope_dim, spec.rope_dim, spec.value_dim);
  if (spec.top_k > 0) {
    text += fmt::format(" of {} by {} {}", spec.top_k, spec.indexer.heads, spec.indexer.dim);
  }
  return text;
}
// Of what has keys and values.
std::string AttentionText(const ModelConfig& c) {
  const auto* const latent = c.FindMixer<LatentSpec>();
  return latent != nullptr ? SizesText(*latent) : SizesText(c.attention());
}

// Which products are chosen for how many rows.
std::string ChoicesText(const CpuKernels& kernels) {
  std::string text;
  for (const ProductSteps& steps : kernels.product_steps) {
    for (int i = 0; i < steps.count; ++i) {
      text += fmt::format("{}:{} ", steps.steps[i].min_rows, steps.steps[i].instructions);
    }
    text += ';';
  }
  return text;
}

class ModuleProfiler {
 public:
  explicit ModuleProfiler(const ModuleProfilerInputs& inputs)
      : inputs_(inputs),
        passes_(inputs,
                {kTimedLayers, kTimedRows, kTimedDecodeRows, inputs.config.num_experts() / 2, 0}),
        config_(passes_.config()),
        limits_(passes_.limits()),
        sparse_layers_(config_.num_sparse_layers()) {}

  ModuleCosts Run() {
    inputs_.progress("experts by themselves");
    LoadResidents();
    inputs_.progress("attention and experts by batch size");
    MeasurePasses();
    FitPasses();
    inputs_.progress("logits");
    const LinearFit head = MeasureHead(passes_, inputs_);
    SetCost(Module::kHead, head.coefficients[0], head.coefficients[1], head,
            fmt::format("blocks of up to {} rows", limits_.max_logit_rows));
    inputs_.progress("reading, alone and while computing");
    MeasureLink(passes_, kLinkShare * inputs_.seconds, costs_);
    MeasureHostCopy();
    return std::move(costs_);
  }

 private:
  void LoadResidents() {
    passes_.Run(
        passes_.DecodeSlices(std::min<int64_t>(limits_.max_batch_tokens, passes_.spreadable()), 0),
        passes_.spreadable());
  }

  void Measure(std::span<const SequenceSlice> slices, int64_t active) {
    const int64_t rows = std::accumulate(
        slices.begin(), slices.end(), int64_t{0},
        [](int64_t sum, const SequenceSlice& slice) { return sum + slice.num_tokens; });
    // Each of the active experts is to have a row.
    if (rows * config_.top_k() < active) return;
    const PassPoint point = passes_.Run(slices, active);
    samples_[{AsDouble(point.rows), point.decode_positions, point.prefill_positions,
              point.active_experts}]
        .push_back(point);
  }

  // Of the samples of each batch the medians.
  void TakeMedians() {
    for (auto& [batch, samples] : samples_) {
      const auto middle = [&, &of_batch = samples](double PassPoint::*field) {
        std::sort(of_batch.begin(), of_batch.end(),
                  [&](const PassPoint& a, const PassPoint& b) { return a.*field < b.*field; });
        return of_batch[of_batch.size() / 2].*field;
      };
      PassPoint point = samples.front();
      point.attention_s = middle(&PassPoint::attention_s);
      point.dense_s = middle(&PassPoint::dense_s);
      point.experts_s = middle(&PassPoint::experts_s);
      points_.push_back(point);
    }
  }

  bool TimeIsUp() const { return watch_.seconds() > inputs_.seconds && samples_.size() >= 8; }

  // Round after round over all batches, so that a slow moment of the machine reaches few samples of
  // each.
  void MeasurePasses() {
    watch_.Restart();
    WriteContexts();
    for (int round = 0; round < kRounds && (round == 0 || !TimeIsUp()); ++round) MeasureRound();
    TakeMedians();
  }

  // The contexts that decode reads, by prompts.
  void WriteContexts() {
    const int64_t most = limits_.max_batch_tokens;
    const int64_t chunk = std::min<int64_t>(most, 128);
    for (int64_t context = 0; context < PassMeter::kContexts;) {
      const int64_t sequences = std::clamp<int64_t>(std::min(most, kTimedDecodeRows) / chunk, 1,
                                                    PassMeter::kContexts - context);
      for (int64_t start = 0; start < PassMeter::kLongContext; start += chunk) {
        Measure(passes_.PromptSlices(context, sequences, start, chunk), passes_.spreadable());
      }
      context += sequences;
      passes_.UseContexts(context);
      if (context >= kFewestContexts && watch_.seconds() > inputs_.seconds / 3) break;
    }
  }

  void MeasureRound() {
    const int64_t most = limits_.max_batch_tokens;
    Measure(passes_.PromptSlices(0, std::max<int64_t>(1, std::min<int64_t>(most, 256) / 16), 0, 16),
            passes_.spreadable());
    // As many rows as a pass of many prompts has: caches hold less of what each row needs.
    if (most >= kTimedRows && watch_.seconds() < inputs_.seconds / 2) {
      Measure(
          passes_.PromptSlices(0, kTimedRows / PassMeter::kLongContext, 0, PassMeter::kLongContext),
          passes_.spreadable());
    }
    for (const int64_t rows : {1, 4, 16, 64, 256, 512, 1024}) {
      if (rows > most || TimeIsUp()) break;
      for (const int64_t context : {int64_t{16}, PassMeter::kLongContext}) {
        // A job's sequences share no contexts: each is read once in a layer.
        if (context > 16 && rows > passes_.contexts()) continue;
        Measure(passes_.DecodeSlices(rows, context), passes_.spreadable());
        if (passes_.spreadable() <= config_.top_k()) continue;
        Measure(passes_.DecodeSlices(rows, context), config_.top_k());
      }
    }
  }

  void SetCost(Module module, double fixed_s, double per_unit_s, const LinearFit& fit,
               std::string how) {
    costs_[module] = {std::max(0.0, fixed_s), std::max(0.0, per_unit_s), fit.relative_error,
                      static_cast<int64_t>(fit.points), std::move(how)};
  }

  void FitPasses() {
    const std::string batches = fmt::format("batches of up to {} rows, medians of up to {} each",
                                            limits_.max_batch_tokens, kRounds);
    std::vector<std::vector<double>> terms;
    std::vector<double> values;
    for (const PassPoint& point : points_) {
      if (point.experts_s <= 0) continue;
      terms.push_back({point.active_experts, point.pairs});
      values.push_back(point.experts_s);
    }
    const LinearFit expert = FitLinear(terms, values);
    SetCost(Module::kExpert, expert.coefficients[0], expert.coefficients[1], expert, batches);

    const double layers = AsDouble(config_.num_layers());
    terms.clear();
    values.clear();
    for (const PassPoint& point : points_) {
      if (point.attention_s <= 0) continue;
      terms.push_back({1, AsDouble(point.rows), point.decode_positions, point.prefill_positions});
      values.push_back(point.attention_s / layers);
    }
    const LinearFit attention = FitLinear(terms, values);
    const LinearFit output = MeasureOutput();
    SetCost(Module::kOutput, output.coefficients[0], output.coefficients[1], output,
            "the product alone, over the layers in turn");
    SetCost(Module::kAttentionIn, attention.coefficients[0] - costs_[Module::kOutput].fixed_s,
            attention.coefficients[1] - costs_[Module::kOutput].per_unit_s, attention,
            batches + ", less the output projection");
    SetCost(Module::kDecodeAttention, 0, attention.coefficients[2], attention, batches);
    SetCost(Module::kPrefillAttention, 0, attention.coefficients[3], attention, batches);

    terms.clear();
    values.clear();
    for (const PassPoint& point : points_) {
      const double seconds = (point.dense_s - point.attention_s -
                              AsDouble(config_.num_layers() - sparse_layers_) *
                                  DenseMlpSeconds(config_, costs_, AsDouble(point.rows))) /
                             AsDouble(sparse_layers_);
      if (seconds <= 0) continue;
      terms.push_back({1, AsDouble(point.rows)});
      values.push_back(seconds);
    }
    if (terms.empty()) return;
    const LinearFit router = FitLinear(terms, values);
    SetCost(Module::kRouter, router.coefficients[0], router.coefficients[1], router, batches);
  }

  LinearFit MeasureOutput() {
    std::vector<std::vector<double>> terms;
    std::vector<double> values;
    int64_t widest = 0;
    for (const LayerWeights& layer : passes_.weights().layers) {
      widest = std::max(widest, OutputOf(layer).k);
    }
    const int64_t float_stride =
        ActivationRowBytes(ActivationType::kF32, widest) / static_cast<int64_t>(sizeof(float));
    const int64_t most = limits_.max_batch_tokens;
    AlignedBuffer x(static_cast<size_t>(most * float_stride) * sizeof(float));
    x.Zero();
    AlignedBuffer activations(static_cast<size_t>(
        most * std::max(ActivationRowBytes(ActivationType::kF32, widest),
                        ActivationRowBytes(ActivationType::kInt8Sums, widest))));
    AlignedBuffer y(static_cast<size_t>(most * config_.hidden_size) * sizeof(float));
    for (const int64_t rows : {1, 8, 64, 256, 1024}) {
      if (rows > most) break;
      std::vector<double> samples;
      for (int repeat = 0; repeat < kRepeats + 1; ++repeat) {
        const Stopwatch watch;
        for (const LayerWeights& layer : passes_.weights().layers) {
          MatmulArgs product;
          product.w = OutputOf(layer);
          const ActivationType type = ActivationTypeOf(inputs_.kernels.numerics, product.w.type);
          const int64_t row_bytes = ActivationRowBytes(type, widest);
          inputs_.kernels.prepare_activations(x.as<float>(), float_stride, rows, product.w.k, type,
                                              activations.data(), row_bytes);
          product.x = activations.data();
          product.x_stride_bytes = row_bytes;
          product.m = rows;
          product.y = y.as<float>();
          product.y_stride = config_.hidden_size;
          ParallelMatmul(passes_.pool(), inputs_.kernels, product);
        }
        if (repeat > 0) samples.push_back(watch.seconds() / AsDouble(config_.num_layers()));
      }
      terms.push_back({1, AsDouble(rows)});
      values.push_back(Summarise(std::move(samples), "s", "").value);
    }
    return FitLinear(terms, values);
  }

  // One packet after another, as a link of an emulated device does.
  void MeasureHostCopy() {
    AlignedBuffer from(kCopiedBytes);
    AlignedBuffer to(kCopiedBytes);
    from.Zero();
    to.Zero();
    std::vector<double> rates;
    for (size_t i = 0; i < 4 * kCopiedBytes; i += kDefaultPacketBytes) {
      const size_t at = i % kCopiedBytes;
      const Stopwatch watch;
      std::memcpy(to.data() + at, from.data() + at, kDefaultPacketBytes);
      rates.push_back(kDefaultPacketBytes / std::max(1e-9, watch.seconds()));
    }
    costs_.host_copy = Summarise(std::move(rates), "byte/s", "median of copies of a packet");
  }

  const ModuleProfilerInputs& inputs_;
  PassMeter passes_;
  const ModelConfig& config_;  // the first layers
  const ModelLimits& limits_;
  const int64_t sparse_layers_;
  Stopwatch watch_;
  // By rows, positions and experts.
  std::map<std::array<double, 4>, std::vector<PassPoint>> samples_;
  std::vector<PassPoint> points_;
  ModuleCosts costs_;
};

// Text through as many layers as can be read in time, all where that is possible: deeper ones
// choose differently.
std::vector<RoutedRows> ObserveRouting(const ModuleProfilerInputs& inputs,
                                       const ModuleCosts& costs) {
  inputs.progress("routing");
  const ModelConfig& config = inputs.config;
  const double layer_read_s = AsDouble(config.num_experts()) *
                              static_cast<double>(inputs.experts.layout().slot_bytes) /
                              costs.link.value;
  const auto layers = static_cast<int64_t>(std::clamp(
      kRoutingSeconds / (layer_read_s * AsDouble(kRoutingSteps + PassMeter::kTextPasses)),
      AsDouble(kTimedLayers), AsDouble(std::max(kTimedLayers, config.num_sparse_layers()))));
  const double row_s =
      AsDouble(layers) * (costs[Module::kAttentionIn].per_unit_s +
                          costs[Module::kOutput].per_unit_s + costs[Module::kRouter].per_unit_s +
                          AsDouble(config.top_k()) * costs[Module::kExpert].per_unit_s);
  const auto rows =
      static_cast<int64_t>(std::clamp(kRoutingSeconds / std::max(1e-9, row_s),
                                      AsDouble(PassMeter::kTextTokens), AsDouble(kRoutingRows)));
  RoutingCurve curve(config.num_experts());
  PassMeter(inputs, {layers, rows, 0, 0, kRoutingSequences}).RunText(curve, kRoutingSteps);
  return curve.Points();
}

}  // namespace

std::string ModuleCostsKey(const ModuleProfilerInputs& inputs, const HostDescription& host) {
  const ModelConfig& c = inputs.config;
  std::string files;
  if (const DeltaNetSpec* const delta = c.FindMixer<DeltaNetSpec>()) {
    files = fmt::format("|{} linear {} {} {} {}", c.NumMixers<DeltaNetSpec>(), delta->key_heads,
                        delta->value_heads, delta->key_dim, delta->value_dim);
  }
  const auto add = [&](const std::vector<std::filesystem::path>& paths) {
    for (const std::filesystem::path& file : paths) {
      files += '|';
      files += std::filesystem::absolute(file).lexically_normal().string();
    }
  };
  if (inputs.experts.replicas().empty()) add(inputs.experts.files());
  for (const auto& replica : inputs.experts.replicas()) add(replica);
  for (const RemoteStore& remote : inputs.experts.remotes()) {
    files += '|';
    files += ExpertPeerName(remote.peer);
  }
  return fmt::format("{}|{} {}|{} {} {} {} {} {}|{} {}|{}|{} {} {} {}|{} {}|{} {} {} {}{}",
                     host.fingerprint, c.architecture, c.num_layers(), c.hidden_size,
                     c.num_experts(), c.top_k(), c.expert_width(), c.dense_width(),
                     c.shared_width(), AttentionText(c), c.vocab_size, c.num_sparse_layers(),
                     IsaName(inputs.kernels.isa), ChoicesText(inputs.kernels),
                     static_cast<int>(inputs.weight_type), static_cast<int>(inputs.kv_type),
                     inputs.threads, PlacesText(inputs.thread_layout),
                     ReadBackendName(inputs.streaming.backend), inputs.streaming.depth,
                     inputs.streaming.packet_bytes, inputs.streaming.link_bytes_per_s, files);
}

ModuleCosts MeasureModules(const ModuleProfilerInputs& inputs, const HostDescription& host) {
  ModuleCosts costs = ModuleProfiler(inputs).Run();
  costs.routing = ObserveRouting(inputs, costs);
  costs.key = ModuleCostsKey(inputs, host);
  costs.cores = std::max<int64_t>(host.physical_cores, std::min(inputs.threads, host.logical_cpus));
  costs.host_fingerprint = host.fingerprint;
  costs.model = inputs.config.architecture;
  costs.created = UtcNow();
  return costs;
}

}  // namespace moesaic
