// Finding the chat template in a model directory or a GGUF file.

#include <utility>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/json_fields.h"
#include "core/base/logging.h"
#include "core/io/gguf.h"
#include "serving/text/chat_template.h"

namespace moesaic {
namespace {

// The largest published templates have about 30 KB; a tokenizer_config.json lists every added
// token.
constexpr uint64_t kMaxTemplateBytes = uint64_t{4} << 20;
constexpr uint64_t kMaxConfigBytes = uint64_t{64} << 20;

// Null when there is no such file.
Json ReadJson(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return nullptr;
  Json json = Json::parse(ReadTextFile(path, kMaxConfigBytes), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    Fail(ErrorKind::kCorrupt, "{}: this is no JSON object; fetch the file again", path.string());
  }
  return json;
}

std::string ReadTemplate(const std::filesystem::path& path) {
  return std::filesystem::exists(path) ? ReadTextFile(path, kMaxTemplateBytes) : std::string();
}

// A token is written as its text or as an object with details.
std::string TokenText(const Json& token) {
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string()) {
    return token["content"].get<std::string>();
  }
  return {};
}

ChatTemplate::SpecialTokens FindSpecialTokens(const Json& config) {
  ChatTemplate::SpecialTokens tokens;
  if (!config.is_object()) return tokens;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    if (config.contains(name)) {
      if (std::string text = TokenText(config[name]); !text.empty())
        tokens.emplace_back(name, text);
    }
  }
  const auto extra = config.find("extra_special_tokens");
  if (extra == config.end() || !extra->is_object()) return tokens;
  for (const auto& [name, token] : extra->items()) {
    if (std::string text = TokenText(token); !text.empty()) tokens.emplace_back(name, text);
  }
  return tokens;
}

struct Sources {
  std::string plain;
  std::string with_tools;
  std::string why_none;  // there is something, and nothing of use
};

// `chat_template` of a configuration; false when it has none.
bool FromConfig(const Json& config, const std::filesystem::path& path, Sources& sources) {
  if (!config.is_object() || !config.contains("chat_template")) return false;
  const Json& entry = config["chat_template"];
  if (entry.is_null()) return false;
  if (entry.is_string()) {
    sources.plain = entry.get<std::string>();
    return true;
  }
  const auto named = [&entry](std::string_view name) {
    for (const Json& item : entry) {
      if (item.is_object() && item.value("name", Json()) == name &&
          item.value("template", Json()).is_string()) {
        return item["template"].get<std::string>();
      }
    }
    return std::string();
  };
  if (entry.is_array()) {
    sources.plain = named("default");
    sources.with_tools = named("tool_use");
    if (sources.plain.empty()) sources.plain = sources.with_tools;
  }
  if (sources.plain.empty()) {
    sources.why_none = fmt::format(
        "{}: chat_template has neither an entry \"default\" nor \"tool_use\"; put the template to "
        "use "
        "into chat_template.jinja beside it",
        path.string());
  }
  return true;
}

// What a model directory or a GGUF file says.
struct Found {
  Sources sources;
  std::filesystem::path at;  // the file that has them; empty: there is none
  ChatTemplate::SpecialTokens tokens;
};

Found FindInDirectory(const std::filesystem::path& model_dir) {
  const std::filesystem::path config_path = model_dir / "tokenizer_config.json";
  const std::filesystem::path legacy_path = model_dir / "chat_template.json";
  const std::filesystem::path jinja_path = model_dir / "chat_template.jinja";
  const Json config = ReadJson(config_path);
  Found found;
  found.tokens = FindSpecialTokens(config);
  if (std::filesystem::exists(jinja_path)) {
    found.at = jinja_path;
    found.sources.plain = ReadTemplate(jinja_path);
    found.sources.with_tools =
        ReadTemplate(model_dir / "additional_chat_templates" / "tool_use.jinja");
  } else if (FromConfig(ReadJson(legacy_path), legacy_path, found.sources)) {
    found.at = legacy_path;
  } else if (FromConfig(config, config_path, found.sources)) {
    found.at = config_path;
  }
  return found;
}

Found FindInGguf(const std::filesystem::path& model) {
  const GgufHeader header = ReadGgufModel(model);
  const std::string name = model.string();
  const JsonFields metadata(header.metadata, name);
  Found found;
  found.sources.plain = metadata.String("tokenizer.chat_template", "");
  found.sources.with_tools = metadata.String("tokenizer.chat_template.tool_use", "");
  if (!found.sources.plain.empty()) found.at = model;
  const nlohmann::json* const tokens = metadata.Find("tokenizer.ggml.tokens");
  for (const auto& [role, key] : {std::pair("bos_token", "tokenizer.ggml.bos_token_id"),
                                  std::pair("eos_token", "tokenizer.ggml.eos_token_id"),
                                  std::pair("unk_token", "tokenizer.ggml.unknown_token_id"),
                                  std::pair("pad_token", "tokenizer.ggml.padding_token_id")}) {
    const nlohmann::json* const id = metadata.Find(key);
    if (tokens == nullptr || id == nullptr || !id->is_number_unsigned()) continue;
    const auto index = id->get<uint64_t>();
    if (index < tokens->size() && (*tokens)[index].is_string()) {
      found.tokens.emplace_back(role, (*tokens)[index].get<std::string>());
    }
  }
  return found;
}

}  // namespace

std::unique_ptr<const ChatTemplate> LoadChatTemplate(const std::filesystem::path& model_dir,
                                                     const std::filesystem::path& instead) {
  Found found = IsGgufModel(model_dir) ? FindInGguf(model_dir) : FindInDirectory(model_dir);
  if (!instead.empty()) {
    found.at = instead;
    found.sources = {};
    found.sources.plain = ReadTextFile(instead, kMaxTemplateBytes);
  }
  if (found.at.empty()) return nullptr;
  const Sources& sources = found.sources;
  auto chat_template = sources.why_none.empty()
                           ? std::make_unique<const ChatTemplate>(
                                 "chat template of " + found.at.string(), sources.plain,
                                 sources.with_tools, std::move(found.tokens))
                           : std::make_unique<const ChatTemplate>(sources.why_none);
  if (const std::string& why = chat_template->why_unusable(); !why.empty()) {
    LogWarn("chat will be refused, completions work: {}", why);
  }
  return chat_template;
}

}  // namespace moesaic
