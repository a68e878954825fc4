// Makes an Engine for a model on disk (or for random weights): settings in, ledger checked, engine
// out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/kernel_choice.h"
#include "core/base/thread_layout.h"
#include "core/device/emulated_device.h"
#include "core/io/async_reader.h"
#include "core/perf/execution_plan.h"
#include "core/perf/hardware_profile.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cuda/kernels.h"
#include "prefetch/link/miss_planner.h"
#include "serving/engine/engine.h"
#include "serving/model/step_cost.h"

namespace moesaic {

class MetricsRegistry;

enum class LoadFormat { kAuto, kDummy };

// Who has the dense part, attention with the KV cache, the MLPs of every token and the head: the
// first device or the host, as may be (kAuto), the first device, the host, or all devices together.
enum class DenseMode { kAuto, kOn, kOff, kSharded };

// Devices as the fast tier: every expert lives in host memory and some on the device that the
// placement gives it.
struct DeviceOptions {
  int count = 0;  // 0: no devices, experts go from disk to host memory
  DeviceKind kind = DeviceKind::kEmulated;
  std::string memory = "auto";      // on each: bytes, or a percentage of the experts that it holds
  std::string gpu_memory = "auto";  // on each: all that may be taken of it
  // Of devices that compute (in throughput mode without attention); kAuto: when it can be and fits.
  DenseMode dense = DenseMode::kAuto;
  bool nccl = false;            // with kSharded: instead of peer copies
  std::vector<int> numa_nodes;  // the nodes that devices take turns on; empty: not known
  MissMode miss = MissMode::kAuto;
  // Of each device, what was measured of it on this machine; empty: nothing.
  std::vector<DeviceProfile> profiles;
  EmulatedLink emulated_link;
  std::vector<EmulatedFaults> emulated_faults;  // of device d, for tests
  // Emulated devices compute with these, as CUDA devices do with theirs; for tests. Null: the host
  // computes out of their memory.
  const cuda::Kernels* emulated_kernels = nullptr;
};

struct EngineOptions {
  std::filesystem::path model_dir;  // resolved (ResolveModelPath)
  LoadFormat load_format = LoadFormat::kAuto;
  std::string dtype = "auto";           // of weights in memory: auto, bfloat16, float32, int8, int4
  std::string kv_cache_dtype = "auto";  // auto (float32 with such weights), bfloat16, float32, int8
  uint64_t seed = 0;                    // of dummy weights

  // Memory. machine_memory_bytes is what this process may take in all (cgroup limits included).
  uint64_t machine_memory_bytes = 0;
  std::string expert_memory = "auto";  // bytes or a percentage of all experts; auto: all that fits
  std::string kv_memory = "auto";      // bytes or a percentage of machine memory
  int64_t max_model_len = 0;           // 0: the model's, or what the KV memory holds
  uint64_t request_bytes = 0;          // left to who serves: requests that are read and tokenised

  int64_t max_num_seqs = 64;
  int64_t max_num_batched_tokens = 512;
  int64_t max_queue = 256;
  // Of throughput mode. nullopt, 0: as the planner says.
  std::optional<ScheduleKind> schedule = std::nullopt;
  int64_t micro_batches = 0;
  bool prefix_cache = true;

  int threads = 1;
  ThreadLayout thread_layout;  // where they run, and the nodes that weights are sliced over
  // Of this machine's profile; empty: the defaults.
  std::vector<KernelChoice> kernel_choices;

  std::filesystem::path expert_store;  // empty: read the checkpoint
  ReadBackend io_backend = ReadBackend::kAuto;
  int io_depth = 0;  // 0: default
  int io_threads = 1;
  uint32_t packet_bytes = 0;         // 0: default
  uint32_t device_packet_bytes = 0;  // of throughput mode's copies to devices; 0: as planned
  uint64_t link_bytes_per_s = 0;     // throughput mode reads no faster; 0: no limit
  DeviceOptions devices;
  // Of a decoded token's experts, those with the lowest weights, that enter one layer later. 0:
  // none.
  int64_t defer_experts = 0;
  bool exact_numerics = true;            // false: devices that round otherwise may share a layer
  bool preload = true;                   // fill free expert slots before the first request
  std::string predictor = "blend";       // or another of PredictorNames(), or none
  int gate_look_ahead = 3;               // layers that routers predict; 0: none
  std::string eviction_policy = "auto";  // next-use with a predictor, else lru; or one of
                                         // next-use and those of MakeCountingPolicy
  std::filesystem::path route_from;      // empty: the model's own routing
  std::filesystem::path record_trace;    // empty: the routing is not recorded
  std::filesystem::path state_file;      // empty: what is learned ends with the process
  double state_interval_s = 300;         // 0: saved at the end only
};

// What dtype and kv_cache_dtype mean. Throw Error(kInvalidArgument).
WeightType ChooseWeightType(const EngineOptions& options);
WeightType ChooseKvType(const EngineOptions& options);

// One line of the memory ledger.
struct LedgerEntry {
  std::string name;  // "dense weights"
  uint64_t bytes = 0;
};

// A device's part of the plan.
struct DevicePlan {
  int64_t experts = 0;  // that the placement gives it
  int64_t slots = 0;
  std::vector<LedgerEntry> ledger;  // of its memory
  uint64_t memory_bytes = 0;        // their sum, which is taken of it
  uint64_t limit_bytes = 0;         // what may be (--gpu-memory)
};

// What the options come to, before anything is allocated. Throws Error(kResourceExhausted) that
// says how much is missing and which flag to change.
struct EnginePlan {
  std::vector<LedgerEntry> ledger;
  uint64_t total_bytes = 0;
  uint64_t expert_budget_bytes = 0;  // for slots
  uint64_t all_experts_bytes = 0;    // what 100% is
  uint64_t slot_bytes = 0;
  int64_t expert_slots = 0;         // of all devices together, when there are any
  std::vector<DevicePlan> devices;  // empty: none
  int dense_devices = 0;            // that share the dense part, the first ones; 0: the host has it
  std::string why_dense_on_host;    // with DenseMode::kAuto, when it could not be; else empty
  uint64_t predictor_bytes = 0;     // 0: nothing is predicted
  int64_t num_kv_blocks = 0;
  int64_t max_context_tokens = 0;
  WeightType weight_type = WeightType::kBf16;
  StepCost step_cost;
};
EnginePlan PlanEngine(const EngineOptions& options);

// Loads the model and starts the engine's thread. `metrics` must outlive the engine.
std::unique_ptr<Engine> CreateEngine(const EngineOptions& options, MetricsRegistry& metrics);

}  // namespace moesaic
