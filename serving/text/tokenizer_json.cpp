#include "serving/text/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/json_fields.h"
#include "serving/text/bpe_tokenizer.h"
#include "serving/text/token_decoder.h"

namespace moesaic {
namespace {

constexpr size_t kMaxTemplateIds = 4096;

// Classes whose add_bos_token and add_eos_token replace the file's post-processor (transformers
// does it for these; elsewhere the keys have no effect on a fast tokenizer).
constexpr std::array<std::string_view, 8> kBosClasses = {
    "LlamaTokenizer",   "LlamaTokenizerFast",   "CodeLlamaTokenizer", "CodeLlamaTokenizerFast",
    "GPTNeoXTokenizer", "GPTNeoXTokenizerFast", "GemmaTokenizer",     "GemmaTokenizerFast"};

void RequireContent(const AddedToken& token, const JsonFields& node) {
  if (token.content.empty()) node.Refuse("an added token without content");
}

// All added tokens with ids checked against the model's vocabulary: special ones first, which
// decides between two that look the same.
class AddedTokenList {
 public:
  AddedTokenList(const Vocabulary& vocabulary, const JsonFields& root) : vocabulary_(vocabulary) {
    for (const auto& [token, id] : vocabulary) {
      if (contents_.size() <= static_cast<size_t>(id))
        contents_.resize(static_cast<size_t>(id) + 1);
      contents_[static_cast<size_t>(id)] = &token;
    }
    if (const auto added = root.Member("added_tokens")) {
      for (const JsonFields& node : added->Elements()) {
        AddedToken token = ParseAddedToken(node);
        token.id = static_cast<int32_t>(node.At("id").Int(0, kMaxTokenId));
        RequireContent(token, node);
        Add(std::move(token), node);
      }
    }
  }

  // From tokenizer_config.json: adds what the file does not list; what it lists keeps its flags.
  void AddMissing(const TokenizerSettings& settings, const JsonFields& root) {
    for (const AddedToken& token : settings.added_tokens) {
      if (token.content.empty() || listed_.Find(token.content) != kNoToken) continue;
      Add(token, root);
    }
  }

  std::vector<AddedToken> Take() {
    std::stable_partition(tokens_.begin(), tokens_.end(),
                          [](const AddedToken& token) { return token.special; });
    return std::move(tokens_);
  }

 private:
  void Add(AddedToken token, const JsonFields& node) {
    // A token that the vocabulary has keeps the vocabulary's id.
    if (const int32_t id = vocabulary_.Find(token.content); id != kNoToken) token.id = id;
    const auto index = static_cast<size_t>(token.id);
    if (index < contents_.size() && contents_[index] != nullptr &&
        *contents_[index] != token.content) {
      node.Refuse(fmt::format("added token \"{}\" has id {}, which is that of \"{}\"",
                              token.content, token.id, *contents_[index]));
    }
    if (!listed_.Add(token.content, token.id)) return;  // listed twice
    const auto [owner, is_new] = owners_.emplace(token.id, token.content);
    if (!is_new) {
      node.Refuse(fmt::format("added tokens \"{}\" and \"{}\" share id {}", owner->second,
                              token.content, token.id));
    }
    tokens_.push_back(std::move(token));
  }

  const Vocabulary& vocabulary_;
  std::vector<const std::string*> contents_;         // of the vocabulary, by id
  Vocabulary listed_;                                // of the added tokens
  std::unordered_map<int32_t, std::string> owners_;  // id -> content
  std::vector<AddedToken> tokens_;
};

TokenTable BuildTable(const Vocabulary& vocabulary, const std::vector<AddedToken>& added,
                      const TokenDecoder& decoder) {
  TokenTable table;
  RegexScratch scratch;
  int32_t max_id = -1;
  for (const auto& [token, id] : vocabulary) max_id = std::max(max_id, id);
  for (const AddedToken& token : added) max_id = std::max(max_id, token.id);
  table.entries.resize(static_cast<size_t>(max_id) + 1);
  table.ids.Reserve(vocabulary.size() + added.size());
  const auto fill = [&](const std::string& content, int32_t id, bool is_added) {
    TokenTable::Entry& entry = table.entries[static_cast<size_t>(id)];
    entry.content = content;
    entry.bytes = decoder.Bytes(content, is_added, false, scratch);
    entry.known = true;
    table.ids.Add(content, id);
    if (!decoder.first_differs()) return;
    std::string first = decoder.Bytes(content, is_added, true, scratch);
    if (first != entry.bytes) table.first_bytes[id] = std::move(first);
  };
  for (const auto& [token, id] : vocabulary) fill(token, id, false);
  for (const AddedToken& token : added) {
    fill(token.content, token.id, true);
    table.entries[static_cast<size_t>(token.id)].special = token.special;
  }
  return table;
}

// The ids that the post-processor puts around a single text.
struct Surround {
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
};

void AddTemplate(const JsonFields& node, int32_t vocab_size, Surround& surround) {
  const JsonFields special_tokens = node.At("special_tokens");
  bool text_seen = false;
  Surround outer;
  for (const JsonFields& item : node.At("single").Elements()) {
    if (const auto sequence = item.Member("Sequence")) {
      if (text_seen || sequence->At("id").String() != "A") {
        item.Refuse("a single text's template has sequence A just once", ErrorKind::kUnsupported);
      }
      text_seen = true;
      continue;
    }
    const JsonFields special = special_tokens.At(item.At("SpecialToken").At("id").String());
    std::vector<int32_t>& ids = text_seen ? outer.suffix : outer.prefix;
    for (const JsonFields& id : special.At("ids").Elements()) {
      ids.push_back(static_cast<int32_t>(id.Int(0, vocab_size - 1)));
    }
    if (ids.size() > kMaxTemplateIds) node.Refuse("an absurdly long template");
  }
  if (!text_seen) node.Refuse("\"single\" lacks sequence A");
  surround.prefix.insert(surround.prefix.begin(), outer.prefix.begin(), outer.prefix.end());
  surround.suffix.insert(surround.suffix.end(), outer.suffix.begin(), outer.suffix.end());
  if (surround.prefix.size() > kMaxTemplateIds || surround.suffix.size() > kMaxTemplateIds) {
    node.Refuse("an absurdly long template");
  }
}

void AddPostProcessor(const JsonFields& node, int32_t vocab_size, Surround& surround) {
  const std::string type = node.At("type").String();
  if (type == "Sequence") {
    for (const JsonFields& element : node.At("processors").Elements()) {
      AddPostProcessor(element, vocab_size, surround);
    }
  } else if (type == "TemplateProcessing") {
    AddTemplate(node, vocab_size, surround);
  } else if (type != "ByteLevel") {  // which only trims offsets
    node.Refuse(fmt::format("unknown post_processor type \"{}\"", type), ErrorKind::kUnsupported);
  }
}

void ApplyBosSettings(const TokenizerSettings& settings, const SpecialTokenIds& ids,
                      Surround& surround) {
  const bool listed = std::find(kBosClasses.begin(), kBosClasses.end(), settings.tokenizer_class) !=
                      kBosClasses.end();
  if (!listed || (!settings.add_bos_token && !settings.add_eos_token)) return;
  // A side whose key is absent stays as the file has it.
  if (settings.add_bos_token) {
    surround.prefix.clear();
    if (*settings.add_bos_token && ids.bos) surround.prefix.push_back(*ids.bos);
  }
  if (settings.add_eos_token) {
    surround.suffix.clear();
    if (*settings.add_eos_token && ids.eos) surround.suffix.push_back(*ids.eos);
  }
}

}  // namespace

std::unique_ptr<Tokenizer> LoadTokenizerJson(std::string_view json, const std::string& name,
                                             const TokenizerSettings& settings) {
  const nlohmann::json document = ParseJsonDocument(json, name);
  return MakeTokenizer(JsonFields(document, name), settings);
}

std::unique_ptr<Tokenizer> MakeTokenizer(const JsonFields& root,
                                         const TokenizerSettings& settings) {
  const JsonFields model = root.At("model");
  // The oldest files have no type; they are BPE when they have merges.
  const std::string type =
      model.OptionalString("type").value_or(model.Member("merges") ? "BPE" : "");
  if (type != "BPE") {
    model.Refuse(fmt::format("unknown model type \"{}\"; only BPE is "
                             "supported",
                             type),
                 ErrorKind::kUnsupported);
  }

  BpeTokenizer::Parts parts;
  if (const auto node = root.Member("normalizer")) parts.normalizer = Normalizer(*node);
  if (const auto node = root.Member("pre_tokenizer")) {
    parts.pre_tokenizer = PreTokenizer(*node, BpeModel::AllowsRawBytes(model));
  }
  parts.model = std::make_unique<BpeModel>(model, parts.pre_tokenizer.raw_bytes());
  const Vocabulary& vocabulary = parts.model->vocabulary();
  AddedTokenList added(vocabulary, root);
  added.AddMissing(settings, root);
  parts.added_tokens = added.Take();

  const auto decoder_node = root.Member("decoder");
  const TokenDecoder decoder = decoder_node ? TokenDecoder(*decoder_node) : TokenDecoder();
  parts.rules = decoder.rules();
  parts.table = BuildTable(vocabulary, parts.added_tokens, decoder);
  parts.special_ids = FindSpecialIds(settings, parts.table.ids);
  const auto vocab_size = static_cast<int32_t>(parts.table.entries.size());
  if (vocab_size == 0) model.Refuse("the vocabulary is empty");
  if (!parts.special_ids.unk) {
    if (const auto unk = model.Member("unk_token")) {
      const int32_t id = vocabulary.Find(unk->String());
      if (id != kNoToken) parts.special_ids.unk = id;
    }
  }
  Surround surround;
  if (const auto node = root.Member("post_processor")) {
    AddPostProcessor(*node, vocab_size, surround);
  }
  ApplyBosSettings(settings, parts.special_ids, surround);
  parts.prefix = std::move(surround.prefix);
  parts.suffix = std::move(surround.suffix);
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace moesaic
