#include "tracer/eam_collection_section.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "tracer/state_fields.h"

namespace moesaic {
namespace {

constexpr int64_t kMaxEntries = 1 << 24;

}  // namespace

std::vector<std::byte> EamCollectionSection::Save() const {
  const int size = collection_.size();
  std::vector<uint8_t> counts;
  std::vector<float> scales;
  counts.reserve(static_cast<size_t>(size) * static_cast<size_t>(collection_.num_layers()) *
                 static_cast<size_t>(collection_.num_experts()));
  for (int entry = 0; entry < size; ++entry) {
    const std::span<const uint8_t> stored = collection_.Counts(entry);
    counts.insert(counts.end(), stored.begin(), stored.end());
    scales.push_back(collection_.scale(entry));
  }
  StateFields fields;
  fields.SetInt("num_layers", collection_.num_layers());
  fields.SetInt("num_experts", collection_.num_experts());
  fields.SetInt("entries", size);
  fields.SetArray<uint8_t>("counts", counts);  // [entries, num_layers, num_experts]
  fields.SetArray<float>("scales", scales);    // [entries]
  return fields.Pack();
}

void EamCollectionSection::Load(uint32_t stored_version, std::span<const std::byte> bytes) {
  const Stored stored = Parse(stored_version, bytes);
  collection_.Clear();
  Append(stored);
}

void EamCollectionSection::Merge(uint32_t stored_version, std::span<const std::byte> bytes) {
  Append(Parse(stored_version, bytes));
}

EamCollectionSection::Stored EamCollectionSection::Parse(uint32_t stored_version,
                                                         std::span<const std::byte> bytes) const {
  if (stored_version != version()) {
    Fail(ErrorKind::kUnsupported, "has version {}, this program reads {}", stored_version,
         version());
  }
  const StateFields fields = StateFields::Unpack(bytes, std::string(name()));
  const int64_t layers = fields.Int("num_layers", 1, collection_.num_layers());
  const int64_t experts =
      fields.Int("num_experts", collection_.num_experts(), collection_.num_experts());
  const int64_t entries = fields.Int("entries", 0, kMaxEntries);
  Stored stored;
  stored.cells = static_cast<size_t>(layers * experts);
  stored.counts = fields.ArrayOf<uint8_t>("counts", static_cast<size_t>(entries) * stored.cells);
  stored.scales = fields.ArrayOf<float>("scales", static_cast<size_t>(entries));
  for (const float scale : stored.scales) {
    if (!std::isfinite(scale) || scale < 1 || scale > 1e8f) {
      Fail(ErrorKind::kCorrupt, "a scale is {}, expected 1 to 1e8", scale);
    }
  }
  return stored;
}

void EamCollectionSection::Append(const Stored& stored) {
  const auto experts = static_cast<size_t>(collection_.num_experts());
  std::vector<uint8_t> padded(static_cast<size_t>(collection_.num_layers()) * experts);
  for (size_t entry = 0; entry < stored.scales.size(); ++entry) {
    const std::span<const uint8_t> counts =
        std::span(stored.counts).subspan(entry * stored.cells, stored.cells);
    if (collection_.size() < collection_.capacity()) {
      std::copy(counts.begin(), counts.end(), padded.begin());
      collection_.Restore(padded, stored.scales[entry]);
      continue;
    }
    ExpertActivationMatrix eam(collection_.num_layers(), collection_.num_experts());
    for (size_t cell = 0; cell < stored.cells; ++cell) {
      const auto tokens = static_cast<uint32_t>(std::min(
          std::round(counts[cell] * static_cast<double>(stored.scales[entry])), 4294967295.0));
      if (tokens > 0) {
        eam.Add(static_cast<int>(cell / experts), static_cast<int>(cell % experts), tokens);
      }
    }
    collection_.Insert(eam);
  }
}

}  // namespace moesaic
