// StepSampler over a tiny model: what penalties, min_tokens, seeds and log-probabilities make of
// the logits, against the same worked out by hand; and what a preempted sequence keeps.

#include "serving/engine/step_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "tests/serving/api/test_tokenizer.h"
#include "tests/serving/engine/collector.h"
#include "tests/serving/model/model_harness.h"

namespace moesaic {
namespace {

constexpr int64_t kSequenceTokens = 128;
constexpr int64_t kLogitRows = 3;  // so that steps and prompts need several blocks of rows

// The model's; where a test says so one that has the largest logits' tokens, as devices have them.
class TestHead final : public StepHead {
 public:
  explicit TestHead(Model& model) : head_(model) {}

  int64_t vocab_size() const override { return head_.vocab_size(); }
  int64_t max_rows() const override { return head_.max_rows(); }
  void Logits(std::span<const int32_t> rows, float* out) override { head_.Logits(rows, out); }
  bool has_greedy_tokens() const override { return greedy; }
  void GreedyTokens(std::span<const int32_t> rows, int32_t* tokens) override {
    for (const int32_t& row : rows) {
      std::vector<float> logits(static_cast<size_t>(vocab_size()));
      head_.Logits({&row, 1}, logits.data());
      *tokens++ = ArgMax(logits);
    }
  }

  bool greedy = false;

 private:
  ModelHead head_;
};

class StepSamplerTest : public ::testing::Test {
 protected:
  explicit StepSamplerTest(
      const std::filesystem::path& model = FixtureModel("qwen3_moe_bf16_sharded"))
      : harness_(model, Options()),
        head_(harness_.model()),
        sampler_(head_, KernelsFor(Isa::kScalar), harness_.pool()),
        scratch_(harness_.NewSequence(kSequenceTokens)) {}

  void TearDown() override { EXPECT_EQ(failures_, std::vector<std::string>()); }

  static HarnessOptions Options() {
    HarnessOptions options;
    options.isa = SupportedIsas().back();
    options.threads = 2;
    options.max_logit_rows = kLogitRows;
    options.kv_blocks = 512;
    return options;
  }

  int64_t vocab() const { return harness_.config().vocab_size; }

  std::unique_ptr<Sequence> Make(EngineRequest request) {
    const SequenceContext context = {harness_.config(), tokenizer_, eos_, 256};
    auto sequence = MakeSequence(std::move(request), std::make_shared<Collector>(), context);
    sequence->blocks.tables = {{.blocks = harness_.NewSequence(kSequenceTokens).blocks}};
    return sequence;
  }

  static Collector& SinkOf(const Sequence& sequence) {
    return static_cast<Collector&>(*sequence.sink);
  }

  // A step that computes `tokens` of the sequence (-1: all) as an engine does it.
  void Step(const std::vector<Sequence*>& sequences, int64_t tokens = -1) {
    StepRows rows;
    std::vector<ScheduledSlice> plan;
    for (Sequence* sequence : sequences) {
      const int64_t pending =
          static_cast<int64_t>(sequence->tokens.size()) - sequence->computed_tokens;
      plan.push_back({sequence, tokens < 0 ? pending : std::min(tokens, pending)});
      rows.Add(plan.back());
    }
    harness_.model().Forward({rows.tokens, rows.slices}, nullptr);
    for (size_t i = 0; i < plan.size(); ++i) {
      sampler_.CollectPromptLogprobs(*plan[i].sequence, rows.slices[i]);
      plan[i].sequence->computed_tokens += plan[i].num_tokens;
    }
    sampler_.NextTokens(
        plan, rows,
        [&](Sequence& sequence, FinishReason reason) {
          OutputDelta delta = TakeDelta(sequence);
          delta.finish = reason;
          sequence.sink->OnDelta(std::move(delta));
        },
        [&](Sequence&, const Error& error) { failures_.emplace_back(error.what()); });
  }

  // Logits behind each of the tokens, or the last of them, computed in blocks of their own.
  std::vector<std::vector<float>> AllLogits(const std::vector<int32_t>& tokens,
                                            int32_t first_row = 0) {
    SequenceSlice slice;
    slice.num_tokens = static_cast<int64_t>(tokens.size());
    slice.blocks = scratch_.blocks;
    harness_.model().Forward({tokens, {&slice, 1}}, nullptr);
    std::vector<std::vector<float>> logits;
    for (int32_t row = first_row; row < static_cast<int32_t>(tokens.size()); ++row) {
      logits.emplace_back(static_cast<size_t>(vocab()));
      harness_.model().Logits({&row, 1}, logits.back().data());
    }
    return logits;
  }
  std::vector<float> LogitsBehind(const std::vector<int32_t>& tokens) {
    return AllLogits(tokens, static_cast<int32_t>(tokens.size()) - 1).back();
  }

  // Generates one by one, and checks each token against `expected` of the raw logits.
  void Generate(Sequence& sequence, int steps,
                const std::function<int32_t(int step, std::vector<float> raw)>& expected) {
    for (int step = 0; step < steps; ++step) {
      const int32_t want = expected(step, LogitsBehind(sequence.tokens));
      Step({&sequence});
      ASSERT_EQ(sequence.tokens.back(), want) << "step " << step;
    }
  }

  static double LogSoftmax(const std::vector<float>& logits, int32_t token) {
    const double best = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - best);
    return static_cast<double>(logits[static_cast<size_t>(token)]) - best - std::log(sum);
  }

  ModelHarness harness_;
  TestHead head_;
  StepSampler sampler_;
  const ModelHarness::Sequence scratch_;
  const ByteTokenizer tokenizer_;
  std::vector<int32_t> eos_;
  std::vector<std::string> failures_;
};

// Prompt and output count for the repetition penalty, the output alone for the other two.
TEST_F(StepSamplerTest, PenaltiesSeeWhatWasGenerated) {
  struct Case {
    double repetition, presence, frequency;
    float bias;  // of three tokens, which then come again and again
  };
  for (const Case& c : {Case{1.3, 0, 0, 0}, Case{1, 3, 0, 0}, Case{1, 0, 1.5, 0},
                        Case{1, 0, 0.7, 8}, Case{1.1, 0.5, 0.5, 4}}) {
    SCOPED_TRACE(testing::Message() << c.repetition << " " << c.presence << " " << c.frequency);
    // Each id of a small prompt is likely to be the best somewhere.
    EngineRequest request = Greedy(PromptOf(5, 40, 60), 60);
    request.sampling.repetition_penalty = c.repetition;
    request.sampling.presence_penalty = c.presence;
    request.sampling.frequency_penalty = c.frequency;
    if (c.bias > 0) request.sampling.logit_bias = {{3, c.bias}, {70, c.bias}, {150, c.bias}};
    const auto sequence = Make(request);
    int changed = 0;
    Generate(*sequence, 40, [&](int, std::vector<float> logits) {
      for (const auto& [token, bias] : request.sampling.logit_bias) {
        logits[static_cast<size_t>(token)] += bias;
      }
      const int32_t plain = ArgMax(logits);
      for (int32_t token = 0; token < vocab(); ++token) {
        const auto& tokens = sequence->tokens;
        const auto output = tokens.begin() + sequence->prompt_tokens;
        const auto of_output = std::count(output, tokens.end(), token);
        float& logit = logits[static_cast<size_t>(token)];
        if (std::count(tokens.begin(), tokens.end(), token) > 0) {
          const auto by = static_cast<float>(c.repetition);
          logit = logit > 0 ? logit / by : logit * by;
        }
        if (of_output > 0) {
          logit -= static_cast<float>(c.frequency * static_cast<double>(of_output) + c.presence);
        }
      }
      const int32_t best = ArgMax(logits);
      changed += best != plain ? 1 : 0;
      return best;
    });
    EXPECT_GT(changed, 2);  // else the case says nothing
  }
}

// When its thinking is used up the next tokens are not the sampler's; before and behind them all
// is as it would be.
TEST_F(StepSamplerTest, ThinkingThatIsUsedUpIsEnded) {
  auto limit = std::make_shared<ThinkingLimit>();
  limit->max_tokens = 3;
  limit->begun = true;
  limit->begin = "<think>";
  limit->end = "</think>";
  limit->end_tokens = {5, 6};
  for (const auto& [greedy, by_head] : {std::pair(true, false), {true, true}, {false, false}}) {
    head_.greedy = by_head;
    EngineRequest request = Greedy(PromptOf(6, 20, 60), 30);
    if (!greedy) {
      request.sampling.temperature = 1;
      request.sampling.seed = 3;
      request.logprobs = 0;
    }
    const auto free = Make(request);
    for (int step = 0; step < 3; ++step) Step({free.get()});
    request.thinking = limit;
    const auto sequence = Make(request);
    for (int step = 0; step < 6; ++step) Step({sequence.get()});
    std::vector<int32_t> want = free->tokens;
    want.insert(want.end(), {5, 6});
    const std::vector<int32_t> tokens(sequence->tokens.begin(), sequence->tokens.end() - 1);
    EXPECT_EQ(tokens, want) << greedy << by_head;
    if (greedy) {
      EXPECT_EQ(sequence->tokens.back(), ArgMax(LogitsBehind(want)));
    } else {
      EXPECT_EQ(SinkOf(*sequence).tokens[3].token, 5);
      EXPECT_LT(SinkOf(*sequence).tokens[3].logprob, 0);
    }
  }
}

// Before min_tokens the tokens that would end the sequence cannot be sampled, whatever else may.
TEST_F(StepSamplerTest, ForbiddenTokensAreNotSampled) {
  const std::vector<int32_t> prompt = PromptOf(9, 20, 100);
  const std::vector<float> first = LogitsBehind(prompt);
  const int32_t best = ArgMax(first);
  eos_ = {best, 100000};  // one outside the vocabulary does no harm
  for (const int32_t min_tokens : {0, 1, 4}) {
    EngineRequest request = Greedy(prompt, 30);
    request.min_tokens = min_tokens;
    request.logprobs = 2;
    const auto sequence = Make(request);
    for (int32_t step = 0; step <= min_tokens; ++step) {
      std::vector<float> logits = LogitsBehind(sequence->tokens);
      const std::vector<float> raw = logits;
      if (step < min_tokens) logits[static_cast<size_t>(best)] = -INFINITY;
      const int32_t want = ArgMax(logits);
      Step({sequence.get()});
      ASSERT_EQ(sequence->tokens.back(), want) << "min " << min_tokens << " step " << step;
      // What is reported is the raw softmax: the forbidden token may be its best.
      const GeneratedToken& told = SinkOf(*sequence).tokens.back();
      EXPECT_NEAR(told.logprob, LogSoftmax(raw, want), 1e-4);
      EXPECT_EQ(told.top[0].token, ArgMax(raw));
    }
    if (min_tokens == 0) {
      EXPECT_EQ(SinkOf(*sequence).finish, FinishReason::kStop);
    }
  }
}

// Token number n of a sequence is draw number n of its seed, also behind a preemption.
TEST_F(StepSamplerTest, DrawsAreCountedByTheSequencesOwnTokens) {
  EngineRequest request = Greedy(PromptOf(3, 21, 150), 60);
  request.sampling.temperature = 1.5;
  request.sampling.seed = 42;
  const auto sequence = Make(request);
  Sampler by_hand(KernelsFor(Isa::kScalar), vocab());
  const auto draw = [&](int64_t number, std::vector<float> logits) {
    return by_hand.Sample(request.sampling, 42, number, {}, logits);
  };
  Generate(*sequence, 12,
           [&](int step, std::vector<float> logits) { return draw(step, std::move(logits)); });
  sequence->computed_tokens = 0;  // preempted: computed anew with what it has generated
  Generate(*sequence, 4,
           [&](int step, std::vector<float> logits) { return draw(12 + step, std::move(logits)); });
}

TEST_F(StepSamplerTest, LogprobsAreRaw) {
  EngineRequest request = Greedy(PromptOf(4, 18, 150), 60);
  request.sampling.temperature = 0.7;
  request.sampling.seed = 5;
  request.sampling.frequency_penalty = 2;
  request.sampling.repetition_penalty = 1.5;
  request.sampling.logit_bias = {{7, 4.0f}, {11, 4.0f}};
  request.logprobs = 3;
  const auto sequence = Make(request);
  for (int step = 0; step < 10; ++step) {
    const std::vector<float> raw = LogitsBehind(sequence->tokens);
    Step({sequence.get()});
    const GeneratedToken& told = SinkOf(*sequence).tokens.back();
    ASSERT_EQ(told.token, sequence->tokens.back());
    EXPECT_NEAR(told.logprob, LogSoftmax(raw, told.token), 1e-4) << step;
    ASSERT_EQ(told.top.size(), 3u);
    EXPECT_EQ(told.top[0].token, ArgMax(raw));
    EXPECT_NEAR(told.top[0].logprob, LogSoftmax(raw, told.top[0].token), 1e-4) << step;
  }
}

// Each prompt token but the first has one log-probability, however the prompt was cut, also when
// the sequence was preempted in the middle and its prompt is computed again in other pieces.
TEST_F(StepSamplerTest, PromptLogprobsAreCollectedOnce) {
  const std::vector<int32_t> prompt = PromptOf(6, 33, 150);
  const std::vector<std::vector<float>> raw = AllLogits(prompt);
  // Computed pieces; -1: preempted there.
  for (const std::vector<int64_t>& pieces : {std::vector<int64_t>{33},
                                             {10, 10, 13},
                                             {1, 32},
                                             {32, 1},
                                             {12, -1, 33},
                                             {12, -1, 5, 28},
                                             {12, -1, 12, -1, 20, 13},
                                             {32, -1, 33},
                                             {33, -1, 34}}) {
    EngineRequest request = Greedy(prompt, 30);
    request.prompt_logprobs = 1;
    const auto sequence = Make(request);
    for (const int64_t piece : pieces) {
      if (piece < 0) {
        sequence->computed_tokens = 0;
      } else {
        Step({sequence.get()}, piece);
      }
    }
    const std::vector<GeneratedToken>& told = SinkOf(*sequence).prompt_tokens;
    ASSERT_EQ(told.size(), prompt.size() - 1) << pieces.size() << " pieces";
    for (size_t i = 0; i < told.size(); ++i) {
      EXPECT_EQ(told[i].token, prompt[i + 1]);
      EXPECT_NEAR(told[i].logprob, LogSoftmax(raw[i], prompt[i + 1]), 1e-4) << i;
      ASSERT_EQ(told[i].top.size(), 1u);
      EXPECT_EQ(told[i].top[0].token, ArgMax(raw[i]));
    }
  }
}

// More sequences than rows of logits at once, some of them in the middle of their prompts: each
// gets the token of its own row.
TEST_F(StepSamplerTest, EachSequenceGetsItsOwnRow) {
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<Sequence*> all;
  std::vector<int32_t> want;
  for (int i = 0; i < 8; ++i) {
    const std::vector<int32_t> prompt = PromptOf(20 + i, i % 3 == 0 ? 9 : 4 + i % 2, 150);
    want.push_back(ArgMax(LogitsBehind(prompt)));
    EngineRequest request = Greedy(prompt, 10);
    request.logprobs = i % 2 == 0 ? -1 : 0;
    sequences.push_back(Make(request));
    all.push_back(sequences.back().get());
  }
  Step(all, 6);
  for (size_t i = 0; i < all.size(); ++i) {
    const bool unfinished = i % 3 == 0;  // 6 of 9 tokens
    EXPECT_EQ(all[i]->output_tokens(), unfinished ? 0 : 1);
    if (!unfinished) {
      EXPECT_EQ(all[i]->tokens.back(), want[i]) << i;
    }
  }
  Step(all, 6);
  for (size_t i = 0; i < all.size(); i += 3) EXPECT_EQ(all[i]->tokens.back(), want[i]) << i;
}

TEST_F(StepSamplerTest, WhatCanNeverRun) {
  const SequenceContext context = {harness_.config(), tokenizer_, eos_, 20};
  const auto last = static_cast<int32_t>(vocab()) - 1;
  EXPECT_NO_THROW(CheckRequest(Greedy({0, last}, 1), context));
  EXPECT_THROW(CheckRequest(Greedy({0, last + 1}, 1), context), Error);
  EXPECT_THROW(CheckRequest(Greedy({-1}, 1), context), Error);
  EXPECT_THROW(CheckRequest(Greedy({}, 1), context), Error);
  // A full context has no room for a token, but may be asked for its log-probabilities.
  EXPECT_NO_THROW(CheckRequest(Greedy(PromptOf(1, 19, 100), 1), context));
  EXPECT_THROW(CheckRequest(Greedy(PromptOf(1, 20, 100), 1), context), Error);
  EXPECT_NO_THROW(CheckRequest(Greedy(PromptOf(1, 20, 100), 0), context));
  EXPECT_THROW(CheckRequest(Greedy(PromptOf(1, 21, 100), 0), context), Error);
  EngineRequest biased = Greedy({1}, 1);
  biased.sampling.logit_bias = {{last, 1.0f}};
  EXPECT_NO_THROW(CheckRequest(biased, context));
  biased.sampling.logit_bias = {{last + 1, 1.0f}};
  EXPECT_THROW(CheckRequest(biased, context), Error);
}

TEST_F(StepSamplerTest, EndsWithTheContext) {
  const SequenceContext context = {harness_.config(), tokenizer_, eos_, 20};
  const auto sequence =
      MakeSequence(Greedy(PromptOf(1, 17, 100), 1000), std::make_shared<Collector>(), context);
  sequence->blocks.tables = {{.blocks = harness_.NewSequence(kSequenceTokens).blocks}};
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(SinkOf(*sequence).finish, std::nullopt);
    Step({sequence.get()});
  }
  EXPECT_EQ(SinkOf(*sequence).finish, FinishReason::kLength);
}

TEST_F(StepSamplerTest, NoTokenWhereNoneIsWanted) {
  EngineRequest request = Greedy(PromptOf(2, 5, 150), 0);
  request.prompt_logprobs = 0;
  const auto sequence = Make(request);
  Step({sequence.get()}, 4);
  EXPECT_EQ(SinkOf(*sequence).finish, std::nullopt);
  Step({sequence.get()});
  EXPECT_EQ(SinkOf(*sequence).finish, FinishReason::kLength);
  EXPECT_EQ(sequence->output_tokens(), 0);
  EXPECT_EQ(SinkOf(*sequence).prompt_tokens.size(), 4u);
}

// A copy of a model of one file, in which one weight of the output matrix is not a number.
class DamagedHead {
 public:
  DamagedHead() : directory_(::testing::TempDir() + "moesaic_damaged_head") {
    std::filesystem::remove_all(directory_);
    std::filesystem::copy(FixtureModel("qwen3_moe_bf16_window"), directory_);
    const auto path = directory_ / "model.safetensors";
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    uint64_t header_bytes = 0;
    file.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
    std::string header(header_bytes, ' ');
    file.read(header.data(), static_cast<std::streamsize>(header_bytes));
    const auto offset =
        nlohmann::json::parse(header).at("lm_head.weight").at("data_offsets").at(0).get<uint64_t>();
    const uint16_t nan = 0x7fc0;  // bf16
    file.seekp(static_cast<std::streamoff>(sizeof(header_bytes) + header_bytes + offset));
    file.write(reinterpret_cast<const char*>(&nan), sizeof(nan));
  }
  ~DamagedHead() { std::filesystem::remove_all(directory_); }
  const std::filesystem::path& directory() const { return directory_; }

 private:
  std::filesystem::path directory_;
};

class DamagedStepSamplerTest : private DamagedHead, public StepSamplerTest {
 protected:
  DamagedStepSamplerTest() : StepSamplerTest(directory()) {}
};

TEST_F(DamagedStepSamplerTest, LogitsThatAreNotFiniteFailTheSequence) {
  const auto sequence = Make(Greedy(PromptOf(1, 5, 100), 10));
  Step({sequence.get()});
  ASSERT_EQ(failures_.size(), 1u);
  EXPECT_NE(failures_[0].find("not finite"), std::string::npos) << failures_[0];
  EXPECT_EQ(sequence->output_tokens(), 0);
  failures_.clear();
}

}  // namespace
}  // namespace moesaic
