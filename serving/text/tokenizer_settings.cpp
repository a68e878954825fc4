#include "serving/text/tokenizer_settings.h"

#include <charconv>
#include <fstream>
#include <system_error>
#include <unordered_set>

#include "core/base/json_fields.h"

namespace moesaic {
namespace {

constexpr uintmax_t kMaxFileBytes = 512ull << 20;

// A special token is written as a string or as an object with "content".
void ReadToken(const JsonFields& root, const std::string& key, std::optional<std::string>& token) {
  const std::optional<JsonFields> found = root.Member(key);
  if (token || !found) return;
  token = found->value().is_string() ? found->String() : found->At("content").String();
}

void ReadRoles(const JsonFields& root, TokenizerSettings& settings) {
  ReadToken(root, "bos_token", settings.bos_token);
  ReadToken(root, "eos_token", settings.eos_token);
  ReadToken(root, "unk_token", settings.unk_token);
  ReadToken(root, "pad_token", settings.pad_token);
}

void ReadFlag(const JsonFields& root, const std::string& key, std::optional<bool>& flag) {
  if (const std::optional<JsonFields> found = root.Member(key)) flag = found->Bool();
}

void ReadConfig(const JsonFields& root, TokenizerSettings& settings) {
  settings.tokenizer_class = root.OptionalString("tokenizer_class").value_or("");
  ReadRoles(root, settings);
  ReadFlag(root, "add_bos_token", settings.add_bos_token);
  ReadFlag(root, "add_eos_token", settings.add_eos_token);
  ReadFlag(root, "legacy", settings.legacy);
  const std::optional<JsonFields> added = root.Member("added_tokens_decoder");
  if (!added) return;
  for (const auto& [key, value] : added->value().items()) {
    const JsonFields node = added->At(key);
    int32_t id = kNoToken;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id > kMaxTokenId) {
      node.Refuse(fmt::format("the key is not an id from 0 to {}", kMaxTokenId));
    }
    AddedToken token = ParseAddedToken(node);
    token.id = id;
    settings.added_tokens.push_back(std::move(token));
  }
}

// {"content": id}, the older way to list added tokens.
void ReadAddedTokens(const JsonFields& root, TokenizerSettings& settings) {
  std::unordered_set<int32_t> known;
  for (const AddedToken& token : settings.added_tokens) known.insert(token.id);
  for (const auto& [content, value] : root.value().items()) {
    const auto id = static_cast<int32_t>(root.At(content).Int(0, kMaxTokenId));
    if (!known.insert(id).second) continue;
    AddedToken token;
    token.id = id;
    token.content = content;
    token.normalized = false;
    settings.added_tokens.push_back(std::move(token));
  }
}

template <typename Reader>
void ReadJsonFile(const std::filesystem::path& path, const Reader& reader) {
  if (!std::filesystem::exists(path)) return;
  const std::string file = path.string();
  const nlohmann::json document = ParseJsonDocument(ReadTextFile(path), file);
  const JsonFields root(document, file);
  if (!document.is_object()) root.Refuse("expected a JSON object");
  reader(root);
}

}  // namespace

std::string ReadTextFile(const std::filesystem::path& path) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) {
    Fail(error == std::errc::no_such_file_or_directory ? ErrorKind::kNotFound : ErrorKind::kIo,
         "{}: {}", path.string(), error.message());
  }
  if (bytes > kMaxFileBytes) {
    Fail(ErrorKind::kCorrupt, "{}: {} bytes, more than a tokenizer's file can have ({})",
         path.string(), bytes, kMaxFileBytes);
  }
  std::ifstream stream(path, std::ios::binary);
  std::string text(bytes, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!stream) Fail(ErrorKind::kIo, "{}: could not be read", path.string());
  return text;
}

TokenizerSettings LoadTokenizerSettings(const std::filesystem::path& model_dir) {
  TokenizerSettings settings;
  ReadJsonFile(model_dir / "tokenizer_config.json",
               [&](const JsonFields& root) { ReadConfig(root, settings); });
  ReadJsonFile(model_dir / "special_tokens_map.json",
               [&](const JsonFields& root) { ReadRoles(root, settings); });
  ReadJsonFile(model_dir / "added_tokens.json",
               [&](const JsonFields& root) { ReadAddedTokens(root, settings); });
  return settings;
}

SpecialTokenIds FindSpecialIds(const TokenizerSettings& settings, const Vocabulary& ids) {
  const auto find = [&](const std::optional<std::string>& token) -> std::optional<int32_t> {
    if (!token) return std::nullopt;
    const int32_t id = ids.Find(*token);
    return id == kNoToken ? std::nullopt : std::make_optional(id);
  };
  return {.bos = find(settings.bos_token),
          .eos = find(settings.eos_token),
          .unk = find(settings.unk_token),
          .pad = find(settings.pad_token)};
}

}  // namespace moesaic
