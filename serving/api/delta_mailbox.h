// DeltaMailbox: carries the output of sequences from the engine's thread to the one that answers.
// Deltas of a choice that is not collected in time are merged into one, so that a slow reader costs
// memory only for what it has not read, and that is bounded.
//
// Thread contract: any thread. Notify functions run under the mailbox's mutex and must only post.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <unordered_map>
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

    bool ends() const { return error.has_value() || delta.finish.has_value(); }
  };
  // What a thread in Wait is woken for. To wake it for every token of a large batch costs the
  // threads that compute more than the token's sampling.
  enum class Wake { kDeltas, kEnds };
  static constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

  // `notify` is called when mail arrives in an empty box; it may be empty.
  DeltaMailbox(size_t max_bytes, std::function<void()> notify, Wake wake = Wake::kDeltas);

  // The sink for a choice, by whatever number the reader knows it; it keeps the mailbox alive.
  std::shared_ptr<OutputSink> MakeSink(size_t choice);

  // All mail, in the order in which the choices first had some.
  std::vector<Mail> Take();
  // The same when there is something to wake for, or after `longest`.
  std::vector<Mail> Wait(Clock::duration longest);
  // More than max_bytes waited: mail has been dropped, the request must be given up.
  bool overflowed() const;
  // From now on mail is dropped and nobody is notified.
  void Detach();

 private:
  class Sink;
  void Put(size_t choice, OutputDelta delta, std::optional<Error> error);
  std::vector<Mail> TakeLocked() REQUIRES(mutex_);

  const size_t max_bytes_;
  const Wake wake_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool awake_ GUARDED_BY(mutex_) = false;  // there is something to wake for
  std::function<void()> notify_ GUARDED_BY(mutex_);
  std::vector<Mail> mail_ GUARDED_BY(mutex_);
  std::unordered_map<size_t, size_t> slot_of_choice_ GUARDED_BY(mutex_);  // index into mail_
  size_t bytes_ GUARDED_BY(mutex_) = 0;
  bool overflowed_ GUARDED_BY(mutex_) = false;
  bool attached_ GUARDED_BY(mutex_) = true;
};

}  // namespace moesaic
