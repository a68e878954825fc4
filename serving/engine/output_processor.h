// OutputProcessor: turns the tokens of one sequence into text and decides when it ends:
// detokenisation that never splits a character, stop strings and stop tokens, length.
//
// Owned by a Sequence; used on the engine's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serving/engine/request.h"
#include "serving/text/detokenizer.h"
#include "serving/text/stop_matcher.h"
#include "serving/text/tokenizer.h"

namespace moesaic {

class OutputProcessor {
 public:
  // `tokenizer` and `request` must outlive the processor. eos: the model's end tokens.
  OutputProcessor(const Tokenizer& tokenizer, const EngineRequest& request,
                  std::span<const int32_t> eos_token_ids, int64_t max_output_tokens);

  // One more token. Returns why the sequence ends, if it does.
  std::optional<FinishReason> Append(GeneratedToken token);
  // The sequence ends for a reason of the engine's (cancelled): what is held back is let go.
  void Finish();
  // What became ready since the last call; text, tokens and stop_text are filled in.
  OutputDelta Take();
  // What the token is in a text.
  std::string_view TokenBytes(int32_t token) const { return tokenizer_.TokenBytes(token); }
  // Tokens that would end the sequence and must not be sampled yet (min_tokens); empty when any
  // may.
  std::span<const int32_t> ForbiddenTokens() const {
    return output_tokens_ < request_.min_tokens ? std::span<const int32_t>(end_tokens_)
                                                : std::span<const int32_t>();
  }

 private:
  const Tokenizer& tokenizer_;
  const EngineRequest& request_;
  std::vector<int32_t> end_tokens_;  // EOS, unless ignored, and the request's own
  int64_t max_output_tokens_;
  int64_t output_tokens_ = 0;
  Detokenizer detokenizer_;
  StopMatcher stops_;
  std::string piece_;
  size_t text_bytes_ = 0;  // of the text so far, what is held back included
  OutputDelta delta_;
};

}  // namespace moesaic
