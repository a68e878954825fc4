#include "serving/grammar/schema_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "serving/grammar/schema_cycles.h"
#include "serving/grammar/text_limits.h"

namespace moesaic {
namespace {

using Names = std::vector<std::string_view>;

// Each says all of a value, so that nothing may stand beside it.
const Names kWhole = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
const Names kTypes = {"string", "number", "integer", "boolean", "null", "array", "object"};
const Names kOfStrings = {"minLength", "maxLength", "pattern", "format"};
const Names kOfNumbers = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                          "multipleOf"};
const Names kOfArrays = {"items", "prefixItems", "minItems", "maxItems"};
const Names kOfObjects = {"properties", "required", "additionalProperties", "minProperties",
                          "maxProperties"};
const Names kRefused = {"not",
                        "if",
                        "then",
                        "else",
                        "contains",
                        "minContains",
                        "maxContains",
                        "patternProperties",
                        "propertyNames",
                        "dependentRequired",
                        "dependentSchemas",
                        "dependencies",
                        "unevaluatedItems",
                        "unevaluatedProperties",
                        "additionalItems",
                        "$dynamicRef",
                        "$recursiveRef"};
// What xgrammar has a pattern for.
const Names kFormats = {"date", "time", "date-time", "duration", "ipv4",
                        "ipv6", "uuid", "hostname",  "uri"};

bool Has(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string Below(const std::string& pointer, std::string_view name) {
  std::string escaped;
  for (const char c : name) escaped += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return pointer + "/" + escaped;
}

template <typename... Args>
[[noreturn]] void Refuse(const std::string& pointer, fmt::format_string<Args...> format,
                         Args&&... args) {
  Fail(ErrorKind::kInvalidArgument, "{}: {}", pointer.empty() ? "the schema" : pointer,
       fmt::format(format, std::forward<Args>(args)...));
}

bool IsOfType(const Json& value, std::string_view type) {
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  return type == "integer" ? value.is_number_integer() : value.is_number();
}

class Checker {
 public:
  explicit Checker(const SchemaLimits& limits) : limits_(limits) {}

  Json Check(const Json& root) {
    if (root.dump(-1, ' ', false, Json::error_handler_t::replace).size() > limits_.max_bytes) {
      Refuse("", "it is longer than the {} bytes that a schema may have", limits_.max_bytes);
    }
    Json checked = CheckNode(root, "", 0);
    CheckSchemaCycles(nodes_);
    return checked;
  }

 private:
  Json CheckNode(const Json& node, const std::string& pointer, size_t depth) {
    if (depth > limits_.max_depth) {
      Refuse(pointer, "schemas may be nested {} deep", limits_.max_depth);
    }
    if (nodes_.size() >= limits_.max_schemas) {
      Refuse(pointer, "a schema may have {} schemas in it", limits_.max_schemas);
    }
    SchemaNode& facts = nodes_[pointer];
    if (node.is_boolean()) {
      if (!node.get<bool>()) Refuse(pointer, "false allows no value");
      return Json::object();
    }
    if (!node.is_object()) Refuse(pointer, "it must be an object or true");
    Json out = Json::object();
    for (const char* name : {"$defs", "definitions"}) {
      if (const auto found = node.find(name); found != node.end()) {
        out[name] = CheckMembers(*found, Below(pointer, name), depth);
      }
    }
    for (const auto& [name, value] : node.items()) {
      if (Has(kRefused, name)) {
        Refuse(Below(pointer, name), "{} is not supported: an output could not be held to it",
               name);
      }
    }
    const auto unique = node.find("uniqueItems");
    if (unique != node.end() && *unique != Json(false)) {
      Refuse(Below(pointer, "uniqueItems"),
             "uniqueItems is not supported: an output could not be held to it");
    }
    if (!pointer.empty() && node.contains("$id")) {
      Refuse(Below(pointer, "$id"), "$id is supported at the schema's top only");
    }
    for (const std::string_view name : kWhole) {
      if (!node.contains(name)) continue;
      CheckWhole(node, name, pointer, depth, out, facts);
      return out;
    }
    CheckTyped(node, pointer, depth, out, facts);
    return out;
  }

  Json CheckMembers(const Json& members, const std::string& pointer, size_t depth) {
    if (!members.is_object()) Refuse(pointer, "it must be an object");
    Json out = Json::object();
    for (const auto& [name, value] : members.items()) {
      out[name] = CheckNode(value, Below(pointer, name), depth + 1);
    }
    return out;
  }

  void CheckWhole(const Json& node, std::string_view name, const std::string& pointer, size_t depth,
                  Json& out, SchemaNode& facts) {
    const bool values = name == "const" || name == "enum";
    for (const auto& [other, value] : node.items()) {
      const bool constrains = Has(kWhole, other) || Has(kOfStrings, other) ||
                              Has(kOfNumbers, other) || Has(kOfArrays, other) ||
                              Has(kOfObjects, other) || other == "type";
      if (!constrains || other == name || (other == "type" && values)) continue;
      Refuse(Below(pointer, other), "{} beside {} is not supported; put it into the schemas of {}",
             other, name, name);
    }
    const Json& value = node.at(std::string(name));
    const std::string at = Below(pointer, name);
    if (name == "$ref") {
      facts.any_of.push_back(TargetOf(value, at));
      facts.refers = true;
      out["$ref"] = value;
      return;
    }
    if (values) {
      const Json list = name == "const" ? Json::array({value}) : value;
      if (!list.is_array() || list.empty()) Refuse(at, "it must be an array of values");
      CountBranches(list.size(), at);
      if (const auto type = node.find("type"); type != node.end()) {
        const std::vector<std::string> types = TypesOf(*type, Below(pointer, "type"));
        for (const Json& item : list) {
          if (std::none_of(types.begin(), types.end(),
                           [&](const std::string& t) { return IsOfType(item, t); })) {
            Refuse(at, "a value is not of the type that stands beside it");
          }
        }
      }
      out[std::string(name)] = value;
      facts.ends = true;
      return;
    }
    if (!value.is_array() || value.empty()) Refuse(at, "it must be an array of schemas");
    if (name == "allOf" && value.size() > 1) {
      Refuse(at,
             "allOf of more than one schema is not supported: an output could not be held to it");
    }
    CountBranches(value.size(), at);
    Json options = Json::array();
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string option = fmt::format("{}/{}", at, i);
      facts.any_of.push_back(option);
      options.push_back(CheckNode(value[i], option, depth + 1));
    }
    out[std::string(name)] = std::move(options);
  }

  void CheckTyped(const Json& node, const std::string& pointer, size_t depth, Json& out,
                  SchemaNode& facts) {
    std::vector<std::string> types;
    if (const auto type = node.find("type"); type != node.end()) {
      types = TypesOf(*type, Below(pointer, "type"));
      out["type"] = *type;
    } else if (const std::string implied = ImpliedType(node, pointer); !implied.empty()) {
      types = {implied};
      out["type"] = implied;
    }
    const auto is = [&types](std::string_view type) {
      return std::find(types.begin(), types.end(), type) != types.end();
    };
    if (is("string")) CheckString(node, pointer, out);
    if (is("number") || is("integer")) CheckNumber(node, pointer, is("number"), out);
    if (is("array")) CheckArray(node, pointer, depth, out, facts);
    if (is("object")) CheckObject(node, pointer, depth, out, facts);
    // What arrays and objects need does not bind the other types.
    if (types.size() != 1 || (!is("array") && !is("object"))) facts.ends = true;
  }

  // Of a schema that constrains without naming a type.
  static std::string ImpliedType(const Json& node, const std::string& pointer) {
    std::string implied;
    const auto imply = [&](const Names& names, const char* type) {
      for (const std::string_view name : names) {
        if (!node.contains(name)) continue;
        if (!implied.empty() && implied != type) {
          Refuse(Below(pointer, name), "{} without a type beside what other types have; add type",
                 name);
        }
        implied = type;
      }
    };
    imply(kOfStrings, "string");
    imply(kOfNumbers, "number");
    imply(kOfArrays, "array");
    imply(kOfObjects, "object");
    return implied;
  }

  void CheckString(const Json& node, const std::string& pointer, Json& out) {
    const bool length = node.contains("minLength") || node.contains("maxLength");
    for (const char* name : {"minLength", "maxLength"}) CopyCount(node, name, pointer, out);
    const auto text = [&](const char* name) {
      const auto found = node.find(name);
      if (found == node.end()) return std::string();
      if (!found->is_string()) Refuse(Below(pointer, name), "it must be a string");
      out[name] = *found;
      return found->get<std::string>();
    };
    const std::string pattern = text("pattern");
    const std::string format = text("format");
    try {
      CheckGrammarText(pattern);
    } catch (const Error& error) {
      Refuse(Below(pointer, "pattern"), "{}", error.what());
    }
    if (!format.empty() && !Has(kFormats, format)) {
      Refuse(Below(pointer, "format"), "this format is not supported; there are {}",
             fmt::join(kFormats, ", "));
    }
    if (!pattern.empty() && !format.empty()) {
      Refuse(Below(pointer, "pattern"), "pattern together with format is not supported");
    }
    if (length && (!pattern.empty() || !format.empty())) {
      Refuse(Below(pointer, node.contains("minLength") ? "minLength" : "maxLength"),
             "a length together with {} is not supported", pattern.empty() ? "format" : "pattern");
    }
  }

  void CheckNumber(const Json& node, const std::string& pointer, bool fractions, Json& out) {
    for (const std::string_view name : kOfNumbers) {
      const auto found = node.find(name);
      if (found == node.end()) continue;
      const std::string at = Below(pointer, name);
      if (!found->is_number()) Refuse(at, "it must be a number");
      if (name == "multipleOf" && fractions) {
        Refuse(at, "multipleOf is supported for integers only");
      }
      if (!fractions && !IsWhole(*found)) Refuse(at, "it must be a whole number of 64 bits");
      out[std::string(name)] = *found;
    }
  }

  static bool IsWhole(const Json& value) {
    if (value.is_number_unsigned()) return value.get<uint64_t>() <= INT64_MAX;
    if (value.is_number_integer()) return true;
    const double number = value.get<double>();
    return number > -9e18 && number < 9e18 &&
           number == static_cast<double>(static_cast<int64_t>(number));
  }

  void CheckArray(const Json& node, const std::string& pointer, size_t depth, Json& out,
                  SchemaNode& facts) {
    const int64_t least = CopyCount(node, "minItems", pointer, out).value_or(0);
    CopyCount(node, "maxItems", pointer, out);
    size_t first = 0;
    if (const auto prefix = node.find("prefixItems"); prefix != node.end()) {
      const std::string at = Below(pointer, "prefixItems");
      if (!prefix->is_array() || prefix->empty()) Refuse(at, "it must be an array of schemas");
      CountBranches(prefix->size(), at);
      Json items = Json::array();
      for (; first < prefix->size(); ++first) {
        const std::string item = fmt::format("{}/{}", at, first);
        items.push_back(CheckNode((*prefix)[first], item, depth + 1));
        // The grammar has all of them, whatever minItems says.
        facts.all_of.push_back(item);
      }
      out["prefixItems"] = std::move(items);
    }
    const auto items = node.find("items");
    if (items == node.end()) {
      out["items"] = first == 0;  // tuples are whole
    } else if (items->is_boolean()) {
      out["items"] = *items;
    } else {
      out["items"] = CheckNode(*items, Below(pointer, "items"), depth + 1);
      if (least > static_cast<int64_t>(first)) facts.all_of.push_back(Below(pointer, "items"));
    }
  }

  void CheckObject(const Json& node, const std::string& pointer, size_t depth, Json& out,
                   SchemaNode& facts) {
    const auto properties = node.find("properties");
    const bool named = properties != node.end() && properties->is_object() && !properties->empty();
    if (properties != node.end()) {
      out["properties"] = CheckMembers(*properties, Below(pointer, "properties"), depth);
    }
    const auto additional = node.find("additionalProperties");
    bool open = !named;
    if (additional == node.end()) {
      if (!named) out["additionalProperties"] = true;
    } else {
      open = *additional != Json(false);
      out["additionalProperties"] =
          additional->is_boolean()
              ? *additional
              : CheckNode(*additional, Below(pointer, "additionalProperties"), depth + 1);
    }
    if (const auto required = node.find("required"); required != node.end()) {
      const std::string at = Below(pointer, "required");
      if (!required->is_array()) Refuse(at, "it must be an array of names");
      for (const Json& name : *required) {
        if (!name.is_string()) Refuse(at, "it must be an array of names");
        if (!named || !properties->contains(name.get<std::string>())) {
          Refuse(at, "it names \"{}\", which properties does not have",
                 name.get<std::string>().substr(0, 40));
        }
        facts.all_of.push_back(
            Below(Below(pointer, "properties"), name.get_ref<const std::string&>()));
      }
      out["required"] = *required;
    }
    for (const char* name : {"minProperties", "maxProperties"}) {
      const auto count = CopyCount(node, name, pointer, out);
      // The same name could come twice and be counted twice.
      if (count.value_or(0) > 0 && open && std::string_view(name) == "minProperties") {
        Refuse(Below(pointer, name), "minProperties is supported with additionalProperties false");
      }
    }
  }

  std::optional<int64_t> CopyCount(const Json& node, const char* name, const std::string& pointer,
                                   Json& out) {
    const auto found = node.find(name);
    if (found == node.end()) return std::nullopt;
    if (!found->is_number_integer() || *found < 0 || *found > limits_.max_count) {
      Refuse(Below(pointer, name), "it must be a whole number from 0 to {}", limits_.max_count);
    }
    out[name] = *found;
    return found->get<int64_t>();
  }

  std::vector<std::string> TypesOf(const Json& type, const std::string& pointer) const {
    std::vector<std::string> types;
    const Json list = type.is_array() ? type : Json::array({type});
    for (const Json& item : list) {
      if (!item.is_string() || !Has(kTypes, item.get_ref<const std::string&>())) {
        Refuse(pointer, "it must be of {}", fmt::join(kTypes, ", "));
      }
      types.push_back(item.get<std::string>());
    }
    if (types.empty()) Refuse(pointer, "it must not be empty");
    return types;
  }

  // The pointer of what a $ref refers to.
  static std::string TargetOf(const Json& ref, const std::string& at) {
    const std::string text = ref.is_string() ? ref.get<std::string>() : std::string();
    if (text == "#") return "";
    if (text.rfind("#/", 0) != 0 || text.find_first_of("%~") != std::string::npos) {
      Refuse(at, "a reference must be \"#\" or begin with \"#/\", without escapes");
    }
    return text.substr(1);
  }

  void CountBranches(size_t count, const std::string& pointer) {
    branches_ += count;
    if (branches_ > limits_.max_branches) {
      Refuse(pointer, "a schema may have {} options and values in all", limits_.max_branches);
    }
  }

  const SchemaLimits& limits_;
  std::map<std::string, SchemaNode> nodes_;
  size_t branches_ = 0;
};

}  // namespace

Json CheckSchema(const Json& schema, const SchemaLimits& limits) {
  return Checker(limits).Check(schema);
}

}  // namespace moesaic
