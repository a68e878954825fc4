// Requests of Anthropic's Messages API. Pure; reading them throws ApiError (400).
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "serving/api/api_request.h"
#include "serving/api/served_model.h"

namespace moesaic {

ChatRequest ParseMessagesRequest(std::string_view body, const std::atomic<bool>* gone = nullptr);
// The same without what only generating needs: max_tokens may be absent.
ChatRequest ParseCountTokensRequest(std::string_view body, const std::atomic<bool>* gone = nullptr);

// {"input_tokens":N}, for a body of /v1/messages/count_tokens. Throws ApiError (ClientLeft soon
// after `gone` is set), and Error from the tokenizer.
std::string CountMessageTokens(const ModelTable& models, std::string_view body,
                               const std::atomic<bool>& gone);

}  // namespace moesaic
