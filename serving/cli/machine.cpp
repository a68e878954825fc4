#include "serving/cli/machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/logging.h"
#include "core/base/units.h"
#include "core/config/model_config.h"
#include "core/device/cuda_device.h"
#include "core/io/checkpoint.h"
#include "core/io/expert_store.h"
#include "serving/cli/output.h"
#include "serving/plan/machine_profiler.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLeastMeasuredBytes = uint64_t{256} << 20;

std::string Variable(const Invocation& invocation, std::string_view name) {
  for (const std::string& entry : invocation.environment) {
    if (entry.size() > name.size() && entry.compare(0, name.size(), name) == 0 &&
        entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
  }
  return "";
}

// The file that holds (most of) the experts.
fs::path ExpertFile(const EngineOptions& options) {
  if (!options.expert_store.empty()) return ExpertStoreDataFile(options.expert_store);
  fs::path largest;
  uint64_t largest_bytes = 0;
  const Checkpoint checkpoint = Checkpoint::Open(options.model_dir);
  for (const fs::path& file : checkpoint.files()) {
    const uint64_t bytes = fs::file_size(file);
    if (bytes > largest_bytes) {
      largest = file;
      largest_bytes = bytes;
    }
  }
  return fs::canonical(largest);
}

}  // namespace

fs::path ProfilePath(const Invocation& invocation) {
  return DefaultProfilePath(Variable(invocation, "XDG_CACHE_HOME"), Variable(invocation, "HOME"));
}

std::string DescribeMachine(const HostDescription& host) {
  TextTable table("<<", 0);
  table.Add({"Processor", host.cpu_model});
  table.Add({"Instructions", fmt::format("{}", fmt::join(host.isa_flags, " "))});
  table.Add(
      {"CPUs",
       fmt::format("{} usable on {} core{}, {} NUMA node{}{}", host.logical_cpus,
                   host.physical_cores, host.physical_cores == 1 ? "" : "s", host.numa_nodes,
                   host.numa_nodes == 1 ? "" : "s",
                   host.cpu_quota > 0 ? fmt::format(", quota of {:g} CPUs", host.cpu_quota) : "")});
  table.Add({"Memory", FormatBytes(host.memory_total_bytes)});
  return table.Render();
}

uint64_t MemoryLimitBytes(const MachineShare& share, const Topology& topology) {
  const uint64_t usable_bytes = topology.usable_memory_bytes();
  return share.memory.is_auto() ? usable_bytes : share.memory.BytesOf(usable_bytes);
}

namespace {

// A device without an expert of a layer would have nothing to do.
void UseDevicesThatHaveExperts(EngineOptions& options) {
  if (options.devices.count < 2) return;
  const int64_t experts = std::max<int64_t>(1, LoadModelConfig(options.model_dir).num_experts);
  if (options.devices.count <= experts) return;
  LogWarn("--devices {}: the model has {} experts in a layer, so {} devices are used",
          options.devices.count, experts, experts);
  options.devices.count = static_cast<int>(experts);
}

}  // namespace

EngineOptions OptionsOnMachine(const EngineOptions& given, const Topology& topology) {
  EngineOptions options = given;
  options.model_dir = ResolveModelPath(options.model);
  const MachineShare& share = options.machine;
  options.machine_memory_bytes = MemoryLimitBytes(share, topology);
  options.threads = share.threads > 0 ? share.threads : topology.default_threads();
  options.thread_layout = topology.thread_layout(
      share.pin_threads, ChooseNumaPolicy(share.numa, topology) == NumaPolicy::kSlice);
  DeviceOptions& devices = options.devices;
  if (devices.kind == DeviceKind::kCuda) devices.count = std::max(devices.count, 1);
  devices.numa_nodes.clear();
  if (topology.nodes.size() > 1) {
    for (const NumaNode& node : topology.nodes) devices.numa_nodes.push_back(node.id);
  }
  UseDevicesThatHaveExperts(options);
  return options;
}

void ChooseKernels(const Invocation& invocation, const Topology& topology, EngineOptions& options) {
  if (!Variable(invocation, "MOESAIC_ISA").empty()) return;
  std::string why;
  if (const auto profile = LoadProfileFor(DescribeHost(topology), ProfilePath(invocation), &why)) {
    options.kernel_choices = profile->kernels;
  } else {
    LogDebug("kernels are chosen by default: {}", why);
  }
}

void ChooseDeviceRates(const Invocation& invocation, const Topology& topology,
                       EngineOptions& options) {
  if (options.devices.kind != DeviceKind::kCuda || options.devices.count == 0) return;
  std::string why;
  const auto profile = LoadProfileFor(DescribeHost(topology), ProfilePath(invocation), &why);
  const std::vector<CudaDeviceInfo> infos = FindCudaDevices().devices;
  std::vector<DeviceProfile> known;
  for (size_t d = 0;
       profile && d < infos.size() && known.size() < static_cast<size_t>(options.devices.count);
       ++d) {
    const DeviceProfile* const device =
        profile->DeviceNamed(fmt::format("cuda:{}", infos[d].ordinal), infos[d].name);
    if (device != nullptr) known.push_back(*device);
  }
  if (known.size() == static_cast<size_t>(options.devices.count)) {
    options.devices.profiles = std::move(known);
  } else {
    LogDebug("rates of links and experts are measured while serving only: {}",
             profile ? "the profile does not know these GPUs" : why);
  }
}

void ChooseReading(const EnginePlan& plan, const Invocation& invocation, const Topology& topology,
                   ReadUse use, EngineOptions& options) {
  if (options.io_depth > 0 && options.packet_bytes > 0) return;
  if (plan.expert_budget_bytes >= plan.all_experts_bytes) return;
  if (options.load_format == LoadFormat::kDummy && options.expert_store.empty()) return;
  const fs::path file = ExpertFile(options);
  // A store's expert is one run, a checkpoint's three matrices.
  const uint64_t read_bytes = options.expert_store.empty() ? plan.slot_bytes / 3 : plan.slot_bytes;
  std::string why;
  const auto profile = LoadProfileFor(DescribeHost(topology), ProfilePath(invocation), &why);
  const DiskProfile* disk = profile ? profile->DiskFor(file.parent_path()) : nullptr;
  if (profile && disk == nullptr) why = "the profile has no disk that holds the model";
  DiskProfile measured;
  if (disk == nullptr) {
    // A small file comes out of some cache and says nothing of the disk: the defaults stay.
    if (fs::file_size(file) < kLeastMeasuredBytes) return;
    ProfilerOptions quick;
    quick.quick = true;
    quick.backend = options.io_backend;
    measured = MeasureDiskFile(file, quick);
    disk = &measured;
  }
  const DiskRate* rate = ChooseDiskRate(*disk, read_bytes, use);
  if (rate == nullptr) return;
  if (options.io_depth == 0) options.io_depth = rate->depth;
  if (options.packet_bytes == 0) options.packet_bytes = rate->block_bytes;
  LogDebug("reading experts in packets of {}, {} in flight ({}: {})",
           FormatBytes(options.packet_bytes), options.io_depth, FormatRate(rate->read.value),
           disk == &measured ? fmt::format("measured in brief, {}", why) : "from the profile");
}

}  // namespace moesaic
