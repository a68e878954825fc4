// JsonNode: a place in a parsed JSON document that knows its path, so that every complaint names
// file, path and what was expected ("tokenizer.json: model.merges[17]: ...").
//
// A view: the document must outlive it. For tables of many entries read `value()` directly and
// build a node only to complain.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace moesaic {

class JsonNode {
 public:
  // `file` names the document in messages and must outlive the node.
  JsonNode(const nlohmann::json& value, std::string path, const std::string& file)
      : value_(&value), path_(std::move(path)), file_(&file) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  // "file: path", for messages made elsewhere.
  std::string where() const;
  [[noreturn]] void Reject(ErrorKind kind, std::string_view problem) const;

  bool IsNull() const { return value_->is_null(); }
  // The member, or nothing when it is absent or null. This node must be an object.
  std::optional<JsonNode> Find(const std::string& key) const;
  JsonNode At(const std::string& key) const;  // complains when Find has nothing
  JsonNode Element(size_t index) const;       // of an array; index in range
  std::vector<JsonNode> Elements() const;     // complains unless an array

  const std::string& String() const;
  bool Bool() const;
  int64_t Integer(int64_t min, int64_t max) const;

  // Members with a default for absent or null.
  bool BoolOr(const std::string& key, bool fallback) const;
  std::string StringOr(const std::string& key, std::string_view fallback) const;

 private:
  void RequireObject() const;

  const nlohmann::json* value_;
  std::string path_;
  const std::string* file_;
};

// Parses a whole document; Error(kCorrupt) names `file` and where the syntax breaks. Refuses more
// than 64 levels of nesting.
nlohmann::json ParseJsonDocument(std::string_view text, const std::string& file);

}  // namespace moesaic
