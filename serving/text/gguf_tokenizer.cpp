#include "serving/text/gguf_tokenizer.h"

#include <fmt/format.h>

#include <bit>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/config/gguf_config.h"
#include "serving/text/gguf_words.h"
#include "serving/text/sentencepiece_tokenizer.h"
#include "serving/text/tokenizer_json.h"

namespace moesaic {
namespace {

using nlohmann::json;

// tokenizer.ggml.token_type; those of SentencePiece have the same numbers.
enum TokenType : int64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct GgufTokens {
  const json* texts = nullptr;   // a list of strings
  std::vector<TokenType> types;  // as many

  size_t size() const { return types.size(); }
  const std::string& text(size_t id) const { return (*texts)[id].get_ref<const std::string&>(); }
};

const json& RequireList(const JsonFields& metadata, std::string_view key) {
  const json* const list = metadata.Find(key);
  if (list == nullptr || !list->is_array()) metadata.FailAt(key, "expected an array");
  return *list;
}

GgufTokens ReadTokens(const JsonFields& metadata) {
  GgufTokens tokens;
  tokens.texts = &RequireList(metadata, "tokenizer.ggml.tokens");
  if (tokens.texts->empty()) metadata.FailAt("tokenizer.ggml.tokens", "is empty");
  for (const json& text : *tokens.texts) {
    if (!text.is_string()) metadata.FailAt("tokenizer.ggml.tokens", "expected strings");
  }
  tokens.types.assign(tokens.texts->size(), kNormal);
  if (metadata.Find("tokenizer.ggml.token_type") == nullptr) return tokens;
  const json& types = RequireList(metadata, "tokenizer.ggml.token_type");
  if (types.size() != tokens.size()) {
    metadata.FailAt("tokenizer.ggml.token_type",
                    fmt::format("has {} entries for {} tokens", types.size(), tokens.size()));
  }
  for (size_t id = 0; id < tokens.size(); ++id) {
    const int64_t type = types[id].is_number_integer() ? types[id].get<int64_t>() : 0;
    if (type < kNormal || type > kByte) {
      metadata.FailAt("tokenizer.ggml.token_type",
                      fmt::format("entry {} is {}, expected 1 to 6", id, type));
    }
    tokens.types[id] = static_cast<TokenType>(type);
  }
  return tokens;
}

std::optional<int64_t> TokenId(const JsonFields& metadata, std::string_view key, size_t tokens) {
  const std::optional<int64_t> id = GgufTokenId(metadata, key);
  if (id && *id >= static_cast<int64_t>(tokens)) {
    metadata.FailAt(key, fmt::format("is {}, but there are {} tokens", *id, tokens));
  }
  return id;
}

TokenizerSettings ReadSettings(const JsonFields& metadata, const GgufTokens& tokens) {
  TokenizerSettings settings;
  const auto role = [&](std::string_view key, std::optional<std::string>& token) {
    if (const auto id = TokenId(metadata, key, tokens.size())) {
      token = tokens.text(static_cast<size_t>(*id));
    }
  };
  role("tokenizer.ggml.bos_token_id", settings.bos_token);
  role("tokenizer.ggml.eos_token_id", settings.eos_token);
  role("tokenizer.ggml.unknown_token_id", settings.unk_token);
  role("tokenizer.ggml.padding_token_id", settings.pad_token);
  settings.add_bos_token = metadata.OptionalBool("tokenizer.ggml.add_bos_token");
  settings.add_eos_token = metadata.OptionalBool("tokenizer.ggml.add_eos_token");
  return settings;
}

// --- byte-level BPE

json AddedTokens(const GgufTokens& tokens) {
  json added = json::array();
  for (size_t id = 0; id < tokens.size(); ++id) {
    const TokenType type = tokens.types[id];
    if (type != kControl && type != kUnknown && type != kUserDefined) continue;
    added.push_back({{"id", id},
                     {"content", tokens.text(id)},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type != kUserDefined}});
  }
  return added;
}

// The ids around a text.
json Surround(const JsonFields& metadata, const GgufTokens& tokens, bool add_bos, bool add_eos) {
  json single = json::array();
  json special_tokens = json::object();
  const auto add = [&](bool wanted, std::string_view key) {
    const auto id = wanted ? TokenId(metadata, key, tokens.size()) : std::nullopt;
    if (!id) return;
    const std::string& text = tokens.text(static_cast<size_t>(*id));
    single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    special_tokens[text] = {{"id", text}, {"ids", {*id}}, {"tokens", {text}}};
  };
  add(add_bos, "tokenizer.ggml.bos_token_id");
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  add(add_eos, "tokenizer.ggml.eos_token_id");
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"special_tokens", std::move(special_tokens)}};
}

std::unique_ptr<Tokenizer> MakeByteLevel(const JsonFields& metadata, const GgufTokens& tokens,
                                         const TokenizerSettings& settings) {
  constexpr std::string_view kPre = "tokenizer.ggml.pre";
  const GgufWords words = FindGgufWords(metadata.String(kPre, "default"), metadata.Where(kPre));
  json vocabulary = json::object();
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens.types[id] == kNormal) vocabulary[tokens.text(id)] = id;
  }
  const json byte_level = {{"type", "ByteLevel"}};
  const json document = {
      {"added_tokens", AddedTokens(tokens)},
      {"normalizer", words.normalizer},
      {"pre_tokenizer", words.pre_tokenizer},
      {"post_processor", Surround(metadata, tokens, settings.add_bos_token.value_or(words.add_bos),
                                  settings.add_eos_token.value_or(false))},
      {"decoder", byte_level},
      {"model",
       {{"type", "BPE"},
        {"ignore_merges", words.ignore_merges},
        {"vocab", std::move(vocabulary)},
        {"merges", RequireList(metadata, "tokenizer.ggml.merges")}}}};
  const std::string name(metadata.file());
  return MakeTokenizer(JsonFields(document, name), settings);
}

// --- SentencePiece

// A field of a protobuf message, wire types 0 (varint), 2 (bytes) and 5 (float).
class Message {
 public:
  void Number(int field, uint64_t value) {
    Varint(static_cast<uint64_t>(field) << 3);
    Varint(value);
  }
  void Bytes(int field, std::string_view value) {
    Varint(static_cast<uint64_t>(field) << 3 | 2);
    Varint(value.size());
    text_ += value;
  }
  void Float(int field, float value) {
    Varint(static_cast<uint64_t>(field) << 3 | 5);
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) text_ += static_cast<char>(bits >> shift);
  }
  const std::string& text() const { return text_; }

 private:
  void Varint(uint64_t value) {
    for (; value > 0x7f; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
  }
  std::string text_;
};

// A ModelProto (sentencepiece_model.proto): pieces, trainer_spec, normalizer_spec.
std::string SentencePieceModel(const JsonFields& metadata, const GgufTokens& tokens) {
  const json& scores = RequireList(metadata, "tokenizer.ggml.scores");
  if (scores.size() != tokens.size()) {
    metadata.FailAt("tokenizer.ggml.scores",
                    fmt::format("has {} entries for {} tokens", scores.size(), tokens.size()));
  }
  Message model;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!scores[id].is_number()) metadata.FailAt("tokenizer.ggml.scores", "expected numbers");
    Message piece;
    piece.Bytes(1, tokens.text(id));
    piece.Float(2, scores[id].get<float>());
    piece.Number(3, static_cast<uint64_t>(tokens.types[id]));
    model.Bytes(1, piece.text());
  }
  Message trainer;
  trainer.Number(3, 2);  // model_type: BPE
  trainer.Number(4, tokens.size());
  trainer.Number(35, 1);  // byte_fallback
  const auto role = [&](int field, std::string_view key) {
    const auto id = TokenId(metadata, key, tokens.size());
    trainer.Number(field, static_cast<uint64_t>(id.value_or(-1)));
  };
  role(40, "tokenizer.ggml.unknown_token_id");
  role(41, "tokenizer.ggml.bos_token_id");
  role(42, "tokenizer.ggml.eos_token_id");
  role(43, "tokenizer.ggml.padding_token_id");
  model.Bytes(2, trainer.text());
  Message normalizer;
  normalizer.Bytes(1, "identity");
  normalizer.Number(3, metadata.Bool("tokenizer.ggml.add_space_prefix", true) ? 1 : 0);
  normalizer.Number(4, metadata.Bool("tokenizer.ggml.remove_extra_whitespaces", false) ? 1 : 0);
  normalizer.Number(5, 1);  // escape_whitespaces
  model.Bytes(3, normalizer.text());
  return model.text();
}

}  // namespace

std::unique_ptr<Tokenizer> LoadGgufTokenizer(const JsonFields& metadata) {
  constexpr std::string_view kModel = "tokenizer.ggml.model";
  const std::string model = metadata.String(kModel, "");
  if (model.empty()) metadata.FailAt(kModel, "is missing; the file has no tokenizer");
  if (model != "gpt2" && model != "llama") {
    metadata.FailAt(kModel,
                    fmt::format("is \"{}\", expected \"gpt2\" (byte-level BPE) or \"llama\" "
                                "(SentencePiece)",
                                model.substr(0, 60)),
                    ErrorKind::kUnsupported);
  }
  const GgufTokens tokens = ReadTokens(metadata);
  const TokenizerSettings settings = ReadSettings(metadata, tokens);
  if (model == "gpt2") return MakeByteLevel(metadata, tokens, settings);
  return LoadSentencePiece(SentencePieceModel(metadata, tokens), std::string(metadata.file()),
                           settings);
}

}  // namespace moesaic
