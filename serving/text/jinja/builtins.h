// The names that templates find without defining them. Look-ups of constant tables.
#pragma once

#include <optional>
#include <string_view>

#include "serving/text/jinja/object.h"
#include "serving/text/jinja/value.h"

namespace moesaic::jinja {

using FilterFunction = Value (*)(Interpreter&, const Value& input, CallArguments&);
using TestFunction = bool (*)(Interpreter&, const Value& input, CallArguments&);

struct MethodEntry {
  std::string_view name;
  BuiltinMethod method;
};
struct FilterEntry {
  std::string_view name;
  FilterFunction function;
};
struct TestEntry {
  std::string_view name;
  TestFunction function;
};

// Null when there is none.
FilterFunction FindFilter(std::string_view name);
FilterFunction FindTextFilter(std::string_view name);
FilterFunction FindSequenceFilter(std::string_view name);
TestFunction FindTest(std::string_view name);
const MethodEntry* FindStringMethod(std::string_view name);
// Methods of lists and dicts. Those that would change the value are not here.
const MethodEntry* FindCollectionMethod(const Value& self, std::string_view name);
// Whether Python's type has this method but the sandbox forbids it, because it changes the value.
bool IsForbiddenMethod(const Value& self, std::string_view name);
// range, dict, namespace, raise_exception, strftime_now, joiner, cycler; lipsum, which refuses.
std::optional<Value> FindGlobal(std::string_view name);

}  // namespace moesaic::jinja
