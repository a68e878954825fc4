#include "tracer/residency_list.h"

#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "tracer/state_fields.h"

namespace moesaic {

std::vector<std::byte> ResidencyListSection::Save() const {
  std::vector<uint8_t> stacks;
  std::vector<uint16_t> layers;
  std::vector<uint16_t> experts;
  std::vector<float> worths;
  for (const ResidentExpert& resident : list_.experts) {
    stacks.push_back(static_cast<uint8_t>(resident.id.stack));
    layers.push_back(resident.id.layer);
    experts.push_back(resident.id.index);
    worths.push_back(resident.worth);
  }
  StateFields fields;
  fields.SetArray<uint8_t>("stacks", stacks);
  fields.SetArray<uint16_t>("layers", layers);
  fields.SetArray<uint16_t>("experts", experts);
  fields.SetArray<float>("worths", worths);
  return fields.Pack();
}

void ResidencyListSection::Load(uint32_t stored_version, std::span<const std::byte> bytes) {
  if (stored_version != version()) {
    Fail(ErrorKind::kUnsupported, "has version {}, this program reads {}", stored_version,
         version());
  }
  const StateFields fields = StateFields::Unpack(bytes, std::string(name()));
  const auto layers = fields.ArrayOf<uint16_t>("layers");
  const auto stacks = fields.ArrayOf<uint8_t>("stacks", layers.size());
  const auto experts = fields.ArrayOf<uint16_t>("experts", layers.size());
  const auto worths = fields.ArrayOf<float>("worths", layers.size());
  ResidencyList loaded;
  std::set<ExpertId> seen;
  for (size_t i = 0; i < layers.size(); ++i) {
    const ExpertId id{0, static_cast<Stack>(stacks[i]), layers[i], experts[i]};
    if (stacks[i] > static_cast<uint8_t>(Stack::kEncoder) || layers[i] >= num_layers_ ||
        experts[i] >= num_experts_ || !std::isfinite(worths[i]) || !seen.insert(id).second ||
        (i > 0 && worths[i] > worths[i - 1])) {
      Fail(ErrorKind::kCorrupt,
           "entry {} (expert {} of layer {}) is out of range, out of order or repeated", i,
           experts[i], layers[i]);
    }
    loaded.experts.push_back({id, worths[i]});
  }
  list_ = std::move(loaded);
}

}  // namespace moesaic
