#include "serving/text/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "serving/text/jinja/object.h"
#include "serving/text/jinja/raise.h"

namespace moesaic::jinja {
namespace {

int DepthAbove(int child_depth, int depth) {
  depth = std::max(depth, child_depth + 1);
  if (depth > kMaxValueDepth) Raise("a value is nested more than {} levels deep", kMaxValueDepth);
  return depth;
}

int DepthOf(const std::vector<Value>& items) {
  int depth = 1;
  for (const Value& item : items) depth = DepthAbove(item.depth(), depth);
  return depth;
}

Value FromJsonAt(const nlohmann::ordered_json& json, bool from_input, int level) {
  // Checked on the way down: this function recurses as deep as the document.
  if (level > kMaxValueDepth) Raise("JSON is nested more than {} levels deep", kMaxValueDepth);
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::boolean:
      return Value::Bool(json.get<bool>());
    case Type::number_integer:
      return Value::Int(json.get<int64_t>());
    case Type::number_unsigned:
      return Value::Int(json.get<uint64_t>());
    case Type::number_float:
      return Value::Float(json.get<double>());
    case Type::string:
      return Value::String(MarkedText(json.get_ref<const std::string&>(), from_input));
    case Type::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(FromJsonAt(item, from_input, level + 1));
      return Value::FromList(std::move(items));
    }
    case Type::object: {
      std::vector<std::pair<Value, Value>> entries;
      entries.reserve(json.size());
      for (const auto& [key, item] : json.items()) {
        entries.emplace_back(Value::String(MarkedText(key, from_input)),
                             FromJsonAt(item, from_input, level + 1));
      }
      return Value::FromDict(std::move(entries));
    }
    default:
      return None{};
  }
}

bool EqualLists(const List& a, const List& b, Budget& budget) {
  // A dict view equals a set in Python, never a list; two ranges compare like their elements.
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!Equal(a.items[i], b.items[i], budget)) return false;
  }
  return true;
}

bool EqualDicts(const Dict& a, const Dict& b, Budget& budget) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = b.Find(key, budget);
    if (other == nullptr || !Equal(value, *other, budget)) return false;
  }
  return true;
}

template <typename T>
int ThreeWay(const T& a, const T& b) {
  return a < b ? -1 : (b < a ? 1 : 0);
}

}  // namespace

const Value* Dict::Find(std::string_view key, Budget& budget) const {
  budget.Charge(entries.size() / 16);
  for (const auto& [name, value] : entries) {
    if (!name.IsString() || name.bytes().size() != key.size()) continue;
    budget.Charge(key.size() / 64);
    if (name.bytes() == key) return &value;
  }
  return nullptr;
}

const Value* Dict::Find(const Value& key, Budget& budget) const {
  for (const auto& [name, value] : entries) {
    if (Equal(name, key, budget)) return &value;
  }
  return nullptr;
}

Value Value::String(MarkedText text) {
  return Value(Data(std::make_shared<const MarkedText>(std::move(text))));
}

Value Value::UndefinedBecause(std::string message) {
  return Value(Data(Undefined{std::make_shared<const std::string>(std::move(message))}));
}

Value Value::FromList(std::vector<Value> items, ListKind kind) {
  auto list = std::make_shared<List>();
  list->depth = DepthOf(items);
  list->items = std::move(items);
  list->kind = kind;
  return Value(Data(std::shared_ptr<const List>(std::move(list))));
}

Value Value::FromDict(std::vector<std::pair<Value, Value>> entries) {
  auto dict = std::make_shared<Dict>();
  for (const auto& [key, value] : entries) {
    dict->depth = DepthAbove(value.depth(), DepthAbove(key.depth(), dict->depth));
  }
  dict->entries = std::move(entries);
  return Value(Data(std::shared_ptr<const Dict>(std::move(dict))));
}

Value Value::FromIterator(std::vector<Value> items) {
  auto iterator = std::make_shared<Iterator>();
  iterator->depth = DepthOf(items);
  iterator->items = std::move(items);
  return Value(Data(std::move(iterator)));
}

Value Value::FromJson(const nlohmann::ordered_json& json, bool from_input) {
  return FromJsonAt(json, from_input, 1);
}

bool Value::IsCallable() const { return IsObject() && object().callable(); }

Integer Value::AsInteger() const { return IsBool() ? Integer{AsBool()} : std::get<Integer>(data_); }

double Value::AsNumber() const { return IsFloat() ? AsFloat() : static_cast<double>(AsInteger()); }

std::string Value::UndefinedMessage() const {
  const auto& message = std::get<Undefined>(data_).message;
  return message == nullptr ? "a value is undefined" : *message;
}

bool Value::Truthy() const {
  if (IsUndefined() || IsNone()) return false;
  if (IsBool()) return AsBool();
  if (IsInt()) return AsInteger() != 0;
  if (IsFloat()) return AsFloat() != 0;
  if (IsString()) return !text().empty();
  if (IsList()) return !list().items.empty();
  if (IsDict()) return !dict().entries.empty();
  return true;
}

int Value::depth() const {
  if (IsList()) return list().depth;
  if (IsDict()) return dict().depth;
  if (IsIterator()) return iterator().depth;
  if (IsObject()) return object().depth();
  return 0;
}

std::string_view Value::TypeName() const {
  if (IsUndefined()) return "Undefined";
  if (IsNone()) return "NoneType";
  if (IsBool()) return "bool";
  if (IsInt()) return "int";
  if (IsFloat()) return "float";
  if (IsString()) return "str";
  if (IsDict()) return "dict";
  if (IsIterator()) return "generator";
  if (IsObject()) return object().type_name();
  switch (list().kind) {
    case ListKind::kList:
      return "list";
    case ListKind::kTuple:
      return "tuple";
    case ListKind::kRange:
      return "range";
    case ListKind::kDictKeys:
      return "dict_keys";
    case ListKind::kDictValues:
      return "dict_values";
    case ListKind::kDictItems:
      return "dict_items";
  }
  return "object";
}

bool Value::SameAs(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (IsNone()) return true;
  if (IsBool()) return AsBool() == other.AsBool();
  if (IsInt()) return AsInteger() == other.AsInteger();
  if (IsFloat()) return AsFloat() == other.AsFloat();
  if (IsString()) return &text() == &other.text() || bytes() == other.bytes();
  if (IsList()) return &list() == &other.list();
  if (IsDict()) return &dict() == &other.dict();
  if (IsIterator()) return &iterator() == &other.iterator();
  if (IsObject()) return &object() == &other.object();
  return false;
}

bool Equal(const Value& a, const Value& b, Budget& budget) {
  budget.Charge(1);
  if (a.IsNumber() && b.IsNumber()) {
    if (a.IsIntegral() && b.IsIntegral()) return a.AsInteger() == b.AsInteger();
    return a.AsNumber() == b.AsNumber();
  }
  if (a.IsString() && b.IsString()) {
    if (a.text().size_bytes() != b.text().size_bytes()) return false;
    budget.Charge(a.text().size_bytes() / 64);
    return a.bytes() == b.bytes();
  }
  if (a.IsList() && b.IsList()) return EqualLists(a.list(), b.list(), budget);
  if (a.IsDict() && b.IsDict()) return EqualDicts(a.dict(), b.dict(), budget);
  if (a.IsNone() || b.IsNone()) return a.IsNone() && b.IsNone();
  if (a.IsUndefined() || b.IsUndefined()) return a.IsUndefined() && b.IsUndefined();
  return a.SameAs(b);
}

std::optional<int> Compare(const Value& a, const Value& b, Budget& budget) {
  budget.Charge(1);
  if (a.IsNumber() && b.IsNumber()) {
    if (a.IsIntegral() && b.IsIntegral()) return ThreeWay(a.AsInteger(), b.AsInteger());
    const double x = a.AsNumber();
    const double y = b.AsNumber();
    if (std::isnan(x) || std::isnan(y)) return std::nullopt;
    return ThreeWay(x, y);
  }
  if (a.IsString() && b.IsString()) {
    budget.Charge(std::min(a.text().size_bytes(), b.text().size_bytes()) / 64);
    return ThreeWay(a.bytes(), b.bytes());  // UTF-8 orders like its code points
  }
  if (a.IsList() && b.IsList() && a.list().kind == b.list().kind &&
      (a.list().kind == ListKind::kList || a.list().kind == ListKind::kTuple)) {
    const auto& x = a.list().items;
    const auto& y = b.list().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!Equal(x[i], y[i], budget)) return Compare(x[i], y[i], budget);
    }
    return ThreeWay(x.size(), y.size());
  }
  if (a.IsUndefined()) Raise("{}", a.UndefinedMessage());
  if (b.IsUndefined()) Raise("{}", b.UndefinedMessage());
  Raise("'{}' and '{}' have no order", a.TypeName(), b.TypeName());
}

}  // namespace moesaic::jinja
