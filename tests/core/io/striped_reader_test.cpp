#include "core/io/striped_reader.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "core/base/aligned_buffer.h"
#include "core/base/error.h"
#include "core/io/stripe_schedule.h"
#include "tests/core/base/caught.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kKiB = 1024;
constexpr uint32_t kMiB = 1024 * kKiB;
constexpr int64_t kSecond = 1'000'000'000;

// --- the schedule

std::vector<StripeSchedule::Part> Plan(StripeSchedule& schedule, uint32_t bytes, int64_t now_ns = 0,
                                       uint32_t avoid = 0) {
  std::vector<StripeSchedule::Part> parts;
  schedule.Plan(bytes, avoid, now_ns, parts);
  uint32_t at = 0;
  for (const StripeSchedule::Part& part : parts) {
    EXPECT_EQ(part.offset, at);
    EXPECT_EQ(part.offset % StripePieceBytes(bytes), 0u);
    EXPECT_GE(part.bytes, std::min(bytes, 64 * kKiB));
    at += part.bytes;
  }
  EXPECT_EQ(at, bytes);
  return parts;
}

// Reads of the link alone, from `now_ns` on, at this rate. Returns when they have ended.
int64_t Teach(StripeSchedule& schedule, int link, double bytes_per_s, int64_t now_ns) {
  const uint32_t others = ~(uint32_t{1} << link);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(schedule.TakeOver(kMiB, others, 0, now_ns), link);
    now_ns += static_cast<int64_t>(1e9 * kMiB / bytes_per_s);
    schedule.Done(link, kMiB, true, now_ns);
  }
  EXPECT_NEAR(schedule.bytes_per_s(link), bytes_per_s, 0.01 * bytes_per_s);
  return now_ns;
}

TEST(StripeSchedule, IdleLinksShareARead) {
  for (const int links : {2, 3, 4}) {
    StripeSchedule schedule(links);
    const auto parts = Plan(schedule, 3 * kMiB);
    ASSERT_EQ(std::ssize(parts), links);
    for (const auto& part : parts) {
      EXPECT_NEAR(part.bytes, 3.0 * kMiB / links, StripePieceBytes(3 * kMiB));
      EXPECT_EQ(schedule.outstanding_bytes(part.link), part.bytes);
    }
  }
  StripeSchedule one(1);
  EXPECT_EQ(Plan(one, kMiB).size(), 1u);
}

TEST(StripeSchedule, SmallReadsAreNotSplit) {
  StripeSchedule schedule(2);
  const auto first = Plan(schedule, 64 * kKiB);
  const auto second = Plan(schedule, 64 * kKiB);
  ASSERT_EQ(first.size(), 1u);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_NE(first[0].link, second[0].link);
  StripeSchedule other(2);
  EXPECT_EQ(Plan(other, 128 * kKiB).size(), 2u);
}

TEST(StripeSchedule, BusyLinksTakeTurnsWithWholeReads) {
  StripeSchedule schedule(2);
  for (int read = 0; read < 8; ++read) Plan(schedule, 512 * kKiB);
  int last = -1;
  for (int read = 0; read < 8; ++read) {
    const auto parts = Plan(schedule, 512 * kKiB);
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_NE(parts[0].link, last);
    last = parts[0].link;
  }
  EXPECT_NEAR(static_cast<double>(schedule.outstanding_bytes(0)),
              static_cast<double>(schedule.outstanding_bytes(1)), 512.0 * kKiB);
}

TEST(StripeSchedule, MeasuredRatesDecideTheShares) {
  StripeSchedule schedule(2);
  Teach(schedule, 0, 3e9, 0);
  const int64_t now = Teach(schedule, 1, 1e9, kSecond);
  const auto parts = Plan(schedule, 4 * kMiB, now);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].link, 0);
  EXPECT_EQ(parts[0].bytes, 3 * kMiB);
  // Busy links: three whole reads to the fast one for each of the slow one.
  for (int i = 0; i < 8; ++i) Plan(schedule, kMiB, now);
  int fast = 0;
  for (int i = 0; i < 40; ++i) {
    const auto whole = Plan(schedule, kMiB, now);
    ASSERT_EQ(whole.size(), 1u);
    fast += whole[0].link == 0 ? 1 : 0;
  }
  EXPECT_NEAR(fast, 30, 2);
}

TEST(StripeSchedule, AMuchSlowerLinkGetsNoPartOfAReadThatWaits) {
  StripeSchedule schedule(2);
  Teach(schedule, 0, 16e9, 0);
  const int64_t now = Teach(schedule, 1, 1e9, kSecond);
  const auto parts = Plan(schedule, 4 * kMiB, now);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].link, 0);
}

// Who was slow once and got nothing since is measured again.
TEST(StripeSchedule, AnOldRateIsForgottenOnceOthersHaveNewOnes) {
  StripeSchedule schedule(2);
  Teach(schedule, 1, 0.05e9, 0);
  Teach(schedule, 0, 3e9, kSecond);
  EXPECT_GT(schedule.bytes_per_s(1), 0);
  Teach(schedule, 0, 3e9, 9 * kSecond);
  EXPECT_EQ(schedule.bytes_per_s(1), 0);
  EXPECT_EQ(Plan(schedule, 4 * kMiB, 10 * kSecond).size(), 2u);
}

TEST(StripeSchedule, LinksToAvoidAreTheLastResort) {
  StripeSchedule schedule(2);
  const auto parts = Plan(schedule, kMiB, 0, 0b01);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].link, 1);
  EXPECT_EQ(schedule.TakeOver(kMiB, 0b10, 0b01, 0), 0);
  EXPECT_EQ(schedule.TakeOver(kMiB, 0b11, 0, 0), -1);
  EXPECT_FALSE(Plan(schedule, kMiB, 0, 0b11).empty());
}

TEST(StripeSchedule, AFailingLinkIsSetAsideAndTriedAgainAfterAPauseThatDoubles) {
  using Change = StripeSchedule::Change;
  StripeSchedule schedule(2);
  const auto fail = [&](int64_t now_ns) {
    EXPECT_EQ(schedule.TakeOver(kMiB, 0b10, 0, now_ns), 0);
    return schedule.Done(0, kMiB, false, now_ns);
  };
  EXPECT_EQ(fail(0), Change::kNone);
  // One that succeeds in between starts the count again.
  EXPECT_EQ(schedule.TakeOver(kMiB, 0b10, 0, 0), 0);
  EXPECT_EQ(schedule.Done(0, kMiB, true, 0), Change::kNone);
  EXPECT_EQ(fail(0), Change::kNone);
  EXPECT_EQ(fail(0), Change::kNone);
  EXPECT_FALSE(schedule.set_aside(0));
  EXPECT_EQ(fail(0), Change::kSetAside);
  EXPECT_TRUE(schedule.set_aside(0));
  for (int i = 0; i < 5; ++i) {
    const auto parts = Plan(schedule, kMiB, kSecond - 1);
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(parts[0].link, 1);
  }
  // One read at a time, as a whole.
  auto tried = Plan(schedule, kMiB, kSecond);
  ASSERT_EQ(tried.size(), 1u);
  EXPECT_EQ(tried[0].link, 0);
  EXPECT_EQ(Plan(schedule, kMiB, kSecond)[0].link, 1);
  EXPECT_EQ(schedule.Done(0, kMiB, false, kSecond), Change::kNone);
  EXPECT_EQ(Plan(schedule, kMiB, 3 * kSecond - 1)[0].link, 1);
  tried = Plan(schedule, kMiB, 3 * kSecond);
  EXPECT_EQ(tried[0].link, 0);
  EXPECT_EQ(schedule.Done(0, kMiB, true, 3 * kSecond), Change::kBack);
  EXPECT_FALSE(schedule.set_aside(0));
  // With every link set aside reads go on.
  StripeSchedule all(2);
  for (const uint32_t others : {0b10u, 0b01u}) {
    for (int i = 0; i < 3; ++i) {
      const int link = all.TakeOver(kMiB, others, 0, 0);
      all.Done(link, kMiB, false, 0);
    }
  }
  EXPECT_TRUE(all.set_aside(0) && all.set_aside(1));
  EXPECT_FALSE(Plan(all, kMiB, 1).empty());
}

// Links that read one part after another, each at its rate: how long `bytes` take, in reads of
// `read_bytes`, so many of which may be under way.
double SimulatedSeconds(const std::vector<double>& rates, uint64_t bytes, uint32_t read_bytes,
                        int depth) {
  StripeSchedule schedule(static_cast<int>(rates.size()));
  struct Going {
    int read;
    StripeSchedule::Part part;
  };
  std::vector<std::deque<Going>> going(rates.size());
  std::vector<double> free_at(rates.size(), 0);  // when the part in front ends
  std::map<int, int> parts_left;
  double now = 0;
  int reads = 0;
  for (uint64_t submitted = 0;;) {
    while (submitted < bytes && static_cast<int>(parts_left.size()) < depth) {
      std::vector<StripeSchedule::Part> parts;
      schedule.Plan(read_bytes, 0, static_cast<int64_t>(now * 1e9), parts);
      parts_left[++reads] = static_cast<int>(parts.size());
      for (const StripeSchedule::Part& part : parts) {
        const auto l = static_cast<size_t>(part.link);
        if (going[l].empty()) free_at[l] = now + part.bytes / rates[l];
        going[l].push_back({reads, part});
      }
      submitted += read_bytes;
    }
    std::optional<size_t> next;
    for (size_t l = 0; l < rates.size(); ++l) {
      if (!going[l].empty() && (!next || free_at[l] < free_at[*next])) next = l;
    }
    if (!next) return now;
    now = free_at[*next];
    const Going done = going[*next].front();
    going[*next].pop_front();
    if (!going[*next].empty()) free_at[*next] += going[*next].front().part.bytes / rates[*next];
    schedule.Done(done.part.link, done.part.bytes, true, static_cast<int64_t>(now * 1e9));
    if (--parts_left[done.read] == 0) parts_left.erase(done.read);
  }
}

TEST(StripeSchedule, LinksTogetherReadAsFastAsTheSumOfThem) {
  for (const std::vector<double>& rates :
       {std::vector<double>{1e9, 1e9}, {3e9, 1e9}, {1e9, 3e9}, {2e9, 1e9, 0.5e9}}) {
    double sum = 0;
    for (const double rate : rates) sum += rate;
    for (const uint32_t read_bytes : {512 * kKiB, 128 * kKiB}) {
      const uint64_t bytes = uint64_t{512} << 20;
      const double seconds = SimulatedSeconds(rates, bytes, read_bytes, 16);
      EXPECT_LT(seconds, 1.05 * static_cast<double>(bytes) / sum) << rates[0] << " " << read_bytes;
    }
  }
  // One read at a time is split: with equal links it takes half the time.
  const double alone = SimulatedSeconds({1e9}, 64 * kMiB, kMiB, 1);
  EXPECT_LT(SimulatedSeconds({1e9, 1e9}, 64 * kMiB, kMiB, 1), 0.52 * alone);
}

// --- the reader

// Its reads give an error, and other bytes, as long as that is wanted.
class FaultyReader : public AsyncReader {
 public:
  FaultyReader(std::unique_ptr<AsyncReader> reader, const std::atomic<int>& error)
      : reader_(std::move(reader)), error_(error) {}
  ReadBackend backend() const override { return reader_->backend(); }
  bool aligned_only() const override { return reader_->aligned_only(); }
  int free_slots() const override { return reader_->free_slots(); }
  void Submit(const ReadRequest& request) override {
    reads_[request.tag] = request;
    reader_->Submit(request);
  }
  void Wait(std::vector<ReadCompletion>& out, int64_t timeout_us) override {
    const size_t before = out.size();
    reader_->Wait(out, timeout_us);
    for (size_t i = before; i < out.size(); ++i) {
      const ReadRequest read = reads_[out[i].tag];
      reads_.erase(out[i].tag);
      if (error_ == 0) continue;
      std::memset(read.destination, 0xee, read.bytes);
      out[i].result = -error_;
    }
  }
  void Wake() override { reader_->Wake(); }

 private:
  const std::unique_ptr<AsyncReader> reader_;
  const std::atomic<int>& error_;
  std::map<uint64_t, ReadRequest> reads_;
};

class StripedReaderTest : public testing::Test {
 protected:
  static constexpr size_t kLinks = 3;
  static constexpr int kDepth = 4;

  void SetUp() override {
    std::mt19937_64 random(3);
    for (const size_t bytes : {size_t{2 << 20} + 1234, size_t{300 << 10}}) {
      data_.emplace_back(bytes);
      for (std::byte& b : data_.back()) b = static_cast<std::byte>(random());
    }
    for (size_t link = 0; link < kLinks; ++link) {
      const fs::path directory = dir_.path() / fmt::format("disk{}", link);
      fs::create_directory(directory);
      std::vector<fs::path>& files = replicas_.emplace_back();
      for (size_t f = 0; f < data_.size(); ++f) {
        files.push_back(directory / fmt::format("file{}", f));
        std::ofstream(files.back(), std::ios::binary)
            .write(reinterpret_cast<const char*>(data_[f].data()), std::ssize(data_[f]));
      }
    }
  }

  // Over `links` of the replicas, whose reads fail as errors_ says.
  std::unique_ptr<AsyncReader> Open(size_t links, ReadBackend backend = ReadBackend::kBuffered) {
    std::vector<StripedLink> all;
    for (size_t l = 0; l < links; ++l) {
      all.push_back({fmt::format("disk{}", l),
                     std::make_unique<FaultyReader>(OpenAsyncReader(replicas_[l], backend, kDepth),
                                                    errors_[l])});
    }
    return MakeStripedReader(std::move(all), {data_[0].size(), data_[1].size()},
                             kDepth * static_cast<int>(links), &clock_);
  }

  // Reads at random places, also behind the end; EXPECTs the bytes. Results as they should be, or
  // as `expected` says.
  void ReadAndCompare(AsyncReader& reader, int reads, std::optional<int64_t> expected = {}) {
    constexpr size_t kSlotBytes = 512 << 10;
    const uint64_t grain = reader.aligned_only() ? 4096 : 1;
    const int depth = reader.free_slots();
    AlignedBuffer memory(static_cast<size_t>(depth) * kSlotBytes);
    std::vector<ReadRequest> requests(static_cast<size_t>(depth));
    std::vector<int> free;
    free.reserve(static_cast<size_t>(depth));
    for (int i = 0; i < depth; ++i) free.push_back(i);
    std::vector<ReadCompletion> done;
    for (int submitted = 0, finished = 0; finished < reads;) {
      while (submitted < reads && !free.empty()) {
        const auto slot = static_cast<size_t>(free.back());
        free.pop_back();
        ReadRequest& read = requests[slot];
        read.file = static_cast<int32_t>(random_() % data_.size());
        const uint64_t file_bytes = data_[static_cast<size_t>(read.file)].size();
        read.offset = random_() % (file_bytes + 8192) / grain * grain;
        read.bytes = static_cast<uint32_t>((random_() % (kSlotBytes / grain) + 1) * grain);
        read.destination = memory.data() + slot * kSlotBytes;
        read.tag = slot;
        reader.Submit(read);
        ++submitted;
      }
      done.clear();
      reader.Wait(done, -1);
      for (const ReadCompletion& completion : done) {
        const ReadRequest& read = requests[completion.tag];
        const std::vector<std::byte>& data = data_[static_cast<size_t>(read.file)];
        const uint64_t there = read.offset >= data.size()
                                   ? 0
                                   : std::min<uint64_t>(read.bytes, data.size() - read.offset);
        EXPECT_EQ(completion.result, expected.value_or(static_cast<int64_t>(there)));
        if (completion.result > 0) {
          EXPECT_EQ(std::memcmp(read.destination, data.data() + read.offset,
                                static_cast<size_t>(completion.result)),
                    0);
        }
        free.push_back(static_cast<int>(completion.tag));
        ++finished;
      }
    }
    EXPECT_EQ(reader.free_slots(), depth);
  }

  TempDir dir_;
  std::vector<std::vector<std::byte>> data_;     // [files]
  std::vector<std::vector<fs::path>> replicas_;  // [links][files]
  std::atomic<int> errors_[kLinks] = {};
  VirtualClock clock_;
  std::mt19937_64 random_{7};
};

TEST_F(StripedReaderTest, ReadsTheSameBytesWithEveryBackendAndNumberOfLinks) {
  for (const ReadBackend backend :
       {ReadBackend::kAuto, ReadBackend::kThreads, ReadBackend::kBuffered, ReadBackend::kMapped}) {
    SCOPED_TRACE(ReadBackendName(backend));
    std::vector<std::vector<fs::path>> replicas = replicas_;
    for (; !replicas.empty(); replicas.pop_back()) {
      std::unique_ptr<AsyncReader> reader;
      try {
        reader = OpenStripedReader(replicas, {}, backend, kDepth, 0);
      } catch (const Error& error) {
        std::printf("not tested here: %s\n", error.what());
        break;
      }
      ReadAndCompare(*reader, 120);
      std::vector<ReaderLink> links;
      reader->Links(links);
      ASSERT_EQ(links.size(), replicas.size());
      for (size_t l = 0; l < links.size(); ++l) {
        EXPECT_EQ(links[l].name, (dir_.path() / fmt::format("disk{}", l)).string());
        EXPECT_GT(links[l].bytes, 0u);
        EXPECT_GT(links[l].reads, 0u);
        EXPECT_EQ(links[l].failed, 0u);
      }
      // A wake ends a wait, with nothing.
      reader->Wake();
      std::vector<ReadCompletion> done;
      reader->Wait(done, -1);
      EXPECT_TRUE(done.empty());
    }
  }
}

TEST_F(StripedReaderTest, WhatALinkCannotGiveComesFromAnother) {
  const auto reader = Open(2);
  std::vector<ReaderLink> links;
  errors_[0] = EIO;
  ReadAndCompare(*reader, 40);
  reader->Links(links);
  EXPECT_EQ(links[0].bytes, 0u);
  EXPECT_GE(links[0].failed, 3u);
  EXPECT_EQ(links[1].failed, 0u);
  EXPECT_TRUE(links[0].set_aside);
  const uint64_t failed = links[0].failed;
  ReadAndCompare(*reader, 40);  // it is left alone
  reader->Links(links);
  EXPECT_EQ(links[0].failed, failed);
  // It is tried again, fails, is tried once more and is back.
  clock_.AdvanceNs(2 * kSecond);
  ReadAndCompare(*reader, 40);
  reader->Links(links);
  EXPECT_EQ(links[0].failed, failed + 1);
  EXPECT_TRUE(links[0].set_aside);
  errors_[0] = 0;
  clock_.AdvanceNs(3 * kSecond);
  ReadAndCompare(*reader, 40);
  reader->Links(links);
  EXPECT_EQ(links[0].failed, failed + 1);
  EXPECT_FALSE(links[0].set_aside);
  EXPECT_GT(links[0].bytes, 0u);
}

TEST_F(StripedReaderTest, AReadFailsWhenNoLinkCanGiveIt) {
  const auto reader = Open(2);
  errors_[0] = EIO;
  errors_[1] = EIO;
  ReadAndCompare(*reader, 30, -EIO);
  errors_[1] = 0;
  ReadAndCompare(*reader, 30);
}

TEST_F(StripedReaderTest, AFileThatBecameShorterIsReadElsewhere) {
  const auto reader = Open(2);
  fs::resize_file(replicas_[0][0], 4096);
  ReadAndCompare(*reader, 60);
  std::vector<ReaderLink> links;
  reader->Links(links);
  EXPECT_GT(links[0].failed, 0u);
  // What nobody has is missing at the end, as in one file.
  fs::resize_file(replicas_[1][0], 100'000);
  AlignedBuffer buffer(1 << 20);
  reader->Submit({0, 4096, 1 << 20, buffer.data(), 1});
  std::vector<ReadCompletion> done;
  while (done.empty()) reader->Wait(done, -1);
  EXPECT_LE(done[0].result, 100'000 - 4096);
  EXPECT_EQ(std::memcmp(buffer.data(), data_[0].data() + 4096,
                        static_cast<size_t>(std::max<int64_t>(done[0].result, 0))),
            0);
}

TEST_F(StripedReaderTest, WhatIsDamagedThereIsNotReadThere) {
  const auto reader = Open(2);
  AlignedBuffer buffer(1 << 20);
  for (int i = 0; i < 20; ++i) {
    ReadRequest read = {0, 0, 1 << 20, buffer.data(), 1};
    read.avoid = 0b10;
    reader->Submit(read);
    std::vector<ReadCompletion> done;
    while (done.empty()) reader->Wait(done, -1);
  }
  std::vector<ReaderLink> links;
  reader->Links(links);
  EXPECT_EQ(links[0].bytes, 20u << 20);
  EXPECT_EQ(links[1].bytes, 0u);
}

TEST_F(StripedReaderTest, DestroyedWithReadsInFlight) {
  for (int round = 0; round < 5; ++round) {
    AlignedBuffer buffer(4 << 20);
    const auto reader = OpenStripedReader(replicas_, {}, ReadBackend::kAuto, kDepth, 0);
    for (uint64_t i = 0; i < 4; ++i) {
      reader->Submit({0, i << 18, 1 << 18, buffer.data() + (i << 20), i});
    }
  }
}

TEST_F(StripedReaderTest, FilesOfDifferentSizesAreRefused) {
  fs::resize_file(replicas_[1][1], 1000);
  const Error error =
      Caught([&] { OpenStripedReader(replicas_, {}, ReadBackend::kBuffered, kDepth, 0); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  for (const fs::path& file : {replicas_[0][1], replicas_[1][1]}) {
    EXPECT_NE(std::string(error.what()).find(file.string()), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace moesaic
