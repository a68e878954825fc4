#include "core/config/runtime_config.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;
constexpr std::string_view kPrefix = "MOESAIC_";
// Variables with the prefix that are no settings (kernels/cpu reads the first, the command line the
// second).
constexpr std::array<std::string_view, 2> kOtherVariables = {"MOESAIC_ISA", "MOESAIC_CONFIG"};

void CheckBudget(std::string_view text, std::string_view what) {
  if (text == "auto") return;
  ParseBytesOrPercent(text, 100, what);
}

void CheckSizeOrAuto(std::string_view text, std::string_view what) {
  if (text == "auto") return;
  ParseBytes(text, what);
}

void CheckSize(std::string_view text, std::string_view what) { ParseBytes(text, what); }

// A scalar that YAML reads as this text and nothing else.
std::string YamlScalar(std::string_view text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("._/%-").find(c) != std::string_view::npos;
  });
  const bool has_letter_or_digit =
      std::any_of(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) != 0; });
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  // A leading % would be a directive.
  if (plain && has_letter_or_digit && lower != "null" && text.front() != '%') {
    return std::string(text);
  }
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (byte < 0x20 || byte == 0x7f) {
      quoted += fmt::format("\\x{:02x}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

// The items of a list option's text, which has commas between them, as a YAML list.
std::string YamlList(std::string_view text) {
  std::string list;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    list += (list.empty() ? "" : ", ") + YamlScalar(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return "[" + list + "]";
}

}  // namespace

uint64_t RuntimeConfig::max_body_bytes() const { return ParseBytes(max_body, "max-body"); }
uint64_t RuntimeConfig::packet_bytes() const {
  return packet_size == "auto" ? 0 : ParseBytes(packet_size, "packet-size");
}

void AddRuntimeSettings(RuntimeConfig& config, SettingScope scope, OptionTable& table) {
  const auto add = [&](bool visible, Option option) {
    option.settable_outside = true;
    option.hidden = !visible;
    table.Add(std::move(option));
  };
  const bool engine = scope.engine;
  const bool server = scope.server;

  add(engine, {"model", &config.model, "DIR|ID",
               "The model: a Hugging Face directory, or the id of one in the local Hugging Face "
               "cache. The first argument means the same.",
               "Model"});
  add(engine, {"chat-template", &config.chat_template, "FILE",
               "A chat template (Jinja) to use in place of the model's own.", "Model"});
  add(engine, {"tool-call-parser", &config.tool_call_parser, "NAME",
               "How the model writes calls of tools: auto (its chat template tells), none, or one "
               "of vLLM's names: hermes, qwen3_coder, glm45, deepseek_v3, deepseek_v31, "
               "deepseek_v32, kimi_k2, mistral, minimax_m2, openai, ...",
               "Model"});
  add(engine, {"reasoning-parser", &config.reasoning_parser, "NAME",
               "How the model writes reasoning: auto (its chat template tells), none, or one of "
               "vLLM's names: deepseek_r1, deepseek_v3, qwen3, glm45, kimi_k2, mistral, "
               "minimax_m2, openai_gptoss.",
               "Model"});
  add(engine, {"max-model-len",
               &config.max_model_len,
               "TOKENS",
               "Longest prompt and output of one request. 0: what the model and --kv-memory allow.",
               "Model",
               0,
               {},
               0,
               1e9});
  add(engine,
      {"dtype",
       &config.dtype,
       "",
       "Type of the weights in memory. auto: that of the checkpoint, float16 as bfloat16. "
       "int8 and int4 are quantised as they are read (a scale for each 128 weights, int4 with "
       "a multiplier for each 32; 8.125 and 4.375 bits each), activations to int8 before each "
       "product; the router stays as it is.",
       "Model",
       0,
       {"auto", "bfloat16", "float32", "int8", "int4"}});
  add(engine,
      {"kv-cache-dtype",
       &config.kv_cache_dtype,
       "",
       "Type of keys and values in memory. auto: bfloat16, but float32 with --dtype float32. int8 "
       "takes 52% of bfloat16 (heads of 128), a scale for each token's key and value in a head.",
       "Model",
       0,
       {"auto", "bfloat16", "float32", "int8"}});
  add(engine, {"load-format",
               &config.load_format,
               "",
               "auto reads the checkpoint; dummy makes random weights from config.json alone.",
               "Model",
               0,
               {"auto", "dummy"}});
  add(engine, {"seed",
               &config.seed,
               "",
               "Seed of dummy weights; in `moesaic run` of sampling, too.",
               "Model",
               0,
               {},
               0,
               9.0e15});

  add(engine, {"expert-memory",
               &config.expert_memory,
               "SIZE",
               "Memory for experts: a size (8GiB), a share of all experts (25%), or auto: all that "
               "fits. The others stay on disk and are read when they are needed.",
               "Memory",
               0,
               {},
               0,
               0,
               CheckBudget});
  add(engine, {"kv-memory",
               &config.kv_memory,
               "SIZE",
               "Memory for keys and values: a size, a share of --memory, or auto.",
               "Memory",
               0,
               {},
               0,
               0,
               CheckBudget});
  add(engine, {"memory",
               &config.memory,
               "SIZE",
               "All that the process may take: a size, a share of what is free, or auto: what is "
               "free, the limits of its cgroup included.",
               "Memory",
               0,
               {},
               0,
               0,
               CheckBudget});

  add(engine, {"expert-store", &config.expert_store, "DIR",
               "Read experts from this store, written by `moesaic pack`.", "Experts on disk"});
  add(engine, {"predictor",
               &config.predictor,
               "",
               "What tells which experts are used next, to read them ahead; nothing is predicted "
               "when all experts fit.",
               "Experts on disk",
               0,
               {"blend", "next-gate", "transition", "eamc", "request-eam", "recency", "frequency",
                "dependency", "none"}});
  add(engine,
      {"gate-look-ahead", &config.gate_look_ahead, "N",
       "How many layers ahead the routers are applied to the hidden state, for the blend and "
       "next-gate predictors (0: none).",
       "Experts on disk"});
  add(engine, {"eviction-policy",
               &config.eviction_policy,
               "",
               "Which expert leaves when room is needed. auto: next-use with a predictor, else "
               "lru.",
               "Experts on disk",
               0,
               {"auto", "next-use", "lru", "lfu", "model-frequency", "request-eam"}});
  add(engine, {"preload", &config.preload, "",
               "Do not fill --expert-memory at start; experts are read when first used.",
               "Experts on disk"});
  add(engine, {"io-backend",
               &config.io_backend,
               "",
               "How experts are read. auto: io_uring past the page cache where the system has it.",
               "Experts on disk",
               0,
               {"auto", "uring", "threads", "buffered", "mapped"}});
  add(engine, {"io-depth",
               &config.io_depth,
               "",
               "Reads in flight. 0: measured.",
               "Experts on disk",
               0,
               {},
               0,
               1024});
  add(engine, {"io-threads",
               &config.io_threads,
               "",
               "Threads behind the disk. One reads, and packs what it has read; others only pack, "
               "which helps where a read expert takes longer to pack than to read.",
               "Experts on disk",
               0,
               {},
               1,
               64});
  add(engine,
      {"packet-size",
       &config.packet_size,
       "SIZE",
       "Bytes of one read, and of one copy of a batch job to a device; an urgent expert waits "
       "for at most one. auto: measured, and as a batch job is planned.",
       "Experts on disk",
       0,
       {},
       0,
       0,
       CheckSizeOrAuto});
  add(engine, {"link-bandwidth",
               &config.link_bandwidth,
               "SIZE",
               "Read no more than so many bytes per second, as from a slower disk; throughput mode "
               "only. 0: no limit.",
               "Experts on disk",
               0,
               {},
               0,
               0,
               CheckSize});
  add(engine,
      {"route-from", &config.route_from, "TRACE",
       "With --load-format dummy: take the routing from a recorded trace.", "Experts on disk"});
  add(engine, {"record-trace", &config.record_trace, "FILE",
               "Record which experts every token uses; goes on behind what the file has.",
               "Experts on disk"});
  add(engine, {"state-file", &config.state_file, "FILE",
               "Keep here, across restarts, what is learned about expert use and which experts are "
               "in memory.",
               "Experts on disk"});
  add(engine, {"state-interval",
               &config.state_interval_s,
               "SECONDS",
               "How often --state-file is written; also at the end. 0: only then.",
               "Experts on disk",
               0,
               {},
               0,
               1e6});

  add(engine, {"devices",
               &config.devices,
               "",
               "Devices that hold experts in memory of their own; all experts then also live in "
               "host memory. 0: none (with --device-kind cuda: one).",
               "Devices",
               0,
               {},
               0,
               64});
  add(engine, {"device-kind",
               &config.device_kind,
               "",
               "emulated: a device whose memory is host memory behind a slow link, out of which "
               "the host computes. cuda: GPUs, which compute the experts that they hold.",
               "Devices",
               0,
               {"emulated", "cuda"}});
  add(engine, {"device-memory",
               &config.device_memory,
               "SIZE",
               "Memory for experts on each device: a size, or a share of the experts that the "
               "device holds (25% on every device: a quarter of all experts). auto: what "
               "--gpu-memory leaves; without that, 25% on an emulated device, at least one expert.",
               "Devices",
               0,
               {},
               0,
               0,
               CheckBudget});
  add(engine, {"gpu-memory",
               &config.gpu_memory,
               "SIZE",
               "All that is taken of each device's memory: workspace, experts and what it has of "
               "the dense part. auto: what a GPU has, less a reserve.",
               "Devices",
               0,
               {},
               0,
               0,
               CheckSizeOrAuto});
  add(engine, {"gpu-dense",
               &config.gpu_dense,
               "",
               "Where attention with its KV cache and all else that is dense is computed: on the "
               "first GPU (on), on all of them, each a part of the heads and of every matrix's "
               "outputs (tp: tensor parallelism, the same answers), or on the CPU (off). auto: on "
               "the first GPU when its kernels can do the model and its memory has room for that "
               "and the experts of a token.",
               "Devices",
               0,
               {"auto", "on", "off", "tp"}});
  add(engine, {"gpu-collective",
               &config.gpu_collective,
               "",
               "What GPUs that share the dense part (--gpu-dense tp) exchange their pieces by: "
               "copies between them, or NCCL where the build found it. The same bits.",
               "Devices",
               0,
               {"peer", "nccl"}});
  add(engine,
      {"miss",
       &config.miss,
       "",
       "An expert that is on no device when it is needed: fetch it, compute it on the host, "
       "or (auto) whichever ends sooner by the rates measured so far. Devices that round "
       "otherwise than the host (cuda) need --numerics fast for the last two.",
       "Devices",
       0,
       {"fetch", "host", "auto"}});
  add(engine, {"emulated-link-gbps",
               &config.emulated_link_gbps,
               "GBPS",
               "Rate of an emulated device's link in GB/s. 0: as fast as memory can be copied.",
               "Devices",
               0,
               {},
               0,
               1e6});
  add(engine, {"emulated-link-latency-us",
               &config.emulated_link_latency_us,
               "US",
               "Time that each copy over an emulated link takes besides.",
               "Devices",
               0,
               {},
               0,
               1e6});

  add(engine, {"threads",
               &config.threads,
               "",
               "Compute threads. 0: one per physical core that affinity and CPU quota leave.",
               "Compute",
               0,
               {},
               0,
               4096});
  add(engine,
      {"pin-threads", &config.pin_threads, "", "Bind each compute thread to a CPU.", "Compute"});
  add(engine, {"numa",
               &config.numa,
               "",
               "Placement over NUMA nodes. slice: each node has its slice of every weight matrix "
               "and threads that compute it. auto: slice where there are several.",
               "Compute",
               0,
               {"auto", "off", "interleave", "slice", "isolate"}});
  add(engine,
      {"numerics",
       &config.numerics,
       "",
       "exact: the same bits whatever the budget, the batch and the threads (on GPUs with a "
       "given --gpu-dense). fast: host and GPUs may share the experts of a layer, so that the last "
       "digits depend on who computed them.",
       "Compute",
       0,
       {"exact", "fast"}});
  add(engine, {"defer-experts",
               &config.defer_experts,
               "N",
               "Of the experts of each generated token, those N with the lowest weights (at least "
               "two are left) are added one layer later, so that the next layer's attention need "
               "not wait for them. Changes the answers a little. 0: none.",
               "Compute",
               0,
               {},
               0,
               1024});

  add(engine, {"max-num-seqs",
               &config.max_num_seqs,
               "",
               "Sequences that run at the same time.",
               "Batching",
               0,
               {},
               1,
               65536});
  add(engine, {"max-num-batched-tokens",
               &config.max_num_batched_tokens,
               "",
               "Tokens of one step; longer prompts are cut into chunks.",
               "Batching",
               0,
               {},
               1,
               1e6});
  Option schedule{"schedule", &config.schedule, "",
                  "Order of a pass, in throughput mode. module: one module after another over all "
                  "sequences. overlapped: two groups, one's attention beside the other's experts. "
                  "paged: micro-batches, attention two ahead. auto: as the planner says.",
                  "Batching"};
  schedule.choices = {"auto", "module", "overlapped", "paged"};
  add(engine, std::move(schedule));
  add(engine, {"micro-batches",
               &config.micro_batches,
               "",
               "Groups of a pass's sequences with --schedule module or paged. 0: chosen.",
               "Batching",
               0,
               {},
               0,
               1024});
  add(engine, {"prefix-cache", &config.prefix_cache, "",
               "Do not reuse keys and values of prompts that begin alike.", "Batching"});

  add(server,
      {"host", &config.host, "ADDRESS", "Address to listen on; 0.0.0.0 for all.", "Server"});
  add(server,
      {"port", &config.port, "", "Port to listen on; 0: any free one.", "Server", 0, {}, 0, 65535});
  Option api_key{"api-key", &config.api_keys, "KEY",
                 "Accept only requests with one of these keys (commas separate several).",
                 "Server"};
  api_key.secret = true;
  add(server, std::move(api_key));
  add(server, {"api-key-file", &config.api_key_file, "FILE",
               "More keys, one per line; they do not show in the process list.", "Server"});
  add(server,
      {"served-model-name", &config.served_model_names, "NAME",
       "Names that requests may use for the model. Default: the model as given.", "Server"});
  add(server, {"max-queue",
               &config.max_queue,
               "",
               "Requests that may wait; more are answered with 503 and Retry-After.",
               "Server",
               0,
               {},
               0,
               1e6});
  add(server, {"request-timeout",
               &config.request_timeout_s,
               "SECONDS",
               "A request ends after this long. 0: never.",
               "Server",
               0,
               {},
               0,
               1e6});
  add(server, {"shutdown-timeout",
               &config.shutdown_timeout_s,
               "SECONDS",
               "How long running requests may go on after SIGTERM or SIGINT. 0: none.",
               "Server",
               0,
               {},
               0,
               1e6});
  add(server, {"max-body",
               &config.max_body,
               "SIZE",
               "Largest request body.",
               "Server",
               0,
               {},
               0,
               0,
               CheckSize});
  add(server, {"allowed-origins", &config.allowed_origins, "ORIGIN",
               "Origins that browsers may call from (CORS); * for all.", "Server"});
  add(server,
      {"allowed-hosts", &config.allowed_hosts, "HOST",
       "Names by which requests may call this server (their Host header), beside localhost; "
       "* for all. Without this, only a server that listens on loopback checks them.",
       "Server"});
  add(server, {"metrics-vllm-names", &config.metrics_vllm_names, "",
               "Export the metrics under vLLM's names too, for existing dashboards.", "Server"});

  add(true, {"log-level",
             &config.log_level,
             "",
             "Least severity that is logged.",
             "Logging",
             0,
             {"trace", "debug", "info", "warn", "error", "off"}});
  add(true, {"log-format",
             &config.log_format,
             "",
             "Lines of text or of JSON.",
             "Logging",
             0,
             {"text", "json"}});
}

void ApplyConfigText(std::string_view yaml, const std::string& name, OptionTable& table,
                     std::string_view where_listed) {
  YAML::Node root;
  try {
    root = YAML::Load(std::string(yaml));
  } catch (const YAML::Exception& error) {
    Fail(ErrorKind::kInvalidArgument, "{}:{}: not YAML: {}", name, error.mark.line + 1, error.msg);
  }
  if (root.IsNull()) return;
  if (!root.IsMap()) {
    Fail(ErrorKind::kInvalidArgument,
         "{}: expected one mapping of settings, for example `threads: 8`", name);
  }
  std::set<std::string> seen;
  for (const auto& entry : root) {
    const int line = entry.first.Mark().line + 1;
    if (!entry.first.IsScalar()) {
      Fail(ErrorKind::kInvalidArgument, "{}:{}: a key must be the name of a setting", name, line);
    }
    const std::string key = entry.first.Scalar();
    const Option* option = table.Find(key);
    if (option == nullptr || !option->settable_outside) {
      const std::string nearest = table.NearestName(key);
      Fail(ErrorKind::kInvalidArgument, "{}:{}: unknown setting '{:.80}'{}", name, line, key,
           nearest.empty() ? fmt::format("; {}", where_listed)
                           : fmt::format("; did you mean '{}'?", nearest));
    }
    if (!seen.insert(option->name).second) {
      Fail(ErrorKind::kInvalidArgument, "{}:{}: '{}' is given twice", name, line, option->name);
    }
    const std::string origin = fmt::format("{}:{}: {}", name, line, key);
    const YAML::Node& value = entry.second;
    if (value.IsScalar()) {
      table.Set(key, value.Scalar(), OptionSource::kFile, origin);
    } else if (value.IsSequence() && option->is_list()) {
      for (const auto& item : value) {
        if (!item.IsScalar()) {
          Fail(ErrorKind::kInvalidArgument, "{}: expected a list of plain values", origin);
        }
        table.Set(key, item.Scalar(), OptionSource::kFile, origin);
      }
    } else {
      Fail(ErrorKind::kInvalidArgument, "{}: expected {}, not {}", origin,
           option->is_list() ? "a value or a list of values" : "one value",
           value.IsNull()       ? "nothing"
           : value.IsSequence() ? "a list"
                                : "a mapping");
    }
  }
}

void ApplyConfigFile(const std::string& file, const std::vector<fs::path>& preset_directories,
                     OptionTable& table) {
  fs::path path = file;
  std::error_code error;
  if (!fs::exists(path, error) && file.find('/') == std::string::npos) {
    for (const fs::path& directory : preset_directories) {
      for (const char* extension : {"", ".yaml"}) {
        const fs::path candidate = directory / (file + extension);
        if (fs::is_regular_file(candidate, error) && !fs::exists(path, error)) path = candidate;
      }
    }
  }
  if (!fs::exists(path, error)) {
    std::vector<std::string> presets;
    for (const fs::path& directory : preset_directories) {
      for (const auto& entry : fs::directory_iterator(directory, error)) {
        if (entry.path().extension() == ".yaml") presets.push_back(entry.path().stem().string());
      }
    }
    std::sort(presets.begin(), presets.end());
    presets.erase(std::unique(presets.begin(), presets.end()), presets.end());
    std::string list;
    for (const std::string& preset : presets) list += (list.empty() ? "" : ", ") + preset;
    Fail(ErrorKind::kNotFound, "--config {:.300}: no such file{}", file,
         list.empty() ? "" : "; presets: " + list);
  }
  ApplyConfigText(ReadTextFile(path, kMaxConfigBytes), path.string(), table);
}

std::vector<std::string> ApplyEnvironment(const std::vector<std::string>& environment,
                                          OptionTable& table) {
  std::vector<std::string> warnings;
  std::map<std::string, std::string, std::less<>> settings;  // variable -> setting
  std::vector<std::string> variables;
  for (const Option& option : table.options()) {
    if (!option.settable_outside) continue;
    settings.emplace(option.environment_name(), option.name);
    variables.push_back(option.environment_name());
  }
  for (const std::string& entry : environment) {
    if (entry.compare(0, kPrefix.size(), kPrefix) != 0) continue;
    const size_t equals = std::min(entry.find('='), entry.size());
    const std::string variable = entry.substr(0, equals);
    const std::string value = entry.substr(std::min(equals + 1, entry.size()));
    const auto setting = settings.find(variable);
    if (setting != settings.end()) {
      if (setting->second == "port" && value.find("://") != std::string::npos) {
        warnings.push_back(
            fmt::format("{}={} looks like the variable that Kubernetes makes for a service called "
                        "moesaic and is ignored",
                        variable, value));
      } else {
        table.Set(setting->second, value, OptionSource::kEnvironment, variable);
      }
      continue;
    }
    if (std::find(kOtherVariables.begin(), kOtherVariables.end(), variable) !=
        kOtherVariables.end()) {
      continue;
    }
    // The shared prefix makes any two names look alike; one or two slips are what a typo has.
    const std::string nearest = NearestOf(variable, variables);
    if (!nearest.empty() && EditDistance(variable, nearest) <= 2) {
      warnings.push_back(
          fmt::format("environment variable {} is not a setting and is ignored; did you mean {}?",
                      variable, nearest));
    }
  }
  return warnings;
}

std::string DescribeSettings(const OptionTable& table) {
  std::string out;
  std::string section;
  for (const Option& option : table.options()) {
    if (!option.settable_outside || option.hidden) continue;
    if (option.section != section) {
      section = option.section;
      out += fmt::format("{}# {}\n", out.empty() ? "" : "\n", section);
    }
    const std::string text = table.ValueText(option.name);
    const std::string value = option.is_list() ? YamlList(text) : YamlScalar(text);
    out += fmt::format("{:<48} # {}\n", option.name + ": " + value, table.origin(option.name));
  }
  return out;
}

}  // namespace moesaic
