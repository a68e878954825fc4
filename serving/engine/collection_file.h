// The collection of request EAMs that an engine learns, as bytes that leave the process and come
// back: a state file (tracer/state_checkpoint.h) that holds the collection alone. So what a running
// engine gives may be another one's --state-file, and `moesaic trace compact` writes what it takes.
//
// Copying and updating are for the engine's thread (Engine::WithCollection), the rest for any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace moesaic {

class EamCollection;
struct ModelConfig;

struct CollectionSection {
  uint32_t version = 0;
  std::vector<std::byte> bytes;
};

CollectionSection CopyCollection(EamCollection& collection);
std::vector<std::byte> PackCollection(CollectionSection section, const ModelConfig& model);

// Untrusted bytes. Throws Error: kCorrupt (no state file, a wrong checksum, no collection in it),
// kUnsupported (a newer format, another model's).
CollectionSection UnpackCollection(std::span<const std::byte> bytes, const ModelConfig& model);

enum class CollectionUpdate { kReplace, kMerge };

struct CollectionSize {
  int entries = 0;
  int capacity = 0;
};

// Takes over what UnpackCollection gave; what there is then. Throws Error(kCorrupt, kUnsupported),
// and has changed nothing then.
CollectionSize UpdateCollection(EamCollection& collection, const CollectionSection& section,
                                CollectionUpdate update);

}  // namespace moesaic
