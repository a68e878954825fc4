// Methods of lists, tuples and dicts, as far as the sandbox lets templates call them.

#include <algorithm>
#include <iterator>

#include "serving/text/jinja/builtins.h"
#include "serving/text/jinja/interpreter.h"
#include "serving/text/jinja/raise.h"

namespace moesaic::jinja {
namespace {

Value ListCount(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("count", arguments, {"value"});
  Integer count = 0;
  for (const Value& item : self.list().items) {
    count += Equal(item, bound.Required(0), in.budget()) ? 1 : 0;
  }
  return Value::Int(count);
}

Value ListIndex(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("index", arguments, {"value", "start", "stop"});
  const auto& items = self.list().items;
  const auto count = static_cast<Integer>(items.size());
  const auto resolve = [count](Integer index) {
    return std::clamp<Integer>(index < 0 ? index + count : index, 0, count);
  };
  const Integer stop = resolve(bound.GetInteger(2, count));
  for (Integer i = resolve(bound.GetInteger(1, 0)); i < stop; ++i) {
    if (Equal(items[static_cast<size_t>(i)], bound.Required(0), in.budget())) return Value::Int(i);
  }
  Raise("index(): the value is not in the list");
}

Value CopyMethod(Interpreter&, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("copy", arguments, {});
  return self;  // values do not change, so the copy may be the same
}

Value DictGet(Interpreter& in, const Value& self, CallArguments& arguments) {
  if (!arguments.keywords.empty()) Raise("get() takes no keyword arguments");
  const BoundArguments bound("get", arguments, {"key", "default"});
  const Value* value = self.dict().Find(bound.Required(0), in.budget());
  return value != nullptr ? *value : bound.Get(1, None{});
}

enum class Part { kKeys, kValues, kItems };

template <Part kPart>
Value DictPart(Interpreter& in, const Value& self, CallArguments& arguments) {
  const BoundArguments bound("keys, values, items", arguments, {});
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict().entries) {
    if (kPart == Part::kItems) {
      items.push_back(in.NewList({key, value}, ListKind::kTuple));
    } else {
      items.push_back(kPart == Part::kKeys ? key : value);
    }
  }
  return in.NewList(std::move(items), kPart == Part::kKeys     ? ListKind::kDictKeys
                                      : kPart == Part::kValues ? ListKind::kDictValues
                                                               : ListKind::kDictItems);
}

constexpr MethodEntry kListMethods[] = {
    {"count", ListCount},
    {"index", ListIndex},
    {"copy", CopyMethod},
};

constexpr MethodEntry kDictMethods[] = {
    {"get", DictGet},
    {"items", DictPart<Part::kItems>},
    {"keys", DictPart<Part::kKeys>},
    {"values", DictPart<Part::kValues>},
    {"copy", CopyMethod},
};

constexpr std::string_view kForbiddenOnLists[] = {"append", "clear",  "extend",  "insert",
                                                  "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kForbiddenOnDicts[] = {"clear", "pop", "popitem", "setdefault",
                                                  "update"};

template <size_t N>
bool Has(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

template <size_t N>
const MethodEntry* Find(const MethodEntry (&methods)[N], std::string_view name) {
  const auto* it = std::find_if(std::begin(methods), std::end(methods),
                                [name](const MethodEntry& entry) { return entry.name == name; });
  return it == std::end(methods) ? nullptr : it;
}

}  // namespace

const MethodEntry* FindCollectionMethod(const Value& self, std::string_view name) {
  if (self.IsDict()) return Find(kDictMethods, name);
  const ListKind kind = self.list().kind;
  if (kind == ListKind::kList) return Find(kListMethods, name);
  const bool counts = kind == ListKind::kTuple || kind == ListKind::kRange;
  return counts && name != "copy" ? Find(kListMethods, name) : nullptr;
}

bool IsForbiddenMethod(const Value& self, std::string_view name) {
  if (self.IsDict()) return Has(kForbiddenOnDicts, name);
  return self.IsList() && self.list().kind == ListKind::kList && Has(kForbiddenOnLists, name);
}

}  // namespace moesaic::jinja
