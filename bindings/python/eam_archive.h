// EamArchive: a collection of request EAMs as Python owns it, with the model that it was learned
// on: kept in files of learned state, and exchanged with running engines.
//
// One thread at a time (the module holds the GIL).
#pragma once

#include <filesystem>
#include <memory>

#include "bindings/python/engine_handle.h"
#include "serving/engine/collection_file.h"
#include "tracer/eam_collection.h"
#include "tracer/model_fingerprint.h"
#include "tracer/routing_trace.h"

namespace moesaic::python {

class EamArchive {
 public:
  // Of models of which no more is known. Throws Error(kInvalidArgument).
  EamArchive(int64_t num_layers, int64_t num_experts, int64_t capacity);

  // Capacity 0: as many as there are. All throw Error: kNotFound, kIo, kCorrupt, kUnsupported.
  static std::shared_ptr<EamArchive> Load(const std::filesystem::path& file, int64_t capacity);
  // At most `capacity` matrices that stand for the requests of a trace (tracer/compact_traces.h).
  static std::shared_ptr<EamArchive> Compact(const RoutingTrace& trace, int64_t capacity,
                                             int64_t iterations, int64_t seed);
  // What the engine's predictor has learned; blocks until its thread is between two steps. Throws
  // Error(kUnsupported) when the predictor keeps no collection.
  static std::shared_ptr<EamArchive> Of(EngineHandle& engine);

  // Replaces what the engine has learned, or adds to it. Throws as Of, and kUnsupported for a
  // collection of another model.
  void PutInto(EngineHandle& engine, CollectionUpdate update) const;
  // Other parts of a file of learned state that lies there stay. Throws Error(kIo, ...).
  void Save(const std::filesystem::path& file) const;
  // Adds what another one holds.
  void Merge(const EamArchive& other);

  EamCollection& collection() const { return *collection_; }

 private:
  EamArchive(ModelFingerprint model, const CollectionSection& section, int64_t capacity);

  ModelFingerprint model_;
  std::unique_ptr<EamCollection> collection_;
};

}  // namespace moesaic::python
