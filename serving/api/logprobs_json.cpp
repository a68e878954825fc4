#include "serving/api/logprobs_json.h"

#include <fmt/format.h>

#include <algorithm>

namespace moesaic {
namespace {

// JSON has no infinity; vLLM's floor.
double FiniteLogprob(float logprob) { return std::max(static_cast<double>(logprob), -9999.0); }

bool IsContinuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

Json ByteArray(std::string_view bytes) {
  Json array = Json::array();
  for (const char c : bytes) array.push_back(static_cast<unsigned char>(c));
  return array;
}

std::span<const TokenLogprob> TopOf(const GeneratedToken& token, int32_t top) {
  const size_t count = std::min(token.top.size(), static_cast<size_t>(std::max(top, 0)));
  return {token.top.data(), count};
}

}  // namespace

int64_t OffsetCounter::Next(std::string_view token_bytes) {
  const bool inside = !token_bytes.empty() && IsContinuation(token_bytes[0]) && characters_ > 0;
  const int64_t offset = inside ? characters_ - 1 : characters_;
  characters_ += std::count_if(token_bytes.begin(), token_bytes.end(),
                               [](char c) { return !IsContinuation(c); });
  return offset;
}

CompletionLogprobs::CompletionLogprobs(OffsetCounter& offsets, const TokenSpeller& spell,
                                       int32_t top)
    : offsets_(offsets), spell_(spell), top_(top) {
  for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    result_[name] = Json::array();
  }
}

std::string CompletionLogprobs::AddTokenAndOffset(int32_t token, bool shown) {
  const std::string bytes = spell_(token, at_start_).bytes;
  result_["text_offset"].push_back(offsets_.Next(shown ? bytes : ""));
  if (shown && !bytes.empty()) at_start_ = false;
  std::string text = TokenString(bytes);
  result_["tokens"].push_back(text);
  return text;
}

void CompletionLogprobs::AddPrompt(int32_t first, std::span<const GeneratedToken> tokens,
                                   size_t hidden) {
  at_start_ = true;
  AddTokenAndOffset(first, hidden == 0);
  result_["token_logprobs"].push_back(nullptr);
  result_["top_logprobs"].push_back(nullptr);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool at_start = at_start_;
    AddLogprobs(tokens[i], AddTokenAndOffset(tokens[i].token, i + 1 >= hidden), at_start);
  }
}

void CompletionLogprobs::Add(const GeneratedToken& token) {
  const bool at_start = at_start_;
  const bool shown = spell_(token.token, at_start).shown;
  AddLogprobs(token, AddTokenAndOffset(token.token, shown), at_start);
}

void CompletionLogprobs::AddLogprobs(const GeneratedToken& token, const std::string& text,
                                     bool at_start) {
  result_["token_logprobs"].push_back(FiniteLogprob(token.logprob));
  // Keyed by text, so that two tokens of the same text are one entry: the likelier one.
  Json top = Json::object();
  for (const TokenLogprob& other : TopOf(token, top_)) {
    const std::string key = TokenString(spell_(other.token, at_start).bytes);
    if (!top.contains(key)) top[key] = FiniteLogprob(other.logprob);
  }
  if (!top.contains(text)) top[text] = FiniteLogprob(token.logprob);
  result_["top_logprobs"].push_back(std::move(top));
}

Json CompletionLogprobs::Take() { return std::move(result_); }

Json ChatLogprobs(std::span<const GeneratedToken> tokens, int32_t top, const TokenSpeller& spell) {
  const auto entry = [&spell](int32_t token, float logprob) {
    const std::string bytes = spell(token, false).bytes;
    Json json = Json::object();
    json["token"] = TokenString(bytes);
    json["logprob"] = FiniteLogprob(logprob);
    json["bytes"] = ByteArray(bytes);
    return json;
  };
  Json content = Json::array();
  for (const GeneratedToken& token : tokens) {
    Json json = entry(token.token, token.logprob);
    json["top_logprobs"] = Json::array();
    for (const TokenLogprob& other : TopOf(token, top)) {
      json["top_logprobs"].push_back(entry(other.token, other.logprob));
    }
    content.push_back(std::move(json));
  }
  Json json = Json::object();
  json["content"] = std::move(content);
  json["refusal"] = nullptr;
  return json;
}

Json PromptLogprobs(std::span<const GeneratedToken> tokens, int32_t top,
                    const TokenSpeller& spell) {
  Json result = Json::array();
  result.push_back(nullptr);
  for (const GeneratedToken& token : tokens) {
    Json entries = Json::object();
    const auto add = [&](int32_t id, float logprob, Json rank) {
      Json json = Json::object();
      json["logprob"] = FiniteLogprob(logprob);
      json["rank"] = std::move(rank);
      json["decoded_token"] = TokenString(spell(id, false).bytes);
      entries[std::to_string(id)] = std::move(json);
    };
    int64_t rank = 0;
    for (const TokenLogprob& other : TopOf(token, top)) add(other.token, other.logprob, ++rank);
    // The rank of a token that is not among the best is not known.
    if (!entries.contains(std::to_string(token.token))) add(token.token, token.logprob, nullptr);
    result.push_back(std::move(entries));
  }
  return result;
}

}  // namespace moesaic
