// The tokenizer of a model that has none: random weights made from config.json alone
// (`--load-format dummy`). Its text means nothing, but every path that serves text runs on it.
#pragma once

#include <cstdint>
#include <memory>

#include "serving/text/tokenizer.h"

namespace moesaic {

// A byte of text is the token of its value (modulo the vocabulary); token i reads "<i>".
std::unique_ptr<Tokenizer> MakeIdTokenizer(int32_t vocab_size);

}  // namespace moesaic
