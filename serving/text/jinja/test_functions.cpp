// The tests of `is` and of select.

#include <algorithm>
#include <iterator>

#include "serving/text/jinja/builtins.h"
#include "serving/text/jinja/interpreter.h"
#include "serving/text/jinja/operators.h"
#include "serving/text/jinja/raise.h"

namespace moesaic::jinja {
namespace {

// Tests without arguments are predicates of the value alone.
template <bool (*kPredicate)(const Value&)>
bool Plain(Interpreter&, const Value& value, CallArguments& arguments) {
  const BoundArguments bound("a test", arguments, {});
  return kPredicate(value);
}

bool IsDefined(const Value& v) { return !v.IsUndefined(); }
bool IsUndefined(const Value& v) { return v.IsUndefined(); }
bool IsNone(const Value& v) { return v.IsNone(); }
bool IsBoolean(const Value& v) { return v.IsBool(); }
bool IsTrue(const Value& v) { return v.IsBool() && v.AsBool(); }
bool IsFalse(const Value& v) { return v.IsBool() && !v.AsBool(); }
bool IsInteger(const Value& v) { return v.IsInt(); }
bool IsFloat(const Value& v) { return v.IsFloat(); }
bool IsNumber(const Value& v) { return v.IsNumber(); }
bool IsString(const Value& v) { return v.IsString(); }
bool IsMapping(const Value& v) { return v.IsDict(); }
bool IsCallable(const Value& v) { return v.IsCallable(); }
bool IsNever(const Value&) { return false; }

bool IsSequence(const Value& v) {
  // What has a length and an index operator; an undefined value has both.
  if (v.IsList()) {
    const ListKind kind = v.list().kind;
    return kind == ListKind::kList || kind == ListKind::kTuple || kind == ListKind::kRange;
  }
  return v.IsString() || v.IsDict() || v.IsUndefined();
}

bool IsIterable(const Value& v) {
  return v.IsString() || v.IsList() || v.IsDict() || v.IsIterator() || v.IsUndefined();
}

bool CaseTest(Interpreter& in, const Value& value, const char* method_name) {
  const MethodEntry* method = FindStringMethod(method_name);
  CallArguments none;
  return value.IsString() && method->method(in, value, none).AsBool();
}

bool IsLowerText(Interpreter& in, const Value& value, CallArguments&) {
  return CaseTest(in, value, "islower");
}

bool IsUpperText(Interpreter& in, const Value& value, CallArguments&) {
  return CaseTest(in, value, "isupper");
}

bool IsDivisibleBy(Interpreter& in, const Value& value, CallArguments& arguments) {
  const BoundArguments bound("divisibleby", arguments, {"num"});
  const Value rest = ApplyBinary(in, Operator::kModulo, value, bound.Required(0));
  return rest.IsNumber() && rest.AsNumber() == 0;
}

template <int kRest>
bool Parity(Interpreter& in, const Value& value, CallArguments& arguments) {
  const BoundArguments bound("even, odd", arguments, {});
  const Value rest = ApplyBinary(in, Operator::kModulo, value, Value::Int(2));
  return rest.IsNumber() && rest.AsNumber() == kRest;
}

template <Operator kOp>
bool Comparison(Interpreter& in, const Value& value, CallArguments& arguments) {
  const BoundArguments bound("a comparison", arguments, {"other"});
  return ApplyComparison(in, kOp, value, bound.Required(0));
}

bool IsSameAs(Interpreter& in, const Value& value, CallArguments& arguments) {
  const BoundArguments bound("sameas", arguments, {"other"});
  if (value.IsString()) in.budget().Charge(value.text().size_bytes() / 64);
  return value.SameAs(bound.Required(0));
}

bool IsFilter(Interpreter&, const Value& value, CallArguments&) {
  return value.IsString() && FindFilter(value.bytes()) != nullptr;
}

bool IsTest(Interpreter&, const Value& value, CallArguments&) {
  return value.IsString() && FindTest(value.bytes()) != nullptr;
}

constexpr TestEntry kTests[] = {
    {"defined", Plain<IsDefined>},
    {"undefined", Plain<IsUndefined>},
    {"none", Plain<IsNone>},
    {"boolean", Plain<IsBoolean>},
    {"true", Plain<IsTrue>},
    {"false", Plain<IsFalse>},
    {"integer", Plain<IsInteger>},
    {"float", Plain<IsFloat>},
    {"number", Plain<IsNumber>},
    {"string", Plain<IsString>},
    {"mapping", Plain<IsMapping>},
    {"sequence", Plain<IsSequence>},
    {"iterable", Plain<IsIterable>},
    {"callable", Plain<IsCallable>},
    {"escaped", Plain<IsNever>},
    {"lower", IsLowerText},
    {"upper", IsUpperText},
    {"even", Parity<0>},
    {"odd", Parity<1>},
    {"divisibleby", IsDivisibleBy},
    {"sameas", IsSameAs},
    {"filter", IsFilter},
    {"test", IsTest},
    {"in", Comparison<Operator::kIn>},
    {"eq", Comparison<Operator::kEqual>},
    {"==", Comparison<Operator::kEqual>},
    {"equalto", Comparison<Operator::kEqual>},
    {"ne", Comparison<Operator::kNotEqual>},
    {"!=", Comparison<Operator::kNotEqual>},
    {"lt", Comparison<Operator::kLess>},
    {"<", Comparison<Operator::kLess>},
    {"lessthan", Comparison<Operator::kLess>},
    {"le", Comparison<Operator::kLessEqual>},
    {"<=", Comparison<Operator::kLessEqual>},
    {"gt", Comparison<Operator::kGreater>},
    {">", Comparison<Operator::kGreater>},
    {"greaterthan", Comparison<Operator::kGreater>},
    {"ge", Comparison<Operator::kGreaterEqual>},
    {">=", Comparison<Operator::kGreaterEqual>},
};

}  // namespace

TestFunction FindTest(std::string_view name) {
  const auto* it = std::find_if(std::begin(kTests), std::end(kTests),
                                [name](const TestEntry& entry) { return entry.name == name; });
  return it == std::end(kTests) ? nullptr : it->function;
}

}  // namespace moesaic::jinja
