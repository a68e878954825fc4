// Requests for the tokens of a text or conversation, and for the text of tokens, in vLLM's shapes.
// Pure but for the models; any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "serving/api/chat_input.h"
#include "serving/api/served_model.h"

namespace moesaic {

struct TokenizeRequest {
  std::string model;
  std::variant<std::string, ChatInput> input;
  std::optional<bool> add_special_tokens;
  bool return_token_strings = false;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};

// They throw ApiError (400), and ClientLeft soon after `gone` is set.
TokenizeRequest ParseTokenizeRequest(std::string_view body,
                                     const std::atomic<bool>* gone = nullptr);
DetokenizeRequest ParseDetokenizeRequest(std::string_view body,
                                         const std::atomic<bool>* gone = nullptr);

// Bodies in, bodies out. They throw ApiError (ClientLeft soon after `gone` is set), and Error from
// the tokenizer.
std::string Tokenize(const ModelTable& models, std::string_view body,
                     const std::atomic<bool>& gone);
std::string Detokenize(const ModelTable& models, std::string_view body,
                       const std::atomic<bool>& gone);

}  // namespace moesaic
