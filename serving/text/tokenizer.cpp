#include "serving/text/tokenizer.h"

#include <utility>

#include "core/base/error.h"
#include "core/io/gguf.h"
#include "serving/text/detokenizer.h"
#include "serving/text/gguf_tokenizer.h"
#include "serving/text/sentencepiece_tokenizer.h"
#include "serving/text/tiktoken_tokenizer.h"
#include "serving/text/tokenizer_json.h"
#include "serving/text/tokenizer_settings.h"

namespace moesaic {

Tokenizer::Tokenizer(TokenTable table, DecodeRules rules, SpecialTokenIds special_ids)
    : table_(std::move(table)), rules_(std::move(rules)), special_ids_(special_ids) {}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  const TextSegment segment{text, options.parse_special};
  return EncodeSegments({&segment, 1}, options.add_special_tokens);
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  Detokenizer detokenizer(*this, {.skip_special = skip_special});
  std::string text;
  for (const int32_t id : ids) detokenizer.Add(id, &text);
  detokenizer.Finish(&text);
  return text;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  const TokenTable::Entry* entry = Find(id);
  return entry == nullptr ? std::string_view() : entry->bytes;
}

std::string_view Tokenizer::FirstTokenBytes(int32_t id) const {
  const auto found = table_.first_bytes.find(id);
  return found == table_.first_bytes.end() ? TokenBytes(id) : found->second;
}

std::string_view Tokenizer::IdToToken(int32_t id) const {
  const TokenTable::Entry* entry = Find(id);
  return entry == nullptr ? std::string_view() : entry->content;
}

std::optional<int32_t> Tokenizer::TokenToId(std::string_view token) const {
  const int32_t id = table_.ids.Find(token);
  return id == kNoToken ? std::nullopt : std::make_optional(id);
}

bool Tokenizer::IsSpecial(int32_t id) const {
  const TokenTable::Entry* entry = Find(id);
  return entry != nullptr && entry->special;
}

std::unique_ptr<Tokenizer> LoadTokenizer(const std::filesystem::path& model_dir) {
  if (IsGgufModel(model_dir)) {
    const GgufHeader header = ReadGgufModel(model_dir);
    return LoadGgufTokenizer(JsonFields(header.metadata, model_dir.string()));
  }
  const TokenizerSettings settings = LoadTokenizerSettings(model_dir);
  const std::filesystem::path json = model_dir / "tokenizer.json";
  if (std::filesystem::exists(json)) {
    return LoadTokenizerJson(ReadTextFile(json), json.string(), settings);
  }
  const std::filesystem::path model = model_dir / "tokenizer.model";
  if (std::filesystem::exists(model)) {
    return LoadSentencePiece(ReadTextFile(model), model.string(), settings);
  }
  const std::filesystem::path ranks = model_dir / "tiktoken.model";
  if (std::filesystem::exists(ranks)) {
    return LoadTiktoken(ReadTextFile(ranks), ranks.string(), settings);
  }
  Fail(ErrorKind::kNotFound,
       "{}: neither tokenizer.json nor tokenizer.model nor tiktoken.model; copy one of them from "
       "the model's origin",
       model_dir.string());
}

}  // namespace moesaic
