#include "serving/model/dense_graphs.h"

#include "core/base/logging.h"
#include "core/device/device.h"

namespace moesaic {

void DenseGraphs::BeginKind(const Kind& kind) {
  graphs_of_step_ = &graphs_[kind];
  graphs_of_step_->resize(static_cast<size_t>(parts_));
}

bool DenseGraphs::Replay(int64_t part, FunctionRef<void()> queue) {
  std::unique_ptr<Graph>& graph = (*graphs_of_step_)[static_cast<size_t>(part)];
  if (graph == nullptr) {
    stream_.BeginCapture();
    queue();
    graph = stream_.EndCapture();
    captured_ += graph != nullptr ? 1 : 0;
  }
  if (graph == nullptr) return false;
  stream_.Replay(*graph);
  return true;
}

void DenseGraphs::Run(int64_t part, FunctionRef<void()> queue) {
  if (graphs_of_step_ != nullptr) {
    if (Replay(part, queue)) return;
    if (!std::exchange(warned_, true)) {
      LogWarn("device {}: a decode step could not be captured, it is queued kernel by kernel",
              stream_.device().name());
    }
    graphs_of_step_ = nullptr;
  }
  queue();
}

}  // namespace moesaic
