#include "serving/batch/streaming_experts.h"

#include <utility>

namespace moesaic {
namespace {

// The kernel gives the pages of the slots meanwhile: a job uses all of them.
LinkOptions WithTouchedSlots(LinkOptions options) {
  options.touch_slots = true;
  return options;
}

}  // namespace

StreamingExperts::StreamingExperts(const ExpertSource& source, int num_layers, int num_experts,
                                   const StreamingOptions& options,
                                   std::unique_ptr<AsyncReader> reader)
    : LinkMover(
          source, ExpertGrid(num_layers, num_experts), options.slots, WithTouchedSlots(options),
          std::move(reader),
          [&](LinkParameters link) {
            return std::make_unique<StreamFlow>(
                ExpertGrid(num_layers, num_experts), SparseLayers(source, num_layers),
                options.slots, options.buffers, GroupOfExperts(link.slot_bytes), std::move(link));
          },
          std::make_unique<LinkTimeline>(options.timeline, options.lane,
                                         source.layout().slot_bytes)) {}

void StreamingExperts::SetVisits(int visits) {
  const MutexLock lock(mutex_);
  flow().SetVisits(visits);
}

void StreamingExperts::GiveUp() {
  const MutexLock lock(mutex_);
  flow().GiveUp();
}

}  // namespace moesaic
