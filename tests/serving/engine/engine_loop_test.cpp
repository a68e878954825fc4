// The engine's loop over steps without a model: who is admitted, what ends whom, and what is left
// of an engine that stops.

#include "serving/engine/engine_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/metrics.h"
#include "serving/engine/step_turns.h"
#include "serving/text/id_tokenizer.h"
#include "tests/core/base/caught.h"
#include "tests/serving/engine/collector.h"
#include "tests/serving/engine/scripted_step.h"

namespace moesaic {
namespace {

struct LoopOptions {
  int64_t max_num_seqs = 4;
  int64_t max_batch_tokens = 64;
  int64_t max_outstanding = 1000;
  int64_t max_context_tokens = 200'000;
  int64_t kv_blocks = 1 << 15;
  KvSizes kv_sizes = {};
  int64_t head_rows = 4;
  bool reversed = false;
  MetricsRegistry* metrics = nullptr;
  std::shared_ptr<StepTurns::Member> turn = nullptr;  // shared with the loop
};

std::unique_ptr<EngineLoop> MakeLoop(Script& script, const LoopOptions& options = {}) {
  return std::make_unique<EngineLoop>([&script, options](LoopParts& parts) {
    parts.config.vocab_size = Script::kVocab;
    parts.tokenizer = MakeIdTokenizer(Script::kVocab);
    parts.max_context_tokens = options.max_context_tokens;
    parts.max_outstanding = options.max_outstanding;
    parts.kv_needs = {{0}, kKvBlockTokens, kAttentionChunkTokens};
    parts.num_kv_blocks = options.kv_blocks;
    parts.kv_sizes = options.kv_sizes;
    parts.scheduling.max_num_seqs = options.max_num_seqs;
    parts.scheduling.max_batch_tokens = options.max_batch_tokens;
    parts.scheduling.prefix_cache = false;
    parts.kernels = SelectKernels();
    parts.pool = std::make_unique<ThreadPool>(1);
    if (options.metrics != nullptr) {
      parts.metrics = std::make_unique<EngineMetrics>(*options.metrics, false);
    }
    auto step = std::make_unique<ScriptedStep>(script, options.reversed);
    parts.head = std::make_unique<ScriptedHead>(*step, options.head_rows);
    parts.turn = options.turn;
    parts.step = std::move(step);
  });
}

// Counts the ends: there is to be one.
class EndCounter : public Collector {
 public:
  void OnDelta(OutputDelta delta) override {
    if (delta.finish) ++ends;
    Collector::OnDelta(std::move(delta));
  }
  void OnError(const Error& error) override {
    ++ends;
    kind = error.kind();
    Collector::OnError(error);
  }
  std::atomic<int> ends{0};
  std::atomic<ErrorKind> kind{ErrorKind::kInternal};
};

struct Submitted {
  std::shared_ptr<EndCounter> sink;
  RequestId id = 0;

  Collector& Wait() const { return sink->Wait(); }
  bool Cancelled() const { return Wait().finish == FinishReason::kCancelled; }
};

Submitted Submit(Engine& engine, EngineRequest request) {
  Submitted submitted{std::make_shared<EndCounter>()};
  std::vector<EngineRequest> requests;
  requests.push_back(std::move(request));
  submitted.id = engine.Submit(std::move(requests), {submitted.sink})[0];
  return submitted;
}

// The status is told behind the last token of a step.
void WaitUntilNothingIsHeld(const Engine& engine) {
  for (;;) {
    const EngineStatus status = engine.Status();
    if (status.running + status.waiting == 0 && status.kv_usage == 0) return;
    std::this_thread::yield();
  }
}

// More tokens than any of these tests waits for.
constexpr int32_t kEndless = 100'000;

std::vector<int32_t> Prompt(int64_t tokens, int32_t first = 0) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < tokens; ++i) {
    prompt.push_back(static_cast<int32_t>((first + i) % Script::kVocab));
  }
  return prompt;
}

using Steps = std::vector<std::vector<Script::Slice>>;

// Until the loop has got there.
template <typename Condition>
void WaitFor(Condition condition) {
  while (!condition()) std::this_thread::yield();
}

TEST(EngineLoopTest, BlocksComeAndGoWhileItRuns) {
  Script script;
  const auto loop = MakeLoop(
      script,
      {.kv_blocks = 32,
       .kv_sizes = {.block_bytes = 100, .slab_blocks = 8, .least_blocks = 8, .most_blocks = 64}});
  ResizableKv* const kv = loop->resizable_kv();
  ASSERT_NE(kv, nullptr);
  EXPECT_EQ(kv->LookAtKv().held, 32);
  // It has nothing to do, and gives back what it is not to have all the same.
  kv->SetKvBlocks(24);
  WaitFor([&] { return kv->LookAtKv().held == 24; });
  EXPECT_EQ(script.gave_back_from(), 24);
  const auto step = [&] {
    script.Allow(1);
    script.WaitUntilHeld();
  };
  // A sequence keeps its blocks, the last of which is in the third slab.
  script.Hold();
  const auto longest = Submit(*loop, Greedy(Prompt(20 * kKvBlockTokens - 4), kEndless));
  script.WaitUntilHeld();
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(kv->LookAtKv().most_used, 20);
  EXPECT_EQ(kv->LookAtKv().running, 1);
  kv->SetKvBlocks(8);
  step();
  EXPECT_EQ(kv->LookAtKv().held, 24);
  EXPECT_EQ(loop->Status().preemptions, 0);
  loop->Cancel(longest.id);
  script.AllowAll();
  EXPECT_TRUE(longest.Cancelled());
  WaitFor([&] { return kv->LookAtKv().held == 8; });
  EXPECT_EQ(script.gave_back_from(), 8);
  // One of two has room, and the other waits for nothing else, until there is more.
  EXPECT_EQ(kv->LookAtKv().waited_us, 0u);
  script.Hold();
  const auto first = Submit(*loop, Greedy(Prompt(5 * kKvBlockTokens), 20));
  const auto second = Submit(*loop, Greedy(Prompt(5 * kKvBlockTokens), 20));
  script.WaitUntilHeld();
  for (int i = 0; i < 4; ++i) step();
  EXPECT_EQ(loop->Status().waiting, 1);
  EXPECT_GT(kv->LookAtKv().waited_us, 0u);
  kv->SetKvBlocks(64);
  EXPECT_EQ(kv->LookAtKv().held, 64);
  step();
  step();
  EXPECT_EQ(loop->Status().running, 2);
  script.AllowAll();
  EXPECT_EQ(first.Wait().finish, FinishReason::kLength);
  EXPECT_EQ(second.Wait().finish, FinishReason::kLength);
}

TEST(EngineLoopTest, ServesRequestsTogether) {
  Script script;
  MetricsRegistry metrics;
  const auto loop = MakeLoop(script, {.metrics = &metrics});
  script.Hold();
  const auto first = Submit(*loop, Greedy({1, 2, 3}, 3));
  script.WaitUntilHeld();
  const auto second = Submit(*loop, Greedy({10}, 2));
  EXPECT_EQ(loop->Status().waiting, 1);  // in the mailbox
  script.AllowAll();
  EXPECT_EQ(first.Wait().Ids(), (std::vector<int32_t>{4, 5, 6}));
  EXPECT_EQ(second.Wait().Ids(), (std::vector<int32_t>{11, 12}));
  EXPECT_EQ(second.sink->finish, FinishReason::kLength);
  EXPECT_EQ(second.sink->usage.prompt_tokens, 1);
  EXPECT_GE(second.sink->queue_us, 0);
  EXPECT_EQ(second.sink->text, "<11><12>");
  EXPECT_EQ(second.sink->trace, nullptr);  // nobody watches
  EXPECT_EQ(script.ran(), (Steps{{{0, 3}}, {{3, 1}, {0, 1}}, {{4, 1}, {1, 1}}}));
  const EngineStatus status = loop->Status();
  EXPECT_EQ(status.expert_slots, 7);
  EXPECT_EQ(status.experts_resident, 5);
  EXPECT_EQ(status.not_ready, "");
  EXPECT_EQ(loop->Stats().steps, 3);
  EXPECT_NE(metrics.Serialize().find("moe_steps_total 3\n"), std::string::npos);
}

TEST(EngineLoopTest, TellsHowFarAPromptIsWhoAsks) {
  Script script;
  MetricsRegistry metrics;
  const auto loop = MakeLoop(script, {.max_batch_tokens = 8, .metrics = &metrics});
  script.Hold();
  EngineRequest request = Greedy(Prompt(20), 3);
  request.return_progress = true;
  const auto asks = Submit(*loop, request);
  script.WaitUntilHeld();
  script.Allow(1);
  script.WaitUntilHeld();
  EXPECT_NE(metrics.Serialize().find("moe_prefill_tokens_left 12\n"), std::string::npos);
  script.AllowAll();
  std::vector<int64_t> processed;
  int64_t time_ms = 0;
  for (const PromptProgress& progress : asks.Wait().progress) {
    processed.push_back(progress.processed);
    EXPECT_EQ(progress.total, 20);
    EXPECT_EQ(progress.cached, 0);
    EXPECT_GE(progress.time_ms, time_ms);
    time_ms = progress.time_ms;
  }
  EXPECT_EQ(processed, (std::vector<int64_t>{0, 8, 16, 20}));
  EXPECT_EQ(asks.sink->tokens.size(), 3u);
  request.return_progress = false;
  EXPECT_TRUE(Submit(*loop, request).Wait().progress.empty());
}

// A step may put its slices in another order: every sequence gets the tokens of its own rows.
TEST(EngineLoopTest, AStepArrangesItsSlices) {
  Script script;
  const auto loop = MakeLoop(script, {.reversed = true});
  script.Hold();
  const auto first = Submit(*loop, Greedy({1}, 3));
  script.WaitUntilHeld();
  const auto second = Submit(*loop, Greedy(Prompt(5, 20), 2));
  script.AllowAll();
  EXPECT_EQ(first.Wait().Ids(), (std::vector<int32_t>{2, 3, 4}));
  EXPECT_EQ(second.Wait().Ids(), (std::vector<int32_t>{25, 26}));
  EXPECT_EQ(script.ran(), (Steps{{{0, 1}}, {{0, 5}, {1, 1}}, {{5, 1}, {2, 1}}}));
}

TEST(EngineLoopTest, AdmitsInTheOrderOfArrival) {
  Script script;
  const auto loop = MakeLoop(script, {.max_num_seqs = 2});
  script.Hold();
  const auto first = Submit(*loop, Greedy({1}, 4));
  const auto second = Submit(*loop, Greedy({2}, 4));
  const auto third = Submit(*loop, Greedy({3}, 1));
  // The first step may have begun before the others came.
  script.Allow(2);
  script.WaitUntilHeld();
  EXPECT_EQ(loop->Status().running, 2);
  EXPECT_EQ(loop->Status().waiting, 1);
  EXPECT_TRUE(third.sink->tokens.empty());
  script.AllowAll();
  EXPECT_EQ(third.Wait().Ids(), (std::vector<int32_t>{4}));
  EXPECT_EQ(second.Wait().Ids(), (std::vector<int32_t>{3, 4, 5, 6}));
  for (const auto& step : script.ran()) EXPECT_LE(step.size(), 2u);
}

TEST(EngineLoopTest, AFullQueueRefusesUntilAPlaceIsFree) {
  Script script;
  const auto loop = MakeLoop(script, {.max_num_seqs = 1, .max_outstanding = 3});
  script.Hold();
  std::vector<Submitted> taken;
  taken.reserve(3);
  for (int i = 0; i < 3; ++i) taken.push_back(Submit(*loop, Greedy({1}, kEndless)));
  const Error refused = Caught([&] { Submit(*loop, Greedy({1}, 1)); });
  EXPECT_EQ(refused.kind(), ErrorKind::kUnavailable);
  EXPECT_TRUE(Contains(refused, "3 of 3"));
  loop->Cancel(taken[1].id);
  script.Allow(1);
  EXPECT_TRUE(taken[1].Cancelled());
  // Of its two sequences one has a place, the other waits beyond.
  const std::vector<std::shared_ptr<OutputSink>> two = {std::make_shared<Collector>(),
                                                        std::make_shared<Collector>()};
  loop->Submit({Greedy({1}, 1), Greedy({1}, 1)}, two);
  EXPECT_EQ(Caught([&] { Submit(*loop, Greedy({1}, 1)); }).kind(), ErrorKind::kUnavailable);
  for (const Submitted& submitted : taken) loop->Cancel(submitted.id);
  script.AllowAll();
  for (const auto& sink : two) {
    EXPECT_EQ(static_cast<Collector&>(*sink).Wait().finish, FinishReason::kLength);
  }
  EXPECT_EQ(Submit(*loop, Greedy({1}, 1)).Wait().finish, FinishReason::kLength);
}

// Within a priority clients are served in turn, and one of them cannot fill the queue.
TEST(EngineLoopTest, ClientsShareTheQueue) {
  Script script;
  const auto loop = MakeLoop(script, {.max_num_seqs = 1, .max_outstanding = 18});
  script.Hold();
  const auto of = [&](const char* client, int32_t priority = 0) {
    EngineRequest request = Greedy({1}, 1);
    request.client = client;
    request.priority = priority;
    return Submit(*loop, request);
  };
  const auto running = of("a");
  script.WaitUntilHeld();
  std::vector<Submitted> of_a;
  of_a.reserve(15);
  for (int i = 0; i < 15; ++i) of_a.push_back(of("a"));
  EXPECT_TRUE(Contains(Caught([&] { of("a"); }), "16 of the 18"));
  const auto of_b = of("b");
  const auto urgent = of("c", -1);
  script.Allow(4);  // and one of a, which has had as much as b
  EXPECT_EQ(urgent.Wait().finish, FinishReason::kLength);
  EXPECT_EQ(of_b.Wait().finish, FinishReason::kLength);
  script.WaitUntilHeld();
  EXPECT_EQ(loop->Status().waiting, 14);
  script.AllowAll();
  for (const Submitted& submitted : of_a) {
    EXPECT_EQ(submitted.Wait().finish, FinishReason::kLength);
  }
}

// A step of a batch ends when another request comes, and smaller ones make up for it.
TEST(EngineLoopTest, AStepOfABatchGivesWay) {
  Script script;
  MetricsRegistry metrics;
  const auto loop = MakeLoop(script, {.metrics = &metrics});
  script.Hold();
  auto line = Greedy(Prompt(8), 4);
  line.background = true;
  const auto batch = Submit(*loop, line);
  script.WaitUntilHeld();
  const auto also_batch = Submit(*loop, line);  // for which nobody makes way
  script.Allow(1);
  script.WaitUntilHeld();
  const auto other = Submit(*loop, Greedy({1}, 2));
  script.AllowAll();
  EXPECT_EQ(other.Wait().Ids(), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(batch.Wait().Ids(), Prompt(4, 8));
  EXPECT_EQ(also_batch.Wait().Ids(), Prompt(4, 8));
  // Of 1 + 8 tokens that were to run 4 are left, then 5, then 6.
  EXPECT_EQ(script.ran(), (Steps{{{0, 8}},
                                 {{0, 1}},
                                 {{1, 1}},
                                 {{8, 1}, {0, 3}},
                                 {{9, 1}, {3, 4}},
                                 {{10, 1}, {7, 1}},
                                 {{8, 1}},
                                 {{9, 1}},
                                 {{10, 1}}}));
  EXPECT_EQ(loop->Stats().experts.misses, 7u);  // of the layers that the step has run
  EXPECT_NE(metrics.Serialize().find("moe_batch_steps_given_way_total 1\n"), std::string::npos);
}

// A total that is published again may be less than what was added to it, by the last bit.
TEST(EngineLoopTest, TimesAreNeverTakenBack) {
  MetricsRegistry registry;
  EngineMetrics metrics(registry, false);
  EngineStep::Experts experts;
  for (const int64_t total_us : {2723, 48076, 48076}) {
    experts.foreseen.total_us = total_us;
    metrics.SetFetchOrders(experts);
  }
  EXPECT_NE(registry.Serialize().find("{experts=\"foreseen\"} 0.048076"), std::string::npos);
}

// Beside other engines a batch waits for those, but its engine's other requests do not wait for it.
TEST(EngineLoopTest, ABatchWaitsForOtherEngines) {
  const SteadyClock clock;
  const auto turns = std::make_shared<StepTurns>(clock);
  const auto another = turns->Join(0);
  Script script;
  MetricsRegistry metrics;
  const std::shared_ptr<StepTurns::Member> loop_turn = turns->Join(0);
  const auto loop = MakeLoop(script, {.metrics = &metrics, .turn = loop_turn});
  auto line = Greedy(Prompt(8), 2);
  line.background = true;
  another->Begin();
  const auto batch = Submit(*loop, line);
  while (loop->Status().waiting + loop->Status().running == 0) std::this_thread::yield();
  const auto cancelled = Submit(*loop, line);
  loop->Cancel(cancelled.id);
  EXPECT_TRUE(cancelled.Cancelled());
  const auto own = Submit(*loop, Greedy({1}, 1));
  while (!another->OthersCome()) std::this_thread::yield();
  another->End();
  another->Rest();
  EXPECT_EQ(own.Wait().Ids(), std::vector<int32_t>{2});
  EXPECT_EQ(batch.Wait().Ids(), Prompt(2, 8));
  EXPECT_EQ(script.ran(), (Steps{{{0, 1}}, {{0, 8}}, {{8, 1}}}));
  // A step of it that runs when another engine comes gives way.
  script.Hold();
  const auto later = Submit(*loop, line);
  script.WaitUntilHeld();
  std::thread comes([&] {
    another->Begin();
    another->End();
    another->Rest();
  });
  while (!loop_turn->OthersCome()) std::this_thread::yield();
  script.AllowAll();
  EXPECT_EQ(later.Wait().Ids(), Prompt(2, 8));
  comes.join();
  EXPECT_NE(metrics.Serialize().find("moe_batch_steps_given_way_total 1\n"), std::string::npos);
  EXPECT_EQ(script.ran().size(), 6u);  // its prompt in two steps
}

// What can never run takes no place.
TEST(EngineLoopTest, RefusesWhatCanNeverRun) {
  Script script;
  const auto loop = MakeLoop(script, {.max_outstanding = 1, .max_context_tokens = 8});
  for (const auto& prompt : {Prompt(0), Prompt(9), std::vector<int32_t>{Script::kVocab}}) {
    EXPECT_EQ(Caught([&] { Submit(*loop, Greedy(prompt, 1)); }).kind(),
              ErrorKind::kInvalidArgument);
  }
  EXPECT_EQ(Submit(*loop, Greedy(Prompt(7), 5)).Wait().usage.completion_tokens, 1);
}

TEST(EngineLoopTest, CancelsWhatIsInTheMailbox) {
  Script script;
  const auto loop = MakeLoop(script);
  script.Hold();
  const auto other = Submit(*loop, Greedy({1}, 2));
  script.WaitUntilHeld();
  const auto cancelled = Submit(*loop, Greedy({2}, 2));
  loop->Cancel(cancelled.id);
  loop->Cancel(987654);  // never was
  script.AllowAll();
  EXPECT_TRUE(cancelled.Cancelled());
  EXPECT_EQ(cancelled.sink->queue_us, -1);  // no step ran it
  EXPECT_EQ(other.Wait().finish, FinishReason::kLength);
  loop->Cancel(other.id);  // has ended
  EXPECT_EQ(Submit(*loop, Greedy({1}, 1)).Wait().error, "");
  EXPECT_EQ(other.sink->ends, 1);
  EXPECT_EQ(cancelled.sink->ends, 1);
  EXPECT_EQ(script.ran().size(), 3u);
}

TEST(EngineLoopTest, CancelsWhatWaits) {
  Script script;
  const auto loop = MakeLoop(script, {.max_num_seqs = 1});
  script.Hold();
  const auto running = Submit(*loop, Greedy({1}, 5));
  const auto waiting = Submit(*loop, Greedy({2}, 5));
  script.Allow(2);
  script.WaitUntilHeld();
  loop->Cancel(waiting.id);
  script.AllowAll();
  EXPECT_TRUE(waiting.Cancelled());
  EXPECT_EQ(waiting.sink->queue_us, -1);
  EXPECT_EQ(running.Wait().Ids().size(), 5u);
  EXPECT_EQ(waiting.sink->ends, 1);
}

TEST(EngineLoopTest, CancelsWhatRuns) {
  Script script;
  const auto loop = MakeLoop(script);
  script.Hold();
  const auto cancelled = Submit(*loop, Greedy({1}, kEndless));
  script.Allow(2);
  script.WaitUntilHeld();
  loop->Cancel(cancelled.id);
  loop->Cancel(cancelled.id);
  script.Allow(1);  // the step that it is in goes on to its end
  EXPECT_TRUE(cancelled.Cancelled());
  EXPECT_EQ(cancelled.sink->Ids(), (std::vector<int32_t>{2, 3, 4}));
  EXPECT_GE(cancelled.sink->queue_us, 0);
  script.AllowAll();
  EXPECT_EQ(Submit(*loop, Greedy({1}, 1)).Wait().error, "");
  EXPECT_EQ(cancelled.sink->ends, 1);
  WaitUntilNothingIsHeld(*loop);
}

TEST(EngineLoopTest, PreemptedSequencesGoOnOrAreCancelled) {
  for (const bool cancel : {false, true}) {
    Script script;
    // Two of 16 + 20 tokens want six blocks.
    const auto loop = MakeLoop(script, {.kv_blocks = 4});
    script.Hold();
    const auto older = Submit(*loop, Greedy(Prompt(16), 20));
    script.WaitUntilHeld();
    const auto newer = Submit(*loop, Greedy(Prompt(16, 30), 20));
    while (loop->Status().preemptions == 0) {
      script.Allow(1);
      script.WaitUntilHeld();
    }
    EXPECT_EQ(loop->Status().running, 1);
    EXPECT_EQ(loop->Status().waiting, 1);
    if (cancel) loop->Cancel(newer.id);
    script.AllowAll();
    EXPECT_EQ(older.Wait().Ids(), Prompt(20, 16));
    if (cancel) {
      EXPECT_TRUE(newer.Cancelled());
      EXPECT_LT(newer.sink->tokens.size(), 20u);
    } else {
      EXPECT_EQ(newer.Wait().Ids(), Prompt(20, 46));
    }
    EXPECT_EQ(newer.sink->ends, 1);
    EXPECT_EQ(Submit(*loop, Greedy({1}, 1)).Wait().error, "");
    WaitUntilNothingIsHeld(*loop);
  }
}

TEST(EngineLoopTest, AnErrorInAStepEndsItsRequestsAndNoOthers) {
  Script script;
  const auto loop = MakeLoop(script, {.max_num_seqs = 2});
  script.Hold();
  const auto first = Submit(*loop, Greedy({1}, kEndless));
  const auto second = Submit(*loop, Greedy({2}, kEndless));
  const auto waiting = Submit(*loop, Greedy({3}, 3));
  script.Allow(2);
  script.WaitUntilHeld();
  script.FailNext({Error(ErrorKind::kIo, "the disk is gone")});
  script.AllowAll();
  for (const auto* failed : {&first, &second}) {
    EXPECT_EQ(failed->Wait().error, "the disk is gone");
    EXPECT_EQ(failed->sink->kind, ErrorKind::kIo);
    EXPECT_EQ(failed->sink->ends, 1);
  }
  EXPECT_EQ(waiting.Wait().Ids(), (std::vector<int32_t>{4, 5, 6}));
  EXPECT_EQ(waiting.sink->error, "");
  EXPECT_EQ(loop->Status().not_ready, "");
  WaitUntilNothingIsHeld(*loop);
}

// What failed is not computed: the same positions are run again.
TEST(EngineLoopTest, AStepThatMayRunAgainEndsNothing) {
  Script script;
  const auto loop = MakeLoop(script, {.max_batch_tokens = 4});
  script.Hold();
  const auto request = Submit(*loop, Greedy(Prompt(6), 2));
  script.FailNext({Error(ErrorKind::kUnavailable, "lost"), EngineStep::AfterFailure::kRunAgain});
  script.FailNext({Error(ErrorKind::kUnavailable, "again"), EngineStep::AfterFailure::kRunAgain});
  script.AllowAll();
  EXPECT_EQ(request.Wait().Ids(), (std::vector<int32_t>{6, 7}));
  EXPECT_EQ(script.ran(), (Steps{{{0, 4}}, {{0, 4}}, {{0, 4}}, {{4, 2}}, {{6, 1}}}));
}

// The head fails for a block of rows: only these sequences end.
TEST(EngineLoopTest, AnErrorOfTheHeadEndsTheSequencesOfItsRows) {
  Script script;
  const auto loop = MakeLoop(script, {.head_rows = 1});
  script.Hold();
  const auto first = Submit(*loop, Greedy({1}, 3));
  const auto second = Submit(*loop, Greedy({20}, 3));
  script.WaitUntilHeld();
  while (loop->Status().running < 2) {
    script.Allow(1);
    script.WaitUntilHeld();
  }
  script.FailHeadAfter(1, Error(ErrorKind::kInternal, "no head"));
  script.AllowAll();
  EXPECT_EQ(first.Wait().Ids(), (std::vector<int32_t>{2, 3, 4}));
  EXPECT_EQ(second.Wait().error, "no head");
  // Log-probabilities of a prompt come before all tokens: the step's sequences end.
  auto scored = Greedy({5, 6, 7}, 3);
  scored.prompt_logprobs = 0;
  script.FailHeadAfter(0, Error(ErrorKind::kInternal, "no head either"));
  EXPECT_EQ(Submit(*loop, scored).Wait().error, "no head either");
  const auto last = Submit(*loop, scored);
  EXPECT_EQ(last.Wait().Ids(), (std::vector<int32_t>{8, 9, 10}));
  EXPECT_EQ(last.sink->prompt_tokens.size(), 2u);
  EXPECT_EQ(second.sink->ends, 1);
}

TEST(EngineLoopTest, DrainRefusesAndFinishesWhatIsThere) {
  Script script;
  const auto loop = MakeLoop(script, {.max_num_seqs = 1});
  script.Hold();
  const auto running = Submit(*loop, Greedy({1}, 3));
  const auto waiting = Submit(*loop, Greedy({2}, 2));
  EXPECT_FALSE(loop->Status().draining);
  loop->BeginDrain();
  EXPECT_TRUE(loop->Status().draining);
  const Error refused = Caught([&] { Submit(*loop, Greedy({1}, 1)); });
  EXPECT_EQ(refused.kind(), ErrorKind::kUnavailable);
  EXPECT_TRUE(Contains(refused, "shutting down"));
  script.AllowAll();
  EXPECT_EQ(running.Wait().Ids().size(), 3u);
  EXPECT_EQ(waiting.Wait().Ids().size(), 2u);
}

TEST(EngineLoopTest, ShutdownCancelsWhatIsLeft) {
  Script script;
  auto loop = MakeLoop(script, {.max_num_seqs = 2});
  script.Hold();
  std::vector<Submitted> left;
  left.reserve(4);
  for (int32_t i = 0; i < 3; ++i) left.push_back(Submit(*loop, Greedy({i}, kEndless)));
  script.Allow(2);
  script.WaitUntilHeld();  // two run, one waits
  left.push_back(Submit(*loop, Greedy({9}, kEndless)));
  std::atomic<bool> stopped{false};
  std::thread stopping([&] {
    loop.reset();
    stopped = true;
  });
  while (!stopped) {
    script.Allow(1);
    std::this_thread::yield();
  }
  stopping.join();
  for (const Submitted& submitted : left) {
    EXPECT_TRUE(submitted.Cancelled());
    EXPECT_EQ(submitted.sink->ends, 1);
  }
  EXPECT_EQ(left[2].sink->queue_us, -1);
  EXPECT_EQ(left[3].sink->queue_us, -1);
}

TEST(EngineLoopTest, DeadlinesEndWhatRunsAndWhatWaits) {
  Script script;
  const auto loop = MakeLoop(script, {.max_num_seqs = 1});
  script.Hold();
  const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
  auto request = Greedy({1}, kEndless);
  request.deadline = soon;
  const auto running = Submit(*loop, request);
  const auto waiting = Submit(*loop, request);
  const auto endless = Submit(*loop, Greedy({1}, 2));
  while (std::chrono::steady_clock::now() <= soon) std::this_thread::yield();
  script.AllowAll();
  for (const auto* late : {&running, &waiting}) {
    EXPECT_EQ(late->Wait().error, "the request's time ran out");
    EXPECT_EQ(late->sink->kind, ErrorKind::kUnavailable);
    EXPECT_EQ(late->sink->ends, 1);
  }
  EXPECT_TRUE(waiting.sink->tokens.empty());
  EXPECT_EQ(endless.Wait().finish, FinishReason::kLength);
}

// Who hears of a failure and asks at once is told; while nothing runs, whoever asks has the step
// try again.
TEST(EngineLoopTest, IsNotReadyWhileExpertsCannotBeRead) {
  Script script;
  const auto loop = MakeLoop(script);
  for (const bool by_request : {true, false}) {
    script.FailNext({Error(ErrorKind::kIo, "bad block"), EngineStep::AfterFailure::kEndRequests,
                     "experts cannot be read"});
    EXPECT_EQ(Submit(*loop, Greedy({1}, 1)).Wait().error, "bad block");
    EXPECT_EQ(loop->Status().not_ready, "experts cannot be read");
    EXPECT_EQ(loop->Status().not_ready_code, "read_failed");
    if (by_request) {  // another cause, another message; requests are still taken
      script.FailNext({Error(ErrorKind::kIo, "bad file")});
      EXPECT_EQ(Submit(*loop, Greedy({1}, 1)).Wait().error, "bad file");
      EXPECT_EQ(loop->Status().not_ready, "");
      continue;
    }
    script.Mend();
    while (!loop->Status().not_ready.empty()) std::this_thread::yield();
  }
  EXPECT_EQ(Submit(*loop, Greedy({1}, 1)).Wait().error, "");
}

TEST(EngineLoopTest, IsNotReadyWithoutADeviceItNeeds) {
  Script script;
  const auto loop = MakeLoop(script);
  EXPECT_EQ(loop->Status().not_ready, "");
  script.LoseDevice(Error(ErrorKind::kUnavailable, "device 0 is lost"));
  EXPECT_EQ(loop->Status().not_ready, "device 0 is lost");
  EXPECT_EQ(loop->Status().not_ready_code, "device_lost");
}

TEST(EngineLoopTest, AStepHearsWhenNothingIsLeftAndWhenTokensWereDelivered) {
  Script script;
  {
    const auto loop = MakeLoop(script);
    EXPECT_EQ(Submit(*loop, Greedy({1}, 3)).Wait().error, "");
    script.FailNext({Error(ErrorKind::kIo, "no")});
    EXPECT_EQ(Submit(*loop, Greedy({1}, 3)).Wait().error, "no");
  }
  EXPECT_EQ(script.heads(), 3);  // not of the step that failed
  EXPECT_GE(script.idles(), 1);
  Script held;
  const auto loop = MakeLoop(held);
  held.Hold();
  const auto request = Submit(*loop, Greedy({1}, 3));
  held.WaitUntilHeld();
  const int idles = held.idles();
  held.Allow(2);
  held.WaitUntilHeld();
  EXPECT_EQ(held.idles(), idles);  // not between the steps of a request
  held.AllowAll();
  EXPECT_EQ(request.Wait().error, "");
}

TEST(EngineLoopTest, ThrowsWhatLoadingThrew) {
  const Error error =
      Caught([] { EngineLoop loop([](LoopParts&) { Fail(ErrorKind::kNotFound, "no model"); }); });
  EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
  EXPECT_TRUE(Contains(error, "no model"));
}

// Every request ends once, whoever submits, cancels and asks at the same time, and with steps that
// fail among the others.
TEST(EngineLoopTest, ConcurrentCallersAllGetAnEnd) {
  Script script;
  MetricsRegistry metrics;
  const auto loop = MakeLoop(script, {.max_num_seqs = 3, .kv_blocks = 12, .metrics = &metrics});
  std::atomic<bool> done{false};
  std::thread asking([&] {
    while (!done) {
      const EngineStatus status = loop->Status();
      EXPECT_LE(status.running, 3);
      EXPECT_GE(loop->Stats().steps, 0);
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int32_t i = 0; i < 40; ++i) {
        const auto request = Submit(*loop, Greedy(Prompt(1 + (t * 40 + i) % 50), 30));
        if (i % 3 == 2) loop->Cancel(request.id);
        if (i % 13 == 5) script.FailNext({Error(ErrorKind::kIo, "now and then")});
        const Collector& ended = request.Wait();
        EXPECT_TRUE(ended.finish.has_value() || ended.error == "now and then");
        EXPECT_EQ(request.sink->ends, 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  asking.join();
  WaitUntilNothingIsHeld(*loop);
}

// Between two steps, also of an engine that has nothing to do; not at all when the engine ends.
TEST(EngineLoopTest, CollectionsAreUsedOnTheEnginesThread) {
  Script script;
  auto engine = MakeLoop(script);
  const auto thread_of_use = [&] {
    std::promise<std::thread::id> used;
    engine->WithCollection([&](EamCollection* collection) {
      EXPECT_EQ(collection, nullptr);  // nobody predicts
      used.set_value(std::this_thread::get_id());
    });
    return used.get_future().get();
  };
  const std::thread::id first = thread_of_use();
  EXPECT_NE(first, std::this_thread::get_id());
  EXPECT_EQ(thread_of_use(), first);
  const auto held = std::make_shared<int>(0);
  engine->WithCollection([held](EamCollection*) {});
  engine.reset();
  EXPECT_EQ(held.use_count(), 1);
}

// An engine that has nothing to do makes the sample that who begins to watch waits for, and one of
// what was the end of the last request.
TEST(EngineLoopTest, WhoWatchesSeesRequests) {
  Script script;
  auto engine = MakeLoop(script);
  LiveView& live = *engine->live();
  Submit(*engine, Greedy(Prompt(5), 3)).Wait();
  EXPECT_EQ(live.number(), 0u);  // nobody watched
  const LiveView::Watch watch(live);
  while (live.number() < 1) std::this_thread::yield();
  EXPECT_EQ(live.Latest()->expert_slots, 7);
  EXPECT_TRUE(live.Latest()->requests.empty());
  EXPECT_TRUE(live.Latest()->places.empty());
  EXPECT_GT(live.Latest()->totals.steps, 0);

  script.Hold();
  const Submitted submitted = Submit(*engine, Greedy(Prompt(5), 3));
  script.WaitUntilHeld();
  script.Allow(2);
  script.AllowAll();
  submitted.Wait();
  std::shared_ptr<const LiveSample> sample;
  do {
    sample = live.Latest();
  } while (sample->requests.empty() ||
           sample->requests.front().phase != LiveRequest::Phase::kEnded);
  EXPECT_EQ(sample->running, 0);
  ASSERT_EQ(sample->requests.size(), 1u);
  const LiveRequest& ended = sample->requests.front();
  EXPECT_EQ(ended.id, submitted.id);
  EXPECT_EQ(ended.ended, "length");
  EXPECT_EQ(ended.prompt_tokens, 5);
  EXPECT_EQ(ended.output_tokens, 3);
}

}  // namespace
}  // namespace moesaic
