// PlacementRule: one rule of --place: which modules, layers and experts it is about, and where
// these are to be. Read from text ("layers.0-2.experts=pin") or from a YAML file of such rules.
//
//   rule    = pattern "=" place { "@" place }
//   pattern = "layers." numbers [ "." modules ] | modules, each with [ "." numbers ] of experts;
//             "model." before it is left out
//   modules = module { "|" module }, or "dense" (all but experts), or "*"
//   numbers = part { "|" part };  part = N | N-M | N- (to the last one) | "*"
//   place   = "pin" | "cache" | "host" | a device: "device:N", "cuda:N", "emulated:N", "devices" |
//             "numa:N"
//
// Plain data and functions of their arguments.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/named.h"

namespace moesaic {

// What a model consists of, as far as rules tell it apart.
enum class ModelPart : uint8_t {
  kEmbedding,
  kNorm,
  kAttention,  // whatever mixes tokens
  kRouter,
  kMlp,  // of a dense layer
  kSharedExpert,
  kExperts,
  kHead,
};
inline constexpr Named<ModelPart> kModelParts[] = {{"embedding", ModelPart::kEmbedding},
                                                   {"norm", ModelPart::kNorm},
                                                   {"attention", ModelPart::kAttention},
                                                   {"router", ModelPart::kRouter},
                                                   {"mlp", ModelPart::kMlp},
                                                   {"shared_expert", ModelPart::kSharedExpert},
                                                   {"experts", ModelPart::kExperts},
                                                   {"head", ModelPart::kHead}};

enum class Residency : uint8_t {
  kCached,    // in fast memory while it is worth it
  kPinned,    // there from the start, and never evicted
  kHostOnly,  // in host memory, and computed there
};

// Whole numbers from 0: those of some ranges, or all.
class NumberSet {
 public:
  bool all() const { return ranges_.empty(); }
  bool Has(int64_t number) const;
  void Add(int64_t first, int64_t last) { ranges_.emplace_back(first, last); }

  friend bool operator==(const NumberSet&, const NumberSet&) = default;

 private:
  std::vector<std::pair<int64_t, int64_t>> ranges_;  // both ends belong to it
};

struct PlacementRule {
  static constexpr int kAllDevices = -1;

  std::string text;    // as it was written
  std::string origin;  // where: "--place", "rules.yaml:3"; for messages

  // --- what it is about
  uint32_t parts = 0;             // bits: 1 << ModelPart
  bool outside_of_layers = true;  // embedding, head and the last norm, too
  NumberSet layers;
  NumberSet experts;

  // --- what it says; nullopt, "": left to the engine
  std::optional<Residency> residency;
  std::optional<int> device;  // its number, or kAllDevices
  std::string device_kind;    // "cuda", "emulated"; "": whatever kind there is
  std::optional<int> numa_node;

  bool About(ModelPart part) const { return (parts >> static_cast<int>(part) & 1) != 0; }
  // "layers.0-2.experts=pin (--place)", for messages.
  std::string Name() const { return text + " (" + origin + ")"; }

  friend bool operator==(const PlacementRule&, const PlacementRule&) = default;
};

// Throws Error(kInvalidArgument) that begins with `origin`.
PlacementRule ParsePlacementRule(std::string_view text, const std::string& origin);
// A list of rules, or a mapping whose "rules" is one: each a text as above, or a mapping of "match"
// (the pattern) and of "residency", "device", "numa". `name` is the file in messages.
std::vector<PlacementRule> ParsePlacementFile(std::string_view yaml, const std::string& name);
// The rules of one item of --place: a rule, or (without "=") the name of such a file.
std::vector<PlacementRule> ReadPlacement(const std::string& item, const std::string& origin);

}  // namespace moesaic
