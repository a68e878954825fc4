// The registry's thread over engines without a model: who waits for what, and what becomes of it.

#include "serving/multi/model_registry.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "tests/serving/api/test_engine.h"
#include "tests/serving/api/test_tokenizer.h"
#include "tests/serving/engine/collector.h"

namespace moesaic {
namespace {

using Steady = std::chrono::steady_clock;

// What a server would know: the list as it was published last.
class Published {
 public:
  void Set(std::vector<ServedModel> models) {
    std::lock_guard lock(mutex_);
    models_ = std::move(models);
    for (const ServedModel& model : models_) {
      std::vector<ModelState>& seen = states_[model.names.front()];
      if (seen.empty() || seen.back() != model.state) seen.push_back(model.state);
    }
    changed_.notify_all();
  }
  ServedModel Of(const std::string& id) const {
    std::lock_guard lock(mutex_);
    return Find(id);
  }
  ServedModel WaitFor(const std::string& id, ModelState state) const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return Find(id).state == state; });
    return Find(id);
  }
  std::vector<ModelState> states(const std::string& id) const {
    std::lock_guard lock(mutex_);
    return states_.at(id);
  }

 private:
  ServedModel Find(const std::string& id) const {
    for (const ServedModel& model : models_) {
      if (model.names.front() == id) return model;
    }
    ServedModel none;
    none.state = ModelState::kUnloaded;
    return none;
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<ServedModel> models_;
  std::map<std::string, std::vector<ModelState>> states_;
};

// Slots of a byte each, of which what is too many comes back when it has been looked at once.
class TestSlots : public ResizableSlots {
 public:
  explicit TestSlots(int64_t slots) : held_(slots), usable_(slots) {}
  SlotsInUse LookAtSlots(std::vector<uint32_t>& uses) const override {
    uses.assign(1, 0);
    const int64_t held = held_.exchange(usable_);
    return {.slot_bytes = 1, .held = held, .usable = usable_, .least = 1, .most = 1000};
  }
  void SetSlots(int64_t slots) override {
    usable_ = slots;
    held_ = std::max<int64_t>(held_, slots);
  }

 private:
  mutable std::atomic<int64_t> held_;
  std::atomic<int64_t> usable_;
};

class CountedEngine : public TestEngine {
 public:
  CountedEngine(const Tokenizer& tokenizer, const Options& options, std::atomic<int>& ended,
                int64_t slots)
      : TestEngine(tokenizer, options), ended_(ended) {
    if (slots > 0) slots_.emplace(slots);
  }
  ~CountedEngine() override { ended_.fetch_add(1); }
  ResizableSlots* resizable_slots() override { return slots_ ? &*slots_ : nullptr; }

 private:
  std::atomic<int>& ended_;
  std::optional<TestSlots> slots_;
};

class ModelRegistryTest : public ::testing::Test {
 protected:
  static ModelRegistry::Model Named(const std::string& id, uint64_t bytes, uint64_t start_bytes) {
    ModelRegistry::Model model;
    model.names = {id, id + "-alias"};
    model.rules.need = {bytes, bytes};
    model.rules.may_leave = start_bytes == 0;
    model.start_bytes = start_bytes;
    model.least = {{"dense weights", bytes}};
    return model;
  }

  void Start(uint64_t memory_bytes, std::vector<ModelRegistry::Model> models) {
    ids_.clear();
    for (const auto& model : models) ids_.push_back(model.names.front());
    registry_ = std::make_unique<ModelRegistry>(
        memory_bytes, std::move(models),
        [this](size_t model, uint64_t, const ModelRegistry::Loading& loading) {
          return LoadOne(model, loading);
        },
        [this](std::vector<ServedModel> now) { published_.Set(std::move(now)); }, nullptr,
        [this](uint64_t bytes) { told_bytes_ = bytes; });
    registry_->Start();
  }
  ServedModel LoadOne(size_t model, const ModelRegistry::Loading& loading) {
    for (const double fraction : progress_) loading.on_progress(fraction);
    {
      std::unique_lock lock(mutex_);
      ++loads_[ids_[model]];
      loading_.wait(lock, [this] { return !held_; });
    }
    const auto fails = fails_.find(ids_[model]);
    if (fails != fails_.end() && fails->second-- > 0) {
      Fail(ErrorKind::kCorrupt, "{}: no weights", ids_[model]);
    }
    TestEngine::Options options;
    options.manual = manual_;
    ServedModel served;
    served.engine = loading.hold(
        std::make_unique<CountedEngine>(tokenizer_, options, ended_, slots_[ids_[model]]));
    ++made_;
    return served;
  }
  std::future<std::optional<ApiError>> Load(const std::string& name) {
    auto told = std::make_shared<std::promise<std::optional<ApiError>>>();
    registry_->Load(name,
                    [told](const std::optional<ApiError>& why_not) { told->set_value(why_not); });
    return told->get_future();
  }
  std::future<std::optional<ApiError>> Unload(const std::string& name) {
    auto told = std::make_shared<std::promise<std::optional<ApiError>>>();
    registry_->Unload(name,
                      [told](const std::optional<ApiError>& why_not) { told->set_value(why_not); });
    return told->get_future();
  }
  void HoldLoads() {
    std::lock_guard lock(mutex_);
    held_ = true;
  }
  void LetLoad() {
    std::lock_guard lock(mutex_);
    held_ = false;
    loading_.notify_all();
  }
  int loads(const std::string& id) {
    std::lock_guard lock(mutex_);
    return loads_[id];
  }

  ByteTokenizer tokenizer_;
  Published published_;
  bool manual_ = false;
  std::vector<double> progress_;          // that each load makes
  std::map<std::string, int> fails_;      // so many loads of it fail
  std::map<std::string, int64_t> slots_;  // of those whose memory moves
  std::atomic<int> made_{0};
  std::atomic<int> ended_{0};
  std::atomic<uint64_t> told_bytes_{0};  // of memory, by ledgers
  std::mutex mutex_;
  std::condition_variable loading_;
  bool held_ = false;
  std::map<std::string, int> loads_;
  std::vector<std::string> ids_;
  std::unique_ptr<ModelRegistry> registry_;  // goes first
};

TEST_F(ModelRegistryTest, LoadsWhatIsToBeThereAtStart) {
  Start(100, {Named("a", 30, 40), Named("b", 30, 40), Named("c", 10, 0)});
  EXPECT_TRUE(registry_->WaitStarted(Steady::time_point::max()));
  EXPECT_FALSE(registry_->starting());
  EXPECT_FALSE(registry_->WhyNone().has_value());
  published_.WaitFor("b", ModelState::kResident);
  EXPECT_EQ(published_.states("a"),
            (std::vector<ModelState>{ModelState::kUnloaded, ModelState::kLoading,
                                     ModelState::kResident}));
  EXPECT_NE(published_.Of("a").engine, nullptr);
  EXPECT_EQ(published_.Of("a").names, (std::vector<std::string>{"a", "a-alias"}));
  EXPECT_EQ(published_.Of("c").state, ModelState::kUnloaded);
  EXPECT_EQ(published_.Of("c").engine, nullptr);
  EXPECT_EQ(Load("a-alias").get(), std::nullopt);
  EXPECT_EQ(loads("a"), 1);
}

TEST_F(ModelRegistryTest, WhoeverWaitsForAModelIsToldWhenItIsThere) {
  Start(100, {Named("a", 30, 0)});
  HoldLoads();
  auto first = Load("a");
  auto second = Load("a-alias");
  published_.WaitFor("a", ModelState::kLoading);
  LetLoad();
  EXPECT_EQ(first.get(), std::nullopt);
  EXPECT_EQ(second.get(), std::nullopt);
  EXPECT_EQ(published_.Of("a").state, ModelState::kResident);
  EXPECT_EQ(loads("a"), 1);
  const auto unknown = Load("x").get();
  ASSERT_TRUE(unknown.has_value());
  EXPECT_EQ(unknown->status(), 404);
}

// Who can give memory of experts does so before anybody is unloaded, and is then as large as that.
TEST_F(ModelRegistryTest, OthersShrinkBeforeOneIsUnloaded) {
  slots_["a"] = 50;
  slots_["b"] = 20;
  auto a = Named("a", 10, 60);
  a.experts = {0, 5};
  auto b = Named("b", 50, 0);
  b.experts = {0, 5};
  Start(100, {a, b, Named("c", 90, 0)});
  EXPECT_TRUE(registry_->WaitStarted(Steady::time_point::max()));
  EXPECT_EQ(Load("b").get(), std::nullopt);
  EXPECT_EQ(published_.Of("b").memory_bytes, 50u);
  EXPECT_EQ(published_.Of("a").state, ModelState::kResident);
  EXPECT_EQ(published_.Of("a").memory_bytes, 50u);
  EXPECT_FALSE(published_.Of("a").shrunk);
  EXPECT_EQ(ended_, 0);
  // All that both have above their floors (35 and 15) and b itself would not be enough: nobody is
  // shrunk or unloaded in vain.
  const auto too_large = Load("c").get();
  ASSERT_TRUE(too_large.has_value());
  EXPECT_EQ(too_large->status(), 503);
  EXPECT_EQ(published_.Of("a").memory_bytes, 50u);
  EXPECT_EQ(published_.Of("b").memory_bytes, 50u);
  // What was moved is counted where it is: all of it is free again.
  EXPECT_EQ(Unload("a").get(), std::nullopt);
  EXPECT_EQ(Unload("b").get(), std::nullopt);
  EXPECT_EQ(Load("c").get(), std::nullopt);
  EXPECT_EQ(published_.Of("c").memory_bytes, 90u);
}

TEST_F(ModelRegistryTest, AModelAtItsFloorIsShrunk) {
  slots_["a"] = 50;
  auto a = Named("a", 10, 60);
  a.experts = {0, 5};
  Start(100, {a, Named("b", 85, 0)});
  EXPECT_TRUE(registry_->WaitStarted(Steady::time_point::max()));
  EXPECT_EQ(Load("b").get(), std::nullopt);
  const ServedModel shrunk = published_.Of("a");
  EXPECT_TRUE(shrunk.shrunk);
  EXPECT_EQ(shrunk.memory_bytes, 15u);
  EXPECT_NE(shrunk.engine, nullptr);
  const Json status = StatusJson({"a", shrunk.state, shrunk.memory_bytes, "", shrunk.shrunk});
  EXPECT_EQ(status["value"], "loaded");
  EXPECT_EQ(status["state"], "shrunk");
}

TEST_F(ModelRegistryTest, AModelThatCannotBeLoadedHarmsNoOther) {
  fails_["a"] = 1;
  Start(100, {Named("a", 30, 30), Named("b", 30, 30)});
  EXPECT_TRUE(registry_->WaitStarted(Steady::time_point::max()));
  published_.WaitFor("b", ModelState::kResident);
  const ServedModel failed = published_.WaitFor("a", ModelState::kFailed);
  EXPECT_NE(failed.why_failed.find("a: no weights"), std::string::npos);
  EXPECT_TRUE(ModelNotLoaded(failed).failed());
  EXPECT_FALSE(registry_->WhyNone().has_value());
  EXPECT_EQ(Load("a").get(), std::nullopt);  // what is asked for explicitly is tried again
  EXPECT_EQ(published_.Of("a").state, ModelState::kResident);
}

TEST_F(ModelRegistryTest, WhenAllFailThatIsSaid) {
  fails_["a"] = 1;
  Start(100, {Named("a", 30, 30)});
  EXPECT_TRUE(registry_->WaitStarted(Steady::time_point::max()));
  EXPECT_TRUE(registry_->WhyNone().has_value());
}

TEST_F(ModelRegistryTest, AModelIsUnloadedForAnotherWhenItsRequestsHaveEnded) {
  manual_ = true;
  Start(100, {Named("a", 60, 0), Named("b", 60, 0)});
  EXPECT_EQ(Load("a").get(), std::nullopt);
  std::shared_ptr<Engine> engine = published_.Of("a").engine;
  RequestId id = 0;
  auto* const test_engine = dynamic_cast<TestEngine*>(engine.get());
  const auto output = SubmitOne(*engine, Greedy({1, 2}, 4), &id);
  auto second = Load("b");
  published_.WaitFor("a", ModelState::kUnloaded);
  EXPECT_EQ(loads("b"), 0);  // its memory is not there yet
  test_engine->Emit(id, 4, FinishReason::kLength);
  EXPECT_EQ(output->Wait().tokens.size(), 4u);
  engine.reset();
  EXPECT_EQ(second.get(), std::nullopt);
  EXPECT_EQ(published_.Of("b").state, ModelState::kResident);
}

// From before it is taken until it is back.
TEST_F(ModelRegistryTest, MemoryIsToldForAsLongAsItIsHeld) {
  Start(100, {Named("a", 60, 0), Named("b", 70, 0)});
  HoldLoads();
  auto first = Load("a");
  published_.WaitFor("a", ModelState::kLoading);
  EXPECT_EQ(told_bytes_, 60u);
  LetLoad();
  EXPECT_EQ(first.get(), std::nullopt);
  std::shared_ptr<Engine> engine = published_.Of("a").engine;
  EXPECT_EQ(Unload("a").get(), std::nullopt);
  auto second = Load("b");
  EXPECT_EQ(told_bytes_, 60u);  // who has the engine keeps it
  engine.reset();
  EXPECT_EQ(second.get(), std::nullopt);
  EXPECT_EQ(told_bytes_, 70u);
  EXPECT_EQ(Unload("b").get(), std::nullopt);
  fails_["a"] = 1;
  EXPECT_NE(Load("a").get(), std::nullopt);
  EXPECT_EQ(told_bytes_, 0u);
}

TEST_F(ModelRegistryTest, WhatDoesNotFitIsRefusedWithTheLedger) {
  Start(100, {Named("a", 60, 60), Named("b", 60, 0)});
  EXPECT_TRUE(registry_->WaitStarted(Steady::time_point::max()));
  const auto why_not = Load("b").get();
  ASSERT_TRUE(why_not.has_value());
  EXPECT_EQ(why_not->code(), "insufficient_memory");
  const std::string message = why_not->what();
  EXPECT_NE(message.find("a (resident)"), std::string::npos) << message;
  EXPECT_NE(message.find("b: dense weights"), std::string::npos) << message;
  EXPECT_EQ(published_.Of("a").state, ModelState::kResident);
}

TEST_F(ModelRegistryTest, AnIdleModelIsUnloaded) {
  ModelRegistry::Model model = Named("a", 60, 60);
  model.rules.idle_ns = 1'000'000;
  Start(100, {model});
  EXPECT_TRUE(registry_->WaitStarted(Steady::time_point::max()));
  published_.WaitFor("a", ModelState::kUnloaded);
  EXPECT_EQ(Load("a").get(), std::nullopt);
  EXPECT_EQ(loads("a"), 2);
}

TEST_F(ModelRegistryTest, AModelThatAnswersIsNotIdle) {
  manual_ = true;
  ModelRegistry::Model model = Named("a", 60, 60);
  model.rules.idle_ns = 20'000'000;
  Start(100, {model});
  std::shared_ptr<Engine> engine = published_.WaitFor("a", ModelState::kResident).engine;
  RequestId id = 0;
  const auto output = SubmitOne(*engine, Greedy({1, 2}, 4), &id);
  const auto begin = Steady::now();
  while (Steady::now() < begin + std::chrono::milliseconds(100)) {
    ASSERT_EQ(published_.Of("a").state, ModelState::kResident);
  }
  dynamic_cast<TestEngine*>(engine.get())->Emit(id, 4, FinishReason::kLength);
  output->Wait();
  published_.WaitFor("a", ModelState::kUnloaded);
}

TEST_F(ModelRegistryTest, UnloadingTakesTheModelOffTheList) {
  Start(100, {Named("a", 60, 60), Named("b", 60, 0)});
  EXPECT_TRUE(registry_->WaitStarted(Steady::time_point::max()));
  EXPECT_EQ(Unload("a-alias").get(), std::nullopt);
  EXPECT_EQ(published_.Of("a").state, ModelState::kUnloaded);
  EXPECT_EQ(Unload("a").get(), std::nullopt);  // nothing is there
  EXPECT_EQ(Load("b").get(), std::nullopt);    // there is room now
  EXPECT_EQ(Unload("x").get()->status(), 404);
}

TEST_F(ModelRegistryTest, ARequestSaysHowLongAModelStays) {
  Start(100, {Named("a", 30, 0), Named("b", 30, 30)});
  EXPECT_EQ(Load("a").get(), std::nullopt);
  published_.WaitFor("b", ModelState::kResident);
  registry_->Touch("b", KeepAlive(0));  // loaded at start: it stays
  registry_->Touch("a", KeepAlive(0));
  published_.WaitFor("a", ModelState::kUnloaded);
  EXPECT_EQ(published_.Of("b").state, ModelState::kResident);
}

TEST_F(ModelRegistryTest, WatchersSeeEveryChangeInOrder) {
  fails_["a"] = 1;
  Start(100, {Named("a", 60, 0)});
  std::mutex mutex;
  std::vector<ModelState> seen;
  const uint64_t watch = registry_->Watch([&](const ModelStatus& status) {
    std::lock_guard lock(mutex);
    EXPECT_EQ(status.id, "a");
    EXPECT_EQ(status.bytes > 0,
              status.state == ModelState::kLoading || status.state == ModelState::kResident);
    seen.push_back(status.state);
  });
  EXPECT_NE(Load("a").get(), std::nullopt);
  EXPECT_EQ(Load("a").get(), std::nullopt);
  EXPECT_EQ(Unload("a").get(), std::nullopt);
  registry_->Unwatch(watch);
  EXPECT_EQ(Load("a").get(), std::nullopt);
  std::lock_guard lock(mutex);
  EXPECT_EQ(seen, (std::vector<ModelState>{ModelState::kUnloaded, ModelState::kLoading,
                                           ModelState::kFailed, ModelState::kLoading,
                                           ModelState::kResident, ModelState::kUnloaded}));
}

// Clients as the server's calls are: they take what is published, wait for what is not loaded, and
// keep the engine that answers them.
TEST_F(ModelRegistryTest, LoadingSaysHowFarItIs) {
  progress_ = {0.25, 0.5};
  Start(100, {Named("a", 60, 0)});
  std::mutex mutex;
  std::vector<double> seen;
  const uint64_t watch = registry_->Watch([&](const ModelStatus& status) {
    std::lock_guard lock(mutex);
    if (status.state == ModelState::kLoading) seen.push_back(status.progress);
  });
  HoldLoads();
  auto loaded = Load("a");
  while (published_.Of("a").load_progress < 0.5) std::this_thread::yield();
  EXPECT_EQ(published_.Of("a").state, ModelState::kLoading);
  LetLoad();
  EXPECT_EQ(loaded.get(), std::nullopt);
  EXPECT_EQ(Unload("a").get(), std::nullopt);
  EXPECT_EQ(Load("a").get(), std::nullopt);  // begins anew
  registry_->Unwatch(watch);
  std::lock_guard lock(mutex);
  EXPECT_EQ(seen, (std::vector<double>{0, 0.25, 0.5, 0, 0.25, 0.5}));
}

TEST_F(ModelRegistryTest, NoRequestIsLostWhileModelsComeAndGo) {
  constexpr int kModels = 4;
  constexpr int kOrders = 1000;
  std::vector<ModelRegistry::Model> models;
  models.reserve(kModels);
  for (int m = 0; m < kModels; ++m) models.push_back(Named(std::to_string(m), 40, 0));
  Start(100, models);  // room for two
  std::atomic<bool> stop{false};
  std::atomic<int> answered{0};
  std::vector<std::thread> clients;
  clients.reserve(3);
  for (int c = 0; c < 3; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 random(100 + c);
      while (!stop.load()) {
        const std::string id = std::to_string(random() % kModels);
        ServedModel model = published_.Of(id);
        while (model.engine == nullptr) {
          const auto why_not = Load(id).get();
          ASSERT_EQ(why_not, std::nullopt) << why_not->what();
          model = published_.Of(id);
        }
        registry_->Touch(id, random() % 5 == 0 ? std::optional(KeepAlive(0)) : std::nullopt);
        const auto output = SubmitOne(*model.engine, Greedy({1, 2, 3}, 5));
        ASSERT_EQ(output->Wait().tokens.size(), 5u);
        ASSERT_EQ(output->error, "");
        answered.fetch_add(1);
      }
    });
  }
  std::mt19937 random(7);
  for (int i = 0; i < kOrders; ++i) {
    const std::string id = std::to_string(random() % kModels);
    if (random() % 2 == 0) {
      EXPECT_EQ(Load(id).get(), std::nullopt);
    } else {
      EXPECT_EQ(Unload(id).get(), std::nullopt);
    }
  }
  stop.store(true);
  for (std::thread& client : clients) client.join();
  EXPECT_GT(answered.load(), 0);
  for (int m = 0; m < kModels; ++m) EXPECT_EQ(Unload(std::to_string(m)).get(), std::nullopt);
  registry_->Stop();
  EXPECT_EQ(made_.load(), ended_.load());  // every engine that was made has ended
}

TEST_F(ModelRegistryTest, WhoWaitsWhenItStopsIsTold) {
  Start(100, {Named("a", 60, 0), Named("b", 60, 0)});
  HoldLoads();
  auto first = Load("a");
  auto second = Load("b");
  published_.WaitFor("a", ModelState::kLoading);
  std::thread stopping([this] { registry_->Stop(); });
  // Who comes once it is stopping is told at once.
  while (Load("b").wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    std::this_thread::yield();
  }
  LetLoad();
  stopping.join();
  first.get();  // either way, but it comes
  const auto stopped = second.get();
  ASSERT_TRUE(stopped.has_value());
  EXPECT_EQ(stopped->code(), "draining");
  EXPECT_EQ(Load("b").get()->code(), "draining");
  // An engine that somebody still has ends where he lets go of it.
  const std::shared_ptr<Engine> left = published_.Of("a").engine;
  registry_.reset();
}

}  // namespace
}  // namespace moesaic
