// Reader of tokenizer.model, the format of SentencePiece, through its own library.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "serving/text/tokenizer.h"
#include "serving/text/tokenizer_settings.h"

namespace moesaic {

// `model` is the file's content, `name` stands for it in messages. Control and unknown pieces are
// special; settings.added_tokens are found in the text before SentencePiece sees it. A BOS is added
// unless settings.add_bos_token is false, an EOS only when settings.add_eos_token is true (as
// Llama's tokenizer does). Throws Error(kCorrupt).
std::unique_ptr<Tokenizer> LoadSentencePiece(std::string_view model, const std::string& name,
                                             const TokenizerSettings& settings = {});

}  // namespace moesaic
