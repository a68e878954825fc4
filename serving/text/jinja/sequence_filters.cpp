// Filters over lists, dicts and other iterables. What is a generator in Jinja is an Iterator here,
// computed at once.

#include <algorithm>
#include <iterator>
#include <numeric>

#include "serving/text/jinja/builtins.h"
#include "serving/text/jinja/collections.h"
#include "serving/text/jinja/format.h"
#include "serving/text/jinja/interpreter.h"
#include "serving/text/jinja/interpreter_guards.h"
#include "serving/text/jinja/operators.h"
#include "serving/text/jinja/raise.h"
#include "serving/text/jinja/text_ops.h"
#include "serving/text/unicode.h"

namespace moesaic::jinja {
namespace {

Value Length(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("length", arguments, {});
  if (input.IsUndefined()) return Value::Int(0);
  if (input.IsString()) {
    in.budget().Charge(input.text().size_bytes() / 16);
    return Value::Int(static_cast<Integer>(CountCharacters(input.bytes())));
  }
  if (input.IsList()) return Value::Int(static_cast<Integer>(input.list().items.size()));
  if (input.IsDict()) return Value::Int(static_cast<Integer>(input.dict().entries.size()));
  Raise("a value of type '{}' has no length", input.TypeName());
}

Value Default(Interpreter&, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("default", arguments, {"default_value", "boolean"});
  const bool replace = input.IsUndefined() || (bound.GetBool(1, false) && !input.Truthy());
  return replace ? bound.Get(0, Value::String("")) : input;
}

Value First(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("first", arguments, {});
  if (input.IsString() && !input.text().empty()) {
    return in.NewString(input.text().Slice(0, DecodeAt(input.bytes(), 0).length_bytes));
  }
  ItemCursor items(in, input);
  std::optional<Value> item = items.Next();
  return item ? *item : Value::UndefinedBecause("there is no first item, the sequence is empty");
}

Value Last(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("last", arguments, {});
  if (input.IsIterator()) Raise("a generator has no last item; make it a list first");
  const std::vector<Value> items = in.Elements(input);
  return items.empty() ? Value::UndefinedBecause("there is no last item, the sequence is empty")
                       : items.back();
}

Value ListFilter(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("list", arguments, {});
  return in.NewList(in.Elements(input));
}

Value Reverse(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("reverse", arguments, {});
  std::vector<Value> items = in.Elements(input);
  std::reverse(items.begin(), items.end());
  if (input.IsIterator()) return in.NewList(std::move(items));
  if (!input.IsString()) return in.NewIterator(std::move(items));
  MarkedText text;
  for (const Value& item : items) text.Append(item.text());
  return in.NewString(std::move(text));
}

Value Join(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("join", arguments, {"d", "attribute"});
  const MarkedText separator = ToText(bound.Get(0, Value::String("")), in.budget());
  const bool by_attribute = bound.Has(1) && !bound.Required(1).IsNone();
  MarkedText text;
  bool first = true;
  for (const Value& item : in.Elements(input)) {
    in.budget().ChargeBytes(separator.memory_bytes());
    if (!first) text.Append(separator);
    first = false;
    AppendStr(by_attribute ? AttributePath(in, item, bound.Required(1)) : item, in.budget(), text);
  }
  return in.NewString(std::move(text));
}

Value Map(Interpreter& in, const Value& input, CallArguments& arguments) {
  std::vector<Value> result;
  if (arguments.positional.empty()) {
    const BoundArguments bound("map", arguments, {"attribute", "default"});
    const Value& path = bound.Required(0);
    const Value otherwise = bound.Get(1, None{});
    if (!input.Truthy()) return in.NewIterator({});
    for (const Value& item : in.Elements(input)) {
      Value value = AttributePath(in, item, path);
      result.push_back(value.IsUndefined() && !otherwise.IsNone() ? otherwise : value);
    }
    return in.NewIterator(std::move(result));
  }
  const Value name = arguments.positional[0];
  if (!name.IsString()) Raise("map takes the name of a filter");
  arguments.positional.erase(arguments.positional.begin());
  if (!input.Truthy()) return in.NewIterator({});
  for (const Value& item : in.Elements(input)) {
    CallArguments copy = arguments;
    in.budget().Charge(1 + copy.positional.size() + copy.keywords.size());
    result.push_back(in.CallFilter(name.bytes(), item, copy));
  }
  return in.NewIterator(std::move(result));
}

// select, reject, selectattr, rejectattr.
template <bool kKeep, bool kByAttribute>
Value Select(Interpreter& in, const Value& input, CallArguments& arguments) {
  auto& positional = arguments.positional;
  Value path;
  if (kByAttribute) {
    if (positional.empty()) Raise("selectattr and rejectattr take the name of an attribute");
    path = positional[0];
    positional.erase(positional.begin());
  }
  std::optional<Value> test;
  if (!positional.empty()) {
    test = positional[0];
    if (!test->IsString()) Raise("select and reject take the name of a test");
    positional.erase(positional.begin());
  }
  std::vector<Value> result;
  if (input.Truthy()) {
    for (const Value& item : in.Elements(input)) {
      in.budget().Charge(1 + arguments.positional.size() + arguments.keywords.size());
      const Value subject = kByAttribute ? AttributePath(in, item, path) : item;
      CallArguments copy = arguments;
      const bool passes = test ? in.CallTest(test->bytes(), subject, copy) : subject.Truthy();
      if (passes == kKeep) result.push_back(item);
    }
  }
  return in.NewIterator(std::move(result));
}

Value IgnoreCase(Interpreter& in, const Value& value, bool case_sensitive) {
  return case_sensitive || !value.IsString() ? value : in.NewString(ToLower(value.text()));
}

// The sort key of an item: the item, or its attribute; None means no attribute.
Value KeyOf(Interpreter& in, const Value& item, const Value& attribute, bool case_sensitive) {
  return IgnoreCase(in, attribute.IsNone() ? item : AttributePath(in, item, attribute),
                    case_sensitive);
}

// Stable, also in reverse; moves items like their keys.
void SortByKeys(Interpreter& in, std::vector<Value>& items, const std::vector<Value>& keys,
                bool reverse) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (reverse) std::swap(a, b);
    return Compare(keys[a], keys[b], in.budget()).value_or(0) < 0;
  });
  std::vector<Value> sorted;
  sorted.reserve(items.size());
  for (const size_t i : order) sorted.push_back(items[i]);
  items = std::move(sorted);
}

Value Sort(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> items = in.Elements(input);
  const Value attribute = bound.Get(2, None{});
  const bool case_sensitive = bound.GetBool(1, false);
  std::vector<MarkedText> paths;  // "a,b" sorts by a, then by b
  if (attribute.IsString()) paths = Split(attribute.text(), ",", -1, in.budget());
  std::vector<Value> keys;
  for (const Value& item : items) {
    // Always a list, also of one: equal items need no order then, which Jinja's users rely on.
    std::vector<Value> parts;
    for (const MarkedText& path : paths) {
      parts.push_back(KeyOf(in, item, Value::String(path), case_sensitive));
    }
    if (paths.empty()) parts.push_back(KeyOf(in, item, attribute, case_sensitive));
    keys.push_back(in.NewList(std::move(parts)));
  }
  SortByKeys(in, items, keys, bound.GetBool(0, false));
  return in.NewList(std::move(items));
}

template <bool kMax>
Value Extreme(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound(kMax ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const std::vector<Value> items = in.Elements(input);
  if (items.empty()) return Value::UndefinedBecause("min and max of an empty sequence");
  const Value attribute = bound.Get(1, None{});
  const bool case_sensitive = bound.GetBool(0, false);
  size_t best = 0;
  Value best_key = KeyOf(in, items[0], attribute, case_sensitive);
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = KeyOf(in, items[i], attribute, case_sensitive);
    const int order = kMax ? Compare(best_key, key, in.budget()).value_or(0)
                           : Compare(key, best_key, in.budget()).value_or(0);
    if (order < 0) {
      best = i;
      best_key = std::move(key);
    }
  }
  return items[best];
}

Value Sum(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("sum", arguments, {"attribute", "start"});
  Value total = bound.Get(1, Value::Int(0));
  if (total.IsString()) Raise("sum cannot add strings; use join");
  const Value attribute = bound.Get(0, None{});
  for (const Value& item : in.Elements(input)) {
    in.budget().Charge(1);
    total = ApplyBinary(in, Operator::kAdd, total,
                        attribute.IsNone() ? item : AttributePath(in, item, attribute));
  }
  return total;
}

Value Unique(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("unique", arguments, {"case_sensitive", "attribute"});
  std::vector<Value> seen;
  std::vector<Value> result;
  for (const Value& item : in.Elements(input)) {
    Value key = KeyOf(in, item, bound.Get(1, None{}), bound.GetBool(0, false));
    CheckHashable(key, in.budget());
    const bool known = std::any_of(seen.begin(), seen.end(), [&](const Value& other) {
      return Equal(other, key, in.budget());
    });
    if (known) continue;
    seen.push_back(std::move(key));
    result.push_back(item);
  }
  return in.NewIterator(std::move(result));
}

Value Batch(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("batch", arguments, {"linecount", "fill_with"});
  bound.Required(0);
  const Integer size = bound.GetInteger(0, 1);
  if (size < 1) Raise("batch takes a positive number of items");
  std::vector<Value> batches;
  std::vector<Value> batch;
  for (const Value& item : in.Elements(input)) {
    if (static_cast<Integer>(batch.size()) == size) {
      batches.push_back(in.NewList(std::exchange(batch, {})));
    }
    batch.push_back(item);
  }
  if (!batch.empty()) {
    const Value fill = bound.Get(1, None{});
    const Integer missing = size - static_cast<Integer>(batch.size());
    if (!fill.IsNone() && missing > 0) {
      const Integer bounded = std::min<Integer>(missing, Integer{1} << 40);
      in.budget().ChargeBytes(static_cast<uint64_t>(bounded) * sizeof(Value));
      batch.insert(batch.end(), static_cast<size_t>(bounded), fill);
    }
    batches.push_back(in.NewList(std::move(batch)));
  }
  return in.NewIterator(std::move(batches));
}

Value SliceFilter(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("slice", arguments, {"slices", "fill_with"});
  bound.Required(0);
  const Integer slices = bound.GetInteger(0, 1);
  if (slices < 1) Raise("slice takes a positive number of slices");
  const std::vector<Value> items = in.Elements(input);
  const auto count = static_cast<Integer>(items.size());
  const Value fill = bound.Get(1, None{});
  std::vector<Value> result;
  Integer begin = 0;
  for (Integer i = 0; i < slices; ++i) {
    const bool extra = i < count % slices;
    const Integer end = begin + count / slices + (extra ? 1 : 0);
    std::vector<Value> part(items.begin() + static_cast<ptrdiff_t>(begin),
                            items.begin() + static_cast<ptrdiff_t>(end));
    if (!fill.IsNone() && !extra) part.push_back(fill);
    result.push_back(in.NewList(std::move(part)));
    begin = end;
  }
  return in.NewIterator(std::move(result));
}

Value GroupBy(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("groupby", arguments, {"attribute", "default", "case_sensitive"});
  const Value& attribute = bound.Required(0);
  const Value otherwise = bound.Get(1, None{});
  const bool case_sensitive = bound.GetBool(2, false);
  std::vector<Value> items = in.Elements(input);
  const auto label = [&](const Value& item) {
    Value value = AttributePath(in, item, attribute);
    return value.IsUndefined() && !otherwise.IsNone() ? otherwise : value;
  };
  std::vector<Value> keys;
  for (const Value& item : items) keys.push_back(IgnoreCase(in, label(item), case_sensitive));
  std::vector<Value> sorted_keys = keys;
  SortByKeys(in, sorted_keys, keys, false);
  SortByKeys(in, items, keys, false);
  std::vector<Value> groups;
  for (size_t begin = 0; begin < items.size();) {
    size_t end = begin + 1;
    while (end < items.size() && Equal(sorted_keys[begin], sorted_keys[end], in.budget())) ++end;
    std::vector<Value> members(items.begin() + static_cast<ptrdiff_t>(begin),
                               items.begin() + static_cast<ptrdiff_t>(end));
    List group;
    group.kind = ListKind::kTuple;
    group.is_group = true;
    group.items = {label(items[begin]), in.NewList(std::move(members))};
    group.depth = 1 + std::max(group.items[0].depth(), group.items[1].depth());
    if (group.depth > kMaxValueDepth) Raise("a value is nested too deeply");
    groups.push_back(Value::FromListData(std::move(group)));
    begin = end;
  }
  return in.NewList(std::move(groups));
}

std::vector<Value> Pairs(Interpreter& in, const Dict& dict) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict.entries) {
    pairs.push_back(in.NewList({key, value}, ListKind::kTuple));
  }
  return pairs;
}

Value Items(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("items", arguments, {});
  if (input.IsUndefined()) return in.NewIterator({});
  if (!input.IsDict()) Raise("items takes a dict, not '{}'", input.TypeName());
  return in.NewIterator(Pairs(in, input.dict()));
}

Value DictSort(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  if (!input.IsDict()) Raise("dictsort takes a dict, not '{}'", input.TypeName());
  const std::string by = bound.Has(1) ? bound.Text(1).bytes() : "key";
  if (by != "key" && by != "value") Raise("dictsort sorts by 'key' or 'value'");
  std::vector<Value> items = Pairs(in, input.dict());
  std::vector<Value> keys;
  for (const auto& [key, value] : input.dict().entries) {
    keys.push_back(IgnoreCase(in, by == "key" ? key : value, bound.GetBool(0, false)));
  }
  SortByKeys(in, items, keys, bound.GetBool(2, false));
  return in.NewList(std::move(items));
}

Value Attr(Interpreter& in, const Value& input, CallArguments& arguments) {
  const BoundArguments bound("attr", arguments, {"name"});
  in.budget().Charge(bound.Text(0).size_bytes() / 64);
  const std::optional<Value> own = OwnAttribute(input, bound.Text(0).bytes());
  return own ? *own
             : Value::UndefinedBecause(fmt::format("'{} object' has no attribute '{}'",
                                                   input.TypeName(), bound.Text(0).bytes()));
}

constexpr FilterEntry kSequenceFilters[] = {
    {"length", Length},
    {"count", Length},
    {"default", Default},
    {"d", Default},
    {"first", First},
    {"last", Last},
    {"list", ListFilter},
    {"reverse", Reverse},
    {"join", Join},
    {"map", Map},
    {"select", Select<true, false>},
    {"reject", Select<false, false>},
    {"selectattr", Select<true, true>},
    {"rejectattr", Select<false, true>},
    {"sort", Sort},
    {"min", Extreme<false>},
    {"max", Extreme<true>},
    {"sum", Sum},
    {"unique", Unique},
    {"batch", Batch},
    {"slice", SliceFilter},
    {"groupby", GroupBy},
    {"items", Items},
    {"dictsort", DictSort},
    {"attr", Attr},
};

}  // namespace

FilterFunction FindSequenceFilter(std::string_view name) {
  const auto* it = std::find_if(std::begin(kSequenceFilters), std::end(kSequenceFilters),
                                [name](const FilterEntry& entry) { return entry.name == name; });
  return it == std::end(kSequenceFilters) ? nullptr : it->function;
}

}  // namespace moesaic::jinja
