#include "serving/text/jinja/object.h"

#include <algorithm>

#include "serving/text/jinja/interpreter.h"
#include "serving/text/jinja/macro.h"
#include "serving/text/jinja/raise.h"

namespace moesaic::jinja {

Value Object::Call(Interpreter&, CallArguments&) {
  Raise("a value of type '{}' cannot be called", type_name());
}

MethodObject::MethodObject(std::string_view name, Value self, BuiltinMethod method)
    : name_(name), self_(std::move(self)), method_(method) {
  if (depth() > kMaxValueDepth) {
    Raise("a value is nested more than {} levels deep", kMaxValueDepth);
  }
}

std::string NamespaceObject::Repr() const {
  // The attributes are left out: one of them can be the namespace itself.
  return "<Namespace>";
}

Value* NamespaceObject::Find(std::string_view name) {
  budget_.Charge(attributes_.size() / 16);
  for (auto& [key, value] : attributes_) {
    if (key.size() != name.size()) continue;
    budget_.Charge(name.size() / 64);
    if (key == name) return &value;
  }
  return nullptr;
}

std::optional<Value> NamespaceObject::Attribute(std::string_view name) {
  const Value* value = Find(name);
  return value != nullptr ? std::make_optional(*value) : std::nullopt;
}

void NamespaceObject::Set(std::string_view name, Value value) {
  if (Value* old = Find(name)) {
    *old = std::move(value);
    return;
  }
  budget_.ChargeBytes(name.size() + sizeof(Value));
  attributes_.emplace_back(std::string(name), std::move(value));
}

std::optional<Value> MacroObject::Attribute(std::string_view name) {
  if (name == "name") return Value::String(name_);
  if (name == "arguments") {
    std::vector<Value> names;
    for (const Parameter& parameter : definition_.parameters) {
      names.push_back(Value::String(parameter.name));
    }
    return Value::FromList(std::move(names), ListKind::kTuple);
  }
  if (name == "catch_kwargs") return Value::Bool(definition_.uses_kwargs);
  if (name == "catch_varargs") return Value::Bool(definition_.uses_varargs);
  if (name == "caller") return Value::Bool(definition_.uses_caller);
  return std::nullopt;
}

BoundArguments::BoundArguments(std::string_view function, CallArguments& arguments,
                               std::initializer_list<std::string_view> names)
    : function_(function), names_(names.begin(), names.end()), values_(names.size()) {
  if (arguments.positional.size() > names_.size()) {
    Raise("{}() takes at most {} arguments, {} were given", function_, names_.size(),
          arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = arguments.positional[i];
  for (auto& [name, value] : arguments.keywords) {
    const auto it = std::find(names_.begin(), names_.end(), name);
    if (it == names_.end()) Raise("{}() has no argument '{}'", function_, name);
    auto& slot = values_[static_cast<size_t>(it - names_.begin())];
    if (slot) Raise("{}() got the argument '{}' twice", function_, name);
    slot = value;
  }
}

const Value& BoundArguments::Required(size_t i) const {
  if (!Has(i)) Raise("{}() misses its argument '{}'", function_, names_[i]);
  return *values_[i];
}

Integer BoundArguments::GetInteger(size_t i, Integer otherwise) const {
  if (!Has(i)) return otherwise;
  if (values_[i]->IsUndefined()) Raise("{}", values_[i]->UndefinedMessage());
  if (!values_[i]->IsIntegral()) {
    Raise("{}(): '{}' has to be an integer, not '{}'", function_, names_[i],
          values_[i]->TypeName());
  }
  return values_[i]->AsInteger();
}

const MarkedText& BoundArguments::Text(size_t i) const {
  const Value& value = Required(i);
  if (value.IsUndefined()) Raise("{}", value.UndefinedMessage());
  if (!value.IsString()) {
    Raise("{}(): '{}' has to be a string, not '{}'", function_, names_[i], value.TypeName());
  }
  return value.text();
}

}  // namespace moesaic::jinja
