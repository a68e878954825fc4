#include "serving/cli/simulation_job.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/named.h"
#include "core/config/model_config.h"
#include "core/perf/hardware_profile.h"
#include "kernels/cpu/kernels.h"
#include "prefetch/evict/eviction_policies.h"
#include "prefetch/link/miss_planner.h"
#include "prefetch/predict/predictor.h"
#include "serving/cli/step_times.h"
#include "tracer/routing_trace.h"

namespace moesaic {
namespace {

// "192", or "25%" of all experts.
int64_t ParseSlots(const std::string& text, int64_t experts) {
  try {
    size_t used = 0;
    const double number = std::stod(text, &used);
    const bool percent = used + 1 == text.size() && text[used] == '%';
    if ((percent || used == text.size()) && number > 0) {
      const double slots = percent ? static_cast<double>(experts) * number / 100 : number;
      if (slots >= 1) return std::min(static_cast<int64_t>(slots), experts);
    }
  } catch (const std::exception&) {
  }
  Fail(ErrorKind::kInvalidArgument,
       "--slots: '{}' is neither a number of experts nor a percentage of the {} there are", text,
       experts);
}

int64_t Nanoseconds(double us) { return std::llround(us * 1000); }

void CheckSameShape(const RoutingTraceHeader& a, const RoutingTraceHeader& b,
                    const std::string& name) {
  if (a.num_layers == b.num_layers && a.num_experts == b.num_experts && a.top_k == b.top_k) return;
  Fail(
      ErrorKind::kInvalidArgument,
      "--train: {} has {} layers of {} experts, {} per token; the trace has {} of {}, {} per token",
      name, b.num_layers, b.num_experts, b.top_k, a.num_layers, a.num_experts, a.top_k);
}

constexpr uint64_t kMostProfileBytes = uint64_t{1} << 20;

StepTimes TimesOf(const std::string& machine, const std::string& model_dir,
                  const RoutingTraceHeader& trace) {
  if (machine.empty() || model_dir.empty()) {
    Fail(ErrorKind::kInvalidArgument, "--machine and --model: give both, or neither");
  }
  const ModelConfig model = LoadModelConfig(model_dir);
  if (model.num_sparse_layers() != trace.num_layers || model.num_experts() != trace.num_experts ||
      model.top_k() != trace.top_k) {
    Fail(ErrorKind::kInvalidArgument,
         "--model: {} has {} layers of {} experts, {} per token; the trace has {} of {}, {} per "
         "token",
         model_dir, model.num_sparse_layers(), model.num_experts(), model.top_k(), trace.num_layers,
         trace.num_experts, trace.top_k);
  }
  return DeriveStepTimes(ParseProfile(ReadTextFile(machine, kMostProfileBytes), machine), model);
}

nlohmann::ordered_json ToJson(const SimulationResult& result) {
  const auto share = [](uint64_t part, uint64_t all) {
    return all == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(all);
  };
  nlohmann::ordered_json json;
  json["blocked_us"] = static_cast<double>(result.blocked_ns) / 1000;
  json["compute_us"] = static_cast<double>(result.compute_ns) / 1000;
  json["bytes_copied"] = result.bytes_copied;
  json["copies"] = result.copies;
  json["expert_accesses"] = result.expert_accesses;
  json["hits"] = result.hits;
  json["late_hits"] = result.late_hits;
  json["requests"] = result.requests;
  json["tokens"] = result.tokens;
  json["host_computed"] = result.host_computed;
  json["packets_copied"] = result.packets_copied;
  json["prefetches"] = result.prefetches;
  json["prefetched_used"] = result.prefetched_used;
  json["prefetched_unused"] = result.prefetched_unused;
  json["hit_rate"] = share(result.hits, result.expert_accesses);
  auto& blocked = json["request_blocked_us"] = nlohmann::ordered_json::array();
  for (const int64_t ns : result.request_blocked_ns)
    blocked.push_back(static_cast<double>(ns) / 1000);
  json["request_hit_rate"] = result.request_hit_rate;
  const char* names[3] = {"recall_at_k", "recall_at_1.5k", "recall_at_2k"};
  for (int i = 0; i < 3; ++i) {
    auto& list = json[names[i]] = nlohmann::ordered_json::object();
    for (size_t d = 0; d < result.recall.size(); ++d) {
      const SimulationResult::Recall& recall = result.recall[d];
      if (recall.used > 0) list[std::to_string(d + 1)] = share(recall.found[i], recall.used);
    }
  }
  auto& errors = json["calibration_error"] = nlohmann::ordered_json::object();
  for (size_t d = 0; d < result.recall.size(); ++d) {
    const SimulationResult::Recall& recall = result.recall[d];
    if (recall.stated > 0) {
      errors[std::to_string(d + 1)] = recall.absolute_error / static_cast<double>(recall.stated);
    }
  }
  return json;
}

// What has no meaning with so many traces is refused, not passed over.
void CheckNotGiven(const OptionTable& table, const std::string& section, const char* why) {
  for (const Option& option : table.options()) {
    if (option.section != section || table.origin(option.name) == "default") continue;
    Fail(ErrorKind::kInvalidArgument, "--{}: {}", option.name, why);
  }
}

}  // namespace

void SimulationJob::AddOptions(OptionTable& table) {
  table.Add(
      {"trace", &trace_files_, "FILE",
       "The trace to serve (JSON Lines, plain or gzip). Several, of a model each: they share a "
       "memory, which is simulated as one pool, as equal parts, and with models that are loaded "
       "and unloaded as a whole.",
       "Trace"});
  table.Add({"train", &train_file_, "FILE", "A trace to learn from first.", "Trace"});
  table.Add({"hold-out", &hold_out_, "N",
             "Learn from all sequences but every Nth, and serve every Nth (0: serve all, learn "
             "only while serving).",
             "Trace"});
  table.Add({"train-passes", &train_passes_, "N", "How often the training sequences are shown.",
             "Trace"});
  table.Add(
      {"slots", &slots_, "N", "Experts in fast memory: a number or a percentage.", "Machine"});
  table.Add({"devices", &devices_, "N",
             "Devices that the experts are spread over, each with a link.", "Machine"});
  table.Add({"machine", &machine_, "FILE",
             "What `moesaic profile` measured: with --model, where the times below come from that "
             "are not given.",
             "Machine"});
  table.Add(
      {"model", &model_, "DIR", "A model of the trace's shape (its config.json).", "Machine"});
  table.Add({"layer-compute-us", &layer_us_, "US",
             "Computing a layer; of several traces without experts, of all or of each.",
             "Machine"});
  table.Add({"expert-copy-us", &copy_us_, "US", "Copying an expert over an idle link.", "Machine"});
  table.Add({"host-expert-us", &host_us_, "US", "Computing an expert on the host.", "Machine"});
  table.Add({"predictor", &options_.predictor, "NAME",
             "none, oracle, " + OneOfText(PredictorNames()) + ".", "Decisions"});
  table.Add(
      {"policy", &options_.policy, "NAME", OneOfText(SimulatedPolicyNames()) + ".", "Decisions"});
  table.Add({"miss", &miss_, "MODE", "Missing experts: " + OneOfText(NamesOf(kMissModes)) + ".",
             "Decisions"});
  table.Add({"look-ahead", &look_ahead_, "N", "Layers that are prefetched for.", "Decisions"});
  table.Add({"min-gain", &min_gain_, "P",
             "What a prefetch over a link that layers always wait for must gain, as a probability; "
             "a quarter of it where none waits.",
             "Decisions"});
  table.Add({"keep-per-iteration", &keep_, "F",
             "What an expert that is used one iteration later is worth, of one used now.",
             "Decisions"});
  table.Add({"no-cache", &no_cache_, "", "Experts leave when their layer is done.", "Decisions"});
  shared_.AddOptions(table);
}

nlohmann::ordered_json SimulationJob::Run(const OptionTable& table) {
  if (trace_files_.empty()) Fail(ErrorKind::kInvalidArgument, "--trace is missing");
  options_.prefetch.look_ahead = static_cast<int>(look_ahead_);
  options_.prefetch.min_gain = min_gain_;
  options_.prefetch.keep_per_iteration = keep_;
  if (trace_files_.size() > 1) return RunShared(table);
  CheckNotGiven(table, "Several traces", "takes several of --trace");
  const std::vector<double> layer_us = ParseNumbers(layer_us_, "layer-compute-us");
  if (layer_us.size() != 1) {
    Fail(ErrorKind::kInvalidArgument,
         "--layer-compute-us: '{}' is more than one number for a trace", layer_us_);
  }
  const RoutingTrace trace = ReadRoutingTrace(trace_files_.front());
  const RoutingTraceHeader& header = trace.header;
  options_.slots = ParseSlots(slots_, int64_t{header.num_layers} * header.num_experts);
  options_.devices = static_cast<int>(devices_);
  options_.layer_compute_ns = Nanoseconds(layer_us.front());
  options_.expert_copy_ns = Nanoseconds(copy_us_);
  if (!machine_.empty() || !model_.empty()) {
    const StepTimes times = TimesOf(machine_, model_, header);
    options_.expert_bytes = times.expert_bytes;
    if (table.origin("layer-compute-us") == "default") {
      options_.layer_compute_ns = times.layer_compute_ns;
    }
    if (table.origin("expert-copy-us") == "default") options_.expert_copy_ns = times.expert_copy_ns;
  }
  options_.host_expert_ns = Nanoseconds(host_us_);
  const auto* mode = FindNamed(kMissModes, miss_);
  if (mode == nullptr) {
    Fail(ErrorKind::kInvalidArgument, "--miss: '{}' is not known; use {}", miss_,
         OneOfText(NamesOf(kMissModes)));
  }
  options_.miss = mode->value;
  options_.cache_between_layers = !no_cache_;

  Simulator simulator(trace, options_, SelectKernels());
  std::vector<int> serve;
  for (int64_t pass = 0; pass < train_passes_; ++pass) {
    if (!train_file_.empty()) {
      const RoutingTrace train = ReadRoutingTrace(train_file_);
      CheckSameShape(header, train.header, train_file_);
      for (const TraceSequence& sequence : train.sequences) simulator.Train(train, sequence);
    }
    for (size_t i = 0; i < trace.sequences.size(); ++i) {
      const bool held_out = hold_out_ <= 0 || static_cast<int64_t>(i) % hold_out_ == hold_out_ - 1;
      if (!held_out) simulator.Train(trace, trace.sequences[i]);
      if (held_out && pass == 0) serve.push_back(static_cast<int>(i));
    }
  }
  return ToJson(simulator.Run(serve));
}

nlohmann::ordered_json SimulationJob::RunShared(const OptionTable& table) {
  for (const char* name :
       {"train", "hold-out", "train-passes", "slots", "devices", "machine", "model",
        "expert-copy-us", "host-expert-us", "policy", "miss", "no-cache"}) {
    if (table.origin(name) == "default") continue;
    Fail(ErrorKind::kInvalidArgument, "--{}: is not simulated with several traces", name);
  }
  if (options_.predictor == "oracle") {
    Fail(ErrorKind::kInvalidArgument, "--predictor oracle: is not simulated with several traces");
  }
  return shared_.Run({trace_files_, ParseNumbers(layer_us_, "layer-compute-us"), options_.predictor,
                      options_.prefetch});
}

}  // namespace moesaic
