// EngineHandle: an engine as Python owns it: made of settings, closed at a moment that the caller
// chooses, and refused in a process that was forked.
//
// Thread contract: any thread, without the GIL: loading, Use and Close may block.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/keywords.h"
#include "core/base/memory_ledger.h"
#include "core/base/metrics.h"
#include "core/base/mutex.h"
#include "serving/api/served_model.h"

namespace moesaic::python {

// What an engine is made of: settings by their names on the command line, as text.
struct EngineArguments {
  Keywords settings;
  std::string config;                    // a YAML file, or the name of a preset; empty: none
  std::vector<std::string> environment;  // "NAME=value"; settings overrule it
  std::filesystem::path executable;      // the command: presets are looked for beside it
  // Throughput mode, planned for this job ("prompt=98,gen=64,requests=5000"); empty: latency mode.
  std::string workload;
};

// A loaded model with what it was planned with.
struct LoadedEngine {
  MetricsRegistry metrics;                   // outlives the engine
  std::vector<MemoryLedger> ledgers;         // of the host, and of each device
  std::unique_ptr<const ModelTable> models;  // of one model

  const ServedModel& model() const { return models->models().front(); }
  Engine& engine() const { return *model().engine; }
};

class EngineHandle {
 public:
  // Resolves the settings and loads the model, on a thread of its own: the NUMA policy that
  // start-up applies to its thread is then not the caller's. `keep_waiting` is asked ten times a
  // second; what it throws leaves the loading thread to end by itself. Throws Error as the commands
  // do.
  EngineHandle(EngineArguments arguments, const std::function<void()>& keep_waiting);
  // Closes, but in a forked process only forgets.
  ~EngineHandle();
  EngineHandle(const EngineHandle&) = delete;
  EngineHandle& operator=(const EngineHandle&) = delete;

  // The engine is there as long as this is.
  class User {
   public:
    // Throws Error(kUnavailable) when it is closed, kUnsupported in a forked process.
    explicit User(EngineHandle& handle) : handle_(handle), engine_(handle.Enter()) {}
    ~User() { handle_.Leave(); }
    User(const User&) = delete;
    User& operator=(const User&) = delete;
    const LoadedEngine* operator->() const { return &engine_; }
    const LoadedEngine& operator*() const { return engine_; }

   private:
    EngineHandle& handle_;
    const LoadedEngine& engine_;
  };

  // Ends what runs (its sinks are told that it was cancelled), frees the model and joins the
  // engine's threads; waits for users. Again: does nothing. Throws Error(kUnsupported) in a forked
  // process.
  void Close();
  bool closed() const;
  // This process is a fork of the one that made it.
  bool forked() const;

 private:
  const LoadedEngine& Enter();
  void Leave();
  void CheckProcess() const;
  void Forget();

  const pid_t process_;
  mutable Mutex mutex_;
  CondVar left_;
  int users_ GUARDED_BY(mutex_) = 0;
  std::unique_ptr<LoadedEngine> loaded_ GUARDED_BY(mutex_);  // null: closed
};

}  // namespace moesaic::python
