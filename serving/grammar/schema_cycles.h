// CheckSchemaCycles: whether the schemas of a schema, which refer to each other, allow a value that
// ends. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace moesaic {

struct SchemaNode {
  // Pointers of schemas that a value also has to be of (one of them), and that parts of it are of
  // (all of them).
  std::vector<std::string> any_of;
  std::vector<std::string> all_of;
  bool refers = false;  // any_of is the target of a reference
  bool ends = false;    // it has a value without parts
};

// By pointer. Throws Error(kInvalidArgument) with the pointer of one that refers to nothing, to
// itself, or only to values without end.
void CheckSchemaCycles(const std::map<std::string, SchemaNode>& nodes);

}  // namespace moesaic
