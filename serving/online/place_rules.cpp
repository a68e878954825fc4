#include "serving/online/place_rules.h"

#include <string>
#include <utility>

#include "core/base/error.h"
#include "serving/model/experts_of_model.h"

namespace moesaic {
namespace {

// That there is such a device.
void CheckDevice(const PlacementRule& rule, const DeviceOptions& devices) {
  if (!rule.device) return;
  if (!rule.device_kind.empty() && rule.device_kind != DeviceKindName(devices.kind)) {
    Fail(ErrorKind::kInvalidArgument, "{}: '{}': devices are {} here (--device-kind)", rule.origin,
         rule.text, DeviceKindName(devices.kind));
  }
  if (*rule.device < devices.count && devices.count > 0) return;
  Fail(ErrorKind::kInvalidArgument,
       "{}: '{}': there {} {} device{} (--devices), numbered from 0; give more, or name another "
       "place",
       rule.origin, rule.text, devices.count == 1 ? "is" : "are", devices.count,
       devices.count == 1 ? "" : "s");
}

// What a device of this number means for the dense part.
DenseMode ModeOf(const PlacementRule& rule) {
  if (rule.residency == Residency::kHostOnly) return DenseMode::kOff;
  if (!rule.device) return DenseMode::kAuto;
  if (*rule.device == PlacementRule::kAllDevices) return DenseMode::kSharded;
  if (*rule.device == 0) return DenseMode::kOn;
  Fail(ErrorKind::kUnsupported,
       "{}: '{}': what every token runs can be on device 0, on all together (devices) or on the "
       "host",
       rule.origin, rule.text);
}

void CheckDenseRule(const PlacementRule& rule) {
  if (rule.numa_node) {
    Fail(ErrorKind::kUnsupported,
         "{}: '{}': weights that every token uses are sliced over the nodes or interleaved "
         "(--numa); only experts have a NUMA node of their own",
         rule.origin, rule.text);
  }
  if (rule.residency == Residency::kCached) {
    Fail(ErrorKind::kUnsupported,
         "{}: '{}': only experts are cached, all else is always in memory; leave cache out",
         rule.origin, rule.text);
  }
}

}  // namespace

std::vector<PlacementRule> PlacementRulesOf(const EngineOptions& options) {
  std::vector<PlacementRule> rules;
  const DeviceOptions& devices = options.devices;
  if (devices.count > 0) {
    rules.push_back(ParsePlacementRule("experts=cache@devices", "--devices"));
  }
  switch (devices.dense) {
    case DenseMode::kAuto:
      break;
    case DenseMode::kOn:
      rules.push_back(ParsePlacementRule("dense=device:0", "--gpu-dense on"));
      break;
    case DenseMode::kOff:
      rules.push_back(ParsePlacementRule("dense=host", "--gpu-dense off"));
      break;
    case DenseMode::kSharded:
      rules.push_back(ParsePlacementRule("dense=devices", "--gpu-dense tp"));
      break;
  }
  for (const std::string& item : options.place) {
    for (PlacementRule& rule : ReadPlacement(item, "--place")) rules.push_back(std::move(rule));
  }
  return rules;
}

PlacedExperts PlaceExpertsByRules(const EngineOptions& options, const ModelConfig& config) {
  if (options.place.empty()) return {};  // flags leave every expert to the engine
  const Placement placement(config, PlacementRulesOf(options));
  const DeviceOptions& devices = options.devices;
  const ExpertGrid grid = GridOf(config);
  PlacedExperts placed;
  if (devices.count > 0) {
    placed.fixed.devices.assign(static_cast<size_t>(grid.total()), FixedExperts::kDealt);
    placed.fixed.nodes.resize(static_cast<size_t>(grid.total()));
  }
  for (ExpertIndex expert = 0; expert < static_cast<ExpertIndex>(grid.total()); ++expert) {
    const ExpertId id = grid.Id(expert);
    const PlacementRule* const rule = placement.OfExpert(id.layer, id.index);
    if (rule == nullptr) continue;
    CheckDevice(*rule, devices);
    if (rule->residency == Residency::kPinned) placed.kept.push_back(expert);
    if (devices.count == 0) {
      if (!rule->numa_node) continue;
      Fail(ErrorKind::kUnsupported,
           "{}: '{}': without --devices experts are read into slots that any of them may get, so "
           "that none has a NUMA node of its own (--numa slices all of them); leave numa out",
           rule->origin, rule->text);
    }
    placed.fixed.nodes[static_cast<size_t>(expert)] = rule->numa_node;
    int& device = placed.fixed.devices[static_cast<size_t>(expert)];
    if (rule->residency == Residency::kHostOnly) {
      if (KernelsOf(devices) != nullptr && options.exact_numerics) {
        Fail(ErrorKind::kInvalidArgument,
             "{}: '{}': host and GPU round differently, so that answers would depend on the rules; "
             "give --numerics fast to allow that",
             rule->origin, rule->text);
      }
      device = ExpertPlacement::kHost;
    } else if (rule->device && *rule->device != PlacementRule::kAllDevices) {
      device = *rule->device;
    }
  }
  return placed;
}

EngineOptions WithDenseByRules(const EngineOptions& options, const ModelConfig& config) {
  if (options.place.empty()) return options;  // the flag's rule alone
  EngineOptions with = options;
  const Placement placement(config, PlacementRulesOf(options));
  const PlacementRule* first = nullptr;  // that says where
  for (const Placement::DenseModule& module : placement.modules()) {
    if (module.rule == nullptr) continue;
    CheckDenseRule(*module.rule);
    const DenseMode mode = ModeOf(*module.rule);
    if (mode == DenseMode::kAuto) continue;
    CheckDevice(*module.rule, options.devices);
    if (first != nullptr && mode != with.devices.dense) {
      Fail(ErrorKind::kUnsupported,
           "{}: '{}' puts {} elsewhere than {}: '{}' does other parts; what every token runs is "
           "in one place, so give dense=device:0, dense=devices or dense=host",
           module.rule->origin, module.rule->text, NameOf(kModelParts, module.part), first->origin,
           first->text);
    }
    if (first == nullptr) first = module.rule;
    with.devices.dense = mode;
  }
  if (first == nullptr) with.devices.dense = DenseMode::kAuto;
  return with;
}

void CheckRulesOfBatch(const EngineOptions& options, const ModelConfig& config) {
  if (options.place.empty()) return;
  const Placement placement(config, PlacementRulesOf(options));
  const ExpertGrid grid = GridOf(config);
  for (ExpertIndex expert = 0; expert < static_cast<ExpertIndex>(grid.total()); ++expert) {
    const ExpertId id = grid.Id(expert);
    const PlacementRule* const rule = placement.OfExpert(id.layer, id.index);
    if (rule == nullptr) continue;
    CheckDevice(*rule, options.devices);
    const bool on_one = rule->device.value_or(PlacementRule::kAllDevices) >= 0;
    const bool host_of_devices =
        rule->residency == Residency::kHostOnly && options.devices.count > 0;
    if (rule->residency != Residency::kPinned && !on_one && !host_of_devices && !rule->numa_node) {
      continue;
    }
    Fail(ErrorKind::kUnsupported,
         "{}: '{}': in throughput mode every expert passes in each pass, and which of them stay "
         "where is planned; leave the rule out, or use latency mode (moesaic serve, moesaic run)",
         rule->origin, rule->text);
  }
}

}  // namespace moesaic
