// Reader of the tokenizer and the chat template in a GGUF file's metadata (ggml, docs/gguf.md;
// llama.cpp, src/llama-vocab.cpp).
#pragma once

#include <memory>

#include "core/base/json_fields.h"
#include "serving/text/tokenizer.h"

namespace moesaic {

// Byte-level BPE (tokenizer.ggml.model "gpt2") becomes the tokenizer.json that it was made of,
// SentencePiece ("llama") a model of its library. Throws Error: kCorrupt, kUnsupported (another
// kind of model, an unknown tokenizer.ggml.pre); both name file and key.
std::unique_ptr<Tokenizer> LoadGgufTokenizer(const JsonFields& metadata);

}  // namespace moesaic
