#include "serving/api/delta_mailbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

namespace moesaic {
namespace {

OutputDelta Delta(std::string text, int tokens = 1) {
  OutputDelta delta;
  delta.text = std::move(text);
  delta.tokens.resize(static_cast<size_t>(tokens));
  return delta;
}

class DeltaMailboxTest : public ::testing::Test {
 protected:
  std::shared_ptr<DeltaMailbox> Make(size_t max_bytes = 1 << 20) {
    return std::make_shared<DeltaMailbox>(max_bytes, [this] { ++notices_; });
  }
  std::atomic<int> notices_{0};
};

TEST_F(DeltaMailboxTest, NotifiesOnceUntilTaken) {
  auto mailbox = Make();
  const auto sink = mailbox->MakeSink(0);
  sink->OnDelta(Delta("a"));
  sink->OnDelta(Delta("b"));
  EXPECT_EQ(notices_, 1);
  EXPECT_EQ(mailbox->Take().size(), 1u);
  EXPECT_TRUE(mailbox->Take().empty());
  sink->OnDelta(Delta("c"));
  EXPECT_EQ(notices_, 2);
}

TEST_F(DeltaMailboxTest, MergesByChoiceInOrder) {
  auto mailbox = Make();
  const auto zero = mailbox->MakeSink(0);
  const auto one = mailbox->MakeSink(1);
  OutputDelta first = Delta("x");
  first.prompt_tokens.resize(3);
  first.queue_us = 42;
  first.special_offsets = {0};
  one->OnDelta(first);
  zero->OnDelta(Delta("a"));
  one->OnDelta(Delta("y", 2));
  OutputDelta last = Delta("", 0);
  last.finish = FinishReason::kStop;
  last.stop_text = "s";
  last.special_offsets = {7};
  last.usage.completion_tokens = 3;
  one->OnDelta(last);
  const auto mail = mailbox->Take();
  ASSERT_EQ(mail.size(), 2u);
  EXPECT_EQ(mail[0].choice, 1u);
  EXPECT_EQ(mail[0].delta.text, "xy");
  EXPECT_EQ(mail[0].delta.tokens.size(), 3u);
  EXPECT_EQ(mail[0].delta.prompt_tokens.size(), 3u);
  EXPECT_EQ(mail[0].delta.queue_us, 42);
  EXPECT_EQ(mail[0].delta.special_offsets, (std::vector<size_t>{0, 7}));
  EXPECT_EQ(mail[0].delta.finish, FinishReason::kStop);
  EXPECT_EQ(mail[0].delta.stop_text, "s");
  EXPECT_EQ(mail[0].delta.usage.completion_tokens, 3);
  EXPECT_EQ(mail[0].token_times.size(), 2u);  // the last delta had no tokens
  EXPECT_EQ(mail[1].choice, 0u);
  EXPECT_EQ(mail[1].delta.text, "a");
}

TEST_F(DeltaMailboxTest, ErrorsComeThroughWithWhatWasBefore) {
  auto mailbox = Make();
  const auto sink = mailbox->MakeSink(0);
  sink->OnDelta(Delta("a"));
  sink->OnError(Error(ErrorKind::kInternal, "NaN logits"));
  const auto mail = mailbox->Take();
  ASSERT_EQ(mail.size(), 1u);
  EXPECT_EQ(mail[0].delta.text, "a");
  ASSERT_TRUE(mail[0].error.has_value());
  EXPECT_STREQ(mail[0].error->what(), "NaN logits");
}

TEST_F(DeltaMailboxTest, IsBounded) {
  auto mailbox = Make(10'000);
  const auto sink = mailbox->MakeSink(0);
  int sent = 0;
  while (!mailbox->overflowed() && sent < 1'000'000) {
    sink->OnDelta(Delta("0123456789"));
    ++sent;
  }
  EXPECT_LT(sent, 1000);
  EXPECT_GE(notices_, 2);  // told again, so that a reader that waits for its socket wakes
  const size_t kept = mailbox->Take()[0].delta.text.size();
  sink->OnDelta(Delta("more"));
  EXPECT_TRUE(mailbox->Take().empty());
  EXPECT_LE(kept, 10'000u);
}

TEST_F(DeltaMailboxTest, TakingMakesRoom) {
  auto mailbox = Make(10'000);
  const auto sink = mailbox->MakeSink(0);
  for (int i = 0; i < 10'000; ++i) {
    sink->OnDelta(Delta("0123456789"));
    if (i % 10 == 0) mailbox->Take();
  }
  EXPECT_FALSE(mailbox->overflowed());
}

TEST_F(DeltaMailboxTest, WaitsForDeltas) {
  auto mailbox = Make();
  std::thread engine([sink = mailbox->MakeSink(7)] { sink->OnDelta(Delta("a")); });
  const auto mail = mailbox->Wait(std::chrono::hours(1));
  engine.join();
  ASSERT_EQ(mail.size(), 1u);
  EXPECT_EQ(mail[0].choice, 7u);
  EXPECT_TRUE(mailbox->Wait(std::chrono::milliseconds(1)).empty());
}

TEST_F(DeltaMailboxTest, WaitsForEnds) {
  auto mailbox =
      std::make_shared<DeltaMailbox>(DeltaMailbox::kNoLimit, nullptr, DeltaMailbox::Wake::kEnds);
  const auto sink = mailbox->MakeSink(0);
  sink->OnDelta(Delta("a"));
  // Not told of the token, it waits as long as it may; what is there is taken all the same.
  const auto begin = DeltaMailbox::Clock::now();
  EXPECT_EQ(mailbox->Wait(std::chrono::milliseconds(20)).size(), 1u);
  EXPECT_GE(DeltaMailbox::Clock::now() - begin, std::chrono::milliseconds(20));
  std::thread engine([sink] {
    OutputDelta last = Delta("b");
    last.finish = FinishReason::kStop;
    sink->OnDelta(std::move(last));
  });
  EXPECT_EQ(mailbox->Wait(std::chrono::hours(1)).size(), 1u);
  engine.join();
  sink->OnError(Error(ErrorKind::kInternal, "x"));
  EXPECT_EQ(mailbox->Wait(std::chrono::hours(1)).size(), 1u);
}

TEST_F(DeltaMailboxTest, DetachReleasesTheNotice) {
  auto held = std::make_shared<int>(7);
  std::weak_ptr<int> watch = held;
  auto mailbox = std::make_shared<DeltaMailbox>(1000, [held, this] { ++notices_; });
  held.reset();
  const auto sink = mailbox->MakeSink(0);
  mailbox->Detach();
  EXPECT_TRUE(watch.expired());
  sink->OnDelta(Delta("a"));
  EXPECT_EQ(notices_, 0);
  EXPECT_TRUE(mailbox->Take().empty());
}

TEST_F(DeltaMailboxTest, NotifiesOutsideItsMutex) {
  std::shared_ptr<DeltaMailbox> mailbox;
  size_t taken = 0;  // by who is woken: a mutex that is held would never be released
  mailbox = std::make_shared<DeltaMailbox>(1000, [&] { taken += mailbox->Take().size(); });
  mailbox->MakeSink(0)->OnDelta(Delta("a"));
  EXPECT_EQ(taken, 1u);
}

TEST_F(DeltaMailboxTest, DetachWaitsForANoticeThatRuns) {
  std::promise<void> begun;
  std::promise<void> may_end;
  std::atomic<bool> ended{false};
  auto mailbox = std::make_shared<DeltaMailbox>(1000, [&] {
    begun.set_value();
    may_end.get_future().wait();
    ended = true;
  });
  std::thread engine([sink = mailbox->MakeSink(0)] { sink->OnDelta(Delta("a")); });
  begun.get_future().wait();
  std::thread reader([&] {
    mailbox->Detach();
    EXPECT_TRUE(ended);
  });
  may_end.set_value();
  reader.join();
  engine.join();
}

TEST_F(DeltaMailboxTest, NotifiesForSoManyTokens) {
  auto mailbox = std::make_shared<DeltaMailbox>(
      DeltaMailbox::kNoLimit, [this] { ++notices_; }, DeltaMailbox::Wake::kDeltas, 3);
  const auto sink = mailbox->MakeSink(0);
  OutputDelta delta = Delta("a");
  const auto say = [&] {
    ++delta.usage.completion_tokens;
    sink->OnDelta(delta);
    return notices_.load();
  };
  EXPECT_EQ(say(), 1);  // the first one
  EXPECT_EQ(mailbox->Take().size(), 1u);
  EXPECT_EQ(say(), 1);
  EXPECT_EQ(say(), 1);
  EXPECT_EQ(say(), 2);
  EXPECT_EQ(say(), 2);  // once until it is taken
  const auto mail = mailbox->Take();
  ASSERT_EQ(mail.size(), 1u);
  EXPECT_EQ(mail[0].delta.tokens.size(), 4u);
  EXPECT_EQ(say(), 2);
  delta.finish = FinishReason::kStop;
  EXPECT_EQ(say(), 3);  // the end
}

TEST_F(DeltaMailboxTest, NothingIsLostBetweenThreads) {
  auto mailbox = Make(1 << 30);
  constexpr int kDeltas = 20'000;
  std::atomic<bool> done{false};
  std::thread engine([&] {
    const std::shared_ptr<OutputSink> sinks[] = {mailbox->MakeSink(0), mailbox->MakeSink(1)};
    for (int i = 0; i < kDeltas; ++i) sinks[i % 2]->OnDelta(Delta(i % 2 == 0 ? "a" : "b"));
    done = true;
  });
  size_t texts[2] = {0, 0};
  bool last_round = false;
  while (!last_round) {
    last_round = done;
    for (const auto& mail : mailbox->Take()) {
      texts[mail.choice] += mail.delta.text.size();
      EXPECT_EQ(mail.delta.text.find(mail.choice == 0 ? 'b' : 'a'), std::string::npos);
    }
  }
  engine.join();
  EXPECT_EQ(texts[0], size_t{kDeltas / 2});
  EXPECT_EQ(texts[1], size_t{kDeltas / 2});
}

}  // namespace
}  // namespace moesaic
