// DeltaMailbox: carries the output of sequences from the engine's thread to the one that answers.
// Deltas of a choice that is not collected in time are merged into one, so that a slow reader costs
// memory only for what it has not read, and that is bounded.
//
// Thread contract: any thread. Notify functions run on the thread that brings output, outside the
// mailbox's mutex: who is woken while it is held may take the waker's processor, find it locked and
// sleep again. They must only post.
#pragma once

#include <atomic>
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

  // `notify` is called once until mail is taken; it may be empty. `notice_tokens`: for how many
  // tokens of a choice, besides its first one, its end and what is no token; each notice costs the
  // reader a wake-up, which may be dearer than what it reads.
  DeltaMailbox(size_t max_bytes, std::function<void()> notify, Wake wake = Wake::kDeltas,
               size_t notice_tokens = 1);

  // The sink for a choice, by whatever number the reader knows it; it keeps the mailbox alive.
  std::shared_ptr<OutputSink> MakeSink(size_t choice);

  // All mail, in the order in which the choices first had some.
  std::vector<Mail> Take();
  // The same when there is something to wake for, or after `longest`.
  std::vector<Mail> Wait(Clock::duration longest);
  // More than max_bytes waited: mail has been dropped, the request must be given up.
  bool overflowed() const;
  // From now on mail is dropped and nobody is notified. Waits for a notify function that runs, and
  // is not for these.
  void Detach();

 private:
  class Sink;
  // What is to be done after the mutex is released.
  struct News {
    bool wake = false;  // a thread in Wait
    const std::function<void()>* notify =
        nullptr;  // Detach leaves it until it is no more notifying_
  };
  void Put(size_t choice, OutputDelta delta, std::optional<Error> error);
  News Add(size_t choice, OutputDelta delta, std::optional<Error> error);
  std::vector<Mail> TakeLocked() REQUIRES(mutex_);

  const size_t max_bytes_;
  const Wake wake_;
  const size_t notice_tokens_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool awake_ GUARDED_BY(mutex_) = false;  // there is something to wake for
  std::function<void()> notify_ GUARDED_BY(mutex_);
  std::atomic<int> notifying_{0};  // threads that run it; more only under mutex_ while attached_
  bool noticed_ GUARDED_BY(mutex_) = false;  // notify_ was called since mail was taken
  std::vector<Mail> mail_ GUARDED_BY(mutex_);
  std::unordered_map<size_t, size_t> slot_of_choice_ GUARDED_BY(mutex_);  // index into mail_
  size_t bytes_ GUARDED_BY(mutex_) = 0;
  bool overflowed_ GUARDED_BY(mutex_) = false;
  bool attached_ GUARDED_BY(mutex_) = true;
};

}  // namespace moesaic
