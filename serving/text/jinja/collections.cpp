#include "serving/text/jinja/collections.h"

#include <algorithm>
#include <charconv>

#include "serving/text/jinja/builtins.h"
#include "serving/text/jinja/format.h"
#include "serving/text/jinja/raise.h"
#include "serving/text/unicode.h"

namespace moesaic::jinja {
namespace {

Value NoAttribute(const Value& object, std::string_view name) {
  return Value::UndefinedBecause(
      fmt::format("'{} object' has no attribute '{}'", object.TypeName(), name));
}

// items[key] of a list or a string, which has `count` elements; nullopt when out of range.
std::optional<size_t> ElementIndex(const Value& key, size_t count) {
  if (!key.IsIntegral()) return std::nullopt;
  Integer index = key.AsInteger();
  if (index < 0) index += static_cast<Integer>(count);
  if (index < 0 || index >= static_cast<Integer>(count)) return std::nullopt;
  return static_cast<size_t>(index);
}

std::optional<Value> OwnItem(Interpreter& interpreter, const Value& object, const Value& key) {
  Budget& budget = interpreter.budget();
  if (object.IsDict()) {
    const Dict& dict = object.dict();
    const Value* value = key.IsString() ? dict.Find(key.bytes(), budget) : dict.Find(key, budget);
    if (value != nullptr) return *value;
  } else if (object.IsList()) {
    const List& list = object.list();
    const bool indexable = list.kind == ListKind::kList || list.kind == ListKind::kTuple ||
                           list.kind == ListKind::kRange;
    const auto index = ElementIndex(key, list.items.size());
    if (indexable && index) return list.items[*index];
  } else if (object.IsString()) {
    const MarkedText& text = object.text();
    budget.Charge(text.size_bytes() / 16);
    const auto index = ElementIndex(key, CountCharacters(text.bytes()));
    if (index) {
      const size_t begin = CharacterOffset(text.bytes(), *index);
      return interpreter.NewString(
          text.Slice(begin, begin + DecodeAt(text.bytes(), begin).length_bytes));
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Value> OwnAttribute(const Value& object, std::string_view name) {
  if (object.IsObject()) return object.object().Attribute(name);
  if (object.IsList() && object.list().is_group && (name == "grouper" || name == "list")) {
    return object.list().items[name == "grouper" ? 0 : 1];
  }
  if (IsForbiddenMethod(object, name)) {
    return Value::UndefinedBecause(
        fmt::format("'{}' would change a value of type '{}', which templates may not do", name,
                    object.TypeName()));
  }
  const MethodEntry* method = object.IsString() ? FindStringMethod(name)
                              : object.IsList() || object.IsDict()
                                  ? FindCollectionMethod(object, name)
                                  : nullptr;
  if (method == nullptr) return std::nullopt;
  return Value::FromObject(std::make_shared<MethodObject>(method->name, object, method->method));
}

void CheckHashable(const Value& key, Budget& budget) {
  budget.Charge(1);
  if (key.IsDict() || (key.IsList() && key.list().kind != ListKind::kTuple &&
                       key.list().kind != ListKind::kRange)) {
    Raise("a value of type '{}' cannot be the key of a dict", key.TypeName());
  }
  if (!key.IsList()) return;
  for (const Value& item : key.list().items) CheckHashable(item, budget);
}

void SetEntry(std::vector<std::pair<Value, Value>>& entries, Value key, Value value,
              Budget& budget) {
  CheckHashable(key, budget);
  for (auto& [name, old] : entries) {
    if (Equal(name, key, budget)) {
      old = std::move(value);
      return;
    }
  }
  entries.emplace_back(std::move(key), std::move(value));
}

Value NewDict(std::vector<std::pair<Value, Value>> entries, Budget& budget) {
  budget.ChargeBytes(sizeof(Dict) + entries.size() * sizeof(entries[0]));
  return Value::FromDict(std::move(entries));
}

Value Interpreter::Attribute(const Value& object, std::string_view name) {
  if (object.IsUndefined()) Raise("{}", object.UndefinedMessage());
  if (std::optional<Value> own = OwnAttribute(object, name)) return *own;
  if (object.IsDict()) {
    if (const Value* value = object.dict().Find(name, budget_)) return *value;
  }
  return NoAttribute(object, name);
}

Value Interpreter::Item(const Value& object, const Value& key) {
  if (object.IsUndefined()) Raise("{}", object.UndefinedMessage());
  if (std::optional<Value> item = OwnItem(*this, object, key)) return *item;
  if (key.IsString()) {
    if (std::optional<Value> own = OwnAttribute(object, key.bytes())) return *own;
  }
  if (key.IsUndefined()) return NoAttribute(object, "an undefined value");
  MarkedText name;
  AppendRepr(key, budget_, name);
  return Value::UndefinedBecause(
      fmt::format("'{} object' has no element {}", object.TypeName(), name.bytes()));
}

Value AttributePath(Interpreter& interpreter, const Value& object, const Value& path) {
  if (!path.IsString()) return interpreter.Item(object, path);
  Value result = object;
  const std::string& names = path.bytes();
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find('.', begin), names.size());
    const std::string_view part = std::string_view(names).substr(begin, end - begin);
    interpreter.budget().Charge(1 + part.size() / 64);
    int64_t index = 0;
    const bool digits = !part.empty() && std::all_of(part.begin(), part.end(),
                                                     [](char c) { return c >= '0' && c <= '9'; });
    if (digits &&
        std::from_chars(part.data(), part.data() + part.size(), index).ec == std::errc()) {
      result = interpreter.Item(result, Value::Int(index));
    } else {
      result = interpreter.Item(result, Value::String(part));
    }
    begin = end + 1;
  }
  return result;
}

}  // namespace moesaic::jinja
