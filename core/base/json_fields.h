// JsonFields: a place in a parsed JSON document of a file (an object above all) with typed,
// range-checked access, and messages that name file, place, value and expectation
// ("config.json: rope_scaling.factor: is -1, expected a number from 1 to 1000").
//
// Refers to the document and to the file's name; used by one thread. Tables of many entries are
// read from value() directly, and a place is made only to complain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace moesaic {

// Throw Error(kCorrupt) when `text` is not JSON, is nested more than 64 deep or, the second, is no
// object. `file` goes into messages.
nlohmann::json ParseJsonDocument(std::string_view text, std::string_view file);
nlohmann::json ParseJsonObject(std::string_view text, std::string_view file);

class JsonFields {
 public:
  // `path` goes before names in messages ("rope_scaling.").
  JsonFields(const nlohmann::json& value, std::string_view file, std::string path = "");

  // --- the members; all of these throw unless this is an object

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
  std::optional<bool> OptionalBool(std::string_view key) const;
  std::optional<std::string> OptionalString(std::string_view key) const;
  // An object, which must be there.
  const nlohmann::json& Object(std::string_view key) const;
  // An integer or a list of integers; empty when missing or null.
  std::vector<int64_t> Ints(std::string_view key, int64_t least, int64_t most) const;

  // Throws unless "format" is `format` (kCorrupt) and "version" is `version` (kUnsupported, with
  // `advice` on what to do about a file of another one).
  void RequireFormat(std::string_view format, int64_t version, std::string_view advice) const;

  [[noreturn]] void FailAt(std::string_view key, std::string_view problem,
                           ErrorKind kind = ErrorKind::kCorrupt) const;

  // --- places within

  // Nothing when the key is missing, or its value null.
  std::optional<JsonFields> Member(std::string_view key) const;
  JsonFields At(std::string_view key) const;  // throws when there is no such Member
  std::vector<JsonFields> Elements(size_t most = SIZE_MAX) const;  // throws unless a list
  JsonFields Element(size_t index) const;                          // of a list; index in range

  // --- the value of this place

  const nlohmann::json& value() const { return *value_; }
  const std::string& String() const;
  bool Bool() const;
  int64_t Int(int64_t least, int64_t most) const;
  [[noreturn]] void Refuse(std::string_view problem, ErrorKind kind = ErrorKind::kCorrupt) const;

  std::string_view file() const { return file_; }
  // "file: path.key", or "file: path" without a key.
  std::string Where(std::string_view key = {}) const;

 private:
  void RequireObject() const;
  std::string_view Name() const;  // path_ without its dot

  const nlohmann::json* value_;
  std::string_view file_;
  std::string path_;  // empty, or with a dot at its end
};

}  // namespace moesaic
