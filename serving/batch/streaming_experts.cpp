#include "serving/batch/streaming_experts.h"

#include <utility>

namespace moesaic {
namespace {

// The kernel gives the pages of the slots meanwhile: a job uses all of them.
LinkOptions WithTouchedSlots(LinkOptions options) {
  options.touch_slots = true;
  return options;
}

std::unique_ptr<LinkTimeline> MakeTimeline(const ExpertSource& source,
                                           const StreamingOptions& options) {
  if (options.timeline == nullptr) return nullptr;
  return std::make_unique<LinkTimeline>(*options.timeline, options.lane,
                                        source.layout().slot_bytes);
}

}  // namespace

StreamingExperts::StreamingExperts(const ExpertSource& source, int num_layers, int num_experts,
                                   const StreamingOptions& options,
                                   std::unique_ptr<AsyncReader> reader)
    : LinkMover(
          source, ExpertGrid(num_layers, num_experts), options.slots, WithTouchedSlots(options),
          std::move(reader),
          [&](LinkParameters link) {
            return std::make_unique<StreamFlow>(ExpertGrid(num_layers, num_experts),
                                                SparseLayers(source, num_layers), options.slots,
                                                options.buffers, GroupOfExperts(link.slot_bytes),
                                                options.experts, std::move(link));
          },
          MakeTimeline(source, options)),
      timeline_(static_cast<LinkTimeline*>(observer())) {}

uint64_t StreamingExperts::StagingBytes(const ExpertSource& source, int num_layers, int num_experts,
                                        const StreamingOptions& options) {
  return LinkMover::StagingBytes(source, ExpertGrid(num_layers, num_experts), options.slots,
                                 options);
}

void StreamingExperts::SetVisits(int visits) {
  const MutexLock lock(mutex_);
  flow().SetVisits(visits);
}

void StreamingExperts::StepBegan() {
  if (timeline_ != nullptr) timeline_->StepBegan();
  LinkMover::StepBegan();
}

ExpertStats StreamingExperts::EndLayer() {
  const ExpertStats stats = LinkMover::EndLayer();
  totals_ += stats;
  return stats;
}

void StreamingExperts::GiveUp() {
  const MutexLock lock(mutex_);
  flow().GiveUp();
}

void StreamingExperts::ComputeBegan() {
  if (timeline_ != nullptr) timeline_->ComputeBegan();
}

void StreamingExperts::ComputeEnded(Activity activity, int32_t layer) {
  if (timeline_ != nullptr) timeline_->ComputeEnded(activity, layer);
}

}  // namespace moesaic
