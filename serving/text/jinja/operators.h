// Python's operators on values. All throw RenderFailure for operands that Python refuses.
#pragma once

#include "serving/text/jinja/ast.h"
#include "serving/text/jinja/interpreter.h"

namespace moesaic::jinja {

Value ApplyBinary(Interpreter& interpreter, Operator op, const Value& a, const Value& b);
bool ApplyComparison(Interpreter& interpreter, Operator op, const Value& a, const Value& b);
bool Contains(Interpreter& interpreter, const Value& container, const Value& item);
// object[start:stop:step]; the three are integers or None.
Value Slice(Interpreter& interpreter, const Value& object, const Value& start, const Value& stop,
            const Value& step);

}  // namespace moesaic::jinja
