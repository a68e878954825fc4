#include "serving/engine/collection_file.h"

#include <utility>

#include "core/base/error.h"
#include "tracer/eam_collection.h"
#include "tracer/eam_collection_section.h"
#include "tracer/model_fingerprint.h"
#include "tracer/state_checkpoint.h"

namespace moesaic {
namespace {

constexpr std::string_view kWhat = "the collection";  // in messages

}  // namespace

CollectionSection CopyCollection(EamCollection& collection) {
  const EamCollectionSection section(collection);
  return {section.version(), section.Save()};
}

std::vector<std::byte> PackCollection(CollectionSection section, const ModelConfig& model) {
  StoredState state;
  state.model = FingerprintOf(model);
  state.sections.push_back(
      {std::string(EamCollectionSection::kName), section.version, std::move(section.bytes)});
  return PackState(std::move(state));
}

CollectionSection UnpackCollection(std::span<const std::byte> bytes, const ModelConfig& model) {
  StoredState state = ParseState(bytes, kWhat);
  const std::string difference = FingerprintDifference(state.model, FingerprintOf(model));
  if (!difference.empty()) {
    Fail(ErrorKind::kUnsupported, "{}: was learned on another model ({}; {})", kWhat,
         DescribeFingerprint(state.model), difference);
  }
  for (StoredSection& section : state.sections) {
    if (section.name == EamCollectionSection::kName) {
      return {section.version, std::move(section.bytes)};
    }
  }
  Fail(ErrorKind::kCorrupt, "{}: the state file has no part {}", kWhat,
       EamCollectionSection::kName);
}

CollectionSize UpdateCollection(EamCollection& collection, const CollectionSection& section,
                                CollectionUpdate update) {
  EamCollectionSection own(collection);
  if (update == CollectionUpdate::kReplace) {
    own.Load(section.version, section.bytes);
  } else {
    own.Merge(section.version, section.bytes);
  }
  return {collection.size(), collection.capacity()};
}

}  // namespace moesaic
