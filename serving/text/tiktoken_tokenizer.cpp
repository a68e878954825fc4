#include "serving/text/tiktoken_tokenizer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/json_fields.h"
#include "serving/text/byte_level.h"
#include "serving/text/tokenizer_json.h"

namespace moesaic {
namespace {

using nlohmann::json;

constexpr std::string_view kClass = "TikTokenTokenizer";
constexpr int32_t kReservedTokens = 256;
// Of a token: parts of each are looked up.
constexpr size_t kMostBytes = 1024;

// Runs of ideographs; words with a capital or without, of other letters, with an English
// contraction; up to three digits; punctuation; line ends; spaces.
constexpr std::string_view kWordsPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+)"
    R"(|\s+(?!\S))"
    R"(|\s+)";

constexpr std::array<int8_t, 256> kBase64Values = [] {
  std::array<int8_t, 256> values = {};
  for (int8_t& value : values) value = -1;
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < kDigits.size(); ++i) {
    values[static_cast<unsigned char>(kDigits[i])] = static_cast<int8_t>(i);
  }
  return values;
}();

// RFC 4648, section 4, with its padding; nullopt for anything else.
std::optional<std::string> DecodeBase64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool padded = i >= text.size() - padding;
    const int value = padded ? 0 : kBase64Values[static_cast<unsigned char>(text[i])];
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    if (i % 4 != 3) continue;
    for (int shift = 16; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(bits >> shift));
  }
  for (size_t i = 0; i < padding; ++i) bytes.pop_back();
  return bytes;
}

// Tokens in the byte-level alphabet, with their ids.
struct Ranks {
  json vocabulary = json::object();
  int32_t end = 0;  // behind the largest id
};

Ranks ReadRanks(std::string_view text, const std::string& name) {
  Ranks ranks;
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const auto fail = [&](const char* problem) {
      Fail(ErrorKind::kCorrupt, "{}: line {}: {}, expected a token in base64, a space and its rank",
           name, number, problem);
    };
    const size_t space = line.find(' ');
    if (space == line.npos) fail("it has no space");
    const std::optional<std::string> bytes = DecodeBase64(line.substr(0, space));
    if (!bytes) fail("the token is not base64");
    int32_t rank = -1;
    const char* const last = line.data() + line.size();
    const auto [stop, error] = std::from_chars(line.data() + space + 1, last, rank);
    if (error != std::errc() || stop != last || rank < 0 || rank > kMaxTokenId - kReservedTokens) {
      fail("the rank is not a number of a token");
    }
    if (bytes->size() > kMostBytes) fail("the token has more than 1024 bytes");
    std::string token;
    AppendByteLevel(*bytes, token);
    if (!ranks.vocabulary.emplace(std::move(token), static_cast<uint32_t>(rank)).second)
      fail("the token occurs twice");
    ranks.end = std::max(ranks.end, rank + 1);
  }
  if (ranks.end == 0) Fail(ErrorKind::kCorrupt, "{}: is empty, expected lines of tokens", name);
  return ranks;
}

json SpecialTokens(const Ranks& ranks, const TokenizerSettings& settings) {
  json added = json::array();
  const auto add = [&](int32_t id, const std::string& content) {
    added.push_back({{"id", id},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  };
  for (int32_t id = ranks.end; id < ranks.end + kReservedTokens; ++id) {
    const bool named = std::any_of(settings.added_tokens.begin(), settings.added_tokens.end(),
                                   [id](const AddedToken& token) { return token.id == id; });
    if (!named) add(id, fmt::format("<|reserved_token_{}|>", id));
  }
  return added;
}

}  // namespace

std::unique_ptr<Tokenizer> LoadTiktoken(std::string_view text, const std::string& name,
                                        const TokenizerSettings& settings) {
  if (settings.tokenizer_class != kClass) {
    Fail(ErrorKind::kUnsupported,
         "{}: the tokenizer_class in tokenizer_config.json is \"{}\"; how texts are cut into words "
         "is known of \"{}\" alone (Kimi). Put a tokenizer.json beside it, or give --tokenizer",
         name, settings.tokenizer_class.substr(0, 80), kClass);
  }
  Ranks ranks = ReadRanks(text, name);
  json added = SpecialTokens(ranks, settings);
  const json cut = {{"type", "Split"},
                    {"pattern", {{"Regex", kWordsPattern}}},
                    {"behavior", "Isolated"},
                    {"invert", false}};
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const json document = {
      {"added_tokens", std::move(added)},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {cut, byte_level}}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"},
        {"ignore_merges", true},
        {"merge_by_id", true},
        {"vocab", std::move(ranks.vocabulary)}}}};
  return MakeTokenizer(JsonFields(document, name), settings);
}

}  // namespace moesaic
