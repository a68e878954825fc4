#include "core/device/emulated_stream.h"

#include <utility>

#include "core/base/check.h"

namespace moesaic::emulated {
namespace {

const EmulatedEvent& Own(const Event& event, const Core& core) {
  const auto* own = dynamic_cast<const EmulatedEvent*>(&event);
  CHECK(own != nullptr && &own->core() == &core);  // an event of another machine
  return *own;
}

Op MakeOp(Op::Kind kind) {
  Op op;
  op.kind = kind;
  return op;
}

Op MakeCopy(EmulatedEngine engine, std::byte* destination, const std::byte* source,
            uint64_t bytes) {
  Op op = MakeOp(Op::Kind::kCopy);
  op.engine = engine;
  op.destination = destination;
  op.source = source;
  op.bytes = bytes;
  return op;
}

}  // namespace

Event::State EmulatedEvent::Query() const {
  const std::shared_ptr<Mark> mark = latest();
  return mark != nullptr ? core_.Query(*mark) : State::kComplete;
}

std::optional<Error> EmulatedEvent::Synchronize() {
  const std::shared_ptr<Mark> mark = latest();
  if (mark == nullptr) return std::nullopt;
  return core_.Synchronize(*mark);
}

std::shared_ptr<Mark> EmulatedEvent::latest() const {
  MutexLock lock(mutex_);
  return latest_;
}

std::shared_ptr<Mark> EmulatedEvent::Renew() {
  MutexLock lock(mutex_);
  latest_ = std::make_shared<Mark>();
  return latest_;
}

EmulatedStream::EmulatedStream(Core& core, EmulatedDevice& device, DeviceState& state)
    : core_(core), device_(device), state_(&state) {
  core_.OpenStream(state_);
}

EmulatedStream::~EmulatedStream() { core_.CloseStream(state_); }

void EmulatedStream::CopyToDevice(const DeviceSpan& destination,
                                  std::span<const std::byte> source) {
  CHECK_EQ(destination.bytes(), source.size());
  CHECK(destination.device() == &device_);
  QueueOrRecord(
      MakeCopy(EmulatedEngine::kHostToDevice, destination.data(), source.data(), source.size()));
}

void EmulatedStream::CopyToHost(std::span<std::byte> destination, const DeviceSpan& source) {
  CHECK_EQ(destination.size(), source.bytes());
  CHECK(source.device() == &device_);
  QueueOrRecord(
      MakeCopy(EmulatedEngine::kDeviceToHost, destination.data(), source.data(), source.bytes()));
}

void EmulatedStream::CopyBetween(const DeviceSpan& destination, const DeviceSpan& source) {
  CHECK_EQ(destination.bytes(), source.bytes());
  CHECK(destination.device() == &device_ || source.device() == &device_);
  Op op =
      MakeCopy(EmulatedEngine::kDeviceToDevice, destination.data(), source.data(), source.bytes());
  op.source_device = &StateOf(source);
  op.destination_device = &StateOf(destination);
  QueueOrRecord(std::move(op));
}

void EmulatedStream::Call(HostFunction function) {
  CHECK(function != nullptr);
  Op op = MakeOp(Op::Kind::kCall);
  op.function = std::move(function);
  Queue(std::move(op));
}

void EmulatedStream::Launch(const KernelLaunch& launch) {
  Op op = MakeOp(Op::Kind::kKernel);
  op.kernel = launch;
  QueueOrRecord(std::move(op));
}

void EmulatedStream::Record(Event& event) {
  CHECK(&Own(event, core_) == &event);
  Op op = MakeOp(Op::Kind::kRecord);
  op.mark = static_cast<EmulatedEvent&>(event).Renew();
  Queue(std::move(op));
}

void EmulatedStream::Wait(const Event& event) {
  Op op = MakeOp(Op::Kind::kWait);
  op.mark = Own(event, core_).latest();
  if (op.mark != nullptr) Queue(std::move(op));
}

void EmulatedStream::WaitValue(const uint32_t* word, uint32_t value) {
  Op op = MakeOp(Op::Kind::kWaitValue);
  op.awaited = word;
  op.value = value;
  QueueOrRecord(std::move(op));
}

void EmulatedStream::WriteValue(uint32_t* word, uint32_t value) {
  Op op = MakeOp(Op::Kind::kWriteValue);
  op.written = word;
  op.value = value;
  QueueOrRecord(std::move(op));
}

void EmulatedStream::ClearError() { Queue(MakeOp(Op::Kind::kClearError)); }

void EmulatedStream::QueueOrRecord(Op op) {
  if (capturing_) {
    captured_.push_back(std::move(op));
  } else {
    Queue(std::move(op));
  }
}

void EmulatedStream::Queue(Op op) {
  CHECK(!capturing_);  // what cannot be recorded
  core_.Queue(state_, std::move(op));
}

void EmulatedStream::BeginCapture() {
  CHECK(!capturing_);
  capturing_ = true;
}

std::unique_ptr<Graph> EmulatedStream::EndCapture() {
  CHECK(capturing_);
  capturing_ = false;
  return std::make_unique<EmulatedGraph>(device_, std::exchange(captured_, {}));
}

void EmulatedStream::Replay(const Graph& graph) {
  const auto* const own = dynamic_cast<const EmulatedGraph*>(&graph);
  CHECK(own != nullptr && &own->device() == &device_);  // of another device
  for (const Op& op : own->ops()) Queue(op);
}

bool EmulatedStream::Idle() const { return core_.Idle(state_); }

std::optional<Error> EmulatedStream::Synchronize() { return core_.Synchronize(state_); }

DeviceState& EmulatedStream::StateOf(const DeviceSpan& span) const {
  CHECK(span.device() != nullptr && device_.CanReach(*span.device()));
  return *static_cast<EmulatedDevice*>(span.device())->state_;
}

}  // namespace moesaic::emulated
