// The engine on the sample model: what a caller of Submit sees.

#include "serving/engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/metrics.h"
#include "kernels/cpu/kernels.h"
#include "prefetch/evict/eviction_policies.h"
#include "prefetch/predict/predictor.h"
#include "serving/online/create_engine.h"
#include "serving/online/step_ways.h"
#include "serving/text/tokenizer.h"
#include "tests/core/base/temp_dir.h"
#include "tests/serving/online/engine_harness.h"
#include "tracer/request_tracer.h"

namespace moesaic {
namespace {

TEST(EngineTest, GreedyTextIsThatOfTheReference) {
  EngineOptions options = SmallOptions();
  options.dtype = WeightType::kF32;
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options, metrics);
  std::vector<std::shared_ptr<Collector>> collectors;
  const auto prompts = ReferencePrompts();
  for (const ReferencePrompt& prompt : prompts) {
    auto request = Greedy(prompt.prompt, static_cast<int32_t>(prompt.greedy.size()));
    request.ignore_eos = true;
    request.skip_special_tokens = false;
    collectors.push_back(SubmitOne(*engine, std::move(request)));
  }
  for (size_t p = 0; p < prompts.size(); ++p) {
    const Collector& got = collectors[p]->Wait();
    ASSERT_EQ(got.error, "");
    const std::vector<int32_t> ids = got.Ids();
    EXPECT_EQ(ids, prompts[p].greedy) << p;
    EXPECT_EQ(got.text, prompts[p].text) << p;
    EXPECT_EQ(got.finish, FinishReason::kLength);
    EXPECT_EQ(got.usage.prompt_tokens, static_cast<int64_t>(prompts[p].prompt.size()));
    EXPECT_EQ(got.usage.completion_tokens, static_cast<int64_t>(prompts[p].greedy.size()));
    EXPECT_GE(got.queue_us, 0);
  }
  EXPECT_GT(engine->Stats().experts.misses, 0u);
}

// Rule 1 (placement never changes the answer) for what is fetched ahead and for who leaves:
// tokens and their log-probabilities are the same to the last bit.
TEST(EngineTest, PredictorsAndPoliciesChangeNoBit) {
  std::vector<std::vector<int32_t>> expected_ids;
  std::vector<std::vector<float>> expected_logprobs;
  const auto prompts = ReferencePrompts();
  struct Setting {
    std::string predictor;
    std::string policy;
    const char* expert_memory;
    std::optional<bool> prefetches;  // nullopt: not known
  };
  // `dependency` finds everything equally likely, and so nothing worth the link's time.
  std::vector<Setting> settings = {Setting{"none", "lru", "100%", false},
                                   Setting{"blend", "auto", "100%", false},
                                   Setting{"none", "auto", "25%", false},
                                   Setting{"blend", "auto", "25%", true},
                                   Setting{"blend", "lru", "25%", true},
                                   Setting{"transition", "next-use", "25%", true},
                                   Setting{"eamc", "auto", "25%", true},
                                   Setting{"request-eam", "auto", "25%", true},
                                   Setting{"recency", "auto", "25%", true},
                                   Setting{"frequency", "auto", "25%", true},
                                   Setting{"dependency", "auto", "25%", false},
                                   Setting{"blend", "lfu", "25%", true},
                                   Setting{"none", "lfu", "25%", false},
                                   Setting{"none", "model-frequency", "25%", false},
                                   Setting{"blend", "model-frequency", "25%", true},
                                   Setting{"none", "request-eam", "25%", false},
                                   Setting{"eamc", "request-eam", "25%", true},
                                   Setting{"next-gate", "auto", "25%", true},
                                   Setting{"blend", "auto", "6%", true},
                                   Setting{"blend", "auto", "80KiB", false}};
  // Newer ones than this list.
  for (const std::string& name : PredictorNames()) {
    const auto has_name = [&](const Setting& setting) { return setting.predictor == name; };
    if (std::any_of(settings.begin(), settings.end(), has_name)) continue;
    settings.push_back({name, "auto", "25%", std::nullopt});
  }
  for (const std::string& name : CountingPolicyNames()) {
    const auto has_name = [&](const Setting& setting) { return setting.policy == name; };
    if (std::any_of(settings.begin(), settings.end(), has_name)) continue;
    settings.push_back({"none", name, "25%", std::nullopt});
  }
  for (const Setting& setting : settings) {
    SCOPED_TRACE(setting.predictor + " " + setting.policy + " " + setting.expert_memory);
    EngineOptions options = SmallOptions();
    options.predictor = setting.predictor;
    options.eviction_policy = setting.policy;
    options.expert_memory = setting.expert_memory;
    MetricsRegistry metrics;
    const auto engine = CreateEngine(options, metrics);
    std::vector<std::shared_ptr<Collector>> collectors;
    for (const ReferencePrompt& prompt : prompts) {
      auto request = Greedy(prompt.prompt, 12);
      request.ignore_eos = true;
      request.logprobs = 0;
      collectors.push_back(SubmitOne(*engine, std::move(request)));
    }
    for (size_t p = 0; p < prompts.size(); ++p) {
      const Collector& got = collectors[p]->Wait();
      ASSERT_EQ(got.error, "");
      std::vector<float> logprobs;
      for (const GeneratedToken& token : got.tokens) logprobs.push_back(token.logprob);
      if (expected_ids.size() <= p) {
        expected_ids.push_back(got.Ids());
        expected_logprobs.push_back(logprobs);
      }
      EXPECT_EQ(got.Ids(), expected_ids[p]) << p;
      EXPECT_EQ(logprobs, expected_logprobs[p]) << p;
    }
    const ExpertStats experts = engine->Stats().experts;
    if (setting.prefetches) {
      EXPECT_EQ(experts.prefetched > 0, *setting.prefetches);
    }
  }
}

// Requests come while others run, and the KV memory holds two of eight: all end, with the tokens
// that each gets alone.
TEST(EngineTest, PreemptionChangesNoToken) {
  const auto prompts = ReferencePrompts();
  std::vector<std::vector<int32_t>> alone;
  {
    MetricsRegistry metrics;
    const auto engine = CreateEngine(SmallOptions(), metrics);
    for (size_t p = 0; p < 8; ++p) {
      alone.push_back(SubmitOne(*engine, Greedy(prompts[p].prompt, 60))->Wait().Ids());
    }
  }
  EngineOptions options = SmallOptions();
  options.max_model_len = 0;
  options.kv_memory = "416KiB";  // 16 tokens of 8 layers take 32 KiB: 13 blocks
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options, metrics);
  std::vector<std::shared_ptr<Collector>> together;
  for (size_t p = 0; p < 8; ++p) {
    if (prompts[p].prompt.size() + 60 > 200) continue;
    together.push_back(SubmitOne(*engine, Greedy(prompts[p].prompt, 60)));
  }
  size_t at = 0;
  for (size_t p = 0; p < 8; ++p) {
    if (prompts[p].prompt.size() + 60 > 200) continue;
    EXPECT_EQ(together[at++]->Wait().Ids(), alone[p]) << p;
  }
  EXPECT_NE(metrics.Serialize().find("moe_preemptions_total"), std::string::npos);
  EXPECT_EQ(metrics.Serialize().find("moe_preemptions_total 0\n"), std::string::npos);
}

// Lines of a batch whose steps are ended by others, before any of their layers, have the tokens
// that they have alone, and so have the others.
TEST(EngineTest, GivingWayChangesNoToken) {
  const auto prompts = ReferencePrompts();
  MetricsRegistry metrics;
  EngineOptions options = SmallOptions();
  options.prefix_cache = false;
  const auto engine = CreateEngine(options, metrics);
  const auto line = [&](size_t p) {
    EngineRequest request = Greedy(prompts[p].prompt, 30);
    request.background = true;
    return SubmitOne(*engine, request);
  };
  std::vector<std::vector<int32_t>> alone;
  for (size_t p = 0; p < 5; ++p) alone.push_back(line(p)->Wait().Ids());
  std::vector<std::shared_ptr<Collector>> batch;
  for (size_t p = 0; p < 4; ++p) batch.push_back(line(p));
  const std::vector<int32_t> begin(alone[4].begin(), alone[4].begin() + 2);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(SubmitOne(*engine, Greedy(prompts[4].prompt, 2))->Wait().Ids(), begin);
  }
  for (size_t p = 0; p < 4; ++p) {
    EXPECT_EQ(batch[p]->Wait().Ids(), alone[p]) << p;
    // Every token is counted once, whatever was computed again.
    const RequestTrace& trace = *batch[p]->trace;
    EXPECT_EQ(trace.prefill_tokens, std::ssize(prompts[p].prompt));
    for (int layer = 0; layer < trace.prefill.num_layers(); ++layer) {
      EXPECT_EQ(trace.prefill.row_sum(layer), prompts[p].prompt.size() * 4) << layer;
    }
  }
}

TEST(EngineTest, PrefixIsReusedWithTheSameTokens) {
  MetricsRegistry metrics;
  const auto engine = CreateEngine(SmallOptions(), metrics);
  const auto prompt = ReferencePrompts()[6].prompt;
  const auto first = SubmitOne(*engine, Greedy(prompt, 20));
  first->Wait();
  EXPECT_EQ(first->usage.cached_tokens, 0);
  const auto second = SubmitOne(*engine, Greedy(prompt, 20));
  second->Wait();
  EXPECT_GE(second->usage.cached_tokens, 112);
  EXPECT_EQ(first->Ids(), second->Ids());
}

TEST(EngineTest, StopStringEndsTheTextBeforeIt) {
  MetricsRegistry metrics;
  const auto engine = CreateEngine(SmallOptions(), metrics);
  const auto prompt = ReferencePrompts()[0].prompt;  // " was afraid of the world. He was ..."
  auto request = Greedy(prompt, 40);
  request.stop = {"the world"};
  const auto stopped = SubmitOne(*engine, request);
  EXPECT_EQ(stopped->Wait().text, " was afraid of ");
  EXPECT_EQ(stopped->stop_text, "the world");
  EXPECT_EQ(stopped->finish, FinishReason::kStop);
  request.include_stop_in_output = true;
  EXPECT_EQ(SubmitOne(*engine, request)->Wait().text, " was afraid of the world");
  // min_tokens: the stop may not end it yet.
  request = Greedy(prompt, 12);
  request.stop = {"the world"};
  request.min_tokens = 12;
  EXPECT_EQ(SubmitOne(*engine, request)->Wait().finish, FinishReason::kLength);
  request = Greedy(prompt, 40);
  request.stop_token_ids = {SubmitOne(*engine, Greedy(prompt, 3))->Wait().Ids()[2]};
  EXPECT_EQ(SubmitOne(*engine, request)->Wait().usage.completion_tokens, 3);
}

TEST(EngineTest, LogprobsOfPromptAndOutputAgree) {
  MetricsRegistry metrics;
  const auto engine = CreateEngine(SmallOptions(), metrics);
  const auto prompt = ReferencePrompts()[1].prompt;
  auto request = Greedy(prompt, 8);
  request.logprobs = 3;
  const auto generated = SubmitOne(*engine, request);
  generated->Wait();
  ASSERT_EQ(generated->tokens.size(), 8u);
  for (const GeneratedToken& token : generated->tokens) {
    ASSERT_EQ(token.top.size(), 3u);
    EXPECT_EQ(token.top[0].token, token.token);  // greedy
    EXPECT_EQ(token.top[0].logprob, token.logprob);
    EXPECT_LE(token.top[1].logprob, token.logprob);
  }
  // The same tokens as a prompt have the same log-probabilities, bit for bit.
  std::vector<int32_t> whole = prompt;
  for (const int32_t id : generated->Ids()) whole.push_back(id);
  request = Greedy(whole, 0);
  request.prompt_logprobs = 0;
  const auto scored = SubmitOne(*engine, request);
  scored->Wait();
  EXPECT_EQ(scored->finish, FinishReason::kLength);
  EXPECT_EQ(scored->usage.completion_tokens, 0);
  ASSERT_EQ(scored->prompt_tokens.size(), whole.size() - 1);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(scored->prompt_tokens[prompt.size() - 1 + i].logprob, generated->tokens[i].logprob)
        << i;
  }
}

TEST(EngineTest, SeedsAreReproducible) {
  MetricsRegistry metrics;
  const auto engine = CreateEngine(SmallOptions(), metrics);
  auto request = Greedy(ReferencePrompts()[2].prompt, 24);
  request.sampling.temperature = 1.0;
  request.sampling.top_p = 0.95;
  request.sampling.seed = 42;
  const auto a = SubmitOne(*engine, request)->Wait().Ids();
  const auto b = SubmitOne(*engine, request)->Wait().Ids();
  EXPECT_EQ(a, b);
  request.sampling.seed = 43;
  EXPECT_NE(SubmitOne(*engine, request)->Wait().Ids(), a);
}

TEST(EngineTest, CancelEndsARequestAndFreesItsBlocks) {
  MetricsRegistry metrics;
  const auto engine = CreateEngine(SmallOptions(), metrics);
  auto request = Greedy(ReferencePrompts()[0].prompt, 1000);
  request.ignore_eos = true;
  RequestId id = 0;
  const auto collector = SubmitOne(*engine, request, &id);
  collector->WaitForDeltas(3);
  engine->Cancel(id);
  engine->Cancel(id);  // once more, and an id that never was
  engine->Cancel(987654);
  EXPECT_EQ(collector->Wait().finish, FinishReason::kCancelled);
  EXPECT_LT(collector->tokens.size(), 1000u);
  SubmitOne(*engine, Greedy({5, 6, 7}, 1))->Wait();
  EXPECT_EQ(engine->Status().running, 0);
}

TEST(EngineTest, TraceCountsEveryTokenInEverySparseLayer) {
  MetricsRegistry metrics;
  const auto engine = CreateEngine(SmallOptions(), metrics);
  const auto prompt = ReferencePrompts()[3].prompt;
  const auto collector = SubmitOne(*engine, Greedy(prompt, 10));
  collector->Wait();
  ASSERT_NE(collector->trace, nullptr);
  const auto count = static_cast<int64_t>(collector->tokens.size());
  EXPECT_EQ(collector->trace->prefill_tokens, static_cast<int64_t>(prompt.size()));
  EXPECT_EQ(collector->trace->decode_tokens, count - 1);  // the last token is never computed
}

// What to change is --memory, not a flag that nobody gave and that would not help.
TEST(EngineTest, NamesTheMemoryThatIsTooSmall) {
  for (const bool sizes_given : {false, true}) {
    EngineOptions options = SmallOptions();
    options.machine_memory_bytes = uint64_t{1} << 20;
    options.expert_memory = sizes_given ? "100%" : "auto";
    options.kv_memory = sizes_given ? "2MiB" : "auto";
    try {
      PlanEngine(options);
      FAIL() << "planned";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::kResourceExhausted);
      EXPECT_NE(message.find("raise --memory"), std::string::npos) << message;
      EXPECT_EQ(message.find("--kv-memory") != std::string::npos, sizes_given) << message;
      EXPECT_EQ(message.find("--expert-memory") != std::string::npos, sizes_given) << message;
    }
  }
  // A cache that was given is what is too small.
  EngineOptions options = SmallOptions();
  options.kv_memory = "1KiB";
  try {
    PlanEngine(options);
    FAIL() << "planned";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--kv-memory"), std::string::npos) << error.what();
  }
}

TEST(EngineTest, RefusesWhatCanNeverRun) {
  EngineOptions options = SmallOptions();
  options.max_model_len = 64;
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options, metrics);
  const auto message_of = [&](EngineRequest request) -> std::string {
    try {
      SubmitOne(*engine, std::move(request));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message_of(Greedy({}, 1)).find("prompt"), std::string::npos);
  EXPECT_NE(message_of(Greedy({4096}, 1)).find("4096"), std::string::npos);
  EXPECT_NE(message_of(Greedy({-1}, 1)).find("-1"), std::string::npos);
  EXPECT_NE(message_of(Greedy(std::vector<int32_t>(64, 5), 1)).find("64"), std::string::npos);
  // As long as the context allows, and cut there.
  const auto longest = SubmitOne(*engine, Greedy(std::vector<int32_t>(60, 5), 100));
  EXPECT_EQ(longest->Wait().usage.completion_tokens, 4);
  EXPECT_EQ(longest->finish, FinishReason::kLength);
}

TEST(EngineTest, QueueIsBoundedAndDrainRefuses) {
  EngineOptions options = SmallOptions();
  options.max_num_seqs = 2;
  options.max_queue = 1;
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options, metrics);
  auto request = Greedy(ReferencePrompts()[0].prompt, 500);
  request.ignore_eos = true;
  std::vector<std::shared_ptr<Collector>> running;
  running.reserve(3);
  for (int i = 0; i < 3; ++i) running.push_back(SubmitOne(*engine, request));
  try {
    SubmitOne(*engine, request);
    FAIL() << "the queue took a fourth";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
  }
  engine->BeginDrain();
  EXPECT_TRUE(engine->Status().draining);
  EXPECT_THROW(SubmitOne(*engine, request), Error);
  for (const auto& collector : running) EXPECT_EQ(collector->Wait().error, "");
}

// As many sequences as are allowed in a request may be more than there are places: those that have
// none wait for one, and only the next request is refused until there is one again.
TEST(EngineTest, ARequestOfMoreSequencesThanPlacesIsServed) {
  EngineOptions options = SmallOptions();
  options.max_num_seqs = 2;
  options.max_queue = 1;
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options, metrics);
  const auto submit = [&](int count, int32_t max_tokens, std::vector<RequestId>* ids = nullptr) {
    std::vector<std::shared_ptr<Collector>> collectors;
    std::vector<std::shared_ptr<OutputSink>> sinks;
    for (int i = 0; i < count; ++i) {
      sinks.push_back(collectors.emplace_back(std::make_shared<Collector>()));
    }
    auto request = Greedy(ReferencePrompts()[0].prompt, max_tokens);
    request.ignore_eos = true;
    const auto submitted = engine->Submit({static_cast<size_t>(count), request}, std::move(sinks));
    if (ids != nullptr) *ids = submitted;
    return collectors;
  };
  const auto is_full = [&] {
    try {
      submit(1, 1);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
      return true;
    }
    return false;
  };
  for (const auto& collector : submit(8, 4)) {
    EXPECT_EQ(collector->Wait().error, "");
    EXPECT_EQ(collector->usage.completion_tokens, 4);
  }
  // Cancelled sequences give their places back, those that never ran, too.
  std::vector<RequestId> ids;
  auto large = submit(8, 500, &ids);
  EXPECT_TRUE(is_full());
  for (const RequestId id : ids) engine->Cancel(id);
  for (const auto& collector : large) EXPECT_EQ(collector->Wait().finish, FinishReason::kCancelled);
  for (const auto& collector : submit(8, 4))
    EXPECT_EQ(collector->Wait().finish, FinishReason::kLength);
  EXPECT_FALSE(is_full());
}

TEST(EngineTest, DeadlineEndsARequest) {
  MetricsRegistry metrics;
  const auto engine = CreateEngine(SmallOptions(), metrics);
  auto request = Greedy(ReferencePrompts()[0].prompt, 1000);
  request.ignore_eos = true;
  request.deadline = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  EXPECT_NE(SubmitOne(*engine, request)->Wait().error, "");
}

TEST(EngineTest, DestructionEndsWhatRuns) {
  MetricsRegistry metrics;
  auto engine = CreateEngine(SmallOptions(), metrics);
  auto request = Greedy(ReferencePrompts()[0].prompt, 1000);
  request.ignore_eos = true;
  std::vector<std::shared_ptr<Collector>> collectors;
  collectors.reserve(20);
  for (int i = 0; i < 20; ++i) collectors.push_back(SubmitOne(*engine, request));
  engine.reset();
  for (const auto& collector : collectors)
    EXPECT_EQ(collector->Wait().finish, FinishReason::kCancelled);
}

// Many threads submit and cancel at once: every request ends exactly once (a second end would show
// as tokens after it; the sanitizers see the rest).
TEST(EngineTest, ConcurrentCallersAllGetAnEnd) {
  EngineOptions options = SmallOptions();
  options.max_num_seqs = 8;
  options.expert_memory = "10%";
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options, metrics);
  const auto prompts = ReferencePrompts();
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 6; ++i) {
        RequestId id = 0;
        const auto collector = SubmitOne(
            *engine, Greedy(prompts[static_cast<size_t>((t * 6 + i) % 6)].prompt, 12), &id);
        if (i % 3 == 2) engine->Cancel(id);
        const Collector& ended = collector->Wait();
        EXPECT_EQ(ended.error, "");
        EXPECT_TRUE(ended.finish.has_value());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(engine->Status().waiting, 0);
}

// A checkpoint that shrinks under the engine: the requests that need the lost bytes fail with a
// message, the engine lives on and serves what it can.
void FailUnreadable(PrefillOrder order) {
  const TempDir dir;
  const auto model = dir.path() / "model";
  std::filesystem::copy(MOESAIC_SAMPLE_MODEL_DIR, model, std::filesystem::copy_options::recursive);
  EngineOptions options = SmallOptions();
  options.model_dir = model;
  options.preload = false;
  options.prefill_order = order;
  options.max_num_batched_tokens = 32;
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options, metrics);
  const auto prompt = ReferencePrompts()[0].prompt;
  EXPECT_EQ(SubmitOne(*engine, Greedy(prompt, 4))->Wait().error, "");
  const auto file = model / "model.safetensors";
  const auto bytes = std::filesystem::file_size(file);
  std::filesystem::resize_file(file, bytes / 8);
  const auto failed = SubmitOne(*engine, Greedy(ReferencePrompts()[5].prompt, 40));
  EXPECT_NE(failed->Wait().error.find("model.safetensors"), std::string::npos) << failed->error;
  std::filesystem::copy_file(std::string(MOESAIC_SAMPLE_MODEL_DIR) + "/model.safetensors",
                             model / "fresh");
  std::filesystem::resize_file(file, bytes);
  // The bytes are back (same inode): copy them in place.
  {
    std::ifstream from(model / "fresh", std::ios::binary);
    std::fstream to(file, std::ios::binary | std::ios::in | std::ios::out);
    to << from.rdbuf();
  }
  EXPECT_EQ(SubmitOne(*engine, Greedy(prompt, 4))->Wait().error, "");
}

TEST(EngineTest, UnreadableExpertsFailTheRequestAndNothingElse) {
  FailUnreadable(PrefillOrder::kChunks);
  FailUnreadable(PrefillOrder::kLayers);
}

struct Answered {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<float>> logprobs;
  friend bool operator==(const Answered&, const Answered&) = default;
};

void AddAnswer(Collector& collector, Answered& answered) {
  EXPECT_EQ(collector.Wait().error, "");
  answered.ids.push_back(collector.Ids());
  std::vector<float>& logprobs = answered.logprobs.emplace_back();
  for (const GeneratedToken& token : collector.tokens) logprobs.push_back(token.logprob);
}

EngineRequest LongRequest(int seed, int length, int32_t tokens) {
  std::vector<int32_t> prompt;
  uint32_t x = static_cast<uint32_t>(seed) * 2654435761u + 1;
  for (int i = 0; i < length; ++i) {
    x = x * 1664525u + 1013904223u;
    prompt.push_back(static_cast<int32_t>((x >> 8) % 150));
  }
  EngineRequest request = Greedy(std::move(prompt), tokens);
  request.ignore_eos = true;
  request.logprobs = 0;
  return request;
}

// Prompts of several chunks run layer after layer, beside one that decodes: every answer has the
// bits that it has in chunks.
TEST(EngineTest, PromptsByLayersChangeNoBit) {
  const auto run = [](const EngineOptions& options) {
    MetricsRegistry metrics;
    const auto engine = CreateEngine(options, metrics);
    const auto neighbour = SubmitOne(*engine, LongRequest(1, 30, 100));
    neighbour->WaitForDeltas(3);
    RequestId id = 0;
    const auto cancelled = SubmitOne(*engine, LongRequest(2, 300, 5), &id);
    std::vector<std::shared_ptr<Collector>> others;
    for (const int length : {400, 190, 20}) {
      others.push_back(SubmitOne(*engine, LongRequest(length, length, 12)));
    }
    engine->Cancel(id);
    Answered answered;
    AddAnswer(*neighbour, answered);
    for (const auto& other : others) AddAnswer(*other, answered);
    cancelled->Wait();
    // What they have left behind is found.
    const auto again = SubmitOne(*engine, LongRequest(400, 400, 12));
    AddAnswer(*again, answered);
    EXPECT_GE(again->usage.cached_tokens, 384);
    return answered;
  };
  EngineOptions options = SmallOptions();
  options.max_num_batched_tokens = 64;
  options.prefill_order = PrefillOrder::kChunks;
  const Answered expected = run(options);
  for (const PrefillOrder order : {PrefillOrder::kAuto, PrefillOrder::kLayers}) {
    options.prefill_order = order;
    for (const int64_t turn_ms : {int64_t{0}, int64_t{20}}) {
      options.prefill_turn_ms = turn_ms;
      EXPECT_EQ(run(options), expected) << turn_ms;
    }
  }
  options.prefill_turn_ms = 0;
  for (const char* const predictor : {"none", "eamc"}) {
    options.predictor = predictor;
    options.expert_memory = predictor == std::string("none") ? "8%" : "50%";  // 20 of 256 experts
    EXPECT_EQ(run(options), expected) << predictor;
  }
  // As much room as little memory leaves: pieces of two chunks.
  options.expert_memory = "25%";
  options.machine_memory_bytes = 0;
  const EnginePlan roomy = PlanEngine(options);
  options.machine_memory_bytes = roomy.ledger.total_bytes() - roomy.prefill.bytes * 7 / 8;
  EXPECT_EQ(PlanEngine(options).prefill.piece_tokens, 128);
  EXPECT_EQ(run(options), expected);
}

double ValueOf(const std::string& metrics, const std::string& name) {
  const size_t line = metrics.find("\n" + name + " ");
  return line == std::string::npos ? -1 : std::stod(metrics.substr(line + name.size() + 2));
}

// What is read before the first request is counted by itself, and stays counted when the engine is
// gone and its model is loaded again.
TEST(EngineTest, PreloadedBytesOutliveTheEngine) {
  EngineOptions options = SmallOptions();
  const EnginePlan plan = PlanEngine(options);
  const auto bytes = static_cast<double>(plan.slot_bytes) * static_cast<double>(plan.expert_slots);
  MetricsRegistry metrics;
  for (const int loads : {1, 2}) {
    CreateEngine(options, metrics);
    EXPECT_EQ(ValueOf(metrics.Serialize(), "moe_expert_preload_bytes_total"), loads * bytes);
  }
  options.preload = false;
  CreateEngine(options, metrics);
  EXPECT_EQ(ValueOf(metrics.Serialize(), "moe_expert_preload_bytes_total"), 2 * bytes);
}

// Lines run as module batches, which wait between two blocks of a layer for requests that come, are
// cancelled, and lack memory for keys and values: every answer has the bits that it has in steps,
// and every token's experts are counted once.
TEST(EngineTest, ModuleBatchesChangeNoBit) {
  constexpr int kLines = 14;
  const auto line = [](int number) {
    EngineRequest request = LongRequest(number, 5 + 13 * (number % 7), 4 + number % 5);
    request.background = true;
    return request;
  };
  std::string text;
  const auto run = [&](const EngineOptions& options, bool beside) {
    MetricsRegistry metrics;
    const auto engine = CreateEngine(options, metrics);
    std::vector<std::shared_ptr<Collector>> lines;
    for (int number = 0; number < kLines; ++number)
      lines.push_back(SubmitOne(*engine, line(number)));
    Answered answered;
    if (beside) {
      EngineRequest endless = line(50);
      endless.max_tokens = 900;
      RequestId id = 0;
      const auto cancelled = SubmitOne(*engine, endless, &id);
      for (int i = 0; i < 4; ++i) {
        AddAnswer(*SubmitOne(*engine, LongRequest(100 + i, i % 2 == 0 ? 20 : 180, 3)), answered);
      }
      while (ValueOf(metrics.Serialize(), "moe_module_batch_pauses_total") == 0 &&
             options.module_batches == ModuleBatches::kOn) {
        const auto more = SubmitOne(*engine, line(9));
        SubmitOne(*engine, LongRequest(7, 20, 2))->Wait();
        more->Wait();
      }
      engine->Cancel(id);
      cancelled->Wait();
    }
    for (int number = 0; number < kLines; ++number) {
      Collector& got = *lines[static_cast<size_t>(number)];
      AddAnswer(got, answered);
      // The last token is not computed.
      EXPECT_EQ(got.trace->prefill.row_sum(0) + got.trace->decode.row_sum(0),
                (line(number).prompt.size() + got.tokens.size() - 1) * 4)
          << number;
    }
    text = metrics.Serialize();
    return answered;
  };
  EngineOptions options = SmallOptions();
  options.max_num_batched_tokens = 64;
  options.max_num_seqs = 4;
  options.serves_batches = true;
  options.prefix_cache = false;
  options.module_batches = ModuleBatches::kOff;
  const Answered expected = run(options, true);
  EXPECT_EQ(ValueOf(text, "moe_module_batches_total"), 0);
  options.module_batches = ModuleBatches::kOn;
  for (const bool little : {false, true}) {
    SCOPED_TRACE(little);
    options.expert_memory = little ? "8%" : "25%";
    options.kv_memory = little ? "640KiB" : "8MiB";  // 20 blocks of 16 tokens
    options.max_model_len = 0;
    options.prefix_cache = little;
    EXPECT_EQ(run(options, true), expected);
    EXPECT_GT(ValueOf(text, "moe_module_batches_total"), 0);
    EXPECT_EQ(ValueOf(text, "moe_batch_steps_given_way_total"), 0);
  }
  options.expert_memory = "25%";
  options.kv_memory = "8MiB";
  options.module_batches = ModuleBatches::kAuto;
  const Answered alone = run(options, false);
  EXPECT_TRUE(std::equal(alone.ids.begin(), alone.ids.end(), expected.ids.begin() + 4));
  EXPECT_GT(ValueOf(text, "moe_module_batches_total"), 0);
}

// A prompt of eleven chunks reads what is not in memory once, and as much as a layer makes room
// for; in chunks it reads that again and again.
TEST(EngineTest, APromptByLayersReadsEachExpertOnce) {
  for (const PrefillOrder order : {PrefillOrder::kChunks, PrefillOrder::kAuto}) {
    EngineOptions options = SmallOptions();
    options.max_num_batched_tokens = 64;
    options.predictor = "none";
    options.prefill_order = order;
    MetricsRegistry metrics;
    const auto engine = CreateEngine(options, metrics);
    EXPECT_EQ(SubmitOne(*engine, LongRequest(1, 700, 1))->Wait().error, "");
    const StepStats stats = engine->Stats();
    EXPECT_EQ(stats.prefill_tokens, 700);
    constexpr uint64_t kMissing = (256 - 64) * uint64_t{73728};
    if (order == PrefillOrder::kChunks) {
      EXPECT_GT(stats.experts.bytes_read, 3 * kMissing);
      EXPECT_EQ(stats.steps, 11);
    } else {
      EXPECT_LE(stats.experts.bytes_read, kMissing * 5 / 4);
      EXPECT_EQ(stats.steps, 1);
    }
  }
}

TEST(PlanEngineTest, LedgerIsCheckedBeforeAnythingIsAllocated) {
  EngineOptions options = SmallOptions();
  options.prefill_order = PrefillOrder::kChunks;
  options.predictor = "none";
  const EnginePlan plan = PlanEngine(options);
  EXPECT_EQ(plan.expert_slots, 64);
  EXPECT_EQ(plan.all_experts_bytes, 256u * 73728u);
  EXPECT_EQ(plan.ledger.bytes("expert cache"), 64u * 73728u);
  EXPECT_GT(plan.ledger.bytes("KV cache"), 0u);
  EXPECT_EQ(plan.ledger.limit_bytes, UINT64_MAX);

  options.machine_memory_bytes = plan.ledger.total_bytes() - 1;
  try {
    PlanEngine(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResourceExhausted);
    EXPECT_NE(std::string(error.what()).find("--expert-memory"), std::string::npos);
  }
  // auto takes what is left, whole experts at most.
  options.expert_memory = "auto";
  EXPECT_EQ(PlanEngine(options).expert_slots, 63);
  options.machine_memory_bytes = uint64_t{8} << 30;
  EXPECT_EQ(PlanEngine(options).expert_slots, 256);
  options.expert_memory = "1KiB";
  EXPECT_THROW(PlanEngine(options), Error);
  options = SmallOptions();
  options.prefill_order = PrefillOrder::kChunks;
  const EnginePlan predicted = PlanEngine(options);
  EXPECT_GT(predicted.predictor_bytes, 0u);
  EXPECT_EQ(predicted.ledger.total_bytes(), plan.ledger.total_bytes() + predicted.predictor_bytes);
  // The predictor of so small a model is larger than its experts: they go first.
  options.expert_memory = "auto";
  options.machine_memory_bytes = plan.ledger.total_bytes() - 1;
  EXPECT_EQ(PlanEngine(options).expert_slots, 63);
  options.expert_memory = "100%";
  options.machine_memory_bytes = 0;
  EXPECT_EQ(PlanEngine(options).predictor_bytes, 0u);
  options.predictor = "none";
  options.eviction_policy = "next-use";
  EXPECT_THROW(PlanEngine(options), Error);
  options = SmallOptions();
  options.max_num_batched_tokens = 8;
  EXPECT_THROW(PlanEngine(options), Error);
  options = SmallOptions();
  options.max_model_len = 100000;
  EXPECT_THROW(PlanEngine(options), Error);
}

// 32 KiB hold a block of 16 tokens of this model.
TEST(PlanEngineTest, ContextFollowsTheMemoryOfKeysAndValues) {
  EngineOptions options = SmallOptions();
  options.predictor = "none";
  options.max_model_len = 0;
  options.kv_memory = "70KiB";
  const EnginePlan plan = PlanEngine(options);
  EXPECT_EQ(plan.num_kv_blocks, 2);
  EXPECT_EQ(plan.max_context_tokens, 32);
  options.max_model_len = 32;
  EXPECT_EQ(PlanEngine(options).max_context_tokens, 32);
  options.max_model_len = 33;
  EXPECT_THROW(PlanEngine(options), Error);

  // On auto a begun block is a whole one.
  options.kv_memory = "auto";
  options.max_model_len = 17;
  options.max_num_seqs = 1;
  EXPECT_EQ(PlanEngine(options).num_kv_blocks, 2);

  options.kv_memory = "64MiB";
  options.max_model_len = 1025;  // positions that the model does not have
  try {
    PlanEngine(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("1024 positions"), std::string::npos);
  }
}

TEST(PlanEngineTest, AutoSharesWhatIsLeft) {
  EngineOptions options = SmallOptions();
  options.prefill_order = PrefillOrder::kChunks;
  options.predictor = "none";
  options.kv_memory = "2MiB";
  options.expert_memory = "1GiB";  // more than there is to keep
  const EnginePlan all = PlanEngine(options);
  EXPECT_EQ(all.expert_slots, 256);
  EXPECT_EQ(all.expert_budget_bytes, all.all_experts_bytes);

  // A quarter of what is left would be half of the context that was asked for.
  const uint64_t fixed_bytes = all.ledger.total_bytes() - all.all_experts_bytes - (2 << 20);
  options.kv_memory = options.expert_memory = "auto";
  options.machine_memory_bytes = fixed_bytes + (4 << 20);
  const EnginePlan asked = PlanEngine(options);
  EXPECT_EQ(asked.max_context_tokens, 1024);
  EXPECT_EQ(asked.num_kv_blocks, 64);
  EXPECT_EQ(asked.expert_slots, (2 << 20) / 73728);

  // A predictor that is small beside the experts is paid from their memory.
  options.predictor = "frequency";
  options.machine_memory_bytes = fixed_bytes + (8 << 20);
  const EnginePlan predicted = PlanEngine(options);
  EXPECT_GT(predicted.predictor_bytes, 0u);
  EXPECT_LE(predicted.ledger.total_bytes(), options.machine_memory_bytes);
}

// Steps of many requests that fetch whole layers have the bits of those that fetch what is
// foreseen.
TEST(EngineTest, StepsAsModuleBatchesChangeNoBit) {
  struct Setting {
    ModuleBatches choice;
    const char* expert_memory;
  };
  std::optional<Answered> expected;
  for (const Setting& setting :
       {Setting{ModuleBatches::kOff, "25%"}, Setting{ModuleBatches::kOn, "25%"},
        Setting{ModuleBatches::kOn, "8%"}, Setting{ModuleBatches::kAuto, "25%"}}) {
    SCOPED_TRACE(setting.expert_memory);
    EngineOptions options = SmallOptions();
    options.module_batches = setting.choice;
    options.expert_memory = setting.expert_memory;
    MetricsRegistry metrics;
    const auto engine = CreateEngine(options, metrics);
    std::vector<std::shared_ptr<Collector>> requests;
    for (int i = 0; i < 14; ++i) {
      requests.push_back(SubmitOne(*engine, LongRequest(i, 5 + 7 * i, 8)));
    }
    Answered answered;
    for (const auto& request : requests) AddAnswer(*request, answered);
    if (!expected) expected = answered;
    EXPECT_EQ(answered, *expected);
    const double steps = ValueOf(metrics.Serialize(), "moe_module_batch_steps_total");
    if (setting.choice != ModuleBatches::kAuto) {
      EXPECT_EQ(steps > 0, setting.choice == ModuleBatches::kOn);
    }
  }
}

// Of a step, by what it computes and reads.
StepStats StepOf(int64_t total_us, int64_t blocked_us, uint64_t bytes) {
  StepStats stats;
  stats.total_us = total_us;
  stats.experts.blocked_us = static_cast<decltype(stats.experts.blocked_us)>(blocked_us);
  stats.experts.bytes_read = bytes;
  return stats;
}

// Steps of 32 rows compute for half of their time and wait for the other half: module batches are
// predicted to be faster, tried, and kept while they are. Those of few rows are not tried, nor are
// those that only compute.
TEST(StepWaysTest, AStepRunsAsAModuleBatchWhereThatIsFaster) {
  StepWays ways(ModuleBatches::kAuto, {.layers = 10, .of_layer = 32, .top_k = 4});
  for (int step = 0; step < 4; ++step) {
    EXPECT_FALSE(ways.AsModuleBatch(32, true, true));
    ways.Ran(false, 32, true, StepOf(1000, 500, 500'000));
    ways.Ran(false, 32, false, StepOf(1000, 0, 10'000));
    ways.Ran(false, 128, true, StepOf(1000, 900, 1'000'000));  // the disk's rate
  }
  EXPECT_FALSE(ways.AsModuleBatch(4, true, true));
  EXPECT_FALSE(ways.AsModuleBatch(32, false, true));
  EXPECT_FALSE(ways.AsModuleBatch(32, true, false));  // nothing is read
  EXPECT_FALSE(ways.AsModuleBatch(128, true, true));  // the disk is the limit either way
  EXPECT_EQ(ways.least_rows(), 0);
  for (int step = 0; step < 4; ++step) {
    EXPECT_TRUE(ways.AsModuleBatch(40, true, true));
    ways.Ran(true, 40, true, StepOf(750, 250, 625'000));
  }
  EXPECT_EQ(ways.least_rows(), 32);
  // The other way is measured again now and then, and both may change.
  int foreseen = 0;
  for (int step = 0; step < 128; ++step) {
    const bool as_module_batch = ways.AsModuleBatch(32, true, true);
    foreseen += as_module_batch ? 0 : 1;
    ways.Ran(as_module_batch, 32, true, StepOf(as_module_batch ? 600 : 1000, 100, 500'000));
  }
  EXPECT_EQ(foreseen, 2);
  for (int step = 0; step < 20; ++step) ways.Ran(true, 32, true, StepOf(1500, 100, 500'000));
  EXPECT_FALSE(ways.AsModuleBatch(32, true, true));
  EXPECT_EQ(ways.least_rows(), 0);
}

TEST(StepWaysTest, CanBeForced) {
  const StepWays::Experts experts = {.layers = 10, .of_layer = 32, .top_k = 4};
  EXPECT_TRUE(StepWays(ModuleBatches::kOn, experts).AsModuleBatch(32, true, true));
  EXPECT_FALSE(StepWays(ModuleBatches::kOn, experts).AsModuleBatch(2, true, true));
  StepWays off(ModuleBatches::kOff, experts);
  for (int step = 0; step < 8; ++step) off.Ran(false, 32, true, StepOf(1000, 500, 900'000));
  EXPECT_FALSE(off.AsModuleBatch(32, true, true));
}

// Rows of module batches are in the ledger where batches are served, as many as a part of what is
// left holds.
TEST(PlanEngineTest, ModuleBatchesAreCounted) {
  EngineOptions options = SmallOptions();
  options.prefill_order = PrefillOrder::kChunks;
  options.predictor = "none";
  const EnginePlan without = PlanEngine(options);
  EXPECT_EQ(without.module_batches.tokens, 0);
  EXPECT_EQ(without.module_batches.sequences, 0);
  options.serves_batches = true;
  const EnginePlan plan = PlanEngine(options);
  EXPECT_EQ(plan.module_batches.tokens, 4 * 128);
  EXPECT_EQ(plan.module_batches.sequences, 4 * 16);
  EXPECT_GT(plan.module_batches.bytes, 0u);
  EXPECT_EQ(plan.ledger.total_bytes(), without.ledger.total_bytes() + plan.module_batches.bytes);
  EXPECT_TRUE(plan.module_batches.Worth(12, 64));
  EXPECT_FALSE(plan.module_batches.Worth(2, 64));
  EXPECT_TRUE(plan.module_batches.Worth(2, 256));  // nothing is read
  options.machine_memory_bytes = without.ledger.total_bytes() + plan.module_batches.bytes - 1;
  const EnginePlan small = PlanEngine(options);
  EXPECT_LE(small.module_batches.tokens, 3 * 128);
  EXPECT_GE(small.module_batches.tokens, 128);
  EXPECT_LE(small.ledger.total_bytes(), options.machine_memory_bytes);
  options.machine_memory_bytes = 0;
  options.batch_num_seqs = 7;
  EXPECT_EQ(PlanEngine(options).module_batches.sequences, 7);
  options.module_batches = ModuleBatches::kOff;
  EXPECT_EQ(PlanEngine(options).ledger.total_bytes(), without.ledger.total_bytes());
  options.module_batches = ModuleBatches::kOn;
  options.defer_experts = 1;
  EXPECT_EQ(PlanEngine(options).module_batches.tokens, 0);
}

// However little is left beside whole experts: a predictor, and the copies of it that are saved,
// take their memory from the experts', and the plan stays within what was given.
TEST(PlanEngineTest, AutoPaysForThePredictor) {
  EngineOptions options = SmallOptions();
  options.prefill_order = PrefillOrder::kChunks;
  options.predictor = "none";
  options.expert_memory = "100%";
  const EnginePlan all = PlanEngine(options);
  const uint64_t others_bytes = all.ledger.total_bytes() - all.all_experts_bytes;
  options.predictor = "frequency";
  options.expert_memory = "auto";
  for (const char* state_file : {"", "state"}) {
    options.state_file = state_file;
    const uint64_t copies = options.state_file.empty() ? 1 : 3;
    for (uint64_t beside = 0; beside < all.slot_bytes; beside += all.slot_bytes / 8) {
      SCOPED_TRACE(fmt::format("'{}', {} bytes beside whole experts", state_file, beside));
      const uint64_t left_bytes = 100 * all.slot_bytes + beside;
      options.machine_memory_bytes = others_bytes + left_bytes;
      const EnginePlan plan = PlanEngine(options);
      ASSERT_GT(plan.predictor_bytes, 0u);
      ASSERT_LT(plan.predictor_bytes, left_bytes / 12);
      EXPECT_EQ(plan.expert_budget_bytes, left_bytes - copies * plan.predictor_bytes);
      EXPECT_EQ(plan.ledger.bytes("state to save"), (copies - 1) * plan.predictor_bytes);
      EXPECT_LE(plan.ledger.total_bytes(), options.machine_memory_bytes);
    }
  }
}

// What a server has beside the engine is the experts' less.
TEST(PlanEngineTest, GrammarsAndConnectionsAreCounted) {
  EngineOptions options = SmallOptions();
  options.prefill_order = PrefillOrder::kChunks;
  const uint64_t total = PlanEngine(options).ledger.total_bytes();
  options.grammar_bytes = 3000;
  options.connection_bytes = 5000;
  const EnginePlan plan = PlanEngine(options);
  EXPECT_EQ(plan.ledger.bytes("grammars"), 3000u);
  EXPECT_EQ(plan.ledger.bytes("connections"), 5000u);
  EXPECT_EQ(plan.ledger.total_bytes(), total + 8000);
  options.machine_memory_bytes = total + 8000 - 1;
  options.expert_memory = "auto";
  EXPECT_LE(PlanEngine(options).ledger.total_bytes(), options.machine_memory_bytes);
}

// What is kept for replay, and with a state file its copy and the file's bytes, is the experts'
// less.
TEST(PlanEngineTest, ReplayIsCounted) {
  constexpr uint64_t kReplay = uint64_t{1} << 20;
  EngineOptions options = SmallOptions();
  options.prefill_order = PrefillOrder::kChunks;
  options.predictor = "none";
  const uint64_t total = PlanEngine(options).ledger.total_bytes();
  options.replay_bytes = kReplay;
  EXPECT_EQ(PlanEngine(options).ledger.bytes("replay"), kReplay);
  EXPECT_EQ(PlanEngine(options).ledger.total_bytes(), total + kReplay);
  options.state_file = "state";
  EXPECT_EQ(PlanEngine(options).ledger.bytes("state to save"), 2 * kReplay);
  EXPECT_EQ(PlanEngine(options).ledger.total_bytes(), total + 3 * kReplay);
  options.expert_memory = "auto";
  options.machine_memory_bytes = total + 3 * kReplay;
  const EnginePlan plan = PlanEngine(options);
  EXPECT_EQ(plan.expert_slots, 64);
  EXPECT_LE(plan.ledger.total_bytes(), options.machine_memory_bytes);
}

// Rows of prompts that run by layers are in the ledger, as many as there is room for beside what
// was asked for; there are none where nothing would be read twice, or each chunk reads it anyway.
TEST(PlanEngineTest, RowsOfPromptsByLayersAreCounted) {
  EngineOptions options = SmallOptions();
  options.predictor = "none";
  options.max_num_batched_tokens = 64;
  const EnginePlan plan = PlanEngine(options);
  EXPECT_EQ(plan.prefill.piece_tokens, 1024);
  EXPECT_EQ(plan.ledger.bytes("prompts by layers"), plan.prefill.bytes);
  EXPECT_FALSE(plan.prefill.ByLayers(64));
  EXPECT_TRUE(plan.prefill.ByLayers(128));
  options.prefill_order = PrefillOrder::kChunks;
  const EnginePlan chunks = PlanEngine(options);
  EXPECT_EQ(chunks.prefill.piece_tokens, 0);
  EXPECT_EQ(chunks.ledger.total_bytes() + plan.prefill.bytes, plan.ledger.total_bytes());

  options.prefill_order = PrefillOrder::kAuto;
  for (const uint64_t spare : {uint64_t{0}, plan.prefill.bytes / 16 * 5, plan.prefill.bytes - 1}) {
    options.machine_memory_bytes = chunks.ledger.total_bytes() + spare;
    const EnginePlan small = PlanEngine(options);
    EXPECT_LE(small.ledger.total_bytes(), options.machine_memory_bytes);
    EXPECT_EQ(small.expert_slots, 64);
    EXPECT_LE(small.prefill.piece_tokens, static_cast<int64_t>(spare * 1024 / plan.prefill.bytes));
    EXPECT_TRUE(small.prefill.piece_tokens == 0 || small.prefill.piece_tokens % 64 == 0);
  }
  options.machine_memory_bytes = 0;
  for (const char* const memory : {"100%", "8%"}) {  // 20 slots, a layer has 32 experts
    options.expert_memory = memory;
    options.prefill_order = PrefillOrder::kAuto;
    EXPECT_EQ(PlanEngine(options).prefill.piece_tokens, 0) << memory;
    options.prefill_order = PrefillOrder::kLayers;
    EXPECT_EQ(PlanEngine(options).prefill.piece_tokens, 1024) << memory;
  }
  options.expert_memory = "25%";
  options.defer_experts = 1;
  EXPECT_EQ(PlanEngine(options).prefill.piece_tokens, 0);
}

TEST(PrefillPlanTest, PredictsWhatIsRead) {
  PrefillPlan plan;
  plan.order = PrefillOrder::kAuto;
  plan.chunk_tokens = 512;
  plan.piece_tokens = 8192;
  plan.layers = 48;
  plan.experts = 128;
  plan.top_k = 8;
  plan.slots = plan.changing = 48 * 128;
  EXPECT_FALSE(plan.ByLayers(8192));  // all are there
  plan.slots = plan.changing / 4;
  // A chunk of 512 tokens uses all experts, or nearly.
  EXPECT_NEAR(ExpertsReadByChunks(plan, 8192), 16 * 0.75 * 48 * 128, 1);
  EXPECT_NEAR(ExpertsReadByLayers(plan, 8192), 0.75 * 49 * 128, 1);
  EXPECT_NEAR(ExpertsReadByLayers(plan, 16384), 2 * 0.75 * 49 * 128, 1);
  EXPECT_FALSE(plan.ByLayers(512));
  EXPECT_TRUE(plan.ByLayers(1024));
  // One token more uses eight experts more, which is less than a layer makes room for in a model of
  // few layers.
  plan.layers = 4;
  plan.changing = 4 * 128;
  plan.slots = 128;
  EXPECT_FALSE(plan.ByLayers(513));
  EXPECT_TRUE(plan.ByLayers(600));
  plan.order = PrefillOrder::kLayers;
  EXPECT_TRUE(plan.ByLayers(513));
  EXPECT_FALSE(plan.ByLayers(512));  // one chunk reads what it uses once
}

}  // namespace
}  // namespace moesaic
