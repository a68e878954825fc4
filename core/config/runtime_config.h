// RuntimeConfig: every setting of the engine and the server, and where its value comes from:
// flags > environment (MOESAIC_<NAME>) > YAML file > default.
//
// Plain data, filled once by the command line and passed down.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/option_table.h"

namespace moesaic {

struct RuntimeConfig {
  // Model
  std::string model;                 // directory, or id in the local Hugging Face cache
  std::string load_format = "auto";  // auto, dummy
  std::string dtype = "auto";  // of the weights in memory: auto, bfloat16, float32, int8, int4
  std::string kv_cache_dtype = "auto";    // auto, bfloat16, float32, int8
  std::string chat_template;              // a file; empty: the model's own
  std::string tool_call_parser = "auto";  // auto, none, or a name that vLLM has
  std::string reasoning_parser = "auto";  // likewise
  int64_t max_model_len = 0;  // tokens of prompt and output; 0: what model and memory allow
  int64_t seed = 0;

  // Memory; texts as ParseBytesOrPercent takes them, or "auto"
  std::string memory = "auto";         // all that the process may take
  std::string expert_memory = "auto";  // a percentage is of all experts
  std::string kv_memory = "auto";      // a percentage is of `memory`

  // Experts
  std::string expert_store;
  std::string predictor = "blend";       // none: nothing is fetched ahead
  int64_t gate_look_ahead = 3;           // layers; 0: routers predict nothing
  std::string eviction_policy = "auto";  // next-use with a predictor, else lru
  std::string io_backend = "auto";
  int64_t io_depth = 0;              // reads in flight; 0: measured
  int64_t io_threads = 1;            // one reads and packs; the others pack
  std::string packet_size = "auto";  // bytes, or auto: measured
  std::string link_bandwidth = "0";  // bytes per second at most; 0: as fast as the disk
  bool preload = true;
  std::string route_from;
  std::string record_trace;
  std::string state_file;
  double state_interval_s = 300;  // 0: saved at the end only

  // Devices
  int64_t devices = 0;  // 0: none; experts are computed in host memory
  std::string device_kind = "emulated";
  std::string device_memory = "auto";   // on each; a percentage is of the experts that it holds
  std::string gpu_memory = "auto";      // on each, in all
  std::string gpu_dense = "auto";       // on, off, tp, auto
  std::string gpu_collective = "peer";  // peer, nccl
  std::string miss = "auto";            // fetch, host, auto
  double emulated_link_gbps = 12;       // 10^9 bytes per second; 0: as fast as memory
  double emulated_link_latency_us = 10;

  // Compute
  int64_t threads = 0;  // 0: one per physical core within affinity and quota
  bool pin_threads = false;
  std::string numa = "auto";
  std::string numerics = "exact";
  int64_t defer_experts = 0;  // of a decoded token's experts; enter one layer later

  // Batching
  int64_t max_num_seqs = 64;
  int64_t max_num_batched_tokens = 512;
  bool prefix_cache = true;
  std::string schedule = "auto";  // of throughput mode's passes
  int64_t micro_batches = 0;      // likewise; 0: chosen

  // Server
  std::string host = "127.0.0.1";
  int64_t port = 8000;
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::vector<std::string> served_model_names;
  int64_t max_queue = 256;         // requests waiting beyond those that run
  double request_timeout_s = 0;    // 0: none
  double shutdown_timeout_s = 30;  // 0: no drain
  std::string max_body = "16MiB";
  std::vector<std::string> allowed_origins;
  std::vector<std::string> allowed_hosts;
  bool metrics_vllm_names = false;

  // Logging
  std::string log_level = "info";
  std::string log_format = "text";

  uint64_t max_body_bytes() const;
  uint64_t packet_bytes() const;  // 0: auto
};

// Which settings are flags of a command; the others may still stand in a file or the environment
// that several commands share.
struct SettingScope {
  bool engine = false;
  bool server = false;
};

// Binds all settings to `config`, which outlives the table.
void AddRuntimeSettings(RuntimeConfig& config, SettingScope scope, OptionTable& table);

// Sets what a YAML file says: one mapping, each key a setting's name. `name` is the file in
// messages. Throws Error(kInvalidArgument) that names file, line and key, and for an unknown key
// the nearest name, or else `where_listed`.
void ApplyConfigText(std::string_view yaml, const std::string& name, OptionTable& table,
                     std::string_view where_listed = "`moesaic serve --help` lists them");
// `file` is a path, or the name of a preset in one of `preset_directories` ("small-memory"). Throws
// also Error(kNotFound).
void ApplyConfigFile(const std::string& file,
                     const std::vector<std::filesystem::path>& preset_directories,
                     OptionTable& table);

// Sets what "NAME=value" entries with the prefix MOESAIC_ say. Returns warnings: variables that are
// probably misspelt settings, and those that Kubernetes makes for a service called moesaic. Throws
// Error(kInvalidArgument).
std::vector<std::string> ApplyEnvironment(const std::vector<std::string>& environment,
                                          OptionTable& table);

// The settings as a YAML file that gives the same configuration, but for secrets, with the origin
// of each value.
std::string DescribeSettings(const OptionTable& table);

}  // namespace moesaic
