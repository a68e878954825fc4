// The functions that every chat template can call.

#include <algorithm>
#include <ctime>
#include <iterator>
#include <utility>

#include "serving/text/jinja/builtins.h"
#include "serving/text/jinja/collections.h"
#include "serving/text/jinja/interpreter.h"
#include "serving/text/jinja/raise.h"

namespace moesaic::jinja {
namespace {

Value Range(Interpreter& in, CallArguments& arguments) {
  if (!arguments.keywords.empty()) Raise("range() takes no keyword arguments");
  const BoundArguments bound("range", arguments, {"start", "stop", "step"});
  List range;
  range.kind = ListKind::kRange;
  bound.Required(0);
  range.range[0] = bound.Has(1) ? bound.GetInteger(0, 0) : 0;
  range.range[1] = bound.Has(1) ? bound.GetInteger(1, 0) : bound.GetInteger(0, 0);
  range.range[2] = bound.GetInteger(2, 1);
  const Integer start = range.range[0];
  const Integer stop = range.range[1];
  const Integer step = range.range[2];
  if (step == 0) Raise("range(): the step cannot be zero");
  constexpr Integer kBound = Integer{1} << 100;  // differences stay in range
  if (start < -kBound || start > kBound || stop < -kBound || stop > kBound || step < -kBound ||
      step > kBound) {
    Raise("range(): a bound is too large");
  }
  const Integer count = step > 0 ? std::max<Integer>(0, (stop - start + step - 1) / step)
                                 : std::max<Integer>(0, (start - stop - step - 1) / -step);
  constexpr Integer kMaxRange = 100'000;  // jinja2.sandbox.MAX_RANGE
  if (count > kMaxRange) Raise("range() of more than {} elements", kMaxRange);
  in.budget().ChargeBytes(static_cast<uint64_t>(count) * sizeof(Value));
  for (Integer i = 0; i < count; ++i) range.items.push_back(Value::Int(start + i * step));
  return Value::FromListData(std::move(range));
}

std::vector<std::pair<Value, Value>> DictEntries(Interpreter& in, CallArguments& arguments) {
  std::vector<std::pair<Value, Value>> entries;
  if (arguments.positional.size() > 1) Raise("dict() takes at most one positional argument");
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.IsDict()) {
      in.budget().ChargeBytes(source.dict().entries.size() * sizeof(entries[0]));
      entries = source.dict().entries;
    } else {
      for (const Value& pair : in.Elements(source)) {
        const std::vector<Value> parts = in.Elements(pair);
        if (parts.size() != 2) Raise("dict() takes pairs, got {} values", parts.size());
        SetEntry(entries, parts[0], parts[1], in.budget());
      }
    }
  }
  for (const auto& [name, value] : arguments.keywords) {
    SetEntry(entries, in.NewString(MarkedText(name)), value, in.budget());
  }
  return entries;
}

Value MakeDict(Interpreter& in, CallArguments& arguments) {
  return NewDict(DictEntries(in, arguments), in.budget());
}

Value MakeNamespace(Interpreter& in, CallArguments& arguments) {
  auto object = in.NewNamespace();
  for (auto& [key, value] : DictEntries(in, arguments)) {
    if (key.IsString()) object->Set(key.bytes(), value);
  }
  return Value::FromObject(std::move(object));
}

Value RaiseException(Interpreter&, CallArguments& arguments) {
  const BoundArguments bound("raise_exception", arguments, {"message"});
  const Value& message = bound.Required(0);
  throw RenderFailure{message.IsString() ? message.bytes() : std::string(message.TypeName()),
                      /*raised_by_template=*/true};
}

Value FormatNow(Interpreter& in, CallArguments& arguments) {
  const BoundArguments bound("strftime_now", arguments, {"format"});
  const MarkedText& format = bound.Text(0);
  std::tm now{};
  if (in.options().local_time) {
    now = in.options().local_time();
  } else {
    const std::time_t seconds = std::time(nullptr);
    localtime_r(&seconds, &now);
  }
  // The longest conversions are names of a few dozen bytes; a field width could ask for more.
  constexpr size_t kMaxFormatBytes = 1024;
  constexpr size_t kMaxResultBytes = 64 * 1024;
  if (format.size_bytes() > kMaxFormatBytes) Raise("strftime_now(): the format is too long");
  in.budget().Charge(kMaxResultBytes / 64);
  std::string buffer(kMaxResultBytes, '\0');
  // The trailing space tells an empty result from one that does not fit.
  const std::string spaced = format.bytes() + " ";
  const size_t length = std::strftime(buffer.data(), buffer.size(), spaced.c_str(), &now);
  if (length == 0) Raise("strftime_now(): the result is too long");
  buffer.resize(length - 1);
  return in.NewString(MarkedText(std::move(buffer), format.HasInput()));
}

class JoinerObject final : public Object {
 public:
  explicit JoinerObject(Value separator) : separator_(std::move(separator)) {}
  std::string_view type_name() const override { return "Joiner"; }
  std::string Repr() const override { return "<Joiner>"; }
  int depth() const override { return separator_.depth() + 1; }
  bool callable() const override { return true; }
  Value Call(Interpreter&, CallArguments& arguments) override {
    const BoundArguments bound("joiner", arguments, {});
    return std::exchange(used_, true) ? separator_ : Value::String("");
  }

 private:
  Value separator_;
  bool used_ = false;
};

Value MakeJoiner(Interpreter&, CallArguments& arguments) {
  const BoundArguments bound("joiner", arguments, {"sep"});
  auto joiner = std::make_shared<JoinerObject>(bound.Get(0, Value::String(", ")));
  if (joiner->depth() > kMaxValueDepth) Raise("a value is nested too deeply");
  return Value::FromObject(std::move(joiner));
}

// Goes round its items. The methods hold it by reference count: a template can keep them.
class CyclerObject final : public Object, public std::enable_shared_from_this<CyclerObject> {
 public:
  explicit CyclerObject(Value items) : items_(std::move(items)) {}
  std::string_view type_name() const override { return "Cycler"; }
  std::string Repr() const override { return "<Cycler>"; }
  int depth() const override { return items_.depth() + 1; }
  std::optional<Value> Attribute(std::string_view name) override {
    if (name == "current") return Current();
    if (name == "items") return items_;
    if (name == "pos") return Value::Int(static_cast<Integer>(position_));
    if (name == "next") return Method("next", &Next);
    if (name == "reset") return Method("reset", &Reset);
    return std::nullopt;
  }

 private:
  const Value& Current() const { return items_.list().items[position_]; }
  Value Method(std::string_view name, BuiltinMethod method) {
    return Value::FromObject(
        std::make_shared<MethodObject>(name, Value::FromObject(shared_from_this()), method));
  }
  static Value Next(Interpreter&, const Value& self, CallArguments& arguments) {
    const BoundArguments bound("next", arguments, {});
    auto& cycler = static_cast<CyclerObject&>(self.object());
    Value item = cycler.Current();
    cycler.position_ = (cycler.position_ + 1) % cycler.items_.list().items.size();
    return item;
  }
  static Value Reset(Interpreter&, const Value& self, CallArguments& arguments) {
    const BoundArguments bound("reset", arguments, {});
    static_cast<CyclerObject&>(self.object()).position_ = 0;
    return None{};
  }

  Value items_;  // a tuple, not empty
  size_t position_ = 0;
};

Value MakeCycler(Interpreter& in, CallArguments& arguments) {
  if (!arguments.keywords.empty()) Raise("cycler() takes no keyword arguments");
  if (arguments.positional.empty()) Raise("cycler() takes at least one item");
  auto cycler =
      std::make_shared<CyclerObject>(in.NewList(std::move(arguments.positional), ListKind::kTuple));
  if (cycler->depth() > kMaxValueDepth) Raise("a value is nested too deeply");
  return Value::FromObject(std::move(cycler));
}

Value RefuseLipsum(Interpreter&, CallArguments&) { RaiseUnsupported("lipsum()"); }

struct GlobalEntry {
  std::string_view name;
  BuiltinFunction function;
};

constexpr GlobalEntry kGlobals[] = {
    {"range", Range},
    {"dict", MakeDict},
    {"namespace", MakeNamespace},
    {"joiner", MakeJoiner},
    {"cycler", MakeCycler},
    {"lipsum", RefuseLipsum},
    {"raise_exception", RaiseException},
    {"strftime_now", FormatNow},
};

}  // namespace

std::optional<Value> FindGlobal(std::string_view name) {
  const auto* it = std::find_if(std::begin(kGlobals), std::end(kGlobals),
                                [name](const GlobalEntry& entry) { return entry.name == name; });
  if (it == std::end(kGlobals)) return std::nullopt;
  return Value::FromObject(std::make_shared<FunctionObject>(it->name, it->function));
}

}  // namespace moesaic::jinja
