// LoopObject: the `loop` variable of a for loop, which also draws the loop's items.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "serving/text/jinja/object.h"

namespace moesaic::jinja {

class LoopObject final : public Object, public std::enable_shared_from_this<LoopObject> {
 public:
  // Items are drawn when they are wanted, as in Jinja: a loop's filter condition sees what the
  // body did before. `source` gives the next item or nullopt.
  LoopObject(std::function<std::optional<Value>()> source, int items_depth);

  // Moves on to the next item; nullopt at the end.
  std::optional<Value> Advance();
  // The loop is over: forgets the source and everything that could hold this object in turn.
  void Finish();

  std::string_view type_name() const override { return "LoopContext"; }
  std::string Repr() const override;
  int depth() const override { return depth_; }
  std::optional<Value> Attribute(std::string_view name) override;

  Value Cycle(CallArguments& arguments);
  Value Changed(Interpreter& interpreter, CallArguments& arguments);

 private:
  const Value* Peek();
  size_t Length();

  std::function<std::optional<Value>()> source_;
  int depth_;
  std::deque<Value> ahead_;
  std::optional<Value> previous_;
  std::optional<Value> current_;
  std::optional<std::vector<Value>> last_changed_;
  Integer index0_ = -1;
};

}  // namespace moesaic::jinja
