#include "serving/engine/queue_places.h"

#include "core/base/check.h"
#include "core/base/error.h"

namespace moesaic {
namespace {

constexpr int64_t kHeldPerFree = 8;

}  // namespace

void QueuePlaces::Take(const std::string& client, int64_t sequences) {
  const MutexLock lock(mutex_);
  if (taken_ >= places_) {
    Fail(ErrorKind::kUnavailable, "the request queue is full ({} of {}); try again later", taken_,
         places_);
  }
  if (!client.empty()) {
    int64_t& held = of_client_[client];
    if (held / kHeldPerFree >= places_ - taken_) {
      Fail(
          ErrorKind::kUnavailable,
          "this key has {} of the {} places in the request queue, of which {} are left for others; "
          "try again later",
          held, places_, places_ - taken_);
    }
    held += sequences;
  }
  taken_ += sequences;
}

void QueuePlaces::GiveBack(const std::string& client, int64_t sequences) {
  const MutexLock lock(mutex_);
  taken_ -= sequences;
  if (client.empty()) return;
  const auto held = of_client_.find(client);
  CHECK(held != of_client_.end() && held->second >= sequences);
  held->second -= sequences;
  if (held->second == 0) of_client_.erase(held);
}

}  // namespace moesaic
