#include "core/perf/machine_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/config/settings_yaml.h"

namespace moesaic {
namespace {

constexpr double kMostRate = 1e18;

// A constant as it stands in a preset: in gigabytes and teraflops where people think so.
struct Field {
  const char* key;   // in the file
  const char* name;  // in reports
  const char* unit;
  double scale;  // of the file's number
  Constant MachineSpec::*member;
};

constexpr std::array kFields = {
    Field{"device-memory-gb", "device_memory_bytes", "byte", 1e9,
          &MachineSpec::device_memory_bytes},
    Field{"device-gb-per-s", "device_bytes_per_s", "byte/s", 1e9, &MachineSpec::device_bytes_per_s},
    Field{"device-tflops", "device_flop_per_s", "flop/s", 1e12, &MachineSpec::device_flop_per_s},
    Field{"link-in-gb-per-s", "link_in_bytes_per_s", "byte/s", 1e9,
          &MachineSpec::link_in_bytes_per_s},
    Field{"link-out-gb-per-s", "link_out_bytes_per_s", "byte/s", 1e9,
          &MachineSpec::link_out_bytes_per_s},
    Field{"host-memory-gb", "host_memory_bytes", "byte", 1e9, &MachineSpec::host_memory_bytes},
    Field{"host-gb-per-s", "host_bytes_per_s", "byte/s", 1e9, &MachineSpec::host_bytes_per_s},
    Field{"cpu-tflops", "cpu_flop_per_s", "flop/s", 1e12, &MachineSpec::cpu_flop_per_s},
    Field{"cpu-attention-gb-per-s", "cpu_attention_bytes_per_s", "byte/s", 1e9,
          &MachineSpec::cpu_attention_bytes_per_s},
    Field{"device-efficiency", "device_efficiency", "1", 1, &MachineSpec::device_efficiency},
    Field{"cpu-efficiency", "cpu_efficiency", "1", 1, &MachineSpec::cpu_efficiency},
    Field{"contended-cpu-share", "contended_cpu_share", "1", 1, &MachineSpec::contended_cpu_share},
    Field{"contended-link-share", "contended_link_share", "1", 1,
          &MachineSpec::contended_link_share},
    Field{"copy-overhead-us", "copy_overhead_s", "s", 1e-6, &MachineSpec::copy_overhead_s},
    Field{"task-overhead-us", "task_overhead_s", "s", 1e-6, &MachineSpec::task_overhead_s},
};

struct FieldText {
  double value = 0;
  double measured = 0;
  std::string source;
  std::string measured_source;
};

// "measured: PCIe of Fig. 9" -> the kind and the rest.
Constant WithSource(double value, const std::string& source, const std::string& where) {
  const size_t colon = source.find(':');
  const std::string kind = source.substr(0, colon);
  Constant constant;
  constant.value = value;
  if (colon != std::string::npos) {
    constant.note =
        source.substr(std::min(source.find_first_not_of(' ', colon + 1), source.size()));
  }
  for (const Provenance from :
       {Provenance::kMeasured, Provenance::kSpecSheet, Provenance::kAssumed, Provenance::kCode}) {
    if (kind != ProvenanceName(from)) continue;
    constant.from = from;
    return constant;
  }
  Fail(ErrorKind::kInvalidArgument,
       "{}: expected \"KIND: note\" with measured, spec-sheet, assumed or code, not '{}'", where,
       source);
}

void AddNumber(OptionTable& table, std::string name, double* target) {
  Option option{std::move(name), target, "", "", ""};
  option.min = 0;
  option.max = kMostRate;
  option.settable_outside = true;
  table.Add(std::move(option));
}

void AddText(OptionTable& table, std::string name, std::string* target) {
  Option option{std::move(name), target, "", "", ""};
  option.settable_outside = true;
  table.Add(std::move(option));
}

void CheckSpec(const MachineSpec& machine, const std::string& file) {
  const auto require = [&](const Constant& constant, const char* key) {
    if (constant.value <= 0) {
      Fail(ErrorKind::kInvalidArgument, "{}: {} is missing or zero", file, key);
    }
  };
  require(machine.link_in_bytes_per_s, "link-in-gb-per-s");
  require(machine.host_memory_bytes, "host-memory-gb");
  require(machine.host_bytes_per_s, "host-gb-per-s");
  require(machine.cpu_flop_per_s, "cpu-tflops");
  if (machine.has_gpu()) {
    require(machine.device_bytes_per_s, "device-gb-per-s");
    require(machine.device_flop_per_s, "device-tflops");
  }
  for (const Field& field : kFields) {
    if (std::string_view(field.unit) != "1") continue;
    const double share = (machine.*field.member).value;
    if (share <= 0 || share > 1) {
      Fail(ErrorKind::kInvalidArgument, "{}: {} must be above 0 and at most 1, not {}", file,
           field.key, share);
    }
  }
}

}  // namespace

const char* ProvenanceName(Provenance provenance) {
  switch (provenance) {
    case Provenance::kMeasured:
      return "measured";
    case Provenance::kSpecSheet:
      return "spec-sheet";
    case Provenance::kAssumed:
      return "assumed";
    case Provenance::kCode:
      return "code";
  }
  return "?";
}

std::vector<NamedConstant> MachineSpec::Constants() const {
  std::vector<NamedConstant> constants;
  for (const Field& field : kFields) {
    const Constant& constant = this->*field.member;
    // A share of one that nobody gave says nothing.
    if (constant.value == 0 || (constant.value == 1 && constant.note.empty())) continue;
    constants.push_back({field.name, field.unit, constant});
  }
  return constants;
}

MachineSpec ParseMachineSpec(std::string_view yaml, const std::string& file,
                             ConstantChoice choice) {
  MachineSpec machine;
  std::array<FieldText, kFields.size()> texts;
  int64_t threads = 0;
  OptionTable table;
  AddText(table, "name", &machine.name);
  Option thread_count{"threads", &threads, "", "", ""};
  thread_count.min = 0;
  thread_count.max = 65536;
  thread_count.settable_outside = true;
  table.Add(std::move(thread_count));
  for (size_t i = 0; i < kFields.size(); ++i) {
    const std::string key = kFields[i].key;
    texts[i].value = (machine.*kFields[i].member).value / kFields[i].scale;
    AddNumber(table, key, &texts[i].value);
    AddNumber(table, key + "-measured", &texts[i].measured);
    AddText(table, key + "-source", &texts[i].source);
    AddText(table, key + "-measured-source", &texts[i].measured_source);
  }
  ApplyConfigText(yaml, file, table, "see the files beside it");
  machine.threads = static_cast<int>(threads);
  for (size_t i = 0; i < kFields.size(); ++i) {
    const std::string key = kFields[i].key;
    const FieldText& text = texts[i];
    const bool given = table.origin(key) != "default";
    const bool measured = table.origin(key + "-measured") != "default";
    if (measured && choice == ConstantChoice::kPreferMeasured) {
      machine.*kFields[i].member =
          WithSource(text.measured * kFields[i].scale, text.measured_source,
                     fmt::format("{}: {}-measured-source", file, key));
    } else if (given) {
      machine.*kFields[i].member = WithSource(text.value * kFields[i].scale, text.source,
                                              fmt::format("{}: {}-source", file, key));
    }
  }
  if (machine.link_out_bytes_per_s.value == 0) {
    machine.link_out_bytes_per_s = machine.link_in_bytes_per_s;
    machine.link_out_bytes_per_s.from = Provenance::kAssumed;
    machine.link_out_bytes_per_s.note = "as link in";
  }
  if (machine.cpu_attention_bytes_per_s.value == 0) {
    machine.cpu_attention_bytes_per_s = machine.host_bytes_per_s;
    machine.cpu_attention_bytes_per_s.from = Provenance::kAssumed;
    machine.cpu_attention_bytes_per_s.note = "as host_bytes_per_s";
  }
  CheckSpec(machine, file);
  return machine;
}

MachineSpec MachineFromProfile(const HardwareProfile& profile,
                               const std::filesystem::path& model_dir, uint64_t host_memory_bytes) {
  const auto measured = [](const Measured& m) {
    return Constant{m.value, Provenance::kMeasured, fmt::format("{}, {}", m.how, m.when)};
  };
  MachineSpec machine;
  machine.name = profile.host.cpu_model;
  machine.threads = std::max(1, profile.host.physical_cores);
  machine.host_memory_bytes = {static_cast<double>(host_memory_bytes), Provenance::kMeasured,
                               "what this process may take"};

  // Without a disk of the model's own, the fastest one; blocks as long as an expert need no queue.
  const DiskProfile* of_model = profile.DiskFor(model_dir);
  const DiskRate* best = nullptr;
  for (const DiskProfile& disk : profile.disks) {
    if (of_model != nullptr && &disk != of_model) continue;
    for (const DiskRate& rate : disk.rates) {
      if (best == nullptr || rate.read.value > best->read.value) best = &rate;
    }
  }
  const ComputeRate* compute = nullptr;
  for (const ComputeRate& rate : profile.compute) {
    // Integer instructions multiply 8-bit values: no rate of the float products planned here.
    if (rate.instructions.find("int8") != std::string::npos) continue;
    if (compute == nullptr || rate.rate.value > compute->rate.value) compute = &rate;
  }
  if (best == nullptr || compute == nullptr || profile.memory.empty()) {
    Fail(ErrorKind::kInvalidArgument,
         "the machine's profile has no rate of {}: measure it with `moesaic profile`",
         best == nullptr      ? "a disk"
         : compute == nullptr ? "computing"
                              : "the memory");
  }
  machine.link_in_bytes_per_s = measured(best->read);
  machine.disk_block_bytes = best->block_bytes;
  machine.host_bytes_per_s = measured(profile.memory.back().read);
  machine.cpu_flop_per_s = measured(compute->rate);
  machine.cpu_flop_per_s.note = compute->instructions + ": " + machine.cpu_flop_per_s.note;
  machine.cpu_attention_bytes_per_s = machine.host_bytes_per_s;
  machine.cpu_attention_bytes_per_s.from = Provenance::kAssumed;
  machine.cpu_attention_bytes_per_s.note = "as host_bytes_per_s";
  if (compute->instructions.find("amx") != std::string::npos) {
    machine.cpu_efficiency = {0.2, Provenance::kAssumed,
                              "large batches reach 17 to 24% of the tiles' peak, which memory "
                              "does not keep up with (docs/benchmarks.md)"};
  } else {
    machine.cpu_efficiency = {0.7, Provenance::kAssumed,
                              "products reach 65 to 74% of the f32 peak (docs/benchmarks.md)"};
  }
  if (machine.link_in_bytes_per_s.value <= 0 || machine.cpu_flop_per_s.value <= 0 ||
      machine.host_bytes_per_s.value <= 0) {
    Fail(ErrorKind::kInvalidArgument,
         "the machine's profile has a rate of zero: measure it again with `moesaic profile`");
  }
  return machine;
}

}  // namespace moesaic
