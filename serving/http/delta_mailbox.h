// DeltaMailbox: carries the output of one request's choices from the engine's thread to a
// connection's strand. Deltas of a choice that is not collected in time are merged into one, so
// that a slow reader costs memory only for what it has not read, and that is bounded.
//
// Thread contract: any thread. Notify functions run under the mailbox's mutex and must only post.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "serving/engine/engine.h"
#include "serving/engine/request.h"

namespace moesaic {

// Appends `more` to `delta`: texts and tokens joined, the rest replaced where `more` has it.
void MergeDelta(OutputDelta& delta, OutputDelta more);
// What a delta takes in memory, roughly.
size_t DeltaBytes(const OutputDelta& delta);

class DeltaMailbox : public std::enable_shared_from_this<DeltaMailbox> {
 public:
  using Clock = std::chrono::steady_clock;
  struct Mail {
    size_t choice = 0;
    OutputDelta delta;
    std::optional<Error> error;
    std::vector<Clock::time_point> token_times;  // arrival of each delta that had tokens
  };

  // `notify` is called when mail arrives in an empty box.
  DeltaMailbox(size_t choices, size_t max_bytes, std::function<void()> notify);

  // The sink for a choice; it keeps the mailbox alive.
  std::shared_ptr<OutputSink> MakeSink(size_t choice);

  // All mail, in the order in which the choices first had some.
  std::vector<Mail> Take();
  // More than max_bytes waited: mail has been dropped, the request must be given up.
  bool overflowed() const;
  // From now on mail is dropped and nobody is notified.
  void Detach();

 private:
  class Sink;
  void Put(size_t choice, OutputDelta delta, std::optional<Error> error);

  const size_t max_bytes_;
  mutable Mutex mutex_;
  std::function<void()> notify_ GUARDED_BY(mutex_);
  std::vector<Mail> mail_ GUARDED_BY(mutex_);
  std::vector<size_t> slot_of_choice_ GUARDED_BY(mutex_);  // index into mail_, or kNone
  size_t bytes_ GUARDED_BY(mutex_) = 0;
  bool overflowed_ GUARDED_BY(mutex_) = false;
  bool attached_ GUARDED_BY(mutex_) = true;
};

}  // namespace moesaic
