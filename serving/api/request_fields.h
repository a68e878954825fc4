// RequestFields: typed, checked access to the members of a request's JSON object. Every getter
// treats null like absent and throws ApiError (400, with the member's name as `param`) for a wrong
// type or range. It remembers which members were asked for, so that the others can be reported as
// unknown.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "serving/api/api_error.h"
#include "serving/api/json_document.h"
#include "serving/api/json_text.h"

namespace moesaic {

class RequestFields {
 public:
  // `object` must outlive this. `prefix` ("stream_options.") goes before names in messages. Throws
  // when `object` is not an object.
  explicit RequestFields(const Json& object, std::string prefix = {});
  // The same for a body as it came.
  explicit RequestFields(const JsonDocument& document);

  // nullptr when absent or null. Lives as long as this.
  const Json* Find(std::string_view name);

  std::optional<bool> Bool(std::string_view name);
  std::optional<int64_t> Int(std::string_view name, int64_t min, int64_t max);
  std::optional<double> Number(std::string_view name, double min, double max);
  std::optional<std::string> String(std::string_view name);
  // Throws when it is absent or null, too.
  std::string RequiredString(std::string_view name);
  std::optional<std::vector<int32_t>> TokenIds(std::string_view name);

  std::string Name(std::string_view name) const { return prefix_ + std::string(name); }
  // Members that nobody asked for, at most `max`.
  std::vector<std::string> UnknownNames(size_t max = 16) const;

 private:
  const Json* object_ = nullptr;  // one of the two
  const JsonDocument* document_ = nullptr;
  std::map<std::string, Json, std::less<>> built_;  // of the document
  std::string prefix_;
  std::set<std::string, std::less<>> asked_;
};

// "a string", "a number", ...: for messages.
std::string_view JsonTypeName(const Json& value);
bool IsInteger(const Json& value);
// Integers of `array`, each within int32 and not negative; `param` names it in messages.
std::vector<int32_t> ReadTokenIds(const Json& array, std::string_view param);

}  // namespace moesaic
