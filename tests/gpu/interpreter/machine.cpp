#include "tests/gpu/interpreter/machine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <regex>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "tests/gpu/interpreter/control.h"
#include "tests/gpu/interpreter/parser.h"
#include "tests/gpu/interpreter/stream_queue.h"

namespace moesaic::ptx {
namespace {

// A mangled name without what stands for the file in it, which nvcc makes anew for each compilation
// of a file from another place.
std::string PlainName(const std::string& mangled) {
  static const std::regex kFile("_GLOBAL__N__[0-9a-f]{8}_([0-9]+_[A-Za-z0-9_]+_cu)_[0-9a-f]{8}");
  return std::regex_replace(mangled, kFile, "_GLOBAL__N__$1");
}

[[noreturn]] void Stop(const char* what) {
  fmt::print(stderr, "PTX interpreter: {}\n", what);
  std::abort();
}

Settings SettingsOrStop() {
  try {
    return ReadSettings();
  } catch (const Error& error) {
    Stop(error.what());
  }
}

// The tests may have passed all the same: what was done wrong need not be what they look at.
void FailWhenDefective() {
  const std::vector<std::string> defects = Machine::Get().TakeDefects();
  if (defects.empty()) return;
  fmt::print(stderr, "PTX interpreter: {} defects, the first of which is\n{}\n", defects.size(),
             defects.front());
  std::fflush(nullptr);
  _exit(1);
}

}  // namespace

void FillUnwritten(void* data, uint64_t bytes) {
  constexpr uint64_t kMostFilled = uint64_t{64} << 20;
  if (bytes <= kMostFilled) std::memset(data, 0xff, bytes);
}

// Never destroyed: streams may be used until the process ends.
Machine& Machine::Get() {
  static Machine& machine = *new Machine();
  return machine;
}

Machine::Machine() : settings_(SettingsOrStop()), seed_(settings_.seed) {
  for (auto& error : lost_) error = cudaSuccess;
  for (auto& peers : peers_) peers = 0;
  std::atexit(FailWhenDefective);
}

void Machine::Report(const std::string& defect) {
  MutexLock lock(mutex_);
  fmt::print(stderr, "PTX interpreter: DEFECT: {}\n", defect);
  defects_.push_back(defect);
}

uint64_t Machine::SeedOfNextStream() {
  const uint64_t seed = seed_;
  return seed == 0 ? 0 : seed * 1000003 + streams_of_seed_.fetch_add(1) + 1;
}

void Machine::SetSeed(uint64_t seed) {
  seed_ = seed;
  streams_of_seed_ = 0;
}

std::vector<std::string> Machine::TakeDefects() {
  MutexLock lock(mutex_);
  return std::exchange(defects_, {});
}

void Machine::Lose(int device, cudaError_t error) {
  cudaError_t alive = cudaSuccess;
  lost_[static_cast<size_t>(device)].compare_exchange_strong(alive, error);
}

cudaError_t Machine::Count(const char* call) {
  MutexLock lock(mutex_);
  if (calls_++ != failing_call_) return cudaSuccess;
  failing_call_ = UINT64_MAX;
  last_failed_ = call;
  return failing_error_;
}

uint64_t Machine::calls() const {
  MutexLock lock(mutex_);
  return calls_;
}

std::string Machine::last_failed() const {
  MutexLock lock(mutex_);
  return last_failed_;
}

void Machine::FailCall(uint64_t number, cudaError_t error) {
  MutexLock lock(mutex_);
  failing_call_ = number == UINT64_MAX ? number : calls_ + number;
  failing_error_ = error;
  last_failed_.clear();
}

void Machine::RegisterModule(const void* handle, std::string ptx) {
  MutexLock lock(mutex_);
  modules_[handle] = std::move(ptx);
}

void Machine::RegisterFunction(const void* handle, const void* function, const char* name) {
  MutexLock lock(mutex_);
  functions_[function] = {handle, PlainName(name), nullptr};
}

void Machine::ParseModule(const std::string& text) {
  try {
    for (Kernel& kernel : ptx::ParseModule(text)) {
      const std::string name = PlainName(kernel.name);
      kernels_.try_emplace(name, std::make_unique<Kernel>(std::move(kernel)));
    }
  } catch (const Error& error) {
    Stop(error.what());
  }
}

const Kernel* Machine::FindKernel(const void* function) {
  MutexLock lock(mutex_);
  const auto found = functions_.find(function);
  if (found == functions_.end()) return nullptr;
  if (found->second.kernel != nullptr) return found->second.kernel;
  // Those of a file come first, so that the program's own of the same names are left out.
  if (kernels_.empty() && !settings_.kernels.empty()) {
    std::ifstream file(settings_.kernels);
    if (!file) Stop("the file of MOESAIC_PTX=kernels=... cannot be read");
    ParseModule(std::string(std::istreambuf_iterator<char>(file), {}));
  }
  if (const auto module = modules_.find(found->second.module); module != modules_.end()) {
    ParseModule(module->second);
    modules_.erase(module);
  }
  const auto kernel = kernels_.find(found->second.name);
  if (kernel == kernels_.end()) {
    Stop(fmt::format("there is no PTX of the kernel {}", found->second.name).c_str());
  }
  return found->second.kernel = kernel->second.get();
}

bool Machine::LoadKernel(int device, const void* function) {
  MutexLock lock(mutex_);
  return loaded_.emplace(device, function).second;
}

std::vector<std::string> Machine::UnloadedKernels(int device) const {
  MutexLock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [address, function] : functions_) {
    if (loaded_.count({device, address}) == 0) names.push_back(function.name);
  }
  return names;
}

void Machine::AddStream(StreamQueue& stream) {
  MutexLock lock(mutex_);
  streams_.insert(&stream);
}

void Machine::RemoveStream(StreamQueue& stream) {
  MutexLock lock(mutex_);
  streams_.erase(&stream);
}

bool Machine::Drain(int device) {
  const auto deadline = std::chrono::steady_clock::now() + settings_.patience;
  for (;;) {
    bool idle = true;
    {
      MutexLock lock(mutex_);
      for (StreamQueue* stream : streams_) idle &= stream->device() != device || stream->Idle();
    }
    if (idle) return true;
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

uint64_t RuntimeCalls() { return Machine::Get().calls(); }
void FailRuntimeCall(uint64_t number, int error) {
  Machine::Get().FailCall(number, static_cast<cudaError_t>(error));
}
std::string FailedRuntimeCall() { return Machine::Get().last_failed(); }
void RestoreGpu(int device) { Machine::Get().Restore(device); }
std::vector<std::string> UnloadedKernels(int device) {
  return Machine::Get().UnloadedKernels(device);
}
void SetSeed(uint64_t seed) { Machine::Get().SetSeed(seed); }

std::vector<std::string> TakeDefects() { return Machine::Get().TakeDefects(); }

}  // namespace moesaic::ptx
