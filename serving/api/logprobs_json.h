// Log-probabilities as the JSON of OpenAI's responses. Pure; how tokens are spelt comes in from
// outside.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serving/api/json_text.h"
#include "serving/api/token_speller.h"
#include "serving/engine/request.h"

namespace moesaic {

// Where tokens begin in a text, counted in characters (code points). A token that begins within a
// character has that character's offset.
class OffsetCounter {
 public:
  explicit OffsetCounter(int64_t start = 0) : characters_(start) {}
  int64_t Next(std::string_view token_bytes);

 private:
  int64_t characters_;  // begun so far
};

// The legacy object of completions: tokens, token_logprobs, top_logprobs, text_offset.
class CompletionLogprobs {
 public:
  // `top`: alternatives per token, the chosen one comes on top of them. Both references are kept.
  CompletionLogprobs(OffsetCounter& offsets, const TokenSpeller& spell, int32_t top);
  // An echoed prompt, special tokens and all, but for the first `hidden` ones, which are not part
  // of the text (a BOS that the tokenizer has added). The first token has no log-probability;
  // `tokens` are the others.
  void AddPrompt(int32_t first, std::span<const GeneratedToken> tokens, size_t hidden);
  void Add(const GeneratedToken& token);
  Json Take();

 private:
  std::string AddTokenAndOffset(int32_t token, bool shown);
  void AddLogprobs(const GeneratedToken& token, const std::string& text, bool at_start);

  OffsetCounter& offsets_;
  const TokenSpeller& spell_;
  int32_t top_;
  bool at_start_ = false;
  Json result_;
};

// {"content":[{token,logprob,bytes,top_logprobs}],"refusal":null}
Json ChatLogprobs(std::span<const GeneratedToken> tokens, int32_t top, const TokenSpeller& spell);

// vLLM's prompt_logprobs: null for the first token, then objects from token id to
// {logprob,rank,decoded_token}. `tokens` has one entry per prompt token but the first.
Json PromptLogprobs(std::span<const GeneratedToken> tokens, int32_t top, const TokenSpeller& spell);

}  // namespace moesaic
