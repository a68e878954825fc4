#include "serving/startup/machine_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/logging.h"
#include "core/config/model_config.h"
#include "serving/model/fp8_weights.h"
#include "serving/model/gguf_weights.h"
#include "serving/model/packed_int4.h"
#include "serving/online/device_backend.h"
#include "serving/online/place_rules.h"

namespace moesaic {
namespace {

// A device without an expert of a layer would have nothing to do.
void UseDevicesThatHaveExperts(EngineOptions& options) {
  if (options.devices.count < 2) return;
  const int64_t experts = std::max<int64_t>(1, LoadModelConfig(options.model_dir).num_experts());
  if (options.devices.count <= experts) return;
  LogWarn("--devices {}: the model has {} experts in a layer, so {} devices are used",
          options.devices.count, experts, experts);
  options.devices.count = static_cast<int>(experts);
}

// An instruction set that is forced is left alone.
void ChooseKernels(const Machine& machine, EngineOptions& options) {
  if (machine.isa_forced) return;
  if (machine.profile) {
    options.kernel_choices = machine.profile->kernels;
  } else {
    LogDebug("kernels are chosen by default: {}", machine.why_no_profile);
  }
}

// What the profile says of the devices, when it knows all of them.
void ChooseDeviceRates(const Machine& machine, DeviceOptions& devices) {
  if (devices.count == 0) return;
  std::optional<std::vector<DeviceProfile>> known;
  if (machine.profile) {
    known = BackendOf(devices.kind).Profiles(*machine.profile, static_cast<size_t>(devices.count));
  }
  if (known) {
    devices.profiles = *std::move(known);
  } else {
    LogDebug("rates of links and experts are measured while serving only: {}",
             machine.profile ? "the profile does not know these devices" : machine.why_no_profile);
  }
}

// Rules name NUMA nodes by their number here.
void CheckNodes(const EngineOptions& options, const Topology& topology) {
  if (options.place.empty()) return;
  for (const PlacementRule& rule : PlacementRulesOf(options)) {
    if (!rule.numa_node) continue;
    std::string nodes;
    bool found = false;
    for (const NumaNode& node : topology.nodes) {
      found = found || node.id == *rule.numa_node;
      nodes += fmt::format("{}{}", nodes.empty() ? "" : ", ", node.id);
    }
    if (found) continue;
    Fail(ErrorKind::kInvalidArgument, "{}: '{}': this machine has no NUMA node {}, but {}",
         rule.origin, rule.text, *rule.numa_node, nodes);
  }
}

bool IsMxfp4(WeightType type) {
  return type == WeightType::kMxfp4 || type == WeightType::kMxfp4F32;
}

// What the checkpoint has, where that is a type of its own.
void ChooseDtype(EngineOptions& options) {
  const auto asked = options.dtype;
  const bool of_checkpoints = !asked || IsMxfp4(*asked) || *asked == WeightType::kFp8 ||
                              *asked == WeightType::kW4A16 || IsGguf(*asked);
  if (!of_checkpoints) return;
  const ModelConfig config = LoadModelConfig(options.model_dir);
  std::optional<WeightType> own;
  if (HasFp8Experts(config)) own = WeightType::kFp8;
  if (HasW4A16Experts(config)) own = WeightType::kW4A16;
  const bool gpus = KernelsOf(options.devices) != nullptr;
  if (config.tensors.HasMxfp4Experts()) {
    const bool floats = gpus || asked == WeightType::kMxfp4F32;
    own = floats ? WeightType::kMxfp4F32 : WeightType::kMxfp4;
    if (gpus && asked != own && (!asked || IsMxfp4(*asked))) {
      LogInfo(
          "--dtype mxfp4-float32: GPUs do not round activations of MXFP4 experts to int8, so the "
          "CPU beside them does not either");
    }
  }
  if (HasGgufExperts(config) && options.load_format != LoadFormat::kDummy) {
    const bool integers = AllGgufExpertsInBlocks(config) && asked != WeightType::kGgufF32;
    own = integers ? WeightType::kGguf : WeightType::kGgufF32;
  }
  const bool same_weights =
      asked && own && ((IsGguf(*asked) && IsGguf(*own)) || (IsMxfp4(*asked) && IsMxfp4(*own)));
  if (!asked || same_weights) options.dtype = own;
  if (!asked || asked == own || options.dtype == own) return;
  const char* const name = TraitsOf(*asked).dtype;
  const char* const blocks = IsGguf(*asked) ? "blocks of a GGUF file that can be kept"
                             : *asked == WeightType::kW4A16
                                 ? "packed int4 with a scale for each 32 inputs"
                                 : "fp8 with a scale for each 128 inputs";
  Fail(ErrorKind::kInvalidArgument,
       "--dtype {}: the experts of {} are not in {}; give another type, or leave it at auto", name,
       options.model_dir.string(), IsMxfp4(*asked) ? "mxfp4" : blocks);
}

// Leaves what there are products for.
void ChooseCoding(EngineOptions& options) {
  if (options.weight_coding != WeightCoding::kLossless) {
    options.weight_coding = WeightCoding::kNone;  // docs/experiments/coded-weights.md
    return;
  }
  const char* why = nullptr;
  if (ChooseWeightType(options) != WeightType::kBf16Coded) {
    why = "only bfloat16 is coded";
  } else if (KernelsOf(options.devices) != nullptr) {
    why = "GPUs have no kernels for coded weights yet";
  }
  if (why == nullptr) return;
  LogWarn("--weight-coding lossless: {}; weights stay as they are", why);
  options.weight_coding = WeightCoding::kNone;
}

}  // namespace

uint64_t MemoryLimitBytes(const MachineShare& share, const Topology& topology) {
  const uint64_t usable_bytes = topology.usable_memory_bytes();
  return share.memory.is_auto() ? usable_bytes : share.memory.BytesOf(usable_bytes);
}

EngineOptions OptionsOnMachine(const EngineOptions& asked, const Machine& machine) {
  const Topology& topology = machine.topology;
  EngineOptions options = asked;
  options.model_dir = ResolveModelPath(options.model);
  ChooseDtype(options);
  MachineShare& share = options.machine;
  options.machine_memory_bytes = MemoryLimitBytes(share, topology);
  options.threads = share.threads > 0 ? share.threads : topology.default_threads();
  share.numa = ChooseNumaPolicy(share.numa, topology);
  options.thread_layout =
      topology.thread_layout(share.pin_threads, share.numa == NumaPolicy::kSlice);
  DeviceOptions& devices = options.devices;
  devices.count = std::max(devices.count, BackendOf(devices.kind).default_count());
  devices.numa_nodes.clear();
  if (topology.nodes.size() > 1) {
    for (const NumaNode& node : topology.nodes) devices.numa_nodes.push_back(node.id);
  }
  UseDevicesThatHaveExperts(options);
  CheckNodes(options, topology);
  ChooseCoding(options);
  ChooseKernels(machine, options);
  ChooseDeviceRates(machine, devices);
  return options;
}

}  // namespace moesaic
