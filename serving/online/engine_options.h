// EngineOptions: everything that can be set on an engine, of both modes: what a user sets, and what
// start-up makes of that on this machine.
//
// Plain data. AddEngineSettings (engine_settings.h) binds settings to its fields; a new setting is
// a field here and its registration there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/kernel_choice.h"
#include "core/base/memory_size.h"
#include "core/base/named.h"
#include "core/base/thread_layout.h"
#include "core/base/topology.h"
#include "core/io/async_reader.h"
#include "core/perf/execution_plan.h"
#include "kernels/cpu/kernels.h"
#include "serving/online/device_options.h"

namespace moesaic {

// Of a prompt of several chunks.
enum class PrefillOrder { kAuto, kChunks, kLayers };
inline constexpr Named<PrefillOrder> kPrefillOrders[] = {{"auto", PrefillOrder::kAuto},
                                                         {"chunks", PrefillOrder::kChunks},
                                                         {"layers", PrefillOrder::kLayers}};

// Of lines of a server's batches (module_batch_plan.h).
enum class ModuleBatches { kAuto, kOn, kOff };
inline constexpr Named<ModuleBatches> kModuleBatches[] = {
    {"auto", ModuleBatches::kAuto}, {"on", ModuleBatches::kOn}, {"off", ModuleBatches::kOff}};

// Of bf16 weights in memory: none, or 12 bits of which every bit of theirs comes back.
enum class WeightCoding { kNone, kLossless };
inline constexpr Named<WeightCoding> kWeightCodings[] = {{"none", WeightCoding::kNone},
                                                         {"lossless", WeightCoding::kLossless}};

enum class LoadFormat { kAuto, kDummy };
inline constexpr Named<LoadFormat> kLoadFormats[] = {{"auto", LoadFormat::kAuto},
                                                     {"dummy", LoadFormat::kDummy}};

// What an engine may take of its machine. Start-up makes memory in bytes, a number of threads and
// their places of it.
struct MachineShare {
  MemorySize memory;  // of the process; a share is of what is free
  int threads = 0;    // 0: one for each physical core that affinity and quota leave
  bool pin_threads = false;
  std::optional<NumaPolicy> numa;  // nullopt: as the machine has nodes
};

struct EngineOptions {
  std::string model;                // as it was named: a path or an id
  std::filesystem::path model_dir;  // resolved (ResolveModelPath): a directory or a GGUF file
  std::filesystem::path tokenizer;  // in place of the model's; empty: that
  LoadFormat load_format = LoadFormat::kAuto;
  std::optional<WeightType> dtype;  // of weights in memory; nullopt: bf16
  // nullopt: as start-up finds best (OptionsOnMachine), which leaves only what can be done.
  std::optional<WeightCoding> weight_coding;
  std::optional<WeightType> kv_cache_dtype;  // nullopt: bf16, but f32 with such weights
  uint64_t seed = 0;                         // of dummy weights

  MachineShare machine;
  // Memory. machine_memory_bytes is what this process may take in all (cgroup limits included).
  uint64_t machine_memory_bytes = 0;
  MemorySize expert_memory;  // a share is of all experts; auto: all that fits
  // Memory of experts may be taken from the engine and given to it while it runs, up to so much
  // (Engine::resizable_slots); 0: it stays as planned.
  uint64_t most_expert_bytes = 0;
  // Memory of experts that processes on this machine have together, by its name (ShareClaim);
  // empty: each has its own.
  std::string share_experts;
  // Likewise of keys and values (Engine::resizable_kv).
  uint64_t most_kv_bytes = 0;
  MemorySize kv_memory;           // a share is of machine memory
  int64_t max_model_len = 0;      // tokens of prompt and output; 0: the model's, or what fits
  uint64_t request_bytes = 0;     // left to who serves: requests that are read and tokenised
  uint64_t replay_bytes = 0;      // and what was generated, for conversations that come back
  uint64_t grammar_bytes = 0;     // and what answers are held to
  uint64_t connection_bytes = 0;  // and connections that are open

  int64_t max_num_seqs = 64;
  int64_t max_num_batched_tokens = 512;
  PrefillOrder prefill_order = PrefillOrder::kAuto;
  // Prompts that run layer after layer have so much time between two steps of requests that decode,
  // or as much as a step takes.
  int64_t prefill_turn_ms = 100;
  ModuleBatches module_batches = ModuleBatches::kAuto;
  int64_t batch_num_seqs = 0;            // lines that run at once in module batches; 0: chosen
  int64_t batch_num_batched_tokens = 0;  // of a module batch of lines; 0: chosen
  bool serves_batches = false;           // who serves has batches: there is to be room for them
  int64_t state_snapshots = 4;           // recurrent states that are kept for prefixes, at most
  int64_t max_queue = 256;               // requests waiting beyond those that run
  // Of throughput mode. nullopt, 0: as the planner says.
  std::optional<ScheduleKind> schedule = std::nullopt;
  int64_t micro_batches = 0;
  bool prefix_cache = true;

  int threads = 1;
  ThreadLayout thread_layout;  // where they run, and the nodes that weights are sliced over
  // Of this machine's profile; empty: the defaults.
  std::vector<KernelChoice> kernel_choices;

  std::filesystem::path expert_store;  // or several (ExpertStoresOf); empty: read the checkpoint
  std::string expert_store_key;        // that servers among them share with us
  std::filesystem::path expert_store_key_file;  // or the file that has it
  ReadBackend io_backend = ReadBackend::kAuto;
  int io_depth = 0;                  // reads in flight; 0: default
  int io_threads = 1;                // one reads and packs; the others pack
  uint32_t packet_bytes = 0;         // 0: default
  uint32_t device_packet_bytes = 0;  // of throughput mode's copies to devices; 0: as planned
  uint64_t link_bytes_per_s = 0;     // no faster from the disk, or from each store; 0: no limit
  DeviceOptions devices;
  std::vector<std::string> place;  // rules, and files of rules (placement_rule.h)
  // Of a decoded token's experts, those with the lowest weights, that enter one layer later. 0:
  // none.
  int64_t defer_experts = 0;
  bool exact_numerics = true;            // false: devices that round otherwise may share a layer
  bool preload = true;                   // fill free expert slots before the first request
  std::string predictor = "blend";       // or another of PredictorNames(), or none
  int gate_look_ahead = 3;               // layers that routers predict; 0: none
  std::string eviction_policy = "auto";  // next-use with a predictor, else lru; or one of
                                         // next-use and CountingPolicyNames()
  std::filesystem::path route_from;      // empty: the model's own routing
  std::filesystem::path record_trace;    // empty: the routing is not recorded
  std::filesystem::path state_file;      // empty: what is learned ends with the process
  double state_interval_s = 300;         // 0: saved at the end only
  std::filesystem::path kv_store;        // empty: keys and values end with the process
  uint64_t kv_store_bytes = uint64_t{20} << 30;
  uint64_t kv_store_memory_bytes = 0;  // of the host's memory, in front of the directory or alone

  // Where tokenizer and chat template are.
  const std::filesystem::path& text_files() const {
    return tokenizer.empty() ? model_dir : tokenizer;
  }
};

// What dtype, weight_coding and kv_cache_dtype mean.
WeightType ChooseWeightType(const EngineOptions& options);
WeightType ChooseKvType(const EngineOptions& options);

}  // namespace moesaic
