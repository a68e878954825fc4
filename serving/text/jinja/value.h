// Value: what an expression of a chat template evaluates to; Python's object model as far as
// templates can see it.
//
// Values are immutable and cheap to copy (aggregates are shared by reference count: the same
// message list is seen by slices, loops and filters, and a copy per look would be quadratic).
// The exceptions are Iterator (it is consumed) and Object subclasses with state (namespace, loop),
// which belong to one rendering and so to one thread. Constant values of a parsed template
// are shared by all threads that render it.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "serving/text/jinja/budget.h"
#include "serving/text/jinja/marked_text.h"

namespace moesaic::jinja {

class Value;

// 128 bits: uint64 limits in tool schemas and their arithmetic stay exact; overflow is an error.
using Integer = __int128;

// Thrown inside the interpreter; Template turns it into an Error that names the line.
struct RenderFailure {
  std::string message;
  bool raised_by_template = false;  // raise_exception(): the template refused the conversation
};

// A value nested deeper than this is refused; destructors and printing recurse over it.
inline constexpr int kMaxValueDepth = 150;

struct Undefined {
  std::shared_ptr<const std::string> message;  // why, for the error when it is used
};
struct None {};

enum class ListKind { kList, kTuple, kRange, kDictKeys, kDictValues, kDictItems };

struct List {
  std::vector<Value> items;
  ListKind kind = ListKind::kList;
  Integer range[3] = {0, 0, 1};  // kRange: start, stop, step, for printing
  bool is_group = false;         // kTuple: the result of groupby, its two items have names
  int depth = 1;
};

struct Dict {
  std::vector<std::pair<Value, Value>> entries;  // insertion order
  int depth = 1;

  const Value* Find(std::string_view key, Budget& budget) const;
  const Value* Find(const Value& key, Budget& budget) const;
};

// A generator: can be walked once, has no length and is always true.
struct Iterator {
  std::vector<Value> items;
  size_t position = 0;
  int depth = 1;
};

// Functions, methods, macros, namespaces, loop variables (object.h).
class Object;

class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(None) : data_(None{}) {}  // NOLINT: literals convert
  static Value Bool(bool value) { return Value(Data(std::in_place_type<bool>, value)); }
  static Value Int(Integer value) { return Value(Data(std::in_place_type<Integer>, value)); }
  static Value Float(double value) { return Value(Data(std::in_place_type<double>, value)); }
  static Value String(MarkedText text);
  static Value String(std::string_view text) { return String(MarkedText(std::string(text))); }
  static Value UndefinedBecause(std::string message);
  // These three compute the nesting depth and throw RenderFailure above kMaxValueDepth.
  static Value FromList(std::vector<Value> items, ListKind kind = ListKind::kList);
  static Value FromDict(std::vector<std::pair<Value, Value>> entries);  // keys are distinct
  static Value FromIterator(std::vector<Value> items);
  // The caller has set the depth.
  static Value FromListData(List list) {
    return Value(Data(std::make_shared<const List>(std::move(list))));
  }
  static Value FromObject(std::shared_ptr<Object> object) { return Value(Data(std::move(object))); }
  // Strings get the mark `from_input`, keys too.
  static Value FromJson(const nlohmann::ordered_json& json, bool from_input);

  bool IsUndefined() const { return Is<Undefined>(); }
  bool IsNone() const { return Is<None>(); }
  bool IsBool() const { return Is<bool>(); }
  bool IsInt() const { return Is<Integer>(); }  // false for booleans, unlike Python's isinstance
  bool IsFloat() const { return Is<double>(); }
  bool IsNumber() const { return IsBool() || IsInt() || IsFloat(); }
  bool IsIntegral() const { return IsBool() || IsInt(); }
  bool IsString() const { return Is<std::shared_ptr<const MarkedText>>(); }
  bool IsList() const { return Is<std::shared_ptr<const List>>(); }
  bool IsDict() const { return Is<std::shared_ptr<const Dict>>(); }
  bool IsIterator() const { return Is<std::shared_ptr<Iterator>>(); }
  bool IsObject() const { return Is<std::shared_ptr<Object>>(); }
  bool IsCallable() const;

  bool AsBool() const { return std::get<bool>(data_); }
  double AsFloat() const { return std::get<double>(data_); }
  Integer AsInteger() const;  // IsIntegral()
  double AsNumber() const;    // IsNumber()
  const MarkedText& text() const { return *std::get<std::shared_ptr<const MarkedText>>(data_); }
  const std::string& bytes() const { return text().bytes(); }
  const List& list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Iterator& iterator() const { return *std::get<std::shared_ptr<Iterator>>(data_); }
  Object& object() const { return *std::get<std::shared_ptr<Object>>(data_); }
  // The message of an undefined value.
  std::string UndefinedMessage() const;

  bool Truthy() const;
  int depth() const;
  // Python's type name, for messages: 'str', 'list', 'dict_items', ...
  std::string_view TypeName() const;
  // Same object (`is` of Python), as the test `sameas` sees it.
  bool SameAs(const Value& other) const;

 private:
  using Data =
      std::variant<Undefined, None, bool, Integer, double, std::shared_ptr<const MarkedText>,
                   std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                   std::shared_ptr<Iterator>, std::shared_ptr<Object>>;
  explicit Value(Data data) : data_(std::move(data)) {}
  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(data_);
  }

  Data data_;
};

// Python's ==. Marks do not count. Shared children make a value of a few bytes take exponential
// time to walk, hence the budget.
bool Equal(const Value& a, const Value& b, Budget& budget);
// <0, 0, >0; throws RenderFailure for types that Python cannot order. NaN gives nullopt.
std::optional<int> Compare(const Value& a, const Value& b, Budget& budget);

}  // namespace moesaic::jinja
