#include "serving/multi/model_registry.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <utility>

#include "core/base/allocator.h"
#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/memory_ledger.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

constexpr int64_t kAskAgainNs = 20'000'000;
// What is being read or filled is given back when that has ended: a layer of a step at most.
constexpr int64_t kReturnNs = 10'000'000'000;

bool IsBusy(const EngineStatus& status) { return status.running + status.waiting > 0; }

template <typename T>
std::vector<T> OfEach(const std::vector<ModelRegistry::Model>& models,
                      T ModelRegistry::Model::*part) {
  std::vector<T> parts;
  parts.reserve(models.size());
  for (const ModelRegistry::Model& model : models) parts.push_back(model.*part);
  return parts;
}

}  // namespace

ModelRegistry::ModelRegistry(uint64_t memory_bytes, std::vector<Model> models, Loader load,
                             Publish publish, OnPools on_pools, OnMemory on_memory)
    : models_(std::move(models)),
      load_(std::move(load)),
      publish_(std::move(publish)),
      on_pools_(std::move(on_pools)),
      on_memory_(std::move(on_memory)),
      roster_(memory_bytes, OfEach(models_, &Model::rules)),
      bytes_(models_.size()),
      waiting_(models_.size()),
      pools_(OfEach(models_, &Model::experts)) {
  for (size_t i = 0; i < models_.size(); ++i) {
    CHECK(!models_[i].names.empty());
    for (const std::string& name : models_[i].names) CHECK(by_name_.emplace(name, i).second);
    ServedModel& served = served_.emplace_back();
    served.names = models_[i].names;
    served.created_unix_s = std::time(nullptr);
    served.state = ModelState::kUnloaded;
    if (models_[i].start_bytes == 0) continue;
    orders_.push_back({Order::Kind::kLoad, i, models_[i].start_bytes, nullptr});
    ++to_start_;
  }
}

ModelRegistry::~ModelRegistry() { Stop(); }

void ModelRegistry::Start() {
  PublishNow();
  thread_ = std::thread([this] { Main(); });
}

void ModelRegistry::Stop() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    started_.NotifyAll();
  }
  graves_->Wake();
  if (thread_.joinable()) thread_.join();
  graves_->Close();
  for (size_t i = 0; i < models_.size(); ++i) Tell(i, Stopping());
  std::deque<Order> left;
  {
    MutexLock lock(mutex_);
    left.swap(orders_);
  }
  for (const Order& order : left) {
    if (order.done) order.done(Stopping());
  }
}

bool ModelRegistry::WaitStarted(std::chrono::steady_clock::time_point until) {
  MutexLock lock(mutex_);
  while (to_start_ > 0 && !stop_) {
    if (!started_.WaitUntil(mutex_, until)) break;
  }
  return to_start_ == 0;
}

std::optional<std::string> ModelRegistry::WhyNone() const {
  MutexLock lock(mutex_);
  for (const ModelRoster::Model& model : roster_.models()) {
    if (model.state != ModelState::kFailed) return std::nullopt;
  }
  return roster_.models().front().why_failed;
}

bool ModelRegistry::starting() const {
  MutexLock lock(mutex_);
  return to_start_ > 0;
}

std::optional<size_t> ModelRegistry::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

void ModelRegistry::Load(std::string_view name, Done done) {
  const std::optional<size_t> model = Find(name);
  if (!model) return done(ModelNotFound(name));
  std::optional<ApiError> why_not;
  {
    MutexLock lock(mutex_);
    if (stop_) {
      why_not = Stopping();
    } else if (!roster_.models()[*model].loaded()) {
      waiting_[*model].push_back(std::exchange(done, nullptr));
      // While others wait for it, it is on its way.
      if (waiting_[*model].size() == 1) orders_.push_back({Order::Kind::kLoad, *model, 0, nullptr});
    }
  }
  if (done) return done(why_not);
  graves_->Wake();
}

void ModelRegistry::Unload(std::string_view name, Done done) {
  const std::optional<size_t> model = Find(name);
  if (!model) return done(ModelNotFound(name));
  {
    MutexLock lock(mutex_);
    if (!stop_) orders_.push_back({Order::Kind::kUnload, *model, 0, std::exchange(done, nullptr)});
  }
  if (done) return done(Stopping());
  graves_->Wake();
}

void ModelRegistry::Touch(std::string_view name, std::optional<KeepAlive> keep_alive) {
  const std::optional<size_t> model = Find(name);
  if (!model) return;
  {
    MutexLock lock(mutex_);
    // What is loaded at start stays as the server was told.
    const bool may_say = roster_.models()[*model].rules.may_leave;
    std::optional<int64_t> idle_ns;
    if (keep_alive && may_say) idle_ns = keep_alive->count();
    roster_.Use(*model, NowNs(), idle_ns);
    if (!idle_ns) return;
  }
  graves_->Wake();  // it may be due earlier than was thought
}

std::vector<ModelStatus> ModelRegistry::Statuses() const {
  std::vector<ModelStatus> statuses;
  for (size_t i = 0; i < models_.size(); ++i) {
    const ModelRoster::Model& model = roster_.models()[i];
    statuses.push_back({models_[i].names.front(), model.state, model.bytes, model.why_failed,
                        served_[i].shrunk, served_[i].load_progress});
  }
  return statuses;
}

uint64_t ModelRegistry::Watch(Watcher watcher) {
  MutexLock watch_lock(watch_mutex_);
  for (const ModelStatus& status : told_) watcher(status);
  watchers_.emplace(++last_watch_, std::move(watcher));
  return last_watch_;
}

void ModelRegistry::Unwatch(uint64_t watch) {
  MutexLock watch_lock(watch_mutex_);
  watchers_.erase(watch);
}

void ModelRegistry::TellWatchers() {
  MutexLock watch_lock(watch_mutex_);
  std::vector<ModelStatus> now;
  {
    MutexLock lock(mutex_);
    now = Statuses();
  }
  told_.resize(now.size());
  for (size_t i = 0; i < now.size(); ++i) {
    if (now[i] == told_[i]) continue;
    told_[i] = now[i];
    for (const auto& [number, watcher] : watchers_) watcher(now[i]);
  }
}

std::vector<uint8_t> ModelRegistry::Busy() const {
  std::vector<uint8_t> busy;
  for (const ServedModel& model : served_) {
    const EngineStatus status = model.engine != nullptr ? model.engine->Status() : EngineStatus();
    busy.push_back(IsBusy(status) ? 1 : 0);
  }
  return busy;
}

void ModelRegistry::Main() {
  pthread_setname_np(pthread_self(), "models");
  while (true) {
    EndEngines();
    std::optional<Order> order;
    int64_t idle_ns = 0;
    {
      MutexLock lock(mutex_);
      if (stop_) return;
      if (!orders_.empty()) {
        order = std::move(orders_.front());
        orders_.pop_front();
      }
      idle_ns = roster_.NextIdleNs();
    }
    if (order && order->kind == Order::Kind::kUnload) {
      UnloadNow(order->model);
      order->done(std::nullopt);
    } else if (order) {
      LoadNow(*order);
    } else if (idle_ns <= NowNs()) {
      UnloadIdle();
    } else if (pools_.any() && balance_at_ns_ <= NowNs()) {
      Balance();
    } else {
      if (pools_.any()) idle_ns = std::min(idle_ns, balance_at_ns_);
      using Time = std::chrono::steady_clock::time_point;
      graves_->Wait(idle_ns == ModelRoster::kNever ? Time::max()
                                                   : Time(std::chrono::nanoseconds(idle_ns)));
    }
  }
}

void ModelRegistry::EndEngines() {
  while (std::optional<EngineGraves::Grave> grave = graves_->Take()) {
    grave->engine.reset();
    ReturnFreedMemory();
    MutexLock lock(mutex_);
    roster_.Gone(grave->bytes);
    TellMemory();
  }
}

std::optional<uint64_t> ModelRegistry::MakeRoom(const Order& order) {
  bool shrunk = false;
  while (true) {
    ModelRoster::Room room;
    std::optional<ApiError> why_not;
    {
      MutexLock lock(mutex_);
      if (stop_) return std::nullopt;
      if (order.bytes > 0) return order.bytes;
      room = roster_.RoomFor(order.model, Busy());
      if (room.kind == ModelRoster::Room::Kind::kTooLittle && shrunk) {
        const MemoryLedger ledger = Ledger(order.model);
        why_not = ApiError(
            503, "service_unavailable_error",
            fmt::format("The model `{}` does not fit: {} are missing; unload another model, or "
                        "give the server more memory (--memory).{}",
                        models_[order.model].names.front(), FormatBytes(ledger.missing_bytes()),
                        LedgerLines(ledger)),
            {}, "insufficient_memory", 60);
      }
    }
    switch (room.kind) {
      case ModelRoster::Room::Kind::kThere:
        return room.bytes;
      case ModelRoster::Room::Kind::kUnload:
        if (!ShrinkOthers(order.model)) UnloadNow(room.victim);
        break;
      case ModelRoster::Room::Kind::kWait:
        graves_->Wait(std::chrono::steady_clock::time_point::max());
        break;
      case ModelRoster::Room::Kind::kTooLittle:
        if (why_not) {
          Tell(order.model, why_not);
          return std::nullopt;
        }
        shrunk = !ShrinkOthers(order.model);  // or there is nothing to shrink
        break;
    }
    EndEngines();
  }
}

MemoryLedger ModelRegistry::Ledger(size_t wanted) const {
  MemoryLedger ledger;
  ledger.limit_bytes = roster_.memory_bytes();
  for (size_t i = 0; i < models_.size(); ++i) {
    const uint64_t bytes = roster_.models()[i].bytes;
    if (bytes > 0) {
      ledger.Add(fmt::format("{} ({})", models_[i].names.front(),
                             ModelStateName(roster_.models()[i].state)),
                 bytes);
    }
  }
  if (roster_.leaving_bytes() > 0) ledger.Add("being unloaded", roster_.leaving_bytes());
  for (const MemoryItem& item : models_[wanted].least) {
    ledger.Add(fmt::format("{}: {}", models_[wanted].names.front(), item.name), item.bytes);
  }
  return ledger;
}

void ModelRegistry::LoadNow(const Order& order) {
  const size_t model = order.model;
  bool there = false;
  {
    MutexLock lock(mutex_);
    there = roster_.models()[model].loaded();
  }
  if (there) return Tell(model, std::nullopt);
  const std::optional<uint64_t> bytes = MakeRoom(order);
  if (!bytes) return;
  {
    MutexLock lock(mutex_);
    roster_.BeginLoad(model, *bytes);
    TellMemory();
    served_[model].state = ModelState::kLoading;
    served_[model].load_progress = 0;
    served_[model].why_failed.clear();
  }
  PublishNow();
  const std::string& id = models_[model].names.front();
  LogInfo("loading {} in {}", id, FormatBytes(*bytes));
  std::optional<ApiError> why_not;
  const Stopwatch took;
  bool has_engine = false;  // whose end gives the memory back
  const auto held_bytes = std::make_shared<std::atomic<uint64_t>>(*bytes);
  try {
    Loading loading;
    loading.hold = [&](std::unique_ptr<Engine> engine) {
      has_engine = true;
      return graves_->Hold(std::move(engine), held_bytes);
    };
    loading.on_progress = [this, model](double fraction) { Progressed(model, fraction); };
    ServedModel loaded = load_(model, *bytes, loading);
    pools_.Loaded(model, *bytes, loaded.engine->resizable_slots(), loaded.engine->resizable_kv());
    loaded.names = models_[model].names;
    loaded.state = ModelState::kResident;
    loaded.memory_bytes = *bytes;
    MutexLock lock(mutex_);
    served_[model] = std::move(loaded);
    bytes_[model] = held_bytes;
    roster_.Loaded(model, NowNs());
  } catch (const std::exception& error) {
    LogError("{} could not be loaded: {}", id, error.what());
    MutexLock lock(mutex_);
    roster_.Failed(model, error.what(), has_engine);
    TellMemory();
    served_[model].state = ModelState::kFailed;
    served_[model].why_failed = error.what();
    why_not = ModelNotLoaded(served_[model]);
  }
  if (!why_not) LogInfo("{} is loaded, in {:.1f} s", id, took.seconds());
  PublishNow();
  if (order.bytes > 0) Started();
  Tell(model, why_not);
}

void ModelRegistry::Progressed(size_t model, double fraction) {
  {
    MutexLock lock(mutex_);
    served_[model].load_progress = fraction;
  }
  PublishNow();
}

void ModelRegistry::Started() {
  MutexLock lock(mutex_);
  --to_start_;
  if (to_start_ == 0) started_.NotifyAll();
}

void ModelRegistry::UnloadNow(size_t model) {
  ServedModel leaving;
  {
    MutexLock lock(mutex_);
    if (!roster_.models()[model].loaded()) return;
    roster_.Unload(model);
    bytes_[model] = nullptr;
    leaving.names = served_[model].names;
    leaving.created_unix_s = served_[model].created_unix_s;
    leaving.state = ModelState::kUnloaded;
    std::swap(leaving, served_[model]);
  }
  pools_.Unloaded(model);
  LogInfo("unloading {}", models_[model].names.front());
  PublishNow();
  // `leaving` is let go of here; requests may hold it for longer.
}

void ModelRegistry::UnloadIdle() {
  std::optional<size_t> model;
  {
    MutexLock lock(mutex_);
    model = roster_.IdleAt(NowNs());
    if (!model) return;
    const EngineStatus status = served_[*model].engine->Status();
    if (IsBusy(status)) {
      // Its time begins when the request ends; asked again soon, but not all the time.
      roster_.Use(*model, NowNs() + kAskAgainNs, roster_.models()[*model].idle_ns);
      return;
    }
  }
  LogInfo("{} has had no request for as long as it may stay", models_[*model].names.front());
  UnloadNow(*model);
}

// --- memory of experts that moves

void ModelRegistry::LookAtPools() {
  pools_.Look(NowNs());
  CountPools();
}

// What the models have by now, for all who ask.
void ModelRegistry::CountPools() {
  bool changed = false;
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < models_.size(); ++i) {
      if (!pools_.Moves(i)) continue;
      const ExpertPools::Held& held = pools_.held(i);
      changed |= served_[i].memory_bytes != held.bytes || served_[i].shrunk != held.shrunk;
      roster_.Resize(i, held.bytes);
      bytes_[i]->store(held.bytes);
      served_[i].memory_bytes = held.bytes;
      served_[i].shrunk = held.shrunk;
    }
    TellMemory();
  }
  if (changed) PublishNow();
}

void ModelRegistry::Balance() {
  balance_at_ns_ = NowNs() + ExpertPools::kPeriodNs;
  LookAtPools();
  uint64_t free_bytes = 0;
  {
    MutexLock lock(mutex_);
    free_bytes = roster_.free_bytes();
    // What is loaded on demand finds its least without a wait.
    uint64_t largest = 0;
    for (size_t i = 0; i < models_.size(); ++i) {
      const ModelRoster::Model& model = roster_.models()[i];
      const bool may_come = model.state == ModelState::kUnloaded;
      if (may_come) largest = std::max(largest, model.rules.need.least_bytes);
    }
    free_bytes -= std::min(free_bytes, largest);
  }
  if (pools_.Move(free_bytes) > 0) CountPools();
  if (on_pools_) on_pools_(pools_);
}

bool ModelRegistry::ShrinkOthers(size_t model) {
  const int64_t until_ns = NowNs() + kReturnNs;
  LookAtPools();
  bool asked = false;
  while (true) {
    uint64_t missing = 0;
    {
      MutexLock lock(mutex_);
      if (stop_) return false;
      const uint64_t least = models_[model].rules.need.least_bytes;
      missing = least - std::min(least, roster_.free_bytes());
    }
    if (missing == 0) return true;
    if (!asked && !pools_.Reclaim(missing)) return false;
    asked = true;
    if (NowNs() > until_ns) return false;
    graves_->Wait(std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
    EndEngines();
    LookAtPools();
  }
}

void ModelRegistry::Tell(size_t model, const std::optional<ApiError>& why_not) {
  std::vector<Done> told;
  {
    MutexLock lock(mutex_);
    told.swap(waiting_[model]);
  }
  for (const Done& done : told) done(why_not);
}

void ModelRegistry::PublishNow() {
  std::vector<ServedModel> models;
  {
    MutexLock lock(mutex_);
    if (stop_) return;
    models = served_;
  }
  publish_(std::move(models));
  TellWatchers();
}

}  // namespace moesaic
