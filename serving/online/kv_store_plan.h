// What a store of prefixes (cache/kv_store.h) of this engine is keyed by, and what it takes.
//
// Functions of their arguments.
#pragma once

#include <cstdint>

#include "cache/kv_store_format.h"
#include "core/config/model_config.h"
#include "serving/online/engine_options.h"
#include "serving/online/model_files.h"

namespace moesaic {

// Of config.json, which the checkpoint's fingerprint does not cover; 0 where a GGUF file is all
// there is.
uint64_t ConfigHash(const EngineOptions& options);

// Whether prefixes are kept: --kv-store was given, and the model can go on from keys and values
// alone (no recurrent layers).
bool KeepsPrefixes(const EngineOptions& options, const ModelConfig& config);
// Host memory of the store, beside the system's cache of files; 0 without one.
uint64_t KvStoreMemoryBytes(const EngineOptions& options, const ModelConfig& config);
// The key has all that a bit of keys and values depends on: the checkpoint and config.json, types
// of weights and cache, the class of the kernels, and the few settings that change answers.
// `dense_devices`: of the plan.
KvStoreShape KvStoreShapeOf(const EngineOptions& options, const ModelFiles& files,
                            WeightType weight_type, int dense_devices);

}  // namespace moesaic
