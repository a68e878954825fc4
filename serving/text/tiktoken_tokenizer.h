// Reader of tiktoken.model, which Kimi-K2 and its successors have in the place of a tokenizer.json:
// lines of a token's bytes in base64 and its rank, which is its id. Neighbours are merged whose
// bytes together have the lowest rank. How texts are cut into words is not in the file but in
// Python code beside it; what is known is that of the class TikTokenTokenizer.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "serving/text/tokenizer.h"
#include "serving/text/tokenizer_settings.h"

namespace moesaic {

// `name` stands for the file in messages. Special tokens are the settings' added tokens; ids up to
// 256 behind the file's are reserved. Throws Error(kCorrupt) for a file that is no such list and
// Error(kUnsupported) for another tokenizer_class.
std::unique_ptr<Tokenizer> LoadTiktoken(std::string_view text, const std::string& name,
                                        const TokenizerSettings& settings);

}  // namespace moesaic
