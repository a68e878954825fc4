// emulated::Core: the state of all streams, events and engines of one EmulatedSystem, and the lock
// that guards it. Internal to core/device (emulated_*.cpp).
//
// One lock for all devices of a system, because streams wait for events of other devices; it is
// never held while bytes are copied or a host function runs. The states are plain structs that
// their EmulatedDevice, stream and event objects own; only Core's methods look into them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/function_ref.h"
#include "core/base/mutex.h"
#include "core/device/emulated_device.h"
#include "core/device/stream.h"

namespace moesaic::emulated {

struct StreamState;

// One record of an event. Shared by the event, which may be recorded anew or go away, by the stream
// that will come to it and by the streams that wait for it.
struct Mark {
  bool done = false;
  int64_t time_ns = 0;  // when done
  std::optional<Error> error;
  std::vector<StreamState*> waiting;  // streams whose head this is
};

struct Op {
  enum class Kind : uint8_t {
    kCopy,
    kKernel,
    kCall,
    kRecord,
    kWait,
    kWaitValue,
    kWriteValue,
    kClearError
  };
  Kind kind = Kind::kCopy;
  int64_t queued_ns = 0;
  // kCopy
  EmulatedEngine engine = EmulatedEngine::kHostToDevice;
  DeviceState* source_device = nullptr;  // whose engine moves it, when it is not the stream's
  DeviceState* destination_device = nullptr;
  std::byte* destination = nullptr;
  const std::byte* source = nullptr;
  uint64_t bytes = 0;
  uint64_t number = 0;  // as in EmulatedFaults
  int64_t stall_ns = 0;
  bool fails = false;
  bool loses_device = false;
  std::optional<KernelLaunch> kernel;  // kKernel
  HostFunction function;               // kCall
  std::shared_ptr<Mark> mark;          // kRecord, kWait
  const uint32_t* awaited = nullptr;   // kWaitValue
  uint32_t* written = nullptr;         // kWriteValue
  uint32_t value = 0;                  // of either
};

struct StreamState {
  explicit StreamState(DeviceState* owner) : device(owner) {}
  DeviceState* const device;
  std::deque<Op> ops;   // the head is running, waiting, or about to
  int64_t time_ns = 0;  // when the last op that was popped ended
  std::optional<Error> error;
};

// A thread and the streams whose head it is to run, in order.
struct Engine {
  std::deque<StreamState*> ready;
  StreamState* current = nullptr;
  bool in_hand = false;         // the thread copies bytes or calls a function
  int64_t deadline_ns = 0;      // when the current copy ends, once its bytes are there
  int64_t link_free_at_ns = 0;  // modelled
  EmulatedEngineCounters counters;
  CondVar wake;
  std::thread thread;
};

constexpr int kCallEngine = kEmulatedEngines;        // host functions
constexpr int kKernelEngine = kEmulatedEngines + 1;  // one kernel at a time
constexpr int kWordEngine = kEmulatedEngines + 2;    // looks at the words that streams wait for

struct DeviceState {
  std::string name;
  std::array<EmulatedLink, kEmulatedEngines> links;  // by engine
  EmulatedLink local_link;
  std::array<Engine, kEmulatedEngines + 3> engines;
  std::optional<Error> lost;
  bool stop = false;
  int64_t streams = 0;
  EmulatedFaults faults;
  uint64_t copies_queued = 0;  // since the faults were set
  uint64_t allocations_granted = 0;
};

class Core {
 public:
  explicit Core(VirtualClock* virtual_clock);  // null: the steady clock
  ~Core();

  const Clock& clock() const { return *clock_; }
  void AdvanceNs(int64_t delta_ns) EXCLUDES(mutex_);

  void StartDevice(DeviceState& device) EXCLUDES(mutex_);
  void StopDevice(DeviceState& device) EXCLUDES(mutex_);
  void SetFaults(DeviceState& device, EmulatedFaults faults) EXCLUDES(mutex_);
  void Lose(DeviceState& device) EXCLUDES(mutex_);
  std::optional<Error> Lost(const DeviceState& device) EXCLUDES(mutex_);
  bool GrantAllocation(DeviceState& device) EXCLUDES(mutex_);
  EmulatedEngineCounters Counters(const DeviceState& device, EmulatedEngine engine)
      EXCLUDES(mutex_);

  void OpenStream(StreamState& stream) EXCLUDES(mutex_);
  void CloseStream(StreamState& stream) EXCLUDES(mutex_);
  void Queue(StreamState& stream, Op op) EXCLUDES(mutex_);
  bool Idle(const StreamState& stream) EXCLUDES(mutex_);
  std::optional<Error> Synchronize(StreamState& stream) EXCLUDES(mutex_);

  Event::State Query(const Mark& mark) EXCLUDES(mutex_);
  std::optional<Error> Synchronize(const Mark& mark) EXCLUDES(mutex_);

 private:
  int64_t Now() const { return clock_->NowNs(); }
  void NumberCopy(DeviceState& device, Op& op) REQUIRES(mutex_);
  void LoseLocked(DeviceState& device) REQUIRES(mutex_);
  void Progress(StreamState& stream) REQUIRES(mutex_);
  bool RunHead(StreamState& stream) REQUIRES(mutex_);
  void HandOver(StreamState& stream, Engine& engine) REQUIRES(mutex_);
  void EngineThread(DeviceState& device, int index) EXCLUDES(mutex_);
  void RunCopy(DeviceState& device, Engine& engine) REQUIRES(mutex_);
  void RunKernel(Engine& engine) REQUIRES(mutex_);
  void RunCall(Engine& engine) REQUIRES(mutex_);
  void WatchWords(DeviceState& device, Engine& engine) REQUIRES(mutex_);
  void WaitAsEngine(Engine& engine, int64_t until_ns) REQUIRES(mutex_);

  void Await(FunctionRef<bool()> done) REQUIRES(mutex_);
  bool Settled() const REQUIRES(mutex_);
  std::optional<int64_t> NextDeadline() const REQUIRES(mutex_);
  void MoveVirtualTime(int64_t to_ns) REQUIRES(mutex_);

  const SteadyClock steady_clock_;
  VirtualClock* const virtual_clock_;
  const Clock* const clock_;
  Mutex mutex_;
  CondVar changed_;  // an op ended, or an engine has come to a wait
  std::vector<DeviceState*> devices_ GUARDED_BY(mutex_);
  std::vector<StreamState*> to_run_ GUARDED_BY(mutex_);  // by Progress
};

// The failure of a copy whose device, or whose peer, is gone.
std::optional<Error> LostError(const Op& op, const StreamState& stream);

}  // namespace moesaic::emulated
