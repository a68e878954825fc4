// ModelRegistry: the models of a server: it loads and unloads them on a thread of its own, so that
// neither requests nor other models' engines wait for that, and says which there are.
//
// What to load, when and with how much memory is decided by a ModelRoster; how, by the Loader that
// it is given. Requests that wait for a model are called back when it is there.
//
// A model that is unloaded leaves the list at once; requests that it is answering are answered to
// their end, and only then is its engine ended and its memory free.
//
// Memory of experts moves between the models that are loaded (ExpertPools), twice a second. A model
// that is to be loaded takes it from them before one of them is unloaded.
//
// Thread contract: any thread, but for Stop, which is for the owner's. Publish is called by the
// registry's own thread, or by one that loads a model while that waits for it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/memory_ledger.h"
#include "core/base/mutex.h"
#include "serving/api/model_manager.h"
#include "serving/api/served_model.h"
#include "serving/multi/engine_graves.h"
#include "serving/multi/expert_pools.h"
#include "serving/multi/model_roster.h"

namespace moesaic {

class ModelRegistry : public ModelManager {
 public:
  struct Model {
    std::vector<std::string> names;  // the first is its id
    ModelRoster::Rules rules;
    // Of this memory it is loaded when the registry starts; 0: on demand.
    uint64_t start_bytes = 0;
    std::vector<MemoryItem> least = {};  // what its least is made of, for messages
    ExpertPools::Rules experts = {};
  };
  struct Loading {
    // For whoever else keeps the engine.
    std::function<std::shared_ptr<Engine>(std::unique_ptr<Engine>)> hold;
    // Of any one thread while it loads: how much has been read, from 0 to 1.
    std::function<void(double fraction)> on_progress;
  };
  // The model, in so much memory. Its engine has gone through `hold`. Throws Error. Called on the
  // registry's thread.
  using Loader = std::function<ServedModel(size_t model, uint64_t bytes, const Loading& loading)>;
  // The models as they are from now on.
  using Publish = std::function<void(std::vector<ServedModel> models)>;
  // For metrics: what memory of experts the models have now. On the registry's thread.
  using OnPools = std::function<void(const ExpertPools& pools)>;
  // Likewise: what all models have of the memory by their ledgers, those that are being loaded or
  // ended among them. Told before anything more is taken and after it was given back.
  using OnMemory = std::function<void(uint64_t bytes)>;

  // No two models have a name in common.
  ModelRegistry(uint64_t memory_bytes, std::vector<Model> models, Loader load, Publish publish,
                OnPools on_pools = nullptr, OnMemory on_memory = nullptr);
  ~ModelRegistry() override;  // Stop
  ModelRegistry(const ModelRegistry&) = delete;
  ModelRegistry& operator=(const ModelRegistry&) = delete;

  // Begins: publishes the list, and loads one after the other what is to be there at start.
  void Start();
  // Waits for these, at most until `until`; false: not yet.
  bool WaitStarted(std::chrono::steady_clock::time_point until);
  // After the start: why no model can be used, when all that were to be loaded failed and there are
  // no others.
  std::optional<std::string> WhyNone() const;
  // Loads nothing more: who waits is told that the server stops. Publish is not called any more.
  void Stop();

  bool starting() const override;
  void Load(std::string_view name, Done done) override;
  void Unload(std::string_view name, Done done) override;
  void Touch(std::string_view name, std::optional<KeepAlive> keep_alive) override;
  uint64_t Watch(Watcher watcher) override;
  void Unwatch(uint64_t watch) override;

 private:
  struct Order {
    enum class Kind { kLoad, kUnload };
    Kind kind = Kind::kLoad;
    size_t model = 0;
    uint64_t bytes = 0;   // of kLoad: it is given so much; 0: what there is room for
    Done done = nullptr;  // of kUnload; who waits for a load is in waiting_
  };

  int64_t NowNs() const { return clock_.NowNs(); }
  std::optional<size_t> Find(std::string_view name) const;
  std::vector<uint8_t> Busy() const REQUIRES(mutex_);
  void TellMemory() const REQUIRES(mutex_) {
    if (on_memory_) on_memory_(roster_.memory_bytes() - roster_.free_bytes());
  }
  MemoryLedger Ledger(size_t wanted) const REQUIRES(mutex_);

  // The registry's thread.
  void Main();
  void LoadNow(const Order& order) EXCLUDES(mutex_);
  void Progressed(size_t model, double fraction) EXCLUDES(mutex_);
  // The memory that it is loaded in; nullopt: there is none, and who waits was told, or it stops.
  std::optional<uint64_t> MakeRoom(const Order& order) EXCLUDES(mutex_);
  void UnloadNow(size_t model) EXCLUDES(mutex_);
  void UnloadIdle() EXCLUDES(mutex_);
  void Balance() EXCLUDES(mutex_);
  void LookAtPools() EXCLUDES(mutex_);
  void CountPools() EXCLUDES(mutex_);
  // Takes memory of experts from others, until the model can be loaded; false: they have too
  // little.
  bool ShrinkOthers(size_t model) EXCLUDES(mutex_);
  void EndEngines() EXCLUDES(mutex_);
  void Tell(size_t model, const std::optional<ApiError>& why_not) EXCLUDES(mutex_);
  void PublishNow() EXCLUDES(mutex_);
  void TellWatchers() EXCLUDES(mutex_, watch_mutex_);
  std::vector<ModelStatus> Statuses() const REQUIRES(mutex_);
  void Started() EXCLUDES(mutex_);

  const SteadyClock clock_;
  const std::vector<Model> models_;
  std::map<std::string, size_t, std::less<>> by_name_;
  const Loader load_;
  const Publish publish_;
  const OnPools on_pools_;
  const OnMemory on_memory_;
  // Shared with the engines, which come back to it.
  const std::shared_ptr<EngineGraves> graves_ = std::make_shared<EngineGraves>();

  mutable Mutex mutex_;
  CondVar started_;
  ModelRoster roster_ GUARDED_BY(mutex_);
  std::vector<ServedModel> served_ GUARDED_BY(mutex_);  // [models] without an engine: not loaded
  std::vector<EngineGraves::Bytes> bytes_ GUARDED_BY(mutex_);  // [models] of those with an engine
  std::deque<Order> orders_ GUARDED_BY(mutex_);
  std::vector<std::vector<Done>> waiting_ GUARDED_BY(mutex_);  // [models] for it to be loaded
  size_t to_start_ GUARDED_BY(mutex_) = 0;  // models that are to be loaded at start and are not yet
  bool stop_ GUARDED_BY(mutex_) = false;

  // Before mutex_. Held while watchers are called, so that they see changes in order.
  Mutex watch_mutex_;
  std::map<uint64_t, Watcher> watchers_ GUARDED_BY(watch_mutex_);
  uint64_t last_watch_ GUARDED_BY(watch_mutex_) = 0;
  std::vector<ModelStatus> told_ GUARDED_BY(watch_mutex_);  // [models] what watchers know

  // The registry's thread.
  ExpertPools pools_;
  int64_t balance_at_ns_ = 0;

  std::thread thread_;
};

}  // namespace moesaic
