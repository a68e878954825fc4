#include "serving/http/api_keys.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "serving/api/api_error.h"
#include "serving/api/json_text.h"

namespace moesaic {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 20;
// Each request is compared with all of them.
constexpr size_t kMaxKeys = 10'000;
constexpr size_t kMaxNameBytes = 64;
constexpr double kMaxRate = 1e12;

// Looks at every byte of `given` whatever differs; only its length can be told from the time.
bool ConstantTimeEquals(std::string_view given, std::string_view key) {
  volatile unsigned char difference = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = key.empty() ? '\0' : key[i % key.size()];
    difference = static_cast<unsigned char>(difference | (given[i] ^ other));
  }
  return difference == 0;
}

std::string_view Trimmed(std::string_view line) {
  const size_t begin = std::min(line.find_first_not_of(" \t\r"), line.size());
  const size_t end = line.find_last_not_of(" \t\r");
  return end == std::string_view::npos ? std::string_view() : line.substr(begin, end + 1 - begin);
}

// Of a line of JSON. What is wrong goes into messages without the value: it may be the key.
class KeyLine {
 public:
  explicit KeyLine(std::string where) : where_(std::move(where)) {}

  ApiKey Parse(std::string_view text) const {
    Json line;
    try {
      line = ParseJson(text);
    } catch (const ApiError&) {  // whose message may quote the line
      Refuse("begins like a JSON object and is none");
    }
    ApiKey key;
    for (const auto& [member, value] : line.items()) {
      if (member == "key") {
        key.key = Text(member, value);
      } else if (member == "name") {
        key.name = Text(member, value);
      } else if (member == "models") {
        key.models = Models(value);
      } else if (member == "admin") {
        if (!value.is_boolean()) Refuse("\"admin\" must be true or false");
        key.admin = value.get<bool>();
      } else if (member == "requests_per_minute") {
        key.requests_per_minute = Rate(member, value);
      } else if (member == "tokens_per_minute") {
        key.tokens_per_minute = Rate(member, value);
      } else if (member == "priority") {
        key.priority = Priority(value);
      } else {
        Refuse(
            fmt::format("\"{}\" is none of key, name, models, admin, requests_per_minute, "
                        "tokens_per_minute and priority",
                        Excerpt(member)));
      }
    }
    if (key.key.empty()) Refuse("has no \"key\"");
    if (Trimmed(key.key) != key.key || std::any_of(key.key.begin(), key.key.end(), IsControl)) {
      Refuse("the key has blanks at its ends or control characters, which no header can carry");
    }
    if (key.name.size() > kMaxNameBytes ||
        !std::all_of(key.name.begin(), key.name.end(), IsOfName)) {
      Refuse(fmt::format("\"name\" must have at most {} letters, digits and any of ._-@",
                         kMaxNameBytes));
    }
    return key;
  }

 private:
  static bool IsControl(char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }
  static bool IsOfName(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-@").find(c) != std::string_view::npos;
  }

  [[noreturn]] void Refuse(std::string_view problem) const {
    Fail(ErrorKind::kInvalidArgument, "{}: {}", where_, problem);
  }
  std::string Text(const std::string& member, const Json& value) const {
    if (!value.is_string()) Refuse(fmt::format("\"{}\" must be a string", member));
    return value.get<std::string>();
  }
  double Rate(const std::string& member, const Json& value) const {
    const double rate = value.is_number() ? value.get<double>() : 0;
    if (rate < 1 || rate > kMaxRate) {
      Refuse(fmt::format("\"{}\" must be a number from 1 to {}; leave it out for no limit", member,
                         kMaxRate));
    }
    return rate;
  }
  int32_t Priority(const Json& value) const {
    // A number that JSON has as unsigned is not negative.
    const bool fits = value.is_number_unsigned() ? std::in_range<int32_t>(value.get<uint64_t>())
                                                 : value.is_number_integer() &&
                                                       std::in_range<int32_t>(value.get<int64_t>());
    if (!fits) Refuse("\"priority\" must be a whole number of 32 bits; lower ones go first");
    return value.get<int32_t>();
  }
  std::vector<std::string> Models(const Json& value) const {
    std::vector<std::string> models;
    if (value.is_array()) {
      for (const Json& model : value) {
        if (model.is_string()) models.push_back(model.get<std::string>());
      }
    }
    // An empty list is more likely a mistake than a wish to open nothing, or everything.
    if (models.empty() || models.size() != value.size()) {
      Refuse("\"models\" must be a list of at least one name; leave it out for all models");
    }
    return models;
  }

  const std::string where_;
};

}  // namespace

std::string ClientOf(const ApiKey& key) {
  if (!key.name.empty()) return key.name;
  // No name has such a character.
  return fmt::format("#{:016x}", Hash64(key.key));
}

ApiKeys::ApiKeys(std::vector<ApiKey> keys) : keys_(std::move(keys)) {
  if (keys_.size() > kMaxKeys) {
    Fail(ErrorKind::kInvalidArgument, "--api-key-file: there are {} keys, at most {} are taken",
         keys_.size(), kMaxKeys);
  }
  std::map<std::string_view, const ApiKey*> seen;
  for (const ApiKey& key : keys_) {
    any_limited_ = any_limited_ || key.limited();
    if (key.key.empty()) {
      Fail(ErrorKind::kInvalidArgument, "--api-key: a key must not be empty");
    }
    const auto [first, added] = seen.emplace(key.key, &key);
    if (!added && *first->second != key) {
      Fail(ErrorKind::kInvalidArgument,
           "--api-key-file: the key of '{}' is there twice (or also given by --api-key), with "
           "another name or other rights",
           key.name.empty() ? first->second->name : key.name);
    }
  }
}

const ApiKey* ApiKeys::Find(std::string_view given) const {
  if (given.empty()) return nullptr;
  const ApiKey* found = nullptr;
  for (const ApiKey& key : keys_) {
    if (ConstantTimeEquals(given, key.key)) found = &key;
  }
  return found;
}

std::vector<ApiKey> ParseApiKeyFile(std::string_view text, std::string_view file) {
  std::vector<ApiKey> keys;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = Trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (line.empty() || line[0] == '#') continue;
    if (line[0] == '{') {
      keys.push_back(KeyLine(fmt::format("{}: line {}", file, number)).Parse(line));
    } else {
      keys.push_back({std::string(line)});
    }
  }
  return keys;
}

ApiKeys LoadApiKeys(const std::vector<std::string>& given, const std::filesystem::path& file) {
  std::vector<ApiKey> keys;
  keys.reserve(given.size());
  for (const std::string& key : given) keys.push_back({key});
  if (!file.empty()) {
    const std::string name = fmt::format("--api-key-file {}", file.string());
    std::vector<ApiKey> more = ParseApiKeyFile(ReadTextFile(file, kMaxFileBytes), name);
    if (more.empty()) Fail(ErrorKind::kInvalidArgument, "{}: holds no key", name);
    keys.insert(keys.end(), std::make_move_iterator(more.begin()),
                std::make_move_iterator(more.end()));
  }
  return ApiKeys(std::move(keys));
}

}  // namespace moesaic
