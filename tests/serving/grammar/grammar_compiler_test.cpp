#include "serving/grammar/grammar_compiler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "serving/grammar/grammar_backend.h"

namespace moesaic {
namespace {

constexpr size_t kGrammarBytes = 1000;

class EmptyGrammar final : public Grammar {
 public:
  std::unique_ptr<GrammarMatch> Start() const override { return nullptr; }
  size_t bytes() const override { return kGrammarBytes; }
  int64_t vocab_size() const override { return 1; }
  std::span<const int32_t> end_tokens() const override { return {}; }
};

// Counts, waits where a text says so, fails where one says so.
struct FakeWork {
  std::atomic<int> compiled{0};
  std::atomic<bool> open{false};
};

class FakeBackend final : public GrammarBackend {
 public:
  explicit FakeBackend(std::shared_ptr<FakeWork> work) : work_(std::move(work)) {}
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
  options.cache_bytes = 2 * (kGrammarBytes + 100);
  Make(options);
  const auto a = Compile("a");
  Compile("b");
  EXPECT_EQ(Compile("a"), a);
  Compile("c");  // b leaves
  EXPECT_LE(compiler_->cached_bytes(), options.cache_bytes);
  EXPECT_EQ(work_->compiled, 3);
  EXPECT_EQ(Compile("a"), a);
  EXPECT_EQ(work_->compiled, 3);
  Compile("b");
  EXPECT_EQ(work_->compiled, 4);
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
