#include "core/device/emulated_core.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <utility>

#include "core/base/check.h"
#include "core/device/host_word.h"

namespace moesaic::emulated {
namespace {

// How often a word is looked at that a stream waits for.
constexpr std::chrono::microseconds kWordPeriod{20};

constexpr const char* kEngineNames[] = {"host to device", "device to host", "device to device"};

// As uniform as it is stateless (splitmix64, Steele et al., "Fast splittable pseudorandom number
// generators", OOPSLA 2014): whether a copy fails must not depend on the order of threads.
double Uniform(uint64_t seed, uint64_t number) {
  uint64_t x = seed + number * 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  x ^= x >> 31;
  return static_cast<double>(x >> 11) * 0x1p-53;
}

int64_t CopyNs(const EmulatedLink& link, uint64_t bytes) {
  const double seconds = link.bytes_per_s > 0 ? static_cast<double>(bytes) / link.bytes_per_s : 0.0;
  return std::llround(link.latency_us * 1e3 + seconds * 1e9);
}

// A copy that fails leaves half of its bytes and then rubbish, so that who uses them is found out.
void MoveBytes(const Op& op) {
  if (op.bytes == 0) return;
  if (!op.fails) {
    std::memmove(op.destination, op.source, op.bytes);
    return;
  }
  const uint64_t good_bytes = op.bytes / 2;
  const auto rubbish = static_cast<unsigned char>(~op.source[op.bytes - 1]);
  std::memmove(op.destination, op.source, good_bytes);
  std::memset(op.destination + good_bytes, rubbish, op.bytes - good_bytes);
}

DeviceState& EngineDevice(const StreamState& stream, const Op& op) {
  return op.source_device != nullptr ? *op.source_device : *stream.device;
}

}  // namespace

std::optional<Error> LostError(const Op& op, const StreamState& stream) {
  for (const DeviceState* device : {stream.device, op.source_device, op.destination_device}) {
    if (device != nullptr && device->lost) return device->lost;
  }
  return std::nullopt;
}

Core::Core(VirtualClock* virtual_clock)
    : virtual_clock_(virtual_clock),
      clock_(virtual_clock != nullptr ? static_cast<const Clock*>(virtual_clock) : &steady_clock_) {
}

Core::~Core() {
  MutexLock lock(mutex_);
  CHECK(devices_.empty());  // the system outlives its devices
}

void Core::StartDevice(DeviceState& device) {
  MutexLock lock(mutex_);
  devices_.push_back(&device);
  for (size_t i = 0; i < device.engines.size(); ++i) {
    device.engines[i].thread =
        std::thread([this, &device, i] { EngineThread(device, static_cast<int>(i)); });
  }
}

void Core::StopDevice(DeviceState& device) {
  {
    MutexLock lock(mutex_);
    CHECK_EQ(device.streams, 0);  // a device outlives its streams
    device.stop = true;
    for (Engine& engine : device.engines) engine.wake.NotifyAll();
  }
  for (Engine& engine : device.engines) engine.thread.join();
  MutexLock lock(mutex_);
  std::erase(devices_, &device);
}

void Core::SetFaults(DeviceState& device, EmulatedFaults faults) {
  MutexLock lock(mutex_);
  device.faults = std::move(faults);
  device.copies_queued = 0;
  device.allocations_granted = 0;
}

void Core::Lose(DeviceState& device) {
  MutexLock lock(mutex_);
  LoseLocked(device);
}

void Core::LoseLocked(DeviceState& device) {
  if (device.lost) return;
  device.lost = Error(ErrorKind::kUnavailable,
                      fmt::format("device {} is lost: nothing on it can be reached any more; "
                                  "start again without it",
                                  device.name));
  // Copies on their way end now, those of peers that name this device too.
  for (DeviceState* each : devices_) {
    for (Engine& engine : each->engines) engine.wake.NotifyAll();
  }
}

std::optional<Error> Core::Lost(const DeviceState& device) {
  MutexLock lock(mutex_);
  return device.lost;
}

bool Core::GrantAllocation(DeviceState& device) {
  MutexLock lock(mutex_);
  if (device.lost) return false;
  const std::optional<uint64_t>& granted = device.faults.granted_allocations;
  if (granted && device.allocations_granted >= *granted) return false;
  ++device.allocations_granted;
  return true;
}

EmulatedEngineCounters Core::Counters(const DeviceState& device, EmulatedEngine engine) {
  MutexLock lock(mutex_);
  return device.engines[static_cast<size_t>(engine)].counters;
}

void Core::OpenStream(StreamState& stream) {
  MutexLock lock(mutex_);
  ++stream.device->streams;
}

void Core::CloseStream(StreamState& stream) {
  MutexLock lock(mutex_);
  Await([&stream] { return stream.ops.empty(); });
  --stream.device->streams;
}

void Core::Queue(StreamState& stream, Op op) {
  MutexLock lock(mutex_);
  op.queued_ns = Now();
  if (op.kind == Op::Kind::kCopy) NumberCopy(*stream.device, op);
  stream.ops.push_back(std::move(op));
  if (stream.ops.size() == 1) Progress(stream);
}

// The faults of a copy are decided when it is queued: engines run side by side, and what fails must
// not depend on which is ahead.
void Core::NumberCopy(DeviceState& device, Op& op) {
  const EmulatedFaults& faults = device.faults;
  op.number = ++device.copies_queued;
  op.fails = std::find(faults.failing_copies.begin(), faults.failing_copies.end(), op.number) !=
                 faults.failing_copies.end() ||
             Uniform(faults.seed, op.number) < faults.copy_failure_probability;
  for (const EmulatedFaults::Stall& stall : faults.stalls) {
    if (stall.copy == op.number) op.stall_ns += stall.stall_us * 1000;
  }
  op.loses_device = faults.lost_at_copy == op.number;
}

bool Core::Idle(const StreamState& stream) {
  MutexLock lock(mutex_);
  return stream.ops.empty();
}

std::optional<Error> Core::Synchronize(StreamState& stream) {
  MutexLock lock(mutex_);
  Await([&stream] { return stream.ops.empty(); });
  return stream.device->lost ? stream.device->lost : stream.error;
}

Event::State Core::Query(const Mark& mark) {
  MutexLock lock(mutex_);
  if (!mark.done) return Event::State::kPending;
  return mark.error ? Event::State::kFailed : Event::State::kComplete;
}

std::optional<Error> Core::Synchronize(const Mark& mark) {
  MutexLock lock(mutex_);
  Await([&mark] { return mark.done; });
  return mark.error;
}

// Runs what needs no engine, of this stream and of those that its records set free.
void Core::Progress(StreamState& stream) {
  to_run_.push_back(&stream);
  while (!to_run_.empty()) {
    StreamState& next = *to_run_.back();
    to_run_.pop_back();
    while (!next.ops.empty() && RunHead(next)) next.ops.pop_front();
  }
  changed_.NotifyAll();
}

// Whether the head has ended; otherwise an engine or an event will see to it.
bool Core::RunHead(StreamState& stream) {
  Op& op = stream.ops.front();
  const int64_t now_ns = std::max(stream.time_ns, op.queued_ns);
  if (std::optional<Error> lost = LostError(op, stream)) stream.error = std::move(lost);
  switch (op.kind) {
    case Op::Kind::kCopy:
      if (stream.error) break;
      HandOver(stream, EngineDevice(stream, op).engines[static_cast<size_t>(op.engine)]);
      return false;
    case Op::Kind::kKernel:
      if (stream.error) break;
      HandOver(stream, stream.device->engines[kKernelEngine]);
      return false;
    case Op::Kind::kCall:
      HandOver(stream, stream.device->engines[kCallEngine]);
      return false;
    case Op::Kind::kRecord:
      op.mark->done = true;
      op.mark->time_ns = now_ns;
      op.mark->error = stream.error;
      to_run_.insert(to_run_.end(), op.mark->waiting.begin(), op.mark->waiting.end());
      op.mark->waiting.clear();
      break;
    case Op::Kind::kWait:
      if (!op.mark->done) {
        op.mark->waiting.push_back(&stream);
        return false;
      }
      if (op.mark->error && !stream.error) stream.error = op.mark->error;
      stream.time_ns = std::max(now_ns, op.mark->time_ns);
      return true;
    case Op::Kind::kWaitValue:
      if (stream.error || LoadWord(op.awaited) == op.value) break;
      HandOver(stream, stream.device->engines[kWordEngine]);
      return false;
    case Op::Kind::kWriteValue:
      if (stream.error) break;
      StoreWord(op.written, op.value);
      break;
    case Op::Kind::kClearError:
      stream.error.reset();  // a lost device puts it back at the next op
      break;
  }
  stream.time_ns = now_ns;
  return true;
}

void Core::HandOver(StreamState& stream, Engine& engine) {
  engine.ready.push_back(&stream);
  engine.wake.NotifyAll();
}

void Core::EngineThread(DeviceState& device, int index) {
  // Timers of threads are late by 50 us by default, which is much of a small copy.
  prctl(PR_SET_TIMERSLACK, 1000);
  Engine& engine = device.engines[static_cast<size_t>(index)];
  MutexLock lock(mutex_);
  for (;;) {
    while (engine.ready.empty() && !device.stop) engine.wake.Wait(mutex_);
    if (engine.ready.empty()) return;
    if (index == kWordEngine) {
      WatchWords(device, engine);
      continue;
    }
    engine.current = engine.ready.front();
    engine.ready.pop_front();
    if (index == kCallEngine) {
      RunCall(engine);
    } else if (index == kKernelEngine) {
      RunKernel(engine);
    } else {
      RunCopy(device, engine);
    }
    StreamState& stream = *engine.current;
    engine.current = nullptr;
    stream.ops.pop_front();
    Progress(stream);
  }
}

void Core::RunCopy(DeviceState& device, Engine& engine) {
  StreamState& stream = *engine.current;
  const Op& op = stream.ops.front();
  if (op.loses_device) LoseLocked(*stream.device);
  const bool local = op.destination_device == op.source_device && op.source_device != nullptr;
  const EmulatedLink& link =
      local ? device.local_link : device.links[static_cast<size_t>(op.engine)];
  const int64_t begin_ns = std::max({stream.time_ns, op.queued_ns, engine.link_free_at_ns});
  engine.deadline_ns = begin_ns + CopyNs(link, op.bytes) + op.stall_ns;
  std::optional<Error> error = LostError(op, stream);
  if (!error) {
    const int64_t moving_since_ns = Now();
    engine.in_hand = true;
    mutex_.Unlock();
    MoveBytes(op);
    mutex_.Lock();
    engine.in_hand = false;
    // From the modelled start: that this thread woke late is not the link's doing.
    engine.deadline_ns = std::max(engine.deadline_ns, begin_ns + Now() - moving_since_ns);
    for (;;) {
      error = LostError(op, stream);
      if (error || Now() >= engine.deadline_ns) break;
      WaitAsEngine(engine, engine.deadline_ns);
    }
  }
  if (!error && op.fails) {
    error = Error(ErrorKind::kIo,
                  fmt::format("device {}: copy {} ({} bytes, {}) failed by an injected fault",
                              stream.device->name, op.number, op.bytes,
                              kEngineNames[static_cast<size_t>(op.engine)]));
  }
  const int64_t end_ns = std::max(begin_ns, std::min(engine.deadline_ns, Now()));
  engine.link_free_at_ns = end_ns;
  engine.counters.busy_ns += end_ns - begin_ns;
  ++engine.counters.copies;
  if (error) {
    ++engine.counters.failed;
    stream.error = std::move(error);
  } else {
    engine.counters.bytes += op.bytes;
  }
  stream.time_ns = end_ns;
}

// Takes the time that it takes: a kernel has no modelled one.
void Core::RunKernel(Engine& engine) {
  StreamState& stream = *engine.current;
  const Op& op = stream.ops.front();
  engine.in_hand = true;
  mutex_.Unlock();
  const LaunchResult result = (*op.kernel)(nullptr);
  mutex_.Lock();
  engine.in_hand = false;
  if (!result.ok()) {
    stream.error = Error(ErrorKind::kInternal, fmt::format("device {}: {}: {}", stream.device->name,
                                                           result.kernel, result.message));
  }
  stream.time_ns = std::max({stream.time_ns, op.queued_ns, Now()});
}

// One round over the streams that wait for words. Nobody tells when a word is written, so that this
// engine asks. It moves no virtual time, and time does not wait for it.
void Core::WatchWords(DeviceState& device, Engine& engine) {
  bool any = false;
  for (size_t left = engine.ready.size(); left > 0; --left) {
    StreamState& stream = *engine.ready.front();
    engine.ready.pop_front();
    const Op& op = stream.ops.front();
    if (!device.lost && LoadWord(op.awaited) != op.value) {
      engine.ready.push_back(&stream);
      continue;
    }
    if (device.lost) stream.error = device.lost;
    stream.time_ns = std::max({stream.time_ns, op.queued_ns, Now()});
    stream.ops.pop_front();
    Progress(stream);
    any = true;
  }
  if (!any) engine.wake.WaitUntil(mutex_, std::chrono::steady_clock::now() + kWordPeriod);
}

void Core::RunCall(Engine& engine) {
  StreamState& stream = *engine.current;
  Op& op = stream.ops.front();
  const std::optional<Error> error = stream.error;
  std::optional<Error> thrown;
  engine.in_hand = true;
  mutex_.Unlock();
  try {
    op.function(error ? &*error : nullptr);
  } catch (const std::exception& exception) {
    thrown = Error(ErrorKind::kInternal,
                   fmt::format("a host function of a stream threw: {}", exception.what()));
  } catch (...) {
    thrown = Error(ErrorKind::kInternal, "a host function of a stream threw");
  }
  op.function = nullptr;  // what it holds goes now, not under the lock
  mutex_.Lock();
  engine.in_hand = false;
  if (thrown && !stream.error) stream.error = std::move(thrown);
  stream.time_ns = std::max({stream.time_ns, op.queued_ns, Now()});
}

}  // namespace moesaic::emulated
