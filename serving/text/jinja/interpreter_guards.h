// Scope-bound changes of the interpreter's state, and the iteration over any iterable. Internal.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "serving/text/jinja/interpreter.h"
#include "serving/text/jinja/raise.h"

namespace moesaic::jinja {

class Interpreter::DepthGuard {
 public:
  explicit DepthGuard(Interpreter& interpreter) : interpreter_(interpreter) {
    if (interpreter_.depth_ >= interpreter_.budget_.limits().depth) {
      Raise("blocks, expressions and macro calls are nested more than {} deep",
            interpreter_.budget_.limits().depth);
    }
    ++interpreter_.depth_;
  }
  ~DepthGuard() { --interpreter_.depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  Interpreter& interpreter_;
};

// A new scope inside `parent`, until the end of the C++ scope.
class Interpreter::ScopeGuard {
 public:
  ScopeGuard(Interpreter& interpreter, std::shared_ptr<Scope> parent)
      : interpreter_(interpreter),
        saved_(std::exchange(interpreter.scope_, std::make_shared<Scope>(std::move(parent)))) {}
  ~ScopeGuard() { interpreter_.scope_ = std::move(saved_); }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  Interpreter& interpreter_;
  std::shared_ptr<Scope> saved_;
};

// Output goes to `buffer`.
class Interpreter::CaptureGuard {
 public:
  CaptureGuard(Interpreter& interpreter, MarkedText& buffer)
      : interpreter_(interpreter), saved_(std::exchange(interpreter.out_, &buffer)) {}
  ~CaptureGuard() { interpreter_.out_ = saved_; }
  CaptureGuard(const CaptureGuard&) = delete;
  CaptureGuard& operator=(const CaptureGuard&) = delete;

 private:
  Interpreter& interpreter_;
  MarkedText* saved_;
};

class BlockTextGuard {
 public:
  BlockTextGuard(const Value*& slot, const Value* text)
      : slot_(slot), saved_(std::exchange(slot, text)) {}
  ~BlockTextGuard() { slot_ = saved_; }
  BlockTextGuard(const BlockTextGuard&) = delete;
  BlockTextGuard& operator=(const BlockTextGuard&) = delete;

 private:
  const Value*& slot_;
  const Value* saved_;
};

// Draws the items of a value one by one; an Iterator is consumed only as far as it is drawn.
class ItemCursor {
 public:
  ItemCursor(Interpreter& interpreter, const Value& iterable)
      : items_(iterable.IsList() || iterable.IsIterator()
                   ? iterable
                   : Value::FromList(interpreter.Elements(iterable))) {}

  std::optional<Value> Next() {
    if (items_.IsIterator()) {
      Iterator& iterator = items_.iterator();
      if (iterator.position == iterator.items.size()) return std::nullopt;
      return iterator.items[iterator.position++];
    }
    if (position_ == items_.list().items.size()) return std::nullopt;
    return items_.list().items[position_++];
  }

 private:
  Value items_;
  size_t position_ = 0;
};

}  // namespace moesaic::jinja
