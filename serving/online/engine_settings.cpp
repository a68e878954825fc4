#include "serving/online/engine_settings.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/comma_list.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/config/placement_rule.h"
#include "core/config/setting_section.h"
#include "prefetch/evict/eviction_policies.h"
#include "prefetch/predict/predictor.h"

namespace moesaic {
namespace {

constexpr uint64_t kLongestPacket = uint64_t{1} << 30;

constexpr Named<bool> kNumerics[] = {{"exact", true}, {"fast", false}};

std::vector<std::string> PredictorChoices() {
  std::vector<std::string> choices = PredictorNames();
  choices.emplace_back("none");
  return choices;
}

std::vector<std::string> EvictionChoices() {
  std::vector<std::string> choices = {"auto", "next-use"};
  for (std::string& name : CountingPolicyNames()) choices.push_back(std::move(name));
  return choices;
}

// Of reads, and of throughput mode's copies: start-up may choose the first where it was left open.
ConvertedValue PacketSize(EngineOptions& options) {
  return {.default_text = "auto",
          .assign =
              [&options](std::string_view text, std::string_view what) {
                const uint64_t bytes = text == "auto" ? 0 : ParseBytes(text, what);
                if (bytes > kLongestPacket) {
                  Fail(ErrorKind::kInvalidArgument, "{}: '{}' is more than 1 GiB", what, text);
                }
                options.packet_bytes = static_cast<uint32_t>(RoundUp(bytes, 4096));
                options.device_packet_bytes = options.packet_bytes;
                return std::string(text);
              },
          .value_name = "SIZE"};
}

void AddModelSettings(EngineOptions& options, bool visible, OptionTable& table) {
  const SettingSection model(table, "Model", visible);
  model.Add({.name = "model",
             .target = &options.model,
             .value_name = "DIR|FILE|ID",
             .help = "The model: a Hugging Face directory, a GGUF file (any of a split model), or "
                     "the id of one in the local Hugging Face cache. The first argument means the "
                     "same."});
  model.Add({.name = "tokenizer",
             .target = &options.tokenizer,
             .value_name = "DIR|FILE",
             .help = "Take tokenizer and chat template from here instead: a directory with "
                     "tokenizer.json, tokenizer.model or tiktoken.model, or a GGUF file."});
  model.Add({.name = "max-model-len",
             .target = &options.max_model_len,
             .value_name = "TOKENS",
             .help = "Longest prompt and output of one request. 0: what the model and --kv-memory "
                     "allow.",
             .min = 0,
             .max = 1e9});
  model.Add({.name = "dtype",
             .target = AutoOrOneOf(&options.dtype, kWeightDtypes),
             .help =
                 "Type of the weights in memory. auto: that of the checkpoint, float16 as "
                 "bfloat16. int8 and int4 are quantised as they are read (a scale for each 128 "
                 "weights, int4 with a multiplier for each 32; 8.125 and 4.375 bits each), "
                 "activations to int8 before each product; the router stays as it is. mxfp4 is "
                 "what experts of gpt-oss are stored in (4.25 bits each, the rest bfloat16), gguf "
                 "keeps the blocks of a GGUF file: both round activations to int8, mxfp4-float32 "
                 "and gguf-float32 do not round them. fp8 keeps the matrices of an fp8 checkpoint "
                 "(8.25 bits a weight), w4a16 the experts of one in compressed-tensors' packed "
                 "int4 (4.5 bits, the rest bfloat16)."});
  model.Add({.name = "weight-coding",
             .target = AutoOrOneOf(&options.weight_coding, kWeightCodings),
             .help =
                 "How bfloat16 weights lie in memory, and in a store that is written. lossless: in "
                 "12 bits each, of which every bit comes back, so that results are the same; a "
                 "matrix of too many exponents stays as it is. auto: none."});
  model.Add({.name = "kv-cache-dtype",
             .target = AutoOrOneOf(&options.kv_cache_dtype, kKvDtypes),
             .help = "Type of keys and values in memory. auto: bfloat16, but float32 with --dtype "
                     "float32. int8 takes 52% of bfloat16 (heads of 128), a scale for each token's "
                     "key and value in a head."});
  model.Add({.name = "load-format",
             .target = OneOf(&options.load_format, kLoadFormats),
             .help = "auto reads the checkpoint; dummy makes random weights from config.json "
                     "alone."});
  model.Add({.name = "seed",
             .target = &options.seed,
             .help = "Seed of dummy weights; in `moesaic run` of sampling, too.",
             .min = 0,
             .max = 9.0e15});
}

void AddMemorySettings(EngineOptions& options, bool visible, OptionTable& table) {
  const SettingSection memory(table, "Memory", visible);
  memory.Add({.name = "expert-memory",
              .target = &options.expert_memory,
              .help = "Memory for experts: a size (8GiB), a share of all experts (25%), or auto: "
                      "all that fits. The others stay on disk and are read when they are needed."});
  memory.Add({.name = "share-experts",
              .target = &options.share_experts,
              .value_name = "NAME",
              .help =
                  "Have the memory of experts together with other processes of this user on this "
                  "machine that give the same name: the first one fills --expert-memory, the "
                  "others read it in place and take a few experts of their own."});
  memory.Add({.name = "kv-memory",
              .target = &options.kv_memory,
              .help = "Memory for keys and values: a size, a share of --memory, or auto."});
  memory.Add({.name = "kv-store",
              .target = &options.kv_store,
              .value_name = "DIR",
              .help = "Keep keys and values of prompts and answers here, beyond --kv-memory and "
                      "across restarts, so that what begins alike is read instead of computed."});
  memory.Add(
      {.name = "kv-store-size",
       .target = SizeInBytes(&options.kv_store_bytes),
       .help = "What --kv-store may take of the disk; what was used least recently leaves."});
  memory.Add({.name = "kv-store-memory",
              .target = SizeInBytes(&options.kv_store_memory_bytes),
              .help = "Host memory for keys and values beyond --kv-memory, in front of --kv-store "
                      "or without it."});
  memory.Add({.name = "memory",
              .target = &options.machine.memory,
              .help = "All that the process may take: a size, a share of what is free, or auto: "
                      "what is free, the limits of its cgroup included."});
}

// Files are read at start-up.
void CheckPlacementRules(std::string_view text, std::string_view what) {
  while (!text.empty()) {
    const std::string_view item = TakeItem(text);
    if (item.find('=') != std::string_view::npos) ParsePlacementRule(item, std::string(what));
  }
}

void AddPlacementSettings(EngineOptions& options, bool visible, OptionTable& table) {
  const SettingSection placement(table, "Placement", visible);
  placement.Add({.name = "place",
                 .target = &options.place,
                 .value_name = "RULE|FILE",
                 .help = "A rule that says where modules or experts are, such as "
                         "layers.0-2.experts=pin, or a YAML file of rules; may be repeated. The "
                         "last rule that matches wins (docs/placement.md); `moesaic show` prints "
                         "what each one comes to.",
                 .check = CheckPlacementRules});
}

void AddExpertSettings(EngineOptions& options, bool visible, OptionTable& table) {
  const SettingSection experts(table, "Experts on disk", visible);
  experts.Add({.name = "expert-store",
               .target = &options.expert_store,
               .value_name = "DIR[,DIR]",
               .help = "Read experts from this store, written by `moesaic pack`; of several, on "
                       "several disks, from all at once. tcp://HOST:PORT behind a directory: "
                       "from `moesaic serve-experts` on another machine, too."});
  experts.Add(
      {.name = "expert-store-key-file",
       .target = &options.expert_store_key_file,
       .value_name = "FILE",
       .help = "File with the key that servers in --expert-store share with this process."});
  experts.Add({.name = "expert-store-key",
               .target = &options.expert_store_key,
               .value_name = "KEY",
               .help = "The key itself; best set in the environment, where others do not see it.",
               .secret = true});
  experts.Add({.name = "predictor",
               .target = &options.predictor,
               .help = "What tells which experts are used next, to read them ahead; nothing is "
                       "predicted when all experts fit.",
               .choices = PredictorChoices()});
  experts.Add({.name = "gate-look-ahead",
               .target = &options.gate_look_ahead,
               .help = "How many layers ahead the routers are applied to the hidden state, for the "
                       "blend and next-gate predictors (0: none)."});
  experts.Add({.name = "eviction-policy",
               .target = &options.eviction_policy,
               .help = "Which expert leaves when room is needed. auto: next-use with a predictor, "
                       "else lru.",
               .choices = EvictionChoices()});
  experts.Add({.name = "preload",
               .target = &options.preload,
               .help = "Do not fill --expert-memory at start; experts are read when first used."});
  experts.Add({.name = "io-backend",
               .target = OneOf(&options.io_backend, kReadBackends),
               .help = "How experts are read. auto: io_uring past the page cache where the system "
                       "has it."});
  experts.Add({.name = "io-depth",
               .target = &options.io_depth,
               .help = "Reads in flight. 0: measured.",
               .min = 0,
               .max = 1024});
  experts.Add({.name = "io-threads",
               .target = &options.io_threads,
               .help = "Threads behind the disk. One reads, and packs what it has read; others "
                       "only pack, which helps where a read expert takes longer to pack than to "
                       "read.",
               .min = 1,
               .max = 64});
  experts.Add({.name = "packet-size",
               .target = PacketSize(options),
               .help = "Bytes of one read, and of one copy of a batch job to a device; an urgent "
                       "expert waits for at most one. auto: measured, and as a batch job is "
                       "planned."});
  experts.Add({.name = "link-bandwidth",
               .target = SizeInBytes(&options.link_bytes_per_s),
               .help = "Read no more than so many bytes per second, of several stores from each, "
                       "as from a slower disk; not for experts of devices. 0: no limit."});
  experts.Add({.name = "route-from",
               .target = &options.route_from,
               .value_name = "TRACE",
               .help = "With --load-format dummy: take the routing from a recorded trace."});
  experts.Add({.name = "record-trace",
               .target = &options.record_trace,
               .value_name = "FILE",
               .help = "Record which experts every token uses; goes on behind what the file has."});
  experts.Add({.name = "state-file",
               .target = &options.state_file,
               .value_name = "FILE",
               .help = "Keep here, across restarts, what is learned about expert use and which "
                       "experts are in memory."});
  experts.Add({.name = "state-interval",
               .target = &options.state_interval_s,
               .value_name = "SECONDS",
               .help = "How often --state-file is written; also at the end. 0: only then.",
               .min = 0,
               .max = 1e6});
}

void AddComputeSettings(EngineOptions& options, bool visible, OptionTable& table) {
  const SettingSection compute(table, "Compute", visible);
  compute.Add({.name = "threads",
               .target = &options.machine.threads,
               .help = "Compute threads. 0: one per physical core that affinity and CPU quota "
                       "leave.",
               .min = 0,
               .max = 4096});
  compute.Add({.name = "pin-threads",
               .target = &options.machine.pin_threads,
               .help = "Bind each compute thread to a CPU."});
  compute.Add({.name = "numa",
               .target = AutoOrOneOf(&options.machine.numa, kNumaPolicies),
               .help = "Placement over NUMA nodes. slice: each node has its slice of every weight "
                       "matrix and threads that compute it. auto: slice where there are several."});
  compute.Add({.name = "numerics",
               .target = OneOf(&options.exact_numerics, kNumerics),
               .help = "exact: the same bits whatever the budget, the batch and the threads (on "
                       "GPUs with a given --gpu-dense). fast: host and GPUs may share the experts "
                       "of a layer, so that the last digits depend on who computed them."});
  compute.Add({.name = "defer-experts",
               .target = &options.defer_experts,
               .help = "Of the experts of each generated token, those N with the lowest weights "
                       "(at least two are left) are added one layer later, so that the next "
                       "layer's attention need not wait for them. Changes the answers a little. 0: "
                       "none.",
               .min = 0,
               .max = 1024});
}

void AddBatchingSettings(EngineOptions& options, bool visible, OptionTable& table) {
  const SettingSection batching(table, "Batching", visible);
  batching.Add({.name = "max-num-seqs",
                .target = &options.max_num_seqs,
                .help = "Sequences that run at the same time.",
                .min = 1,
                .max = 65536});
  batching.Add({.name = "max-num-batched-tokens",
                .target = &options.max_num_batched_tokens,
                .help = "Tokens of one step; longer prompts are cut into chunks.",
                .min = 1,
                .max = 1e6});
  batching.Add({.name = "prefill-order",
                .target = OneOf(&options.prefill_order, kPrefillOrders),
                .help = "How prompts run that are longer than --max-num-batched-tokens. chunks: "
                        "each chunk through all layers, so that each reads the experts that are "
                        "not in memory. layers: all chunks through a layer before the next one, so "
                        "that each expert is read once. auto: what is predicted to read less. The "
                        "answers have the same bits. Latency mode only."});
  batching.Add({.name = "prefill-turn",
                .target = &options.prefill_turn_ms,
                .value_name = "MS",
                .help = "While a prompt runs by layers, other requests get a token after so many "
                        "milliseconds of it, or after as long as their last step took if that was "
                        "longer, and the chunk of a layer that runs by then. 0: after each chunk "
                        "of a layer.",
                .min = 0,
                .max = 1e6});
  batching.Add({.name = "module-batches",
                .target = OneOf(&options.module_batches, kModuleBatches),
                .help = "Whether latency mode runs what it has at once as module batches, which "
                        "read whole layers of experts in the order of need. Lines of a server's "
                        "batches: layer after layer, more of them at once than a step has; "
                        "requests that come wait for a chunk of a layer at most, and nothing is "
                        "lost. Requests: steps of so many that they use most experts of a layer. "
                        "auto: lines where that is so, and requests where it is measured to be "
                        "faster. on: both where they can. off: neither. The answers have the same "
                        "bits."});
  batching.Add({.name = "batch-num-seqs",
                .target = &options.batch_num_seqs,
                .help = "Lines of batches that run at the same time as module batches, beside "
                        "--max-num-seqs requests, as far as there is memory for their keys and "
                        "values. 0: as measured times of the model's modules say, where there are "
                        "any (`moesaic profile --model`), else four times --max-num-seqs.",
                .min = 0,
                .max = 65536});
  batching.Add({.name = "batch-num-batched-tokens",
                .target = &options.batch_num_batched_tokens,
                .help = "Tokens of a module batch of lines, a step's at least, as far as there is "
                        "memory for their rows. 0: likewise, or four times "
                        "--max-num-batched-tokens.",
                .min = 0,
                .max = 1e7});
  batching.Add({.name = "schedule",
                .target = AutoOrOneOf(&options.schedule, kBatchSchedules),
                .help = "Order of a pass, in throughput mode. module: one module after another "
                        "over all sequences. overlapped: two groups, one's attention beside the "
                        "other's experts. paged: micro-batches, attention two ahead. auto: as the "
                        "planner says."});
  batching.Add({.name = "micro-batches",
                .target = &options.micro_batches,
                .help = "Groups of a pass's sequences with --schedule module or paged. 0: chosen.",
                .min = 0,
                .max = 1024});
  batching.Add({.name = "prefix-cache",
                .target = &options.prefix_cache,
                .help = "Do not reuse keys and values of prompts that begin alike."});
  batching.Add({.name = "state-snapshots",
                .target = &options.state_snapshots,
                .help = "Recurrent states kept for prompts that begin alike, of models that have "
                        "such layers.",
                .min = 0,
                .max = 4096});
}

}  // namespace

void AddEngineSettings(EngineOptions& options, bool visible, OptionTable& table) {
  AddModelSettings(options, visible, table);
  AddMemorySettings(options, visible, table);
  AddExpertSettings(options, visible, table);
  AddDeviceSettings(options.devices, visible, table);
  AddPlacementSettings(options, visible, table);
  AddComputeSettings(options, visible, table);
  AddBatchingSettings(options, visible, table);
}

}  // namespace moesaic
