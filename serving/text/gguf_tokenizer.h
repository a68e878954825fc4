// Reader of the tokenizer and the chat template in a GGUF file's metadata (ggml, docs/gguf.md;
// llama.cpp, src/llama-vocab.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/json_fields.h"
#include "serving/text/tokenizer.h"

namespace moesaic {

// Byte-level BPE (tokenizer.ggml.model "gpt2") becomes the tokenizer.json that it was made of,
// SentencePiece ("llama") a model of its library. Throws Error: kCorrupt, kUnsupported (another
// kind of model, an unknown tokenizer.ggml.pre); both name file and key.
std::unique_ptr<Tokenizer> LoadGgufTokenizer(const JsonFields& metadata);

// The tokens that end an answer: end of sequence, of turn, of message.
std::vector<int32_t> GgufEndTokens(const JsonFields& metadata);

}  // namespace moesaic
