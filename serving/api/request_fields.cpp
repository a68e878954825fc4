#include "serving/api/request_fields.h"

#include <cmath>
#include <limits>

namespace moesaic {

std::string_view JsonTypeName(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    default:
      return "a number";
  }
}

// Clients written in languages with one number type send 16.0 for 16.
bool IsInteger(const Json& value) {
  if (value.is_number_integer()) return true;
  if (!value.is_number_float()) return false;
  const double number = value.get<double>();
  return std::isfinite(number) && number == std::floor(number) && std::abs(number) < 0x1p53;
}

std::vector<int32_t> ReadTokenIds(const Json& array, std::string_view param) {
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (const Json& item : array) {
    // A number above int64's range is stored unsigned and would wrap in get<int64_t>.
    const bool fits = item.is_number_integer() &&
                      (!item.is_number_unsigned() ||
                       item.get<uint64_t>() <= std::numeric_limits<int32_t>::max()) &&
                      item.get<int64_t>() >= 0 &&
                      item.get<int64_t>() <= std::numeric_limits<int32_t>::max();
    if (!fits) {
      throw BadParam(param, "{} must hold token ids (integers from 0); item {} is {}.", param,
                     ids.size(), Excerpt(DumpJson(item), 40));
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

namespace {

ApiError BodyIsNoObject(std::string_view type_name) {
  return ApiError(400, "invalid_request_error",
                  fmt::format("The request body must be a JSON object, it is {}.", type_name), {},
                  "invalid_json");
}

}  // namespace

RequestFields::RequestFields(const Json& object, std::string prefix)
    : object_(&object), prefix_(std::move(prefix)) {
  if (object.is_object()) return;
  if (prefix_.empty()) throw BodyIsNoObject(JsonTypeName(object));
  const std::string name = prefix_.substr(0, prefix_.size() - 1);
  throw BadParam(name, "{} must be an object, it is {}.", name, JsonTypeName(object));
}

RequestFields::RequestFields(const JsonDocument& document) : document_(&document) {
  if (!document.is_object()) throw BodyIsNoObject(document.type_name());
}

const Json* RequestFields::Find(std::string_view name) {
  asked_.emplace(name);
  const Json* value = nullptr;
  if (object_ != nullptr) {
    const auto found = object_->find(std::string(name));
    if (found != object_->end()) value = &*found;
  } else if (const auto built = built_.find(name); built != built_.end()) {
    value = &built->second;
  } else if (const size_t member = document_->FindMember(name); member < document_->num_members()) {
    value = &built_.emplace(name, document_->BuildMember(member)).first->second;
  }
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::optional<bool> RequestFields::Bool(std::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    throw BadParam(Name(name), "{} must be true or false, it is {}.", Name(name),
                   JsonTypeName(*value));
  }
  return value->get<bool>();
}

std::optional<int64_t> RequestFields::Int(std::string_view name, int64_t min, int64_t max) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!IsInteger(*value)) {
    throw BadParam(
        Name(name), "{} must be an integer, it is {}.", Name(name),
        value->is_number() ? Excerpt(DumpJson(*value), 40) : std::string(JsonTypeName(*value)));
  }
  const bool too_big =
      value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = too_big ? INT64_MAX : value->get<int64_t>();
  if (too_big || number < min || number > max) {
    throw BadParam(Name(name), "{} must be between {} and {}, it is {}.", Name(name), min, max,
                   DumpJson(*value));
  }
  return number;
}

std::optional<double> RequestFields::Number(std::string_view name, double min, double max) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    throw BadParam(Name(name), "{} must be a number, it is {}.", Name(name), JsonTypeName(*value));
  }
  const double number = value->get<double>();
  if (!(number >= min && number <= max)) {
    throw BadParam(Name(name), "{} must be between {} and {}, it is {}.", Name(name), min, max,
                   DumpJson(*value));
  }
  return number;
}

std::optional<std::string> RequestFields::String(std::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    throw BadParam(Name(name), "{} must be a string, it is {}.", Name(name), JsonTypeName(*value));
  }
  return value->get<std::string>();
}

std::string RequestFields::RequiredString(std::string_view name) {
  auto text = String(name);
  if (!text) throw BadParam(Name(name), "{} is missing.", Name(name));
  return *std::move(text);
}

std::optional<std::vector<int32_t>> RequestFields::TokenIds(std::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) {
    throw BadParam(Name(name), "{} must be an array of token ids, it is {}.", Name(name),
                   JsonTypeName(*value));
  }
  return ReadTokenIds(*value, Name(name));
}

std::vector<std::string> RequestFields::UnknownNames(size_t max) const {
  std::vector<std::string> names;
  const auto add = [&](const std::string& key) {
    if (names.size() < max && asked_.find(key) == asked_.end()) names.push_back(prefix_ + key);
  };
  if (object_ != nullptr) {
    for (const auto& item : object_->items()) add(item.key());
  } else {
    for (size_t i = 0; i < document_->num_members(); ++i) add(std::string(document_->Key(i)));
  }
  return names;
}

}  // namespace moesaic
