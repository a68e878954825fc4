// ModuleCosts: how long the modules of one model take on one machine, as t = fixed + per unit x n,
// and how fast its experts come from disk, alone and while computing goes on. Measured by
// serving/plan/module_profiler with the engine's own kernels and data mover; what a throughput plan
// for this machine rests on.
//
// Plain data. `key` names all that the times depend on; costs with another key are not used.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/perf/hardware_profile.h"
#include "core/perf/machine_spec.h"

namespace moesaic {

// What a layer does, and the head. The unit is what `n` counts.
enum class Module : uint8_t {
  kAttentionIn,       // norm, QKV projections, RoPE, writing keys and values; per row
  kDecodeAttention,   // per position that a decode token attends to
  kPrefillAttention,  // per position that a prompt's token attends to
  kOutput,            // output projection and residual; per row
  kRouter,            // norm, router, shared expert, adding up the experts' outputs; per row
  kExpert,            // one routed expert; per row of it
  kHead,              // final norm, logits and sampling of a pass; per row that wants a token
};
constexpr size_t kNumModules = 7;
const char* ModuleName(Module module);  // "attention in", ...
const char* ModuleUnit(Module module);  // "row", "position"

struct ModuleCost {
  double fixed_s = 0;
  double per_unit_s = 0;
  double relative_error = 0;  // median over the points of the fit
  int64_t points = 0;
  std::string how;

  double seconds(double units) const { return fixed_s + per_unit_s * units; }
};

// So many rows of text use so many different experts of a layer.
struct RoutedRows {
  double rows = 0;
  double experts = 0;   // mean over layers
  double repeated = 0;  // of these, those that as many other rows use, too: the next pass's
  bool operator==(const RoutedRows&) const = default;
};

struct ModuleCosts {
  static constexpr int kVersion = 4;  // 4: experts and contexts in turn

  std::string key;
  std::string host_fingerprint;
  std::string model;    // for reading
  std::string created;  // UTC, ISO 8601
  std::array<ModuleCost, kNumModules> modules;

  // Experts from disk into their slots, packing included: bytes of slots per second.
  Measured link;
  // While both go on: what is left of the link's rate and of computing's.
  Measured contended_link_share;
  Measured contended_compute_share;
  // A thread that copies experts within host memory, as the links of emulated devices do.
  Measured host_copy;
  int64_t cores = 1;  // that computing threads may have to themselves
  // By rising rows, neither falling. Empty: not known.
  std::vector<RoutedRows> routing;

  const ModuleCost& operator[](Module module) const { return modules[static_cast<size_t>(module)]; }
  ModuleCost& operator[](Module module) { return modules[static_cast<size_t>(module)]; }

  // Experts of a layer that a pass over `rows` tokens uses, each choosing `top_k` of `num_experts`:
  // as measured (between two points as a line over log rows), or evenly where that is not known.
  double ActiveExperts(int64_t num_experts, int64_t top_k, double rows) const;
  // Of these, those that the next pass over as many rows uses again.
  double RepeatedExperts(int64_t num_experts, int64_t top_k, double rows) const;

  // Between two points as a line over log rows. There is at least one.
  double Routed(double RoutedRows::*field, double rows) const;

  // For a plan's list of constants.
  std::vector<NamedConstant> Constants() const;
};

// A pretty-printed JSON document, and back. `name` is the file in messages. Throws Error: kCorrupt
// (not such a document), kUnsupported (a version that this program does not know).
std::string SerializeModuleCosts(const ModuleCosts& costs);
ModuleCosts ParseModuleCosts(std::string_view json, std::string_view name);

// The file of these costs in a directory: named after a hash of the key.
std::filesystem::path ModuleCostsPath(const std::filesystem::path& directory, std::string_view key);
// Writes by way of a temporary file; makes the directory. Throws Error(kIo).
void SaveModuleCosts(const ModuleCosts& costs, const std::filesystem::path& directory);
// The costs of this key when they are there; nullopt with the reason in *why otherwise. A file that
// cannot be read is a reason too: the caller measures again.
std::optional<ModuleCosts> LoadModuleCosts(const std::filesystem::path& directory,
                                           std::string_view key, std::string* why);

}  // namespace moesaic
