// The lines of batch files, OpenAI's and plain prompts. Pure: no tokenizer, no engine, no I/O.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "serving/api/api_error.h"

namespace moesaic {

// One request of a batch.
struct BatchLine {
  std::string custom_id;
  bool chat = false;  // of /v1/chat/completions, else of /v1/completions
  std::string body;   // JSON
};

// What a line that is only a prompt becomes.
struct PromptDefaults {
  bool chat = false;  // a message to the chat template, else a text to be continued
  int64_t max_tokens = 256;
  double temperature = -1;  // negative: the model's
};

// A line of JSON, either OpenAI's {"custom_id","method","url","body"} or {"prompt": ...}, which may
// have a "custom_id" and fields of a completion beside it. A prompt without an id is "line-N".
// Throws ApiError (400) for everything that is wrong.
BatchLine ParseBatchLine(std::string_view line, int64_t line_number,
                         const PromptDefaults& defaults);
// A line that is the prompt itself.
BatchLine PromptBatchLine(std::string_view prompt, int64_t line_number,
                          const PromptDefaults& defaults);

// {"id","custom_id","response":{"status_code","request_id","body"},"error":null}; `body` is JSON.
std::string BatchOutputLine(const std::string& custom_id, const std::string& request_id,
                            std::string_view body);
// The same with "line" and what was wrong; an empty custom_id is null.
std::string BatchErrorLine(int64_t line_number, const std::string& custom_id,
                           const ApiError& error);

// How every line that a batch job writes begins.
inline constexpr std::string_view kBatchLineStart = R"({"id":"batch_req_)";
// Whether it has what BatchErrorLine writes.
bool IsBatchErrorLine(std::string_view line);

// The custom_id of a line of an input that is refused, as far as it can be read: also of one that
// is no JSON. Empty: there is none.
std::string FindCustomId(std::string_view line);

// The id of a line that has none of its own.
std::string DefaultCustomId(int64_t line_number);

// The custom_id of an output line. Throws ApiError when it is none.
std::string CustomIdOfOutput(std::string_view line);

}  // namespace moesaic
