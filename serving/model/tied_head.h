// Whether a checkpoint's output matrix is its embedding. config.json may say so while the files
// have another output matrix; what is there counts, as in transformers 5 (docs/models.md).
//
// Thread contract: a function of its arguments.
#pragma once

#include "core/config/model_config.h"
#include "core/io/checkpoint.h"

namespace moesaic {

// Makes config.tie_word_embeddings false, and logs it, where the checkpoint has an output matrix
// that differs from the embedding. Throws as Checkpoint::Read.
void UntieOtherHead(const Checkpoint& checkpoint, ModelConfig& config);

}  // namespace moesaic
