// ApiKeys: the keys that requests may carry, and what each of them opens. Immutable once made;
// shared by all connections.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

struct ApiKey {
  std::string key;
  std::string name = {};                 // whose it is, for the log; empty: nobody said
  std::vector<std::string> models = {};  // names of the models that it may use; empty: all
  bool admin = false;                    // opens the routes that change the server
  double requests_per_minute = 0;        // for answers of a model; 0: any number
  double tokens_per_minute = 0;          // prompts' and answers'; 0: any number
  // Of requests that give none, and the lowest that they may give; nullopt: 0, and any.
  std::optional<int32_t> priority = {};

  bool limited() const { return requests_per_minute > 0 || tokens_per_minute > 0; }
  bool operator==(const ApiKey&) const = default;
};

// Whose requests share their turns with each other: the key's name, or something that stands for
// the key and does not tell it.
std::string ClientOf(const ApiKey& key);

class ApiKeys {
 public:
  ApiKeys() = default;
  // Throws Error(kInvalidArgument) for an empty key, and for one that is there twice with different
  // rights.
  explicit ApiKeys(std::vector<ApiKey> keys);

  // Nobody is asked for one.
  bool empty() const { return keys_.empty(); }
  // One of them has a rate.
  bool any_limited() const { return any_limited_; }
  // Null: it is none of them. The time taken depends on the length of what is given, not on how
  // much of a key is right nor on which key it is.
  const ApiKey* Find(std::string_view given) const;

 private:
  std::vector<ApiKey> keys_;
  bool any_limited_ = false;
};

// A file of keys. A line is a key, or a JSON object: {"key": "...", "name": "...", "models": [...],
// "admin": true, "requests_per_minute": 60, "tokens_per_minute": 100000, "priority": 0}, of which
// all but the key may be left out. Empty lines and those that begin with # say nothing. Throws
// Error(kInvalidArgument) with the number of the line; no message repeats a key, nor anything else
// of the file but the names of unknown members.
std::vector<ApiKey> ParseApiKeyFile(std::string_view text, std::string_view file);

// `given`, and those of `file` unless that is empty. Throws Error: as above, or when the file
// cannot be read or holds no key.
ApiKeys LoadApiKeys(const std::vector<std::string>& given, const std::filesystem::path& file);

}  // namespace moesaic
