// DenseGraphs: what a decode step queues, as graphs. A step is of a kind, and of each part of a
// kind there is one graph: captured when that part is queued first, replayed from then on.
//
// Owned by a DeviceDense, used by its thread; the stream outlives it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/function_ref.h"
#include "core/device/stream.h"

namespace moesaic {

class DenseGraphs {
 public:
  using Kind = std::pair<int64_t, int64_t>;  // rows, longest context

  DenseGraphs(Stream& stream, int64_t parts) : stream_(stream), parts_(parts) {}

  // A step of this kind begins; with EndKind one of none, whose parts are queued as they are.
  void BeginKind(const Kind& kind);
  void EndKind() { graphs_of_step_ = nullptr; }

  // Queues what `queue` does, which is the same for all steps of a kind.
  void Run(int64_t part, FunctionRef<void()> queue);
  // Likewise, or nothing: false when it cannot be had as a graph.
  bool RunIfCaptured(int64_t part, FunctionRef<void()> queue) {
    return graphs_of_step_ != nullptr && Replay(part, queue);
  }

  int64_t captured() const { return captured_; }  // graphs so far

 private:
  bool Replay(int64_t part, FunctionRef<void()> queue);

  using Graphs = std::vector<std::unique_ptr<Graph>>;  // [parts] null: not captured yet

  Stream& stream_;
  const int64_t parts_;
  std::map<Kind, Graphs> graphs_;
  Graphs* graphs_of_step_ = nullptr;  // null: it is not replayed
  bool warned_ = false;               // that one could not be captured
  int64_t captured_ = 0;
};

}  // namespace moesaic
