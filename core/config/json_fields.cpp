#include "core/config/json_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <utility>

namespace moesaic {
namespace {

using nlohmann::json;

// A value as it is shown in a message: short, whatever the file holds.
std::string Shown(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  constexpr size_t kMostShown = 80;
  if (text.size() > kMostShown) text = text.substr(0, kMostShown) + "...";
  return text;
}

}  // namespace

json ParseJsonObject(std::string_view text, std::string_view file) {
  json value;
  try {
    value = json::parse(text);
  } catch (const json::exception& error) {
    Fail(ErrorKind::kCorrupt, "{}: is not valid JSON: {:.300}", file, error.what());
  }
  if (!value.is_object()) {
    Fail(ErrorKind::kCorrupt, "{}: expected a JSON object, found {}", file, Shown(value));
  }
  return value;
}

JsonFields::JsonFields(const json& object, std::string_view file, std::string path)
    : object_(object), file_(file), path_(std::move(path)) {}

const json* JsonFields::Find(std::string_view key) const {
  const auto it = object_.find(key);
  return it == object_.end() ? nullptr : &*it;
}

bool JsonFields::Absent(std::string_view key) const {
  const json* value = Find(key);
  return value == nullptr || value->is_null();
}

std::string JsonFields::Where(std::string_view key) const {
  return fmt::format("{}: {}{}", file_, path_, key);
}

const nlohmann::json& JsonFields::Object(std::string_view key) const {
  const nlohmann::json* value = object_.is_object() ? Find(key) : nullptr;
  if (value == nullptr || !value->is_object()) FailAt(key, "must be an object");
  return *value;
}

void JsonFields::RequireFormat(std::string_view format, int64_t version,
                               std::string_view advice) const {
  if (String("format", "") != format) FailAt("format", fmt::format("must be \"{}\"", format));
  const int64_t found = Int("version", 0, 0, INT32_MAX);
  if (found != version) {
    Fail(ErrorKind::kUnsupported, "{}: version {} is not known (this program writes {}); {}", file_,
         found, version, advice);
  }
}

void JsonFields::FailAt(std::string_view key, std::string_view problem, ErrorKind kind) const {
  Fail(kind, "{}: {}", Where(key), problem);
}

namespace {

int64_t CheckedInt(const JsonFields& fields, std::string_view key, const json& value, int64_t least,
                   int64_t most) {
  // An unsigned value above INT64_MAX would wrap; it is out of every range anyway.
  const bool too_large =
      value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (value.is_number_integer() && !too_large) {
    const int64_t number = value.get<int64_t>();
    if (number >= least && number <= most) return number;
  }
  fields.FailAt(key,
                fmt::format("is {}, expected an integer from {} to {}", Shown(value), least, most));
}

double CheckedNumber(const JsonFields& fields, std::string_view key, const json& value,
                     double least, double most) {
  if (value.is_number()) {
    const double number = value.get<double>();
    if (std::isfinite(number) && number >= least && number <= most) return number;
  }
  fields.FailAt(key,
                fmt::format("is {}, expected a number from {} to {}", Shown(value), least, most));
}

}  // namespace

int64_t JsonFields::Int(std::string_view key, int64_t fallback, int64_t least, int64_t most) const {
  const json* value = Find(key);
  return value == nullptr ? fallback : CheckedInt(*this, key, *value, least, most);
}

double JsonFields::Number(std::string_view key, double fallback, double least, double most) const {
  const json* value = Find(key);
  return value == nullptr ? fallback : CheckedNumber(*this, key, *value, least, most);
}

bool JsonFields::Bool(std::string_view key, bool fallback) const {
  const json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    FailAt(key, fmt::format("is {}, expected true or false", Shown(*value)));
  }
  return value->get<bool>();
}

std::string JsonFields::String(std::string_view key, std::string_view fallback) const {
  const json* value = Find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) FailAt(key, fmt::format("is {}, expected a string", Shown(*value)));
  return value->get<std::string>();
}

std::optional<int64_t> JsonFields::OptionalInt(std::string_view key,
                                               std::optional<int64_t> fallback, int64_t least,
                                               int64_t most) const {
  const json* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->is_null()) return std::nullopt;
  return CheckedInt(*this, key, *value, least, most);
}

std::optional<double> JsonFields::OptionalNumber(std::string_view key, double least,
                                                 double most) const {
  if (Absent(key)) return std::nullopt;
  return CheckedNumber(*this, key, *Find(key), least, most);
}

std::vector<int64_t> JsonFields::Ints(std::string_view key, int64_t least, int64_t most) const {
  std::vector<int64_t> numbers;
  if (Absent(key)) return numbers;
  const json& value = *Find(key);
  if (!value.is_array()) {
    numbers.push_back(CheckedInt(*this, key, value, least, most));
    return numbers;
  }
  constexpr size_t kMostItems = 100'000;
  if (value.size() > kMostItems) FailAt(key, fmt::format("has {} items", value.size()));
  for (const json& item : value) numbers.push_back(CheckedInt(*this, key, item, least, most));
  return numbers;
}

}  // namespace moesaic
