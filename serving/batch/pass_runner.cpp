#include "serving/batch/pass_runner.h"

#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "serving/batch/pass_graph.h"

namespace moesaic {
namespace {

// Of a copy that failed, before the pass fails.
constexpr int kCopyRetries = 2;

void Copy(Stream& stream, const auto& queue) {
  for (int retries_left = kCopyRetries;; --retries_left) {
    queue();
    const std::optional<Error> error = stream.Synchronize();
    if (!error) return;
    stream.ClearError();
    if (retries_left == 0 || error->kind() == ErrorKind::kUnavailable) throw *error;
  }
}

}  // namespace

PassRunner::PassRunner(Model& model, ThreadPool& pool, std::span<StreamingExperts* const> experts,
                       const DenseDevice* device, ScheduleKind schedule, Timeline* timeline)
    : model_(model),
      pool_(pool),
      experts_(experts.begin(), experts.end()),
      device_(device),
      dense_pool_(device != nullptr ? *device->pool : pool),
      schedule_(schedule),
      timeline_(timeline),
      executor_(device != nullptr ? kDeviceLanes : kOneLane) {
  CHECK(!experts_.empty());
}

const TaskGraph& PassRunner::GraphOf(int groups) {
  auto graph = graphs_.find(groups);
  if (graph == graphs_.end()) {
    const auto layers = static_cast<int>(model_.config().num_layers());
    graph = graphs_.emplace(groups, PassGraph(schedule_, device_ != nullptr, groups, layers)).first;
  }
  return graph->second;
}

StepStats PassRunner::Run(const ForwardBatch& batch, std::span<const SliceRange> groups,
                          RoutingHook* hook) {
  const bool overlapped = schedule_ == ScheduleKind::kOverlapped;
  CHECK(!groups.empty() && (!overlapped || groups.size() <= 2));
  const int64_t begin_ns = clock_.NowNs();
  groups_ = groups;
  hook_ = hook;
  all_rows_ = {0, static_cast<int64_t>(batch.tokens.size())};
  stats_ = {};
  const auto count = static_cast<int>(groups.size());
  for (StreamingExperts* experts : experts_) {
    experts->SetVisits(schedule_ == ScheduleKind::kModuleBatching ? 1 : count);
    experts->StepBegan();
  }
  StepStats stats = model_.BeginPass(batch);
  // The overlapped schedule always has its two groups; the second one may be empty.
  executor_.Run(GraphOf(overlapped ? 2 : count), [this](const Task& task) { RunTask(task); });
  model_.EndPass();
  for (const StepStats& lane : stats_) stats += lane;
  stats.total_us = (clock_.NowNs() - begin_ns) / 1000;
  return stats;
}

void PassRunner::RunTask(const Task& task) {
  SliceRange slices;
  if (static_cast<size_t>(task.index) < groups_.size()) {
    slices = groups_[static_cast<size_t>(task.index)];
  }
  const RowRange rows = model_.RowsOf(slices);
  if (rows.count() == 0) return;
  const int64_t begin_ns = clock_.NowNs();
  StepStats& stats = stats_[static_cast<size_t>(task.resource)];
  switch (task.kind) {
    case TaskKind::kPreAttention:
      PreAttention(task.layer, rows);
      break;
    case TaskKind::kOffloadQkv:
      CopyOut(task.layer, rows);
      return;
    case TaskKind::kCpuAttention:
      Attention(task.layer, slices);
      break;
    case TaskKind::kLoadHidden:
      CopyIn(task.layer, rows);
      return;
    case TaskKind::kPostAttention:
      PostAttention(task.layer, rows);
      if (schedule_ != ScheduleKind::kModuleBatching) Mlp(task.layer, rows);
      return;
    case TaskKind::kExpert:
      Mlp(task.layer, all_rows_);
      return;
    case TaskKind::kLoadKv:
    case TaskKind::kDeviceAttention:
    case TaskKind::kWeights:
      CHECK(false);  // PassGraph has none
  }
  stats.attention_us += (clock_.NowNs() - begin_ns) / 1000;
}

void PassRunner::PreAttention(int layer, RowRange rows) {
  experts_.front()->timeline().ComputeBegan();
  model_.PreAttention(layer, rows, dense_pool_);
  experts_.front()->timeline().ComputeEnded(Activity::kDense, layer);
}

void PassRunner::Attention(int layer, SliceRange slices) {
  const int64_t begin_ns = clock_.NowNs();
  model_.Attend(layer, slices, pool_);
  Log(Activity::kAttention, begin_ns, layer, 0, 0);
}

void PassRunner::PostAttention(int layer, RowRange rows) {
  experts_.front()->timeline().ComputeBegan();
  const int64_t begin_ns = clock_.NowNs();
  model_.Project(layer, rows, dense_pool_);
  stats_[static_cast<size_t>(Resource::kDevice)].attention_us += (clock_.NowNs() - begin_ns) / 1000;
  model_.Route(layer, rows, dense_pool_);
  if (hook_ != nullptr) model_.ShowRouting(layer, rows, *hook_);
  experts_.front()->timeline().ComputeEnded(Activity::kDense, layer);
}

void PassRunner::Mlp(int layer, RowRange rows) {
  const int64_t begin_ns = clock_.NowNs();
  experts_.front()->timeline().ComputeBegan();
  const ExpertStats experts = model_.RunMlp(layer, rows, dense_pool_);
  experts_.front()->timeline().ComputeEnded(Activity::kDense, layer);
  StepStats& stats = stats_[static_cast<size_t>(Resource::kDevice)];
  stats.experts += experts;
  stats.moe_us += (clock_.NowNs() - begin_ns) / 1000 - static_cast<int64_t>(experts.blocked_us);
}

void PassRunner::CopyOut(int layer, RowRange rows) {
  if (!on_device()) return;
  const int64_t begin_ns = clock_.NowNs();
  const DensePart::MixerRows at = model_.mixer_rows();
  const uint64_t offset = static_cast<uint64_t>(rows.begin) * at.projected_row_bytes;
  const uint64_t bytes = static_cast<uint64_t>(rows.count()) * at.projected_row_bytes;
  Copy(*device_->out, [&] {
    device_->out->CopyToHost({reinterpret_cast<std::byte*>(at.projected) + offset, bytes},
                             device_->qkv.Subspan(offset, bytes));
  });
  Log(Activity::kHiddenOut, begin_ns, layer, bytes, 1);
}

void PassRunner::CopyIn(int layer, RowRange rows) {
  if (!on_device()) return;
  const int64_t begin_ns = clock_.NowNs();
  const DensePart::MixerRows at = model_.mixer_rows();
  const uint64_t offset = static_cast<uint64_t>(rows.begin) * at.mixed_row_bytes;
  const uint64_t bytes = static_cast<uint64_t>(rows.count()) * at.mixed_row_bytes;
  Copy(*device_->in, [&] {
    device_->in->CopyToDevice(device_->attention.Subspan(offset, bytes),
                              {at.mixed + offset, bytes});
  });
  Log(Activity::kHiddenIn, begin_ns, layer, bytes, 1);
}

void PassRunner::Log(Activity activity, int64_t begin_ns, int layer, uint64_t bytes, int16_t lane) {
  if (timeline_ == nullptr) return;
  timeline_->Add({activity, begin_ns, clock_.NowNs(), layer, -1, bytes, lane});
}

}  // namespace moesaic
