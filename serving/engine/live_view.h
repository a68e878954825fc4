// LiveView: what an engine is doing, for who looks on while it does: samples that the engine's
// thread makes a few times a second (live_sampler.h), and only while somebody watches.
//
// Owned by an EngineLoop; there is one for each engine. The engine's thread takes no lock here: it
// fills one of three samples and exchanges it for the one in the middle; who reads exchanges the
// one in the middle for his own. A reader that is slow or stops misses samples, which nobody keeps.
//
// Thread contract: Back and Publish are the engine's thread's, the rest anyone's.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/memory_ledger.h"
#include "core/base/mutex.h"
#include "prefetch/link/expert_provider.h"
#include "serving/engine/engine.h"
#include "serving/model/step_stats.h"

namespace moesaic {

struct LiveRequest {
  enum class Phase : uint8_t { kWaiting, kPrefill, kDecode, kEnded };

  RequestId id = 0;
  std::string name;  // EngineRequest::id
  Phase phase = Phase::kWaiting;
  std::string ended;  // of kEnded: a FinishReasonName, or "error"
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;    // of the prompt, found in the prefix cache
  int64_t computed_tokens = 0;  // positions whose keys and values are there
  int64_t output_tokens = 0;
  int64_t max_tokens = 0;
  int64_t queue_us = 0;    // until the first step that ran it, or until now
  int64_t age_us = 0;      // since it came; of kEnded: until it ended
  int64_t blocked_us = 0;  // steps that ran it waited for experts
};

struct LiveSample {
  uint64_t number = 0;  // 1, 2, ...; 0: none was made yet
  int64_t time_us = 0;  // since the engine was ready
  StepStats totals;     // of all steps that have ended
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t preemptions = 0;
  double kv_usage = 0;         // 0..1
  std::string not_ready;       // why no request can succeed; empty: they can
  int64_t expert_slots = 0;    // as of the last step that has ended
  std::vector<LinkUse> links;  // one, or one for each device; empty: the engine cannot tell
  // Where the experts are, and who has left since the sample before. [layers, experts]; empty: the
  // engine cannot tell
  std::vector<ExpertPresence> places;
  std::vector<uint8_t> left;
  // Which part of the tokens used an expert, the last ones counting most; 0 before anybody watched.
  std::vector<float> use;  // [layers, experts]
  // Running ones first, then those that wait, oldest first, and those that have ended lately. No
  // more than kMaxRequests: `running` and `waiting` count all.
  std::vector<LiveRequest> requests;

  static constexpr size_t kMaxRequests = 64;
  // So many tokens ago a use counts half.
  static constexpr double kUseHalfLifeTokens = 256;
};

class LiveView {
 public:
  // From now on and until it goes, samples are made. Must not outlive the engine.
  class Watch {
   public:
    explicit Watch(LiveView& view);
    ~Watch() { view_.watchers_.fetch_sub(1); }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    LiveView& view_;
  };

  // wake: called by who begins to watch; the engine may be waiting for requests. ledgers: of the
  // host's memory, then of each device's.
  LiveView(std::vector<MemoryLedger> ledgers, std::function<void()> wake)
      : ledgers_(std::move(ledgers)), wake_(std::move(wake)) {}

  const std::vector<MemoryLedger>& ledgers() const { return ledgers_; }
  bool watched() const { return watchers_.load(std::memory_order_relaxed) > 0; }

  // The number of the last sample; what `Latest` gives is this one or a later one.
  uint64_t number() const { return number_.load(std::memory_order_acquire); }
  // Shared by all who look. Never null.
  std::shared_ptr<const LiveSample> Latest() EXCLUDES(readers_);

  // Somebody has begun to watch since this was asked last.
  bool TakeAsked() { return asked_.load(std::memory_order_relaxed) && asked_.exchange(false); }
  bool asked() const { return asked_.load(std::memory_order_relaxed); }
  // To be overwritten and published: an old sample, of any content.
  LiveSample& Back() { return samples_[back_]; }
  void Publish();

 private:
  static constexpr uint8_t kFresh = 4;  // the one in the middle was not read yet

  const std::vector<MemoryLedger> ledgers_;
  const std::function<void()> wake_;
  std::atomic<int64_t> watchers_{0};
  std::atomic<bool> asked_{false};
  std::atomic<uint64_t> number_{0};

  std::array<LiveSample, 3> samples_;
  uint8_t back_ = 0;                // the engine's
  std::atomic<uint8_t> middle_{1};  // nobody's; with kFresh or without
  Mutex readers_;
  uint8_t front_ GUARDED_BY(readers_) = 2;  // the readers'
  std::shared_ptr<const LiveSample> latest_ GUARDED_BY(readers_) =
      std::make_shared<const LiveSample>();
};

}  // namespace moesaic
