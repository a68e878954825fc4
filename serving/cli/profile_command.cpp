#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/perf/hardware_profile.h"
#include "serving/cli/commands.h"
#include "serving/cli/output.h"
#include "serving/plan/batch_prediction.h"
#include "serving/plan/machine_profiler.h"
#include "serving/startup/machine_options.h"
#include "serving/startup/measured_costs.h"

namespace moesaic {
namespace {

std::string FormatFlops(double flop_per_s) {
  return flop_per_s >= 1e12 ? fmt::format("{:.2f} TFLOP/s", flop_per_s * 1e-12)
                            : fmt::format("{:.0f} GFLOP/s", flop_per_s * 1e-9);
}

std::string ThreadsText(int threads) {
  return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
}

// A row per block size, a column per depth.
std::string DiskTable(const DiskProfile& disk, bool latency) {
  std::vector<int> depths;
  std::vector<uint32_t> blocks;
  for (const DiskRate& rate : disk.rates) {
    if (std::find(depths.begin(), depths.end(), rate.depth) == depths.end()) {
      depths.push_back(rate.depth);
    }
    if (std::find(blocks.begin(), blocks.end(), rate.block_bytes) == blocks.end()) {
      blocks.push_back(rate.block_bytes);
    }
  }
  std::string alignment(depths.size() + 1, '>');
  alignment[0] = '<';
  TextTable table(alignment, 4);
  std::vector<std::string> header = {"block"};
  for (const int depth : depths) header.push_back(fmt::format("{} in flight", depth));
  table.Add(header);
  for (const uint32_t block : blocks) {
    std::vector<std::string> row = {FormatBytes(block)};
    for (const int depth : depths) {
      for (const DiskRate& rate : disk.rates) {
        if (rate.block_bytes != block || rate.depth != depth) continue;
        row.push_back(latency ? fmt::format("{:.0f} us", rate.latency.value)
                              : FormatRate(rate.read.value));
      }
    }
    table.Add(row);
  }
  return table.Render();
}

std::string ExpertTable(const std::vector<ExpertRate>& rates) {
  TextTable table("<>>>", 4);
  table.Add({"weights", "rows", "alone", "with copies"});
  for (const ExpertRate& rate : rates) {
    table.Add({rate.weights, fmt::format("{}", rate.rows), FormatRate(rate.alone.value),
               FormatRate(rate.loaded.value)});
  }
  return table.Render();
}

std::string DeviceReport(const DeviceProfile& device) {
  std::string out = fmt::format("\n{} ({}), copies by packets\n", device.name, device.model);
  TextTable copies(">>>>", 2);
  copies.Add({"packet", "to it", "with experts on the host", "from it"});
  for (const CopyRate& rate : device.copies) {
    copies.Add({FormatBytes(rate.packet_bytes), FormatRate(rate.to_device.value),
                FormatRate(rate.to_device_loaded.value), FormatRate(rate.to_host.value)});
  }
  out += copies.Render();
  out += "  experts on the host, weights\n" + ExpertTable(device.on_host);
  if (!device.on_device.empty()) {
    out += "  experts on the device, weights\n" + ExpertTable(device.on_device);
  }
  return out;
}

// Processor, instruction sets, cores, nodes, memory.
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

std::string Report(const HardwareProfile& profile) {
  const HostDescription& host = profile.host;
  std::string out = DescribeMachine(host);
  out += "\nCompute (multiply-adds in registers)\n";
  TextTable compute("<>>", 2);
  std::string last;
  for (const ComputeRate& rate : profile.compute) {
    compute.Add({
        rate.instructions == last ? "" : rate.instructions,
        ThreadsText(rate.threads),
        FormatFlops(rate.rate.value),
    });
    last = rate.instructions;
  }
  out += compute.Render();
  if (!profile.kernels.empty()) {
    out += "\nProducts, instructions by rows\n";
    TextTable kernels("<<");
    for (const KernelChoice& choice : profile.kernels) {
      std::vector<std::string> steps;
      for (const KernelStep& step : choice.steps) {
        steps.push_back(fmt::format("{} from {}", step.instructions, step.min_rows));
      }
      kernels.Add({choice.weights, fmt::format("{}", fmt::join(steps, ", "))});
    }
    out += kernels.Render();
  }
  out += "\nMemory, reading\n";
  TextTable memory("<>");
  for (const MemoryRate& rate : profile.memory) {
    memory.Add({ThreadsText(rate.threads), FormatRate(rate.read.value)});
  }
  out += memory.Render();
  for (const DiskProfile& disk : profile.disks) {
    out += fmt::format("\nDisk under {}, random reads ({})\n", disk.path, disk.backend);
    out += DiskTable(disk, false);
    out += "  median latency\n";
    out += DiskTable(disk, true);
    if (const DiskRate* best = ChooseDiskRate(disk)) {
      out += fmt::format("  best use: {} with {} in flight, {}\n", FormatBytes(best->block_bytes),
                         best->depth, FormatRate(best->read.value));
    }
  }
  for (const DeviceProfile& device : profile.devices) out += DeviceReport(device);
  return out;
}

// The model's modules, beside what they rest on.
std::string CostsReport(const ModuleCosts& costs, const ModelFiles& files) {
  TextTable table("<>>>");
  table.Add({"module", "fixed", "per unit", "error"});
  for (size_t i = 0; i < kNumModules; ++i) {
    const auto module = static_cast<Module>(i);
    const ModuleCost& cost = costs[module];
    table.Add({ModuleName(module), fmt::format("{:.1f} us", 1e6 * cost.fixed_s),
               fmt::format("{:.4f} us/{}", 1e6 * cost.per_unit_s, ModuleUnit(module)),
               fmt::format("{:.1f}%", 100 * cost.relative_error)});
  }
  const double layer_bytes = static_cast<double>(files.config.num_experts()) *
                             static_cast<double>(files.experts->layout().slot_bytes);
  return fmt::format(
      "{}, per layer\n{}\nExperts from disk: {}; while computing {:.0f}% of it, and computing "
      "{:.0f}% of its rate.\nA pass over {:.0f} tokens computes as long as all experts take to "
      "read.\n",
      costs.model, table.Render(), FormatRate(costs.link.value),
      100 * costs.contended_link_share.value, 100 * costs.contended_compute_share.value,
      TokenBudget(files.config, costs, layer_bytes / costs.link.value));
}

int ProfileModel(const EngineOptions& given, bool json, bool keep, const Invocation& invocation) {
  const Machine machine = ReadMachine(invocation.environment);
  const EngineOptions options = OptionsOnMachine(given, machine);
  const ModelFiles files = OpenModelFiles(options);
  const ModuleCosts costs =
      MeasureModuleCosts(options, options, files, {}, keep, machine, ShowMeasuring);
  WriteOut(json ? SerializeModuleCosts(costs) : CostsReport(costs, files));
  if (!json && keep) {
    Print("\nWritten to {}\n", ModuleCostsPath(machine.module_costs, costs.key).string());
  }
  return 0;
}

}  // namespace

int ProfileCommand(const Invocation& invocation) {
  CommandLine line(
      {"profile",
       "",
       "Measure this machine (compute peak, kernels, memory, disk reading, and GPUs: copies and "
       "experts, alone and at the same time) and keep the result "
       "where the other commands find it. Takes about half a minute; leave the machine "
       "alone meanwhile. A temporary file of at most 1 GiB is written to --path and "
       "removed.",
       {"moesaic profile --path /data/models", "moesaic profile --quick -o -",
        "moesaic profile --model /data/model"}});
  EngineOptions engine;
  std::string path = ".";
  std::string output;
  bool json = false;
  bool quick = false;
  line.table().Add(
      {"path", &path, "DIR", "Measure the disk that holds this directory.", "Options"});
  line.table().Add({"output", &output, "FILE",
                    "Where the profile is written; - for nowhere. Default: " +
                        ProfilePath(invocation.environment).string() + ".",
                    "Options", 'o'});
  line.table().Add({.name = "io-backend",
                    .target = OneOf(&engine.io_backend, kReadBackends),
                    .help = "How the disk is read.",
                    .section = "Options"});
  line.table().Add({"quick", &quick, "", "A rough profile in about two seconds.", "Options"});
  line.table().Add({"json", &json, "", "Print the profile as JSON.", "Options"});
  line.table().Add(
      {"model", &engine.model, "NAME",
       "Instead of the machine, measure this model's modules on it, and the way of its "
       "experts from disk: what `moesaic batch` plans with. A few seconds.",
       "A model"});
  line.table().Add({.name = "dtype",
                    .target = AutoOrOneOf(&engine.dtype, kWeightDtypes),
                    .help = "Its weights in memory.",
                    .section = "A model"});
  line.table().Add({.name = "threads",
                    .target = &engine.machine.threads,
                    .help = "Compute threads; 0: as the engine chooses.",
                    .section = "A model",
                    .min = 0,
                    .max = 4096});
  if (!line.Parse(invocation)) return 0;
  line.RequireAtMost(0);
  if (!engine.model.empty()) return ProfileModel(engine, json, output != "-", invocation);

  const Topology topology = ReadTopology();
  ProfilerOptions options;
  options.quick = quick;
  options.backend = engine.io_backend;
  options.progress = ShowMeasuring;
  const HardwareProfile profile = MeasureMachine(topology, path, options);
  StatusLine("");

  // A quick profile is not kept unless a file is named: it would stand in the way of a real one.
  const bool save = output != "-" && !(quick && output.empty());
  const std::filesystem::path file =
      output.empty() ? ProfilePath(invocation.environment) : std::filesystem::path(output);
  if (save) SaveProfile(profile, file);
  WriteOut(json ? SerializeProfile(profile) : Report(profile));
  if (!json) {
    if (save) {
      Print("\nWritten to {}\n", file.string());
    } else {
      Print("\nNot kept{}\n", quick && output.empty() ? " (quick); name a file with -o" : "");
    }
  }
  return 0;
}

}  // namespace moesaic
