// Machine: the emulated GPUs of the process, behind the functions of the CUDA runtime that are
// defined here (runtime_*.cpp). What those functions share: memory, kernels, which GPU is lost by
// what, the count of calls, and what was done wrong.
//
// There is one, because the runtime's functions take no other argument. Thread contract: safe from
// any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "tests/gpu/interpreter/kernel.h"
#include "tests/gpu/interpreter/memory_map.h"
#include "tests/gpu/interpreter/settings.h"

namespace moesaic::ptx {

class StreamQueue;

// Memory of a GPU that is handed out has something in it: NaN as floats, far out as indices. Not
// what is large, which would all be touched.
void FillUnwritten(void* data, uint64_t bytes);

class Machine {
 public:
  static Machine& Get();

  const Settings& settings() const { return settings_; }
  int gpus() const { return settings_.gpus; }
  // By which a stream is held up; 0: it is not. Of the settings' seed, until another one is set.
  uint64_t SeedOfNextStream();
  void SetSeed(uint64_t seed);
  MemoryMap& memory() { return memory_; }
  static constexpr uint64_t kGpuBytes = uint64_t{4} << 30;

  // What a program did that CUDA does not allow, or does at a price that nobody wants. The program
  // fails when it ends, whatever its tests say, unless TakeDefects has taken them (control.h).
  void Report(const std::string& defect) EXCLUDES(mutex_);
  std::vector<std::string> TakeDefects() EXCLUDES(mutex_);

  // The error that everything on a GPU answers with from now on.
  void Lose(int device, cudaError_t error);
  void Restore(int device) { lost_[static_cast<size_t>(device)] = cudaSuccess; }
  cudaError_t lost(int device) const { return lost_[static_cast<size_t>(device)].load(); }

  // Counts a call; what it must answer instead of doing something.
  cudaError_t Count(const char* call) EXCLUDES(mutex_);
  uint64_t calls() const EXCLUDES(mutex_);
  std::string last_failed() const EXCLUDES(mutex_);
  // Call number `number`, from now, 0 being the next one, fails.
  void FailCall(uint64_t number, cudaError_t error) EXCLUDES(mutex_);

  void RegisterModule(const void* handle, std::string ptx) EXCLUDES(mutex_);
  void RegisterFunction(const void* handle, const void* function, const char* name)
      EXCLUDES(mutex_);
  // Parses the module at the first call for one of its kernels; aborts with a message when it is
  // none, or has what the interpreter does not know. Null: not registered.
  const Kernel* FindKernel(const void* function) EXCLUDES(mutex_);
  // Loads a kernel onto a GPU; false: it was there.
  bool LoadKernel(int device, const void* function) EXCLUDES(mutex_);
  std::vector<std::string> UnloadedKernels(int device) const EXCLUDES(mutex_);

  void EnablePeer(int device, int peer) { peers_[static_cast<size_t>(device)] |= 1u << peer; }
  uint32_t peers(int device) const { return peers_[static_cast<size_t>(device)].load(); }

  void AddStream(StreamQueue& stream) EXCLUDES(mutex_);
  void RemoveStream(StreamQueue& stream) EXCLUDES(mutex_);
  // Until nothing is queued on a GPU. False: it took longer than the settings allow.
  bool Drain(int device) EXCLUDES(mutex_);

  // Kernels run one at a time: the check for races numbers what happens in one sequence.
  Mutex& running() { return running_; }

 private:
  Machine();
  struct Function {
    const void* module = nullptr;
    std::string name;
    const Kernel* kernel = nullptr;
  };
  void ParseModule(const std::string& text) REQUIRES(mutex_);

  static constexpr size_t kMostGpus = 16;
  const Settings settings_;
  std::atomic<uint64_t> seed_;
  std::atomic<uint64_t> streams_of_seed_{0};
  MemoryMap memory_;
  Mutex running_;
  std::atomic<cudaError_t> lost_[kMostGpus];
  std::atomic<uint32_t> peers_[kMostGpus];
  mutable Mutex mutex_;
  std::vector<std::string> defects_ GUARDED_BY(mutex_);
  uint64_t calls_ GUARDED_BY(mutex_) = 0;
  uint64_t failing_call_ GUARDED_BY(mutex_) = UINT64_MAX;
  cudaError_t failing_error_ GUARDED_BY(mutex_) = cudaSuccess;
  std::string last_failed_ GUARDED_BY(mutex_);
  std::map<const void*, std::string> modules_ GUARDED_BY(mutex_);  // not parsed yet
  std::map<const void*, Function> functions_ GUARDED_BY(mutex_);
  std::map<std::string, std::unique_ptr<Kernel>> kernels_ GUARDED_BY(mutex_);  // by plain name
  std::set<std::pair<int, const void*>> loaded_ GUARDED_BY(mutex_);
  std::set<StreamQueue*> streams_ GUARDED_BY(mutex_);
};

}  // namespace moesaic::ptx
