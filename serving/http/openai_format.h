// Pieces of OpenAI responses as JSON. Pure functions; how tokens are spelt comes in from outside.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serving/engine/request.h"
#include "serving/http/json_text.h"

namespace moesaic {

struct TokenText {
  std::string bytes;  // a special token's are its name
  bool shown = true;  // false: a special token that is left out of the text
};
// `at_start`: nothing is shown before the token, where some tokenizers drop a space.
using TokenSpeller = std::function<TokenText(int32_t token, bool at_start)>;

// What JSON shows for a token: its text, or "bytes:\xe2\x80" when it is not whole UTF-8 (as OpenAI
// does).
std::string TokenString(std::string_view bytes);

// Where tokens begin in a text, counted in characters (code points). A token that begins within a
// character has that character's offset.
class OffsetCounter {
 public:
  explicit OffsetCounter(int64_t start = 0) : characters_(start) {}
  int64_t Next(std::string_view token_bytes);

 private:
  int64_t characters_;  // begun so far
};

// {"prompt_tokens":..,"completion_tokens":..,"total_tokens":..,"prompt_tokens_details":{"cached_tokens":..}}
Json UsageJson(const Usage& usage);

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

// "data: {...}\n\n"
std::string SseEvent(const Json& json);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
inline constexpr std::string_view kSseComment = ": keep-alive\n\n";

}  // namespace moesaic
