// MoE-Lightning's published cost model and policy search, as its optimizer computes them: a
// reproduction that the tests hold against the paper's records, and a baseline for reports. The
// planner (throughput_planner.h) does not use it: it leaves prefill out of its throughput, keeps
// fractions of experts resident and drops the product with the values.
//
// Pure functions. Sizes are in bytes and rates per second; GiB = 2^30 as in its code. The linear
// program of the original has one variable left when attention runs on the CPU, so it is solved in
// closed form.
#pragma once

#include <cstdint>
#include <optional>

#include "core/perf/model_shape.h"

namespace moesaic {

struct LightningMachine {
  double device_memory_bytes = 0;
  double device_bytes_per_s = 0;
  double device_flop_per_s = 0;
  double link_bytes_per_s = 0;
  double host_memory_bytes = 0;  // available at launch
  double host_bytes_per_s = 0;
  double cpu_flop_per_s = 0;
  int64_t tensor_parallel = 1;  // multiplies the device's three constants
};

struct LightningJob {
  int64_t prompt_tokens = 0;     // s
  int64_t generated_tokens = 0;  // n
};

// Decode with attention on the CPU and the experts on the device (A_g = 0, F_g = 1).
struct LightningEstimate {
  int64_t micro_batch = 0;        // mu
  int64_t num_micro_batches = 0;  // n_ub
  double device_s = 0;            // per layer
  double cpu_s = 0;
  double link_s = 0;
  double layer_s = 0;
  double resident_share = 0;        // wg: of the experts
  double least_resident_share = 0;  // that host memory leaves open
  double prefill_home_bytes = 0;    // on the device, without experts
  double decode_home_bytes = 0;
  double intermediate_bytes = 0;
  double device_peak_bytes = 0;
  double host_peak_bytes = 0;
  double generated_tokens_per_s = 0;  // n tokens over n - 1 decode steps; prefill is left out
};

// Operations and bytes as the original counts them (16-bit values).
double LightningAttentionFlop(const ModelShape& model, int64_t sequences, int64_t queries,
                              int64_t context);
double LightningAttentionBytes(const ModelShape& model, int64_t sequences, int64_t queries,
                               int64_t context);
double LightningMlpFlop(const ModelShape& model, int64_t tokens);
double LightningMlpBytes(const ModelShape& model, int64_t tokens);

// nullopt when the policy fits no share of resident experts.
std::optional<LightningEstimate> EstimateLightning(const ModelShape& model,
                                                   const LightningMachine& machine,
                                                   const LightningJob& job, int64_t micro_batch,
                                                   int64_t num_micro_batches);

// The original's search: micro-batches of 1, 2, 3, 4, 36, 68, ... sequences; of equal throughputs
// the first. nullopt when nothing fits.
std::optional<LightningEstimate> SearchLightning(const ModelShape& model,
                                                 const LightningMachine& machine,
                                                 const LightningJob& job);

}  // namespace moesaic
