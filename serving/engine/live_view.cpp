#include "serving/engine/live_view.h"

namespace moesaic {

LiveView::Watch::Watch(LiveView& view) : view_(view) {
  view_.watchers_.fetch_add(1);
  view_.asked_.store(true);
  view_.wake_();
}

void LiveView::Publish() {
  LiveSample& sample = samples_[back_];
  sample.number = number_.load(std::memory_order_relaxed) + 1;
  const uint64_t number = sample.number;
  back_ = middle_.exchange(back_ | kFresh, std::memory_order_acq_rel) & uint8_t{3};
  number_.store(number, std::memory_order_release);
}

std::shared_ptr<const LiveSample> LiveView::Latest() {
  const MutexLock lock(readers_);
  if ((middle_.load(std::memory_order_relaxed) & kFresh) != 0) {
    front_ = middle_.exchange(front_, std::memory_order_acq_rel) & uint8_t{3};
    latest_ = std::make_shared<const LiveSample>(samples_[front_]);
  }
  return latest_;
}

}  // namespace moesaic
