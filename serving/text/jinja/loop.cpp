#include "serving/text/jinja/loop.h"

#include <utility>

#include "serving/text/jinja/format.h"
#include "serving/text/jinja/interpreter.h"
#include "serving/text/jinja/raise.h"

namespace moesaic::jinja {
namespace {

Value CallCycle(Interpreter&, const Value& self, CallArguments& arguments) {
  return static_cast<LoopObject&>(self.object()).Cycle(arguments);
}

Value CallChanged(Interpreter& interpreter, const Value& self, CallArguments& arguments) {
  return static_cast<LoopObject&>(self.object()).Changed(interpreter, arguments);
}

}  // namespace

LoopObject::LoopObject(std::function<std::optional<Value>()> source, int items_depth)
    : source_(std::move(source)), depth_(items_depth + 1) {
  if (depth_ > kMaxValueDepth) Raise("a value is nested more than {} levels deep", kMaxValueDepth);
}

const Value* LoopObject::Peek() {
  if (ahead_.empty() && source_) {
    if (std::optional<Value> item = source_()) ahead_.push_back(std::move(*item));
  }
  return ahead_.empty() ? nullptr : &ahead_.front();
}

std::optional<Value> LoopObject::Advance() {
  if (Peek() == nullptr) return std::nullopt;
  previous_ = std::move(current_);
  current_ = std::move(ahead_.front());
  ahead_.pop_front();
  ++index0_;
  return current_;
}

void LoopObject::Finish() {
  source_ = nullptr;
  ahead_.clear();
  last_changed_.reset();
}

size_t LoopObject::Length() {
  while (source_) {
    std::optional<Value> item = source_();
    if (!item) break;
    ahead_.push_back(std::move(*item));
  }
  return static_cast<size_t>(index0_ + 1) + ahead_.size();
}

std::string LoopObject::Repr() const {
  return fmt::format("<LoopContext {}>", IntegerRepr(index0_ + 1));
}

std::optional<Value> LoopObject::Attribute(std::string_view name) {
  if (name == "index") return Value::Int(index0_ + 1);
  if (name == "index0") return Value::Int(index0_);
  if (name == "first") return Value::Bool(index0_ == 0);
  if (name == "last") return Value::Bool(Peek() == nullptr);
  if (name == "length") return Value::Int(static_cast<Integer>(Length()));
  if (name == "revindex") return Value::Int(static_cast<Integer>(Length()) - index0_);
  if (name == "revindex0") return Value::Int(static_cast<Integer>(Length()) - index0_ - 1);
  if (name == "depth") return Value::Int(1);
  if (name == "depth0") return Value::Int(0);
  if (name == "previtem") {
    return previous_ ? *previous_ : Value::UndefinedBecause("there is no previous item");
  }
  if (name == "nextitem") {
    const Value* next = Peek();
    return next != nullptr ? *next : Value::UndefinedBecause("there is no next item");
  }
  // Bound to the loop by reference count: a template can keep the method longer than the loop.
  if (name == "cycle") {
    return Value::FromObject(
        std::make_shared<MethodObject>("cycle", Value::FromObject(shared_from_this()), &CallCycle));
  }
  if (name == "changed") {
    return Value::FromObject(std::make_shared<MethodObject>(
        "changed", Value::FromObject(shared_from_this()), &CallChanged));
  }
  return std::nullopt;
}

Value LoopObject::Cycle(CallArguments& arguments) {
  if (arguments.positional.empty()) Raise("loop.cycle() has no items to cycle through");
  const auto count = static_cast<Integer>(arguments.positional.size());
  return arguments.positional[static_cast<size_t>((index0_ < 0 ? 0 : index0_) % count)];
}

Value LoopObject::Changed(Interpreter& interpreter, CallArguments& arguments) {
  bool changed = !last_changed_ || last_changed_->size() != arguments.positional.size();
  for (size_t i = 0; !changed && i < last_changed_->size(); ++i) {
    changed = !Equal((*last_changed_)[i], arguments.positional[i], interpreter.budget());
  }
  if (changed && source_) last_changed_ = arguments.positional;
  return Value::Bool(changed);
}

}  // namespace moesaic::jinja
