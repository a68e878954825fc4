#include "serving/grammar/grammar_compiler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "serving/grammar/grammar_backend.h"

namespace moesaic {
namespace {

constexpr size_t kGrammarBytes = 1000;
constexpr size_t kKeyBytes = 100;  // of one, at most
constexpr size_t kBackendBytes = 500;
constexpr size_t kMatchBytes = 300;
constexpr size_t kTokenBytes = 40'000;
constexpr size_t kMaskBytes = 4;

// Takes memory with each token.
class GrowingMatch final : public GrammarMatch {
 public:
  void Fill(std::span<int32_t> /*words*/) override {}
  bool Accept(int32_t /*token*/) override {
    bytes_ += kTokenBytes;
    return true;
  }
  bool AcceptText(std::string_view text) override {
    bytes_ += kTokenBytes * text.size();
    return true;
  }
  bool complete() const override { return true; }
  bool ended() const override { return false; }
  size_t bytes() const override { return bytes_; }

 private:
  size_t bytes_ = kMatchBytes;
};

class EmptyGrammar final : public Grammar {
 public:
  std::unique_ptr<GrammarMatch> Start() const override { return std::make_unique<GrowingMatch>(); }
  size_t bytes() const override { return kGrammarBytes; }
  int64_t vocab_size() const override { return 1; }  // a mask of four bytes
  std::span<const int32_t> end_tokens() const override { return {}; }
};

// Counts, waits where a text says so, fails where one says so.
struct FakeWork {
  std::atomic<int> made{0};
  std::atomic<int> compiled{0};
  std::atomic<bool> open{false};
};

class FakeBackend final : public GrammarBackend {
 public:
  explicit FakeBackend(std::shared_ptr<FakeWork> work) : work_(std::move(work)) { ++work_->made; }
  size_t bytes() const override { return kBackendBytes; }
  std::shared_ptr<const Grammar> Compile(const GrammarSpec& spec) override {
    const std::string& text = spec.alternatives[0][0].text;
    ++work_->compiled;
    if (text == "wrong") Fail(ErrorKind::kInvalidArgument, "it is wrong");
    while (text.rfind("slow", 0) == 0 && !work_->open) std::this_thread::yield();
    return std::make_shared<EmptyGrammar>();
  }

 private:
  std::shared_ptr<FakeWork> work_;
};

class GrammarCompilerTest : public testing::Test {
 protected:
  void Make(GrammarCompilerOptions options) {
    compiler_ = std::make_unique<GrammarCompiler>(
        [work = work_] { return std::make_unique<FakeBackend>(work); }, options);
  }
  std::shared_ptr<const Grammar> Compile(const std::string& text) {
    return compiler_->Compile(SpecOf({.kind = GrammarPart::Kind::kText, .text = text}), gone_);
  }
  std::optional<ErrorKind> Failure(const std::string& text) {
    try {
      Compile(text);
    } catch (const Error& error) {
      return error.kind();
    }
    return std::nullopt;
  }

  std::shared_ptr<FakeWork> work_ = std::make_shared<FakeWork>();
  std::atomic<bool> gone_{false};
  std::unique_ptr<GrammarCompiler> compiler_;
};

TEST_F(GrammarCompilerTest, KeepsWhatWasUsedLastWithinItsBytes) {
  GrammarCompilerOptions options;
  options.memory_bytes = kBackendBytes + 2 * (kGrammarBytes + kKeyBytes);
  Make(options);
  const Grammar* const a = Compile("a").get();
  Compile("b");
  EXPECT_EQ(Compile("a").get(), a);
  Compile("c");  // b leaves
  EXPECT_LE(compiler_->used_bytes(), options.memory_bytes);
  EXPECT_EQ(work_->compiled, 3);
  EXPECT_EQ(Compile("a").get(), a);
  EXPECT_EQ(work_->compiled, 3);
  Compile("b");
  EXPECT_EQ(work_->compiled, 4);
}

TEST_F(GrammarCompilerTest, WhatIsInUseStaysAndOthersAreRefusedUntilItLeaves) {
  GrammarCompilerOptions options;
  options.memory_bytes = kBackendBytes + 2 * (kGrammarBytes + kKeyBytes);
  Make(options);
  auto a = Compile("a");
  const auto b = Compile("b");
  EXPECT_EQ(Failure("c"), ErrorKind::kUnavailable);
  EXPECT_EQ(Compile("a"), a);  // was not compiled again
  EXPECT_EQ(work_->compiled, 3);
  a.reset();
  EXPECT_NE(Compile("c"), nullptr);
  EXPECT_LE(compiler_->used_bytes(), options.memory_bytes);
}

TEST_F(GrammarCompilerTest, OneThatWouldNotEvenFitAloneIsItsClientsFault) {
  GrammarCompilerOptions options;
  options.memory_bytes = kBackendBytes + kGrammarBytes / 2;
  Make(options);
  EXPECT_EQ(Failure("a"), ErrorKind::kInvalidArgument);
  EXPECT_EQ(compiler_->used_bytes(), kBackendBytes);
}

TEST_F(GrammarCompilerTest, AVocabularyThatDoesNotFitIsMadeOnce) {
  GrammarCompilerOptions options;
  options.memory_bytes = kBackendBytes - 1;
  Make(options);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Failure("a"), ErrorKind::kUnsupported);
  EXPECT_EQ(work_->made, 1);
  EXPECT_EQ(compiler_->used_bytes(), 0u);
}

TEST_F(GrammarCompilerTest, MatchesAndTheirMasksAreCounted) {
  GrammarCompilerOptions options;
  options.memory_bytes = kBackendBytes + 2 * (kGrammarBytes + kKeyBytes) + 3 * kTokenBytes;
  Make(options);
  auto grammar = Compile("a");
  Compile("b");  // kept for nobody
  const uint64_t before = compiler_->used_bytes();
  auto match = grammar->Start();
  EXPECT_EQ(compiler_->used_bytes(), before + kMatchBytes + kMaskBytes);
  // What it grows by, and no more than it may: the kept grammar leaves for it.
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(match->Accept(0));
  EXPECT_GE(compiler_->used_bytes(), 3 * kTokenBytes);
  try {
    match->AcceptText("xyz");
    FAIL() << "it has grown beyond its memory";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResourceExhausted);
    EXPECT_NE(std::string(error.what()).find("--grammar-memory"), std::string::npos);
  }
  EXPECT_LE(compiler_->used_bytes(), options.memory_bytes);
  EXPECT_EQ(Failure("c"), ErrorKind::kUnavailable);
  match.reset();
  EXPECT_NE(Compile("c"), nullptr);
  // They may outlive the compiler.
  match = grammar->Start();
  compiler_.reset();
  EXPECT_TRUE(match->Accept(0));
  grammar.reset();
  EXPECT_TRUE(match->Accept(0));
}

TEST_F(GrammarCompilerTest, AMatchThatHasNoRoomDoesNotStart) {
  GrammarCompilerOptions options;
  options.memory_bytes = kBackendBytes + kGrammarBytes + kKeyBytes;
  Make(options);
  const auto grammar = Compile("a");
  std::vector<std::unique_ptr<GrammarMatch>> matches;
  EXPECT_THROW(matches.push_back(grammar->Start()), Error);
}

TEST_F(GrammarCompilerTest, AFailureIsItsOwnRequestsAndIsNotKept) {
  Make({});
  EXPECT_EQ(Failure("wrong"), ErrorKind::kInvalidArgument);
  EXPECT_NE(Compile("right"), nullptr);
  EXPECT_EQ(Failure("wrong"), ErrorKind::kInvalidArgument);
}

TEST_F(GrammarCompilerTest, WhoAsksForTheSameWaitsForTheSame) {
  Make({});
  std::vector<std::shared_ptr<const Grammar>> got(4);
  std::vector<std::thread> threads;
  for (auto& grammar : got) threads.emplace_back([&] { grammar = Compile("slow"); });
  while (work_->compiled == 0) std::this_thread::yield();
  work_->open = true;
  for (std::thread& thread : threads) thread.join();
  for (const auto& grammar : got) EXPECT_EQ(grammar, got[0]);
  EXPECT_EQ(work_->compiled, 1);
}

TEST_F(GrammarCompilerTest, OneThatTakesTooLongIsRefusedAndHoldsUpOneThreadOnly) {
  GrammarCompilerOptions options;
  options.threads = 2;
  options.time_limit = std::chrono::milliseconds(20);
  Make(options);
  // A busy machine may not begin one within the limit.
  while (Failure("slow 1") != ErrorKind::kInvalidArgument) std::this_thread::yield();
  while (Failure("other")) std::this_thread::yield();
  while (Failure("slow 2") != ErrorKind::kInvalidArgument) std::this_thread::yield();
  EXPECT_EQ(Failure("third"), ErrorKind::kUnavailable);
  work_->open = true;
  // They are compiled in the end.
  for (const char* text : {"third", "slow 1", "slow 2"}) {
    while (Failure(text)) std::this_thread::yield();
  }
}

TEST_F(GrammarCompilerTest, WhoLeavesWaitsNoLonger) {
  Make({});
  gone_ = true;
  EXPECT_EQ(Compile("slow"), nullptr);
  work_->open = true;
}

TEST_F(GrammarCompilerTest, WithoutABackendItSaysSo) {
  compiler_ = std::make_unique<GrammarCompiler>([] { return std::unique_ptr<GrammarBackend>(); });
  EXPECT_EQ(Failure("a"), ErrorKind::kUnsupported);
}

TEST(GrammarSpec, KeysOfDifferentSpecsDiffer) {
  const auto text = [](std::string value) {
    return GrammarPart{.kind = GrammarPart::Kind::kText, .text = std::move(value)};
  };
  GrammarSpec two_parts;
  two_parts.alternatives = {{text("a"), text("b")}};
  GrammarSpec two_ways;
  two_ways.alternatives = {{text("a")}, {text("b")}};
  EXPECT_NE(two_parts.Key(), two_ways.Key());
  EXPECT_NE(SpecOf(text("ab")).Key(), two_parts.Key());
  EXPECT_NE(SpecOf({.kind = GrammarPart::Kind::kRegex, .text = "ab"}).Key(),
            SpecOf(text("ab")).Key());
  EXPECT_EQ(SpecOf(text("ab")).Key(), SpecOf(text("ab")).Key());
}

}  // namespace
}  // namespace moesaic
