// What both modes fill in of an engine's loop. Internal to serving/online and serving/batch, but
// for the tokenizer.
#pragma once

#include <memory>

#include "core/config/model_config.h"
#include "serving/online/engine_options.h"
#include "serving/online/model_files.h"

namespace moesaic {

class Tokenizer;
struct LoopParts;

// Random weights may come without a tokenizer; a real model may not.
std::unique_ptr<Tokenizer> LoadTokenizerOf(const EngineOptions& options, const ModelConfig& config);

// Fills in what requests are made with, kernels and threads.
void FillParts(const EngineOptions& options, const ModelFiles& files, LoopParts& parts);

}  // namespace moesaic
