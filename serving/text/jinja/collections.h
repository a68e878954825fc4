// Building dicts, and attribute and item access: what `a.b` and `a[b]` mean.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/text/jinja/interpreter.h"

namespace moesaic::jinja {

// entries[key] = value; an equal key keeps its place. Throws RenderFailure for keys that Python
// cannot hash.
void SetEntry(std::vector<std::pair<Value, Value>>& entries, Value key, Value value,
              Budget& budget);
// Charges what it makes.
Value NewDict(std::vector<std::pair<Value, Value>> entries, Budget& budget);
void CheckHashable(const Value& key, Budget& budget);

// Methods, and attributes of objects; nullopt when there is none of that name. Unlike
// Interpreter::Attribute it does not look at the entries of a dict.
std::optional<Value> OwnAttribute(const Value& object, std::string_view name);

// Attributes along a dotted path ("function.name", "0"), as map(attribute=...) looks them up; an
// integer is an index.
Value AttributePath(Interpreter& interpreter, const Value& object, const Value& path);

}  // namespace moesaic::jinja
