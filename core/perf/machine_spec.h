// MachineSpec: the constants of a machine that a throughput plan rests on, each with where it comes
// from. Made from a preset (configs/machines), or from a HardwareProfile that was measured.
//
// Plain data. Rates are per second, 1 GB/s = 10^9 bytes/s. Zero means that the machine has no such
// part.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/option_table.h"
#include "core/perf/hardware_profile.h"

namespace moesaic {

enum class Provenance { kMeasured, kSpecSheet, kAssumed, kCode };
const char* ProvenanceName(Provenance provenance);  // "measured", "spec-sheet", "assumed", "code"

struct Constant {
  double value = 0;
  Provenance from = Provenance::kAssumed;
  std::string note;
};

struct NamedConstant {
  std::string name;  // "link_in_bytes_per_s"
  std::string unit;
  Constant constant;
};

struct MachineSpec {
  std::string name;

  // The GPU; device_memory_bytes = 0: there is none.
  Constant device_memory_bytes;  // that may be used
  Constant device_bytes_per_s;   // its memory, streaming
  Constant device_flop_per_s;    // dense bf16 or f16
  Constant link_in_bytes_per_s;  // host to device; without a GPU: disk to host
  Constant link_out_bytes_per_s;

  Constant host_memory_bytes;  // that may be used
  Constant host_bytes_per_s;   // streaming reads
  Constant cpu_flop_per_s;
  Constant cpu_attention_bytes_per_s;  // keys and values that decode attention reads

  // Of the rates above: what computing reaches, and what is left of the CPU's attention and of the
  // link while both are busy.
  Constant device_efficiency{1, Provenance::kAssumed, ""};
  Constant cpu_efficiency{1, Provenance::kAssumed, ""};
  Constant contended_cpu_share{1, Provenance::kAssumed, ""};
  Constant contended_link_share{1, Provenance::kAssumed, ""};
  Constant copy_overhead_s;  // of one copy, whatever its size
  Constant task_overhead_s;  // of one launch on the device

  uint64_t disk_block_bytes = 0;  // 0: free; best size of a read
  int threads = 0;

  bool has_gpu() const { return device_memory_bytes.value > 0; }
  std::vector<NamedConstant> Constants() const;
};

// How much of a preset is believed: the published or measured value where there is one, or the
// data sheet only.
enum class ConstantChoice { kPreferMeasured, kSpecSheet };

// A preset is a mapping: NAME: number, NAME-source: "KIND: note", and for a value that was measured
// as well NAME-measured and NAME-measured-source. KIND is measured, spec-sheet, assumed or code.
// `file` is for messages. Throws Error(kInvalidArgument) with file, line and key.
MachineSpec ParseMachineSpec(std::string_view yaml, const std::string& file,
                             ConstantChoice choice = ConstantChoice::kPreferMeasured);

// A machine without a GPU from what was measured on it: the disk that holds `model_dir` (or the
// fastest one) is the link. Throws Error(kInvalidArgument) when the profile lacks a rate.
MachineSpec MachineFromProfile(const HardwareProfile& profile,
                               const std::filesystem::path& model_dir, uint64_t host_memory_bytes);

}  // namespace moesaic
