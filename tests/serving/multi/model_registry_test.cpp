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
#include <string>
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
        [this](size_t model, uint64_t, const ModelRegistry::Hold& hold) {
          return LoadOne(model, hold);
        },
        [this](std::vector<ServedModel> now) { published_.Set(std::move(now)); });
    registry_->Start();
  }
  ServedModel LoadOne(size_t model, const ModelRegistry::Hold& hold) {
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
    served.engine = hold(std::make_unique<TestEngine>(tokenizer_, options));
    ++made_;
    return served;
  }
  std::future<std::optional<ApiError>> Load(const std::string& name) {
    auto told = std::make_shared<std::promise<std::optional<ApiError>>>();
    registry_->Load(name,
                    [told](std::optional<ApiError> why_not) { told->set_value(why_not); });
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
  std::map<std::string, int> fails_;  // so many loads of it fail
  std::atomic<int> made_{0};
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
