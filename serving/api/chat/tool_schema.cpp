#include "serving/api/chat/tool_schema.h"

#include <algorithm>

namespace moesaic {
namespace {

constexpr int kMaxSchemaDepth = 8;  // of references and alternatives

const Json* Member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

// Which kinds of values a schema allows, as far as that decides how a value is read.
struct Kinds {
  bool text = false;
  bool null = false;
  bool other = false;
  bool unknown = false;
};

void AddTypeName(const Json& name, Kinds& kinds) {
  if (!name.is_string()) {
    kinds.unknown = true;
  } else if (name == Json("string")) {
    kinds.text = true;
  } else if (name == Json("null")) {
    kinds.null = true;
  } else {
    kinds.other = true;
  }
}

void AddValue(const Json& value, Kinds& kinds) {
  if (value.is_string()) {
    kinds.text = true;
  } else if (value.is_null()) {
    kinds.null = true;
  } else {
    kinds.other = true;
  }
}

// "#/$defs/NAME" of the schema that `root` is.
const Json* Resolve(const Json& root, const Json& reference) {
  if (!reference.is_string()) return nullptr;
  const std::string& path = reference.get_ref<const std::string&>();
  for (const char* place : {"$defs", "definitions"}) {
    const std::string prefix = std::string("#/") + place + "/";
    const Json* definitions = Member(root, place);
    if (path.starts_with(prefix) && definitions != nullptr) {
      return Member(*definitions, path.substr(prefix.size()).c_str());
    }
  }
  return nullptr;
}

void AddKinds(const Json& root, const Json& schema, int depth, Kinds& kinds) {
  if (depth > kMaxSchemaDepth) {
    kinds.unknown = true;
    return;
  }
  if (const Json* reference = Member(schema, "$ref")) {
    const Json* target = Resolve(root, *reference);
    if (target == nullptr) {
      kinds.unknown = true;
    } else {
      AddKinds(root, *target, depth + 1, kinds);
    }
  } else if (const Json* type = Member(schema, "type")) {
    if (type->is_array() && !type->empty()) {
      for (const Json& name : *type) AddTypeName(name, kinds);
    } else {
      AddTypeName(*type, kinds);
    }
  } else if (const Json* values = Member(schema, "enum"); values != nullptr && values->is_array()) {
    for (const Json& value : *values) AddValue(value, kinds);
  } else if (const Json* value = Member(schema, "const")) {
    AddValue(*value, kinds);
  } else {
    for (const char* name : {"anyOf", "oneOf", "allOf"}) {
      const Json* parts = Member(schema, name);
      if (parts == nullptr || !parts->is_array() || parts->empty()) continue;
      for (const Json& part : *parts) AddKinds(root, part, depth + 1, kinds);
      return;
    }
    const bool is_object = Member(schema, "properties") != nullptr;
    const bool is_array = Member(schema, "items") != nullptr;
    (is_object || is_array ? kinds.other : kinds.unknown) = true;
  }
}

ParameterType TypeOfSchema(const Json& root, const Json& schema) {
  Kinds kinds;
  AddKinds(root, schema, 0, kinds);
  if (kinds.unknown || (kinds.text && kinds.other)) return ParameterType::kAny;
  if (kinds.text) return kinds.null ? ParameterType::kNullableText : ParameterType::kText;
  return kinds.other || kinds.null ? ParameterType::kJson : ParameterType::kAny;
}

}  // namespace

ToolSchemas::ToolSchemas(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    const Json* function = Member(tool, "function");
    const Json* name = function == nullptr ? nullptr : Member(*function, "name");
    if (name == nullptr || !name->is_string()) continue;
    Parameters& parameters = tools_[name->get<std::string>()];
    const Json* schema = Member(*function, "parameters");
    if (schema == nullptr) continue;
    if (const Json* others = Member(*schema, "additionalProperties")) {
      parameters.others = TypeOfSchema(*schema, *others);
    }
    const Json* properties = Member(*schema, "properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [parameter, type] : properties->items()) {
      parameters.named[parameter] = TypeOfSchema(*schema, type);
    }
  }
}

ParameterType ToolSchemas::TypeOf(std::string_view tool, std::string_view parameter) const {
  const auto found = tools_.find(tool);
  if (found == tools_.end()) return ParameterType::kAny;
  const auto type = found->second.named.find(parameter);
  return type == found->second.named.end() ? found->second.others : type->second;
}

}  // namespace moesaic
