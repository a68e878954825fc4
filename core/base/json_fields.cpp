#include "core/base/json_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace moesaic {
namespace {

using nlohmann::json;

// What the project reads needs about ten levels; readers recurse into sequences of components.
constexpr int kMaxDepth = 64;

// The deepest nesting of brackets outside strings, for text that may be no JSON at all.
int NestingDepth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > deepest) deepest = depth;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

// A value as it is shown in a message: short, whatever the file holds.
std::string Shown(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  constexpr size_t kMostShown = 80;
  if (text.size() > kMostShown) text = text.substr(0, kMostShown) + "...";
  return text;
}

// The value at a key, or with an empty one that of `fields` itself.
[[noreturn]] void FailExpecting(const JsonFields& fields, std::string_view key, const json& value,
                                std::string_view expected) {
  fields.FailAt(key, fmt::format("is {}, expected {}", Shown(value), expected));
}

int64_t CheckedInt(const JsonFields& fields, std::string_view key, const json& value, int64_t least,
                   int64_t most) {
  // An unsigned value above INT64_MAX would wrap; it is out of every range anyway.
  const bool too_large =
      value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (value.is_number_integer() && !too_large) {
    const int64_t number = value.get<int64_t>();
    if (number >= least && number <= most) return number;
  }
  FailExpecting(fields, key, value, fmt::format("an integer from {} to {}", least, most));
}

double CheckedNumber(const JsonFields& fields, std::string_view key, const json& value,
                     double least, double most) {
  if (value.is_number()) {
    const double number = value.get<double>();
    if (std::isfinite(number) && number >= least && number <= most) return number;
  }
  FailExpecting(fields, key, value, fmt::format("a number from {} to {}", least, most));
}

bool CheckedBool(const JsonFields& fields, std::string_view key, const json& value) {
  if (!value.is_boolean()) FailExpecting(fields, key, value, "true or false");
  return value.get<bool>();
}

const std::string& CheckedString(const JsonFields& fields, std::string_view key,
                                 const json& value) {
  if (!value.is_string()) FailExpecting(fields, key, value, "a string");
  return value.get_ref<const std::string&>();
}

}  // namespace

json ParseJsonDocument(std::string_view text, std::string_view file) {
  if (NestingDepth(text) > kMaxDepth) {
    Fail(ErrorKind::kCorrupt, "{}: the JSON is nested more than {} deep", file, kMaxDepth);
  }
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    Fail(ErrorKind::kCorrupt, "{}: is not valid JSON: {:.300}", file, error.what());
  }
}

json ParseJsonObject(std::string_view text, std::string_view file) {
  json value = ParseJsonDocument(text, file);
  if (!value.is_object()) {
    Fail(ErrorKind::kCorrupt, "{}: expected a JSON object, found {}", file, Shown(value));
  }
  return value;
}

JsonFields::JsonFields(const json& value, std::string_view file, std::string path)
    : value_(&value), file_(file), path_(std::move(path)) {}

// --- the members of an object

const json* JsonFields::Find(std::string_view key) const {
  RequireObject();
  const auto it = value_->find(key);
  return it == value_->end() ? nullptr : &*it;
}

bool JsonFields::Absent(std::string_view key) const {
  const json* value = Find(key);
  return value == nullptr || value->is_null();
}

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
  return value == nullptr ? fallback : CheckedBool(*this, key, *value);
}

std::string JsonFields::String(std::string_view key, std::string_view fallback) const {
  const json* value = Find(key);
  return value == nullptr ? std::string(fallback) : CheckedString(*this, key, *value);
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

std::optional<bool> JsonFields::OptionalBool(std::string_view key) const {
  if (Absent(key)) return std::nullopt;
  return CheckedBool(*this, key, *Find(key));
}

std::optional<std::string> JsonFields::OptionalString(std::string_view key) const {
  if (Absent(key)) return std::nullopt;
  return CheckedString(*this, key, *Find(key));
}

const json& JsonFields::Object(std::string_view key) const {
  const json* value = Find(key);
  if (value == nullptr || !value->is_object()) FailAt(key, "must be an object");
  return *value;
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

// --- places within

void JsonFields::RequireObject() const {
  if (!value_->is_object()) FailExpecting(*this, "", *value_, "an object");
}

std::optional<JsonFields> JsonFields::Member(std::string_view key) const {
  if (Absent(key)) return std::nullopt;
  return JsonFields(*Find(key), file_, fmt::format("{}{}.", path_, key));
}

JsonFields JsonFields::At(std::string_view key) const {
  std::optional<JsonFields> found = Member(key);
  if (!found) FailAt(key, "is missing");
  return *std::move(found);
}

std::vector<JsonFields> JsonFields::Elements(size_t most) const {
  if (!value_->is_array()) FailExpecting(*this, "", *value_, "a list");
  if (value_->size() > most) {
    Refuse(fmt::format("has {} items, expected at most {}", value_->size(), most));
  }
  std::vector<JsonFields> elements;
  elements.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) elements.push_back(Element(i));
  return elements;
}

JsonFields JsonFields::Element(size_t index) const {
  return JsonFields((*value_)[index], file_, fmt::format("{}[{}].", Name(), index));
}

// --- the value of this place

const std::string& JsonFields::String() const { return CheckedString(*this, "", *value_); }

bool JsonFields::Bool() const { return CheckedBool(*this, "", *value_); }

int64_t JsonFields::Int(int64_t least, int64_t most) const {
  return CheckedInt(*this, "", *value_, least, most);
}

void JsonFields::Refuse(std::string_view problem, ErrorKind kind) const {
  FailAt("", problem, kind);
}

std::string JsonFields::Where(std::string_view key) const {
  if (!key.empty()) return fmt::format("{}: {}{}", file_, path_, key);
  return path_.empty() ? std::string(file_) : fmt::format("{}: {}", file_, Name());
}

std::string_view JsonFields::Name() const {
  return std::string_view(path_).substr(0, path_.empty() ? 0 : path_.size() - 1);
}

}  // namespace moesaic
