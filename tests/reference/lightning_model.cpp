#include "tests/reference/lightning_model.h"

#include <algorithm>

namespace moesaic {
namespace {

// What the original leaves free on the device and on the host.
constexpr double kDeviceShare = 0.86;
constexpr double kHostShare = 0.8;
constexpr int64_t kMostMicroBatch = 4096;
constexpr int64_t kMostMicroBatches = int64_t{1} << 20;

struct Dimensions {
  explicit Dimensions(const ModelShape& model)
      : layers(static_cast<double>(model.num_layers)),
        h1(static_cast<double>(model.hidden_size)),
        h2(static_cast<double>(model.expert_intermediate)),
        heads(static_cast<double>(model.num_heads)),
        kv_heads(static_cast<double>(model.num_kv_heads)),
        head_dim(static_cast<double>(model.head_dim)),
        experts(static_cast<double>(model.num_experts)),
        top_k(static_cast<double>(model.top_k)),
        kv_hidden(h1 * kv_heads / heads) {}
  double layers, h1, h2, heads, kv_heads, head_dim, experts, top_k, kv_hidden;

  double LayerExpertBytes() const { return 6 * h1 * h2 * experts; }
  double AttentionWeightBytes() const { return (4 * h1 * h1 + 4 * h1 * kv_hidden) * layers; }
};

}  // namespace

double LightningAttentionFlop(const ModelShape& model, int64_t sequences, int64_t queries,
                              int64_t context) {
  const Dimensions d(model);
  return static_cast<double>(sequences) * static_cast<double>(queries) *
         static_cast<double>(context) * d.heads * (2 * d.head_dim + 2);
}

double LightningAttentionBytes(const ModelShape& model, int64_t sequences, int64_t queries,
                               int64_t context) {
  const Dimensions d(model);
  return 2 * static_cast<double>(sequences) *
         (2 * static_cast<double>(queries) * d.heads * d.head_dim +
          2 * static_cast<double>(context) * d.kv_heads * d.head_dim);
}

double LightningMlpFlop(const ModelShape& model, int64_t tokens) {
  const Dimensions d(model);
  return 6 * static_cast<double>(tokens) * d.h1 * d.h2 * d.top_k;
}

double LightningMlpBytes(const ModelShape& model, int64_t tokens) {
  const Dimensions d(model);
  return 2 * static_cast<double>(tokens) * (d.h1 + d.h2) + d.LayerExpertBytes();
}

std::optional<LightningEstimate> EstimateLightning(const ModelShape& model,
                                                   const LightningMachine& machine,
                                                   const LightningJob& job, int64_t micro_batch,
                                                   int64_t num_micro_batches) {
  const Dimensions d(model);
  const auto tp = static_cast<double>(machine.tensor_parallel);
  const auto prompt = static_cast<double>(job.prompt_tokens);
  const auto generated = static_cast<double>(job.generated_tokens);
  const auto mu = static_cast<double>(micro_batch);
  const auto count = static_cast<double>(num_micro_batches);
  const double batch = mu * count;
  const int64_t context = job.prompt_tokens + job.generated_tokens;
  const double expert_bytes = d.LayerExpertBytes();

  LightningEstimate e;
  e.micro_batch = micro_batch;
  e.num_micro_batches = num_micro_batches;
  e.device_s =
      count * std::max(LightningMlpFlop(model, micro_batch) / (machine.device_flop_per_s * tp),
                       LightningMlpBytes(model, micro_batch) / (machine.device_bytes_per_s * tp));
  e.cpu_s =
      count *
      std::max(LightningAttentionFlop(model, micro_batch, 1, context) / machine.cpu_flop_per_s,
               LightningAttentionBytes(model, micro_batch, 1, context) / machine.host_bytes_per_s);

  e.decode_home_bytes = d.AttentionWeightBytes() + 4 * d.h1 * batch * tp;
  e.prefill_home_bytes = d.AttentionWeightBytes() +
                         tp * (2 * d.h1 * mu * 2 * prompt + d.h1 * batch * 2 * prompt) +
                         4 * prompt * d.kv_hidden * mu * 2;
  e.intermediate_bytes =
      1.2 * 2 * (mu * d.top_k * d.h1 * tp * prompt + mu * d.top_k * 3 * d.h2 * prompt);
  const double fixed = std::max(e.decode_home_bytes, e.prefill_home_bytes) + e.intermediate_bytes;
  const double kv_bytes = 4 * static_cast<double>(context) * d.kv_hidden * batch * d.layers;
  const double host_fixed = kv_bytes + 2 * d.h1 * batch * prompt * tp;

  // fixed + w l wg + 2 w (1 - wg) <= device;  w l (1 - wg) + host_fixed + 2 w (1 - wg) <= host.
  const double most = (kDeviceShare * machine.device_memory_bytes * tp - fixed - 2 * expert_bytes) /
                      (expert_bytes * (d.layers - 2));
  e.least_resident_share =
      1 - (kHostShare * machine.host_memory_bytes - host_fixed) / (expert_bytes * (d.layers + 2));
  e.resident_share = std::min(most, 1.0);
  if (e.resident_share < std::max(0.0, e.least_resident_share)) return std::nullopt;

  const double streamed = 1 - e.resident_share;
  e.link_s = expert_bytes * streamed / machine.link_bytes_per_s;
  e.layer_s = std::max({e.link_s, e.cpu_s, e.device_s});
  e.device_peak_bytes =
      fixed + expert_bytes * d.layers * e.resident_share + 2 * expert_bytes * streamed;
  e.host_peak_bytes = host_fixed + expert_bytes * (d.layers + 2) * streamed;
  e.generated_tokens_per_s = batch * generated / (e.layer_s * (generated - 1) * d.layers);
  return e;
}

std::optional<LightningEstimate> SearchLightning(const ModelShape& model,
                                                 const LightningMachine& machine,
                                                 const LightningJob& job) {
  std::optional<LightningEstimate> best;
  for (int64_t mu = 1; mu <= kMostMicroBatch; mu += mu < 4 ? 1 : 32) {
    const auto fits = [&](int64_t count) {
      return EstimateLightning(model, machine, job, mu, count).has_value();
    };
    if (!fits(1)) continue;
    int64_t most = 1;
    int64_t beyond = 2;
    while (beyond < kMostMicroBatches && fits(beyond)) beyond *= 2;
    most = beyond / 2;
    while (beyond - most > 1) {
      const int64_t middle = (most + beyond) / 2;
      (fits(middle) ? most : beyond) = middle;
    }
    double last = 0;
    for (int64_t count = 1; count <= most; ++count) {
      const auto estimate = EstimateLightning(model, machine, job, mu, count);
      if (!estimate) continue;
      const double throughput = estimate->generated_tokens_per_s;
      // Rounding moves equal throughputs of a plateau by an ulp or two.
      if (throughput < last * (1 - 1e-12)) break;
      last = std::max(last, throughput);
      if (!best || throughput > best->generated_tokens_per_s * (1 + 1e-9)) best = estimate;
    }
  }
  return best;
}

}  // namespace moesaic
