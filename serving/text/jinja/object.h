// The callable and stateful values of a template. They live inside one rendering.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/text/jinja/value.h"

namespace moesaic::jinja {

class Interpreter;

struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

class Object {
 public:
  virtual ~Object() = default;
  virtual std::string_view type_name() const = 0;
  virtual std::string Repr() const = 0;
  virtual int depth() const { return 1; }
  virtual bool callable() const { return false; }
  virtual Value Call(Interpreter& interpreter, CallArguments& arguments);
  // nullopt: there is no such attribute.
  virtual std::optional<Value> Attribute(std::string_view name) {
    (void)name;
    return std::nullopt;
  }
};

using BuiltinFunction = Value (*)(Interpreter&, CallArguments&);
using BuiltinMethod = Value (*)(Interpreter&, const Value& self, CallArguments&);

class FunctionObject final : public Object {
 public:
  FunctionObject(std::string_view name, BuiltinFunction function)
      : name_(name), function_(function) {}
  std::string_view type_name() const override { return "function"; }
  std::string Repr() const override { return "<function " + std::string(name_) + ">"; }
  bool callable() const override { return true; }
  Value Call(Interpreter& interpreter, CallArguments& arguments) override {
    return function_(interpreter, arguments);
  }

 private:
  std::string_view name_;  // a literal
  BuiltinFunction function_;
};

class MethodObject final : public Object {
 public:
  MethodObject(std::string_view name, Value self, BuiltinMethod method);
  std::string_view type_name() const override { return "builtin_function_or_method"; }
  std::string Repr() const override { return "<built-in method " + std::string(name_) + ">"; }
  int depth() const override { return self_.depth() + 1; }
  bool callable() const override { return true; }
  Value Call(Interpreter& interpreter, CallArguments& arguments) override {
    return method_(interpreter, self_, arguments);
  }

 private:
  std::string_view name_;  // a literal
  Value self_;
  BuiltinMethod method_;
};

// namespace(): the one value that a template can change. The interpreter keeps every namespace of
// a rendering and empties them at its end, because a namespace can hold itself. `budget` is that of
// the rendering.
class NamespaceObject final : public Object {
 public:
  explicit NamespaceObject(Budget& budget) : budget_(budget) {}
  std::string_view type_name() const override { return "Namespace"; }
  std::string Repr() const override;
  std::optional<Value> Attribute(std::string_view name) override;
  void Set(std::string_view name, Value value);
  void Clear() { attributes_.clear(); }

 private:
  Value* Find(std::string_view name);

  Budget& budget_;
  std::vector<std::pair<std::string, Value>> attributes_;
};

// Checks and names the arguments of a builtin: at most names.size() of them, no unknown or repeated
// keyword. Throws RenderFailure.
class BoundArguments {
 public:
  BoundArguments(std::string_view function, CallArguments& arguments,
                 std::initializer_list<std::string_view> names);
  bool Has(size_t i) const { return values_[i].has_value(); }
  const Value& Required(size_t i) const;
  Value Get(size_t i, Value otherwise) const { return Has(i) ? *values_[i] : otherwise; }
  bool GetBool(size_t i, bool otherwise) const { return Has(i) ? values_[i]->Truthy() : otherwise; }
  Integer GetInteger(size_t i, Integer otherwise) const;
  // A required string.
  const MarkedText& Text(size_t i) const;

 private:
  std::string_view function_;
  std::vector<std::string> names_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace moesaic::jinja
