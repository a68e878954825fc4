#include "serving/text/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "serving/text/jinja/collections.h"
#include "serving/text/jinja/format.h"
#include "serving/text/jinja/interpreter_guards.h"
#include "serving/text/jinja/raise.h"
#include "serving/text/jinja/text_search.h"
#include "serving/text/unicode.h"

namespace moesaic::jinja {
namespace {

constexpr Integer kIntegerMax = static_cast<Integer>(~(static_cast<unsigned __int128>(1) << 127));

const char* Symbol(Operator op) {
  switch (op) {
    case Operator::kAdd:
      return "+";
    case Operator::kSubtract:
      return "-";
    case Operator::kMultiply:
      return "*";
    case Operator::kDivide:
      return "/";
    case Operator::kFloorDivide:
      return "//";
    case Operator::kModulo:
      return "%";
    case Operator::kPower:
      return "**";
    default:
      return "a comparison";
  }
}

[[noreturn]] void Overflow() { Raise("an integer has more than 127 bits"); }

Integer AddChecked(Integer a, Integer b) {
  if (b > 0 ? a > kIntegerMax - b : a < -kIntegerMax - b) Overflow();
  return a + b;
}

// By division: the compilers' checked 128-bit product needs a runtime that clang does not link.
Integer MultiplyChecked(Integer a, Integer b) {
  if (a == 0 || b == 0) return 0;
  const Integer abs_a = a < 0 ? -a : a;
  const Integer abs_b = b < 0 ? -b : b;
  if (abs_a > kIntegerMax / abs_b) Overflow();
  const auto product = static_cast<Integer>(static_cast<unsigned __int128>(abs_a) *
                                            static_cast<unsigned __int128>(abs_b));
  return (a < 0) == (b < 0) ? product : -product;
}

Integer FloorDivide(Integer a, Integer b) {
  const Integer quotient = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? quotient - 1 : quotient;
}

Integer FloorModulo(Integer a, Integer b) {
  const Integer rest = a % b;
  return (rest != 0 && (rest < 0) != (b < 0)) ? rest + b : rest;
}

double FloatModulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0) return (rest < 0) != (b < 0) ? rest + b : rest;
  return std::copysign(0.0, b);
}

double FloatFloorDivide(double a, double b) {
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

Integer IntegerPower(Integer base, Integer exponent) {
  Integer result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0) result = MultiplyChecked(result, base);
    exponent >>= 1;
    if (exponent > 0) base = MultiplyChecked(base, base);
  }
  return result;
}

Value Power(const Value& a, const Value& b) {
  if (a.IsIntegral() && b.IsIntegral() && b.AsInteger() >= 0) {
    return Value::Int(IntegerPower(a.AsInteger(), b.AsInteger()));
  }
  const double x = a.AsNumber();
  const double y = b.AsNumber();
  if (x == 0 && y < 0) Raise("zero cannot be raised to a negative power");
  if (x < 0 && std::isfinite(x) && std::isfinite(y) && y != std::floor(y)) {
    Raise("the power of a negative number is no real number");
  }
  const double result = std::pow(x, y);
  if (std::isinf(result) && std::isfinite(x) && std::isfinite(y)) Raise("a power is too large");
  return Value::Float(result);
}

Value ApplyNumbers(Operator op, const Value& a, const Value& b) {
  const bool divides =
      op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && b.AsNumber() == 0) Raise("division by zero");
  if (op == Operator::kPower) return Power(a, b);
  if (a.IsIntegral() && b.IsIntegral() && op != Operator::kDivide) {
    const Integer x = a.AsInteger();
    const Integer y = b.AsInteger();
    switch (op) {
      case Operator::kAdd:
        return Value::Int(AddChecked(x, y));
      case Operator::kSubtract:
        return Value::Int(AddChecked(x, -y));
      case Operator::kMultiply:
        return Value::Int(MultiplyChecked(x, y));
      case Operator::kFloorDivide:
        return Value::Int(FloorDivide(x, y));
      default:
        return Value::Int(FloorModulo(x, y));
    }
  }
  const double x = a.AsNumber();
  const double y = b.AsNumber();
  switch (op) {
    case Operator::kAdd:
      return Value::Float(x + y);
    case Operator::kSubtract:
      return Value::Float(x - y);
    case Operator::kMultiply:
      return Value::Float(x * y);
    case Operator::kDivide:
      return Value::Float(x / y);
    case Operator::kFloorDivide:
      return Value::Float(FloatFloorDivide(x, y));
    default:
      return Value::Float(FloatModulo(x, y));
  }
}

bool IsSequenceOf(const Value& value, ListKind kind) {
  return value.IsList() && value.list().kind == kind;
}

std::optional<Value> AddSequences(Interpreter& interpreter, const Value& a, const Value& b) {
  if (a.IsString() && b.IsString()) {
    interpreter.budget().ChargeBytes(a.text().memory_bytes() + b.text().memory_bytes());
    MarkedText text = a.text();
    MarkedText right = b.text();
    text.Append(right);
    return Value::String(std::move(text));
  }
  for (const ListKind kind : {ListKind::kList, ListKind::kTuple}) {
    if (!IsSequenceOf(a, kind) || !IsSequenceOf(b, kind)) continue;
    std::vector<Value> items = interpreter.Elements(a);
    interpreter.budget().ChargeBytes(b.list().items.size() * sizeof(Value));
    items.insert(items.end(), b.list().items.begin(), b.list().items.end());
    return Value::FromList(std::move(items), kind);
  }
  return std::nullopt;
}

std::optional<Value> Repeat(Interpreter& interpreter, const Value& sequence, const Value& count) {
  const bool repeatable = sequence.IsString() || IsSequenceOf(sequence, ListKind::kList) ||
                          IsSequenceOf(sequence, ListKind::kTuple);
  if (!repeatable || !count.IsIntegral()) return std::nullopt;
  const size_t unit_bytes =
      std::max<size_t>(1, sequence.IsString() ? sequence.text().memory_bytes()
                                              : sequence.list().items.size() * sizeof(Value));
  // The limit of the budget keeps the product below from overflowing.
  const Integer limit = static_cast<Integer>(interpreter.budget().limits().allocated_bytes) + 1;
  const auto times = static_cast<uint64_t>(std::clamp(count.AsInteger(), Integer{0}, limit));
  uint64_t total_bytes = 0;
  if (__builtin_mul_overflow(times, static_cast<uint64_t>(unit_bytes), &total_bytes)) {
    total_bytes = UINT64_MAX;
  }
  interpreter.budget().ChargeBytes(total_bytes);
  interpreter.budget().Charge(times);
  if (sequence.IsString()) {
    MarkedText text;
    for (uint64_t i = 0; i < times; ++i) text.Append(sequence.text());
    return Value::String(std::move(text));
  }
  const List& list = sequence.list();
  std::vector<Value> items;
  items.reserve(list.items.size() * times);
  for (uint64_t i = 0; i < times && !list.items.empty(); ++i) {
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return Value::FromList(std::move(items), list.kind);
}

// A slice bound, clamped as Python does it; `otherwise` for None.
Integer Bound(const Value& bound, Integer count, Integer otherwise, bool backwards) {
  if (bound.IsNone()) return otherwise;
  if (bound.IsUndefined()) Raise("{}", bound.UndefinedMessage());
  if (!bound.IsIntegral()) {
    Raise("the bounds of a slice have to be integers, not '{}'", bound.TypeName());
  }
  Integer index = bound.AsInteger();
  if (index < 0) index = std::max<Integer>(index, -count - 1) + count;
  return std::clamp(index, backwards ? Integer{-1} : Integer{0}, backwards ? count - 1 : count);
}

}  // namespace

Value ApplyBinary(Interpreter& interpreter, Operator op, const Value& a, const Value& b) {
  if (a.IsNumber() && b.IsNumber()) return ApplyNumbers(op, a, b);
  if (op == Operator::kModulo && a.IsString()) {
    return interpreter.NewString(FormatPercent(a.text(), b, interpreter.budget()));
  }
  std::optional<Value> result;
  if (op == Operator::kAdd) {
    result = AddSequences(interpreter, a, b);
  } else if (op == Operator::kMultiply) {
    result = Repeat(interpreter, a, b);
    if (!result) result = Repeat(interpreter, b, a);
  }
  if (result) return *result;
  if (a.IsUndefined()) Raise("{}", a.UndefinedMessage());
  if (b.IsUndefined()) Raise("{}", b.UndefinedMessage());
  Raise("'{}' cannot be applied to '{}' and '{}'", Symbol(op), a.TypeName(), b.TypeName());
}

bool Contains(Interpreter& interpreter, const Value& container, const Value& item) {
  if (container.IsString()) {
    if (!item.IsString()) {
      Raise("only a string can be 'in' a string, not a value of type '{}'", item.TypeName());
    }
    return FindText(container.bytes(), item.bytes(), 0, interpreter.budget()) != std::string::npos;
  }
  if (container.IsDict()) {
    CheckHashable(item, interpreter.budget());
    return container.dict().Find(item, interpreter.budget()) != nullptr;
  }
  if (container.IsNone() || container.IsNumber() || container.IsObject()) {
    Raise("nothing can be 'in' a value of type '{}'", container.TypeName());
  }
  ItemCursor items(interpreter, container);
  while (std::optional<Value> candidate = items.Next()) {
    if (Equal(*candidate, item, interpreter.budget())) return true;
  }
  return false;
}

bool ApplyComparison(Interpreter& interpreter, Operator op, const Value& a, const Value& b) {
  Budget& budget = interpreter.budget();
  switch (op) {
    case Operator::kEqual:
      return Equal(a, b, budget);
    case Operator::kNotEqual:
      return !Equal(a, b, budget);
    case Operator::kIn:
      return Contains(interpreter, b, a);
    case Operator::kNotIn:
      return !Contains(interpreter, b, a);
    default:
      break;
  }
  const std::optional<int> order = Compare(a, b, budget);
  if (!order) return false;
  switch (op) {
    case Operator::kLess:
      return *order < 0;
    case Operator::kLessEqual:
      return *order <= 0;
    case Operator::kGreater:
      return *order > 0;
    default:
      return *order >= 0;
  }
}

Value Slice(Interpreter& interpreter, const Value& object, const Value& start, const Value& stop,
            const Value& step) {
  const bool sliceable = object.IsString() || IsSequenceOf(object, ListKind::kList) ||
                         IsSequenceOf(object, ListKind::kTuple) ||
                         IsSequenceOf(object, ListKind::kRange);
  if (object.IsUndefined()) Raise("{}", object.UndefinedMessage());
  if (!sliceable) Raise("a value of type '{}' cannot be sliced", object.TypeName());
  Integer stride = 1;
  if (!step.IsNone()) {
    if (!step.IsIntegral()) Raise("the step of a slice has to be an integer");
    stride = step.AsInteger();
    if (stride == 0) Raise("the step of a slice cannot be zero");
  }
  const size_t total =
      object.IsString() ? CountCharacters(object.bytes()) : object.list().items.size();
  interpreter.budget().Charge(object.IsString() ? object.text().size_bytes() / 16 : 0);
  const auto count = static_cast<Integer>(total);
  const bool backwards = stride < 0;
  stride = std::clamp(stride, -count - 1, count + 1);
  const Integer first = Bound(start, count, backwards ? count - 1 : 0, backwards);
  const Integer last = Bound(stop, count, backwards ? -1 : count, backwards);
  if (object.IsString()) {
    const MarkedText& text = object.text();
    MarkedText result;
    if (stride == 1) {
      const size_t begin = CharacterOffset(text.bytes(), static_cast<size_t>(first));
      const size_t end = CharacterOffset(text.bytes(), static_cast<size_t>(std::max(first, last)));
      return interpreter.NewString(text.Slice(begin, end));
    }
    std::vector<size_t> offsets;  // of every character, and the end
    interpreter.budget().ChargeBytes((total + 1) * sizeof(size_t));
    for (size_t i = 0; i < text.size_bytes(); i += DecodeAt(text.bytes(), i).length_bytes) {
      offsets.push_back(i);
    }
    offsets.push_back(text.size_bytes());
    for (Integer i = first; backwards ? i > last : i < last; i += stride) {
      result.AppendSlice(text, offsets[static_cast<size_t>(i)],
                         offsets[static_cast<size_t>(i) + 1]);
    }
    return interpreter.NewString(std::move(result));
  }
  const List& list = object.list();
  std::vector<Value> items;
  for (Integer i = first; backwards ? i > last : i < last; i += stride) {
    items.push_back(list.items[static_cast<size_t>(i)]);
  }
  if (list.kind != ListKind::kRange) return interpreter.NewList(std::move(items), list.kind);
  interpreter.budget().ChargeBytes(items.size() * sizeof(Value));
  List range;
  range.kind = ListKind::kRange;
  range.range[0] = list.range[0] + first * list.range[2];
  range.range[1] = list.range[0] + last * list.range[2];
  range.range[2] = list.range[2] * stride;
  range.depth = list.depth;
  range.items = std::move(items);
  return Value::FromListData(std::move(range));
}

}  // namespace moesaic::jinja
