#include "serving/grammar/schema_cycles.h"

#include <algorithm>
#include <set>

#include "core/base/error.h"

namespace moesaic {
namespace {

[[noreturn]] void Refuse(const std::string& pointer, const char* why) {
  Fail(ErrorKind::kInvalidArgument, "{}: {}", pointer.empty() ? "the schema" : pointer, why);
}

using Nodes = std::map<std::string, SchemaNode>;

// References and options that lead back without a part of a value in between.
class LoopFinder {
 public:
  explicit LoopFinder(const Nodes& nodes) : nodes_(nodes) {}

  void Visit(const std::string& pointer) {
    if (done_.count(pointer) != 0) return;
    // Options are nested as deep as schemas are; references add what a set of schemas can.
    if (!open_.insert(pointer).second) Refuse(pointer, "it refers to itself");
    for (const std::string& next : nodes_.at(pointer).any_of) Visit(next);
    open_.erase(pointer);
    done_.insert(pointer);
  }

 private:
  const Nodes& nodes_;
  std::set<std::string> open_;
  std::set<std::string> done_;
};

}  // namespace

void CheckSchemaCycles(const Nodes& nodes) {
  for (const auto& [pointer, node] : nodes) {
    for (const std::string& target : node.any_of) {
      if (nodes.count(target) == 0) Refuse(pointer, "it refers to what is no schema");
    }
  }
  LoopFinder loops(nodes);
  for (const auto& [pointer, node] : nodes) loops.Visit(pointer);

  std::set<std::string> ends;
  const auto known = [&ends](const std::string& pointer) { return ends.count(pointer) != 0; };
  for (bool more = true; more;) {
    more = false;
    for (const auto& [pointer, node] : nodes) {
      if (known(pointer)) continue;
      const bool whole = std::all_of(node.all_of.begin(), node.all_of.end(), known);
      const bool option =
          node.any_of.empty() || std::any_of(node.any_of.begin(), node.any_of.end(), known);
      if (node.ends || (whole && option)) {
        ends.insert(pointer);
        more = true;
      }
    }
  }
  for (const auto& [pointer, node] : nodes) {
    if (!known(pointer)) Refuse(pointer, "no value of it ends: it requires itself as a part");
  }
}

}  // namespace moesaic
