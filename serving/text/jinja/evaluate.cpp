// The expression half of the interpreter.

#include <algorithm>

#include "serving/text/jinja/builtins.h"
#include "serving/text/jinja/collections.h"
#include "serving/text/jinja/format.h"
#include "serving/text/jinja/interpreter.h"
#include "serving/text/jinja/interpreter_guards.h"
#include "serving/text/jinja/operators.h"
#include "serving/text/jinja/raise.h"
#include "serving/text/unicode.h"

namespace moesaic::jinja {

Value Interpreter::NewString(MarkedText text) {
  budget_.ChargeBytes(text.memory_bytes() + sizeof(MarkedText));
  return Value::String(std::move(text));
}

Value Interpreter::NewList(std::vector<Value> items, ListKind kind) {
  budget_.ChargeBytes(sizeof(List) + items.size() * sizeof(Value));
  return Value::FromList(std::move(items), kind);
}

Value Interpreter::NewIterator(std::vector<Value> items) {
  budget_.ChargeBytes(sizeof(Iterator) + items.size() * sizeof(Value));
  return Value::FromIterator(std::move(items));
}

std::shared_ptr<NamespaceObject> Interpreter::NewNamespace() {
  budget_.ChargeBytes(sizeof(NamespaceObject));
  namespaces_.push_back(std::make_shared<NamespaceObject>(budget_));
  return namespaces_.back();
}

std::vector<Value> Interpreter::Elements(const Value& iterable) {
  std::vector<Value> items;
  if (iterable.IsUndefined()) return items;
  if (iterable.IsList()) {
    budget_.ChargeBytes(iterable.list().items.size() * sizeof(Value));
    return iterable.list().items;
  }
  if (iterable.IsDict()) {
    for (const auto& [key, value] : iterable.dict().entries) items.push_back(key);
  } else if (iterable.IsString()) {
    const MarkedText& text = iterable.text();
    for (size_t i = 0; i < text.size_bytes();) {
      const size_t length = DecodeAt(text.bytes(), i).length_bytes;
      items.push_back(NewString(text.Slice(i, i + length)));
      i += length;
    }
  } else if (iterable.IsIterator()) {
    Iterator& iterator = iterable.iterator();
    items.assign(iterator.items.begin() + static_cast<ptrdiff_t>(iterator.position),
                 iterator.items.end());
    iterator.position = iterator.items.size();
  } else {
    Raise("a value of type '{}' cannot be iterated over", iterable.TypeName());
  }
  budget_.ChargeBytes(items.size() * sizeof(Value));
  return items;
}

Value Interpreter::Evaluate(const Expr& expr) {
  const DepthGuard depth(*this);
  budget_.Charge(1);
  line_ = expr.line;
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName:
      return EvaluateName(expr.name);
    case ExprKind::kList:
      return NewList(EvaluateAll(expr));
    case ExprKind::kTuple:
      return NewList(EvaluateAll(expr), ListKind::kTuple);
    case ExprKind::kDict:
      return EvaluateDict(expr);
    case ExprKind::kAttribute: {
      const Value object = Evaluate(*expr.children[0]);
      line_ = expr.line;
      return Attribute(object, expr.name);
    }
    case ExprKind::kItem: {
      const Value object = Evaluate(*expr.children[0]);
      const Value key = Evaluate(*expr.children[1]);
      line_ = expr.line;
      return Item(object, key);
    }
    case ExprKind::kSlice:
      return EvaluateSlice(expr);
    case ExprKind::kCall:
      return EvaluateCall(expr, nullptr);
    case ExprKind::kFilter:
      return EvaluateFilter(expr);
    case ExprKind::kTest:
      return EvaluateTest(expr);
    case ExprKind::kNot:
      return Value::Bool(!TruthOf(*expr.children[0]));
    case ExprKind::kNegative:
    case ExprKind::kPositive:
      return EvaluateUnary(expr);
    case ExprKind::kBinary:
      return EvaluateBinary(expr);
    case ExprKind::kAnd: {
      Value left = Evaluate(*expr.children[0]);
      return left.Truthy() ? Evaluate(*expr.children[1]) : left;
    }
    case ExprKind::kOr: {
      Value left = Evaluate(*expr.children[0]);
      return left.Truthy() ? left : Evaluate(*expr.children[1]);
    }
    case ExprKind::kConcat:
      return EvaluateConcat(expr);
    case ExprKind::kCompare:
      return EvaluateCompare(expr);
    case ExprKind::kConditional:
      return EvaluateConditional(expr);
  }
  return Value();
}

Value Interpreter::EvaluateName(std::string_view name) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    budget_.Charge(scope->variables.size() / 16);
    if (const Value* value = scope->FindHere(name)) return *value;
  }
  if (std::optional<Value> global = FindGlobal(name)) return *global;
  budget_.ChargeBytes(name.size());
  return Value::UndefinedBecause(fmt::format("'{}' is undefined", name));
}

std::vector<Value> Interpreter::EvaluateAll(const Expr& expr) {
  std::vector<Value> items;
  items.reserve(expr.children.size());
  for (const ExprPtr& child : expr.children) items.push_back(Evaluate(*child));
  return items;
}

Value Interpreter::EvaluateDict(const Expr& expr) {
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i < expr.children.size(); i += 2) {
    Value key = Evaluate(*expr.children[i]);
    Value value = Evaluate(*expr.children[i + 1]);
    SetEntry(entries, std::move(key), std::move(value), budget_);
  }
  return NewDict(std::move(entries), budget_);
}

Value Interpreter::EvaluateSlice(const Expr& expr) {
  const Value object = Evaluate(*expr.children[0]);
  Value bounds[3] = {None{}, None{}, None{}};
  for (size_t i = 0; i < 3; ++i) {
    if (expr.children[i + 1] != nullptr) bounds[i] = Evaluate(*expr.children[i + 1]);
  }
  line_ = expr.line;
  return Slice(*this, object, bounds[0], bounds[1], bounds[2]);
}

CallArguments Interpreter::EvaluateArguments(const Arguments& arguments) {
  CallArguments result;
  for (const ExprPtr& expr : arguments.positional) result.positional.push_back(Evaluate(*expr));
  if (arguments.star != nullptr) {
    for (Value& item : Elements(Evaluate(*arguments.star))) {
      result.positional.push_back(std::move(item));
    }
  }
  const auto add_keyword = [&result](const std::string& name, Value value) {
    for (const auto& [other, unused] : result.keywords) {
      if (other == name) Raise("the keyword argument '{}' is given twice", name);
    }
    result.keywords.emplace_back(name, std::move(value));
  };
  for (const auto& [name, expr] : arguments.keywords) add_keyword(name, Evaluate(*expr));
  if (arguments.double_star != nullptr) {
    const Value extra = Evaluate(*arguments.double_star);
    if (!extra.IsDict()) Raise("the value after ** has to be a dict, not '{}'", extra.TypeName());
    for (const auto& [key, value] : extra.dict().entries) {
      if (!key.IsString()) Raise("the keys of a dict after ** have to be strings");
      budget_.Charge(1 + result.keywords.size() * (1 + key.text().size_bytes() / 64));
      add_keyword(key.bytes(), value);
    }
  }
  return result;
}

Value Interpreter::EvaluateCall(const Expr& expr, const Value* caller) {
  const Value callee = Evaluate(*expr.children[0]);
  CallArguments arguments = EvaluateArguments(*expr.arguments);
  if (caller != nullptr) arguments.keywords.emplace_back("caller", *caller);
  line_ = expr.line;
  if (!callee.IsCallable()) {
    if (callee.IsUndefined()) Raise("{}", callee.UndefinedMessage());
    Raise("a value of type '{}' cannot be called", callee.TypeName());
  }
  return callee.object().Call(*this, arguments);
}

Value Interpreter::Call(const Value& callee, CallArguments& arguments) {
  if (!callee.IsCallable()) Raise("a value of type '{}' cannot be called", callee.TypeName());
  return callee.object().Call(*this, arguments);
}

Value Interpreter::EvaluateFilter(const Expr& expr) {
  Value input;
  if (expr.children[0] != nullptr) {
    input = Evaluate(*expr.children[0]);
  } else if (block_text_ != nullptr) {
    input = *block_text_;
  }
  CallArguments arguments = EvaluateArguments(*expr.arguments);
  line_ = expr.line;
  return CallFilter(expr.name, input, arguments);
}

Value Interpreter::EvaluateTest(const Expr& expr) {
  const Value input = Evaluate(*expr.children[0]);
  CallArguments arguments = EvaluateArguments(*expr.arguments);
  line_ = expr.line;
  return Value::Bool(CallTest(expr.name, input, arguments));
}

Value Interpreter::CallFilter(std::string_view name, const Value& input, CallArguments& arguments) {
  const FilterFunction filter = FindFilter(name);
  if (filter == nullptr) RaiseUnsupported(fmt::format("the filter '{}'", name));
  return filter(*this, input, arguments);
}

bool Interpreter::CallTest(std::string_view name, const Value& input, CallArguments& arguments) {
  const TestFunction test = FindTest(name);
  if (test == nullptr) RaiseUnsupported(fmt::format("the test '{}'", name));
  return test(*this, input, arguments);
}

Value Interpreter::EvaluateUnary(const Expr& expr) {
  const Value value = Evaluate(*expr.children[0]);
  line_ = expr.line;
  const bool negative = expr.kind == ExprKind::kNegative;
  if (value.IsFloat()) return Value::Float(negative ? -value.AsFloat() : value.AsFloat());
  if (value.IsIntegral()) {
    return negative ? ApplyBinary(*this, Operator::kSubtract, Value::Int(0), value)
                    : Value::Int(value.AsInteger());
  }
  if (value.IsUndefined()) Raise("{}", value.UndefinedMessage());
  Raise("a value of type '{}' has no sign", value.TypeName());
}

Value Interpreter::EvaluateBinary(const Expr& expr) {
  const Value left = Evaluate(*expr.children[0]);
  const Value right = Evaluate(*expr.children[1]);
  line_ = expr.line;
  return ApplyBinary(*this, expr.op, left, right);
}

Value Interpreter::EvaluateConcat(const Expr& expr) {
  MarkedText text;
  for (const ExprPtr& child : expr.children) AppendStr(Evaluate(*child), budget_, text);
  return NewString(std::move(text));
}

Value Interpreter::EvaluateCompare(const Expr& expr) {
  Value left = Evaluate(*expr.children[0]);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = Evaluate(*expr.children[i + 1]);
    line_ = expr.line;
    if (!ApplyComparison(*this, expr.ops[i], left, right)) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Value Interpreter::EvaluateConditional(const Expr& expr) {
  if (TruthOf(*expr.children[0])) return Evaluate(*expr.children[1]);
  if (expr.children[2] != nullptr) return Evaluate(*expr.children[2]);
  return Value::UndefinedBecause(
      fmt::format("the 'if' expression on line {} is false and has no 'else'", expr.line));
}

}  // namespace moesaic::jinja
