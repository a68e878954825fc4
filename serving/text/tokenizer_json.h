// Reader of tokenizer.json, the format of Hugging Face's tokenizers: normalizer, pre-tokenizer, BPE
// model, post-processor, decoder and added tokens.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/base/json_fields.h"
#include "serving/text/tokenizer.h"
#include "serving/text/tokenizer_settings.h"

namespace moesaic {

// `name` stands for the file in messages. Throws Error(kCorrupt) for a file that contradicts itself
// or the format and Error(kUnsupported) for components that are not implemented; both name the JSON
// path.
std::unique_ptr<Tokenizer> LoadTokenizerJson(std::string_view json, const std::string& name,
                                             const TokenizerSettings& settings = {});
// The same of a document that has been parsed; only used during the call.
std::unique_ptr<Tokenizer> MakeTokenizer(const JsonFields& root, const TokenizerSettings& settings);

}  // namespace moesaic
