// Where the API meets the tokenizer and the chat template.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serving/api/chat_input.h"
#include "serving/api/served_model.h"
#include "serving/text/jinja/marked_text.h"

namespace moesaic {

// A raw prompt: special tokens in it are parsed as the tokenizer does, and the tokenizer's own
// (BOS) are added unless told otherwise.
std::vector<int32_t> EncodeText(const Tokenizer& tokenizer, std::string_view text,
                                bool add_special_tokens);

// Messages through the model's chat template. Throws ApiError (400): the model has no template, the
// template refuses these messages.
jinja::MarkedText RenderChat(const ServedModel& model, const ChatInput& chat);
// Special tokens in what came from the client are text.
std::vector<int32_t> EncodeMarked(const Tokenizer& tokenizer, const jinja::MarkedText& prompt,
                                  bool add_special_tokens);
// Both.
std::vector<int32_t> EncodeChat(const ServedModel& model, const ChatInput& chat,
                                bool add_special_tokens);

// How many of the first tokens are not in `text`, which they were made from: special tokens that
// the tokenizer has added.
size_t CountAddedTokens(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens,
                        std::string_view text);

}  // namespace moesaic
