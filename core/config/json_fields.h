// JsonFields: typed, range-checked access to the keys of one JSON object of a file, with messages
// that name file, key, value and expectation. Internal to core.
//
// Refers to the JSON value; used by one thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace moesaic {

// Parses an object. Throws Error(kCorrupt) when `text` is not JSON or not an object.
nlohmann::json ParseJsonObject(std::string_view text, std::string_view file);

class JsonFields {
 public:
  // `path` prefixes key names in messages ("rope_scaling.").
  JsonFields(const nlohmann::json& object, std::string_view file, std::string path = "");

  // Null when the key is missing. A JSON null is a value.
  const nlohmann::json* Find(std::string_view key) const;
  // Missing, or a JSON null.
  bool Absent(std::string_view key) const;

  // The value, or `fallback` when the key is missing. Another type (null too) or a value outside
  // [least, most] throws Error(kCorrupt).
  int64_t Int(std::string_view key, int64_t fallback, int64_t least, int64_t most) const;
  double Number(std::string_view key, double fallback, double least, double most) const;
  bool Bool(std::string_view key, bool fallback) const;
  std::string String(std::string_view key, std::string_view fallback) const;
  // The same, for keys whose null means "none".
  std::optional<int64_t> OptionalInt(std::string_view key, std::optional<int64_t> fallback,
                                     int64_t least, int64_t most) const;
  std::optional<double> OptionalNumber(std::string_view key, double least, double most) const;
  // An object, which must be there.
  const nlohmann::json& Object(std::string_view key) const;
  // An integer or a list of integers; empty when missing or null.
  std::vector<int64_t> Ints(std::string_view key, int64_t least, int64_t most) const;

  // Throws unless "format" is `format` (kCorrupt) and "version" is `version` (kUnsupported, with
  // `advice` on what to do about a file of another one).
  void RequireFormat(std::string_view format, int64_t version, std::string_view advice) const;

  [[noreturn]] void FailAt(std::string_view key, std::string_view problem,
                           ErrorKind kind = ErrorKind::kCorrupt) const;
  std::string_view file() const { return file_; }
  // "file: path.key"
  std::string Where(std::string_view key) const;

 private:
  const nlohmann::json& object_;
  std::string_view file_;
  std::string path_;
};

}  // namespace moesaic
