#include "core/io/async_reader.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "core/base/aligned_buffer.h"
#include "core/base/error.h"
#include "core/io/throttled_reader.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> RandomBytes(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> data(bytes);
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  return data;
}

void WriteFile(const fs::path& path, std::span<const std::byte> data) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size()));
  ASSERT_TRUE(out.good());
}

// The backends by name; uring is left out where the kernel refuses it (a container), which
// AutoFallsBack covers.
std::vector<ReadBackend> Backends(const fs::path& file) {
  std::vector<ReadBackend> backends = {ReadBackend::kBuffered, ReadBackend::kMapped};
  for (const ReadBackend backend : {ReadBackend::kUring, ReadBackend::kThreads}) {
    try {
      OpenAsyncReader({file}, backend, 1);
      backends.push_back(backend);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      std::printf("not tested here: %s\n", error.what());
    }
  }
  return backends;
}

class AsyncReaderTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const size_t bytes : {size_t{3 << 20} + 1234, size_t{64 << 10}, size_t{700}}) {
      data_.push_back(RandomBytes(bytes, 17 + bytes));
      files_.push_back(dir_.path() / fmt::format("file{}", data_.size()));
      WriteFile(files_.back(), data_.back());
    }
  }

  TempDir dir_;
  std::vector<std::vector<std::byte>> data_;
  std::vector<fs::path> files_;
};

TEST_F(AsyncReaderTest, MatchesPlainReads) {
  const uint64_t seed = std::random_device{}();
  std::printf("seed %lu\n", seed);
  for (const ReadBackend backend : Backends(files_[0])) {
    SCOPED_TRACE(ReadBackendName(backend));
    std::mt19937_64 random(seed);
    constexpr int kDepth = 7;
    constexpr size_t kSlotBytes = 512 << 10;
    AlignedBuffer memory(kDepth * kSlotBytes);
    auto reader = OpenAsyncReader(files_, backend, kDepth);
    EXPECT_EQ(reader->backend(), backend);
    EXPECT_EQ(reader->free_slots(), kDepth);
    const uint64_t grain = reader->aligned_only() ? 4096 : 1;
    std::vector<ReadRequest> requests(kDepth);
    std::vector<int> free_slots = {0, 1, 2, 3, 4, 5, 6};
    std::vector<ReadCompletion> completions;
    int submitted = 0;
    int finished = 0;
    constexpr int kReads = 400;
    while (finished < kReads) {
      while (submitted < kReads && !free_slots.empty() && random() % 4 != 0) {
        const int slot = free_slots.back();
        free_slots.pop_back();
        ReadRequest& request = requests[slot];
        request.file = static_cast<int32_t>(random() % files_.size());
        // Past the end too.
        const uint64_t span = data_[request.file].size() + 3 * 4096;
        request.offset = random() % span / grain * grain;
        request.bytes = static_cast<uint32_t>((random() % (kSlotBytes / grain) + 1) * grain);
        request.destination = memory.data() + slot * kSlotBytes;
        request.tag = static_cast<uint64_t>(slot) | 0xabcd00000000;
        std::memset(request.destination, 0xee, request.bytes);
        reader->Submit(request);
        ++submitted;
        EXPECT_EQ(reader->free_slots(), static_cast<int>(free_slots.size()));
      }
      if (submitted == finished) continue;
      completions.clear();
      reader->Wait(completions, -1);
      ASSERT_FALSE(completions.empty());
      for (const ReadCompletion& completion : completions) {
        const int slot = static_cast<int>(completion.tag & 0xff);
        ASSERT_EQ(completion.tag, requests[slot].tag);
        const ReadRequest& request = requests[slot];
        const std::vector<std::byte>& data = data_[request.file];
        const uint64_t expected =
            request.offset >= data.size()
                ? 0
                : std::min<uint64_t>(request.bytes, data.size() - request.offset);
        ASSERT_EQ(completion.result, static_cast<int64_t>(expected))
            << "file " << request.file << " offset " << request.offset << " bytes "
            << request.bytes;
        ASSERT_TRUE(std::equal(request.destination, request.destination + expected,
                               data.data() + std::min<uint64_t>(request.offset, data.size())));
        free_slots.push_back(slot);
        ++finished;
      }
      EXPECT_EQ(reader->free_slots(), static_cast<int>(free_slots.size()));
    }
  }
}

TEST_F(AsyncReaderTest, WakeEndsTheWaitUnderWayAndTheNextOne) {
  for (const ReadBackend backend : Backends(files_[0])) {
    SCOPED_TRACE(ReadBackendName(backend));
    auto reader = OpenAsyncReader(files_, backend, 2);
    std::vector<ReadCompletion> completions;
    reader->Wake();
    reader->Wait(completions, -1);  // would never end without the Wake before it
    // Many rounds, so that some Wakes come before the Wait blocks and some after.
    std::atomic<int> rounds{0};
    std::thread other([&] {
      for (int i = 0; i < 200; ++i) {
        while (rounds.load() != i) std::this_thread::yield();
        reader->Wake();
      }
    });
    for (int i = 0; i < 200; ++i) {
      rounds.store(i);
      reader->Wait(completions, -1);
    }
    other.join();
    EXPECT_TRUE(completions.empty());
  }
}

TEST_F(AsyncReaderTest, WakeLosesNoCompletion) {
  for (const ReadBackend backend : Backends(files_[0])) {
    SCOPED_TRACE(ReadBackendName(backend));
    auto reader = OpenAsyncReader(files_, backend, 4);
    constexpr uint64_t kReads = 300;
    AlignedBuffer memory(kReads * 4096);  // reads finish in any order: each has its own
    std::atomic<bool> stop{false};
    std::thread other([&] {
      while (!stop.load()) {
        reader->Wake();
        std::this_thread::yield();
      }
    });
    std::vector<ReadCompletion> completions;
    uint64_t sum = 0;
    uint64_t next = 0;
    while (sum < kReads) {
      for (; next < kReads && reader->free_slots() > 0; ++next) {
        reader->Submit({0, next % 700 * 4096, 4096, memory.data() + next * 4096, next});
      }
      completions.clear();
      reader->Wait(completions, -1);
      sum += completions.size();
    }
    stop.store(true);
    other.join();
    EXPECT_EQ(sum, kReads);
    EXPECT_EQ(reader->free_slots(), 4);
  }
}

TEST_F(AsyncReaderTest, TimesOut) {
  for (const ReadBackend backend : Backends(files_[0])) {
    SCOPED_TRACE(ReadBackendName(backend));
    auto reader = OpenAsyncReader(files_, backend, 2);
    std::vector<ReadCompletion> completions;
    reader->Wait(completions, 0);
    const auto begin = std::chrono::steady_clock::now();
    reader->Wait(completions, 20'000);
    const auto waited = std::chrono::steady_clock::now() - begin;
    EXPECT_TRUE(completions.empty());
    EXPECT_GE(waited, std::chrono::milliseconds(19));
    EXPECT_LT(waited, std::chrono::seconds(10));
    // A read that is there ends the wait long before a generous limit.
    AlignedBuffer memory(4096);
    reader->Submit({1, 0, 4096, memory.data(), 5});
    reader->Wait(completions, 600'000'000);
    ASSERT_EQ(completions.size(), 1u);
    EXPECT_EQ(completions[0].tag, 5u);
    EXPECT_EQ(completions[0].result, 4096);
  }
}

TEST_F(AsyncReaderTest, PollingFindsTheCompletion) {
  for (const ReadBackend backend : Backends(files_[0])) {
    SCOPED_TRACE(ReadBackendName(backend));
    auto reader = OpenAsyncReader(files_, backend, 2);
    AlignedBuffer memory(4096);
    reader->Submit({0, 4096, 4096, memory.data(), 9});
    std::vector<ReadCompletion> completions;
    while (completions.empty()) reader->Wait(completions, 0);
    EXPECT_EQ(completions[0].result, 4096);
  }
}

TEST_F(AsyncReaderTest, FileThatHasBecomeShorterGivesAShortRead) {
  for (const ReadBackend backend : Backends(files_[0])) {
    SCOPED_TRACE(ReadBackendName(backend));
    const fs::path path = dir_.path() / "shrinks";
    WriteFile(path, data_[0]);
    auto reader = OpenAsyncReader({path}, backend, 2);
    AlignedBuffer memory(1 << 20);
    fs::resize_file(path, (512 << 10) + 100);
    std::vector<ReadCompletion> completions;
    reader->Submit({0, 0, 1 << 20, memory.data(), 1});
    reader->Wait(completions, -1);
    ASSERT_EQ(completions.size(), 1u);
    EXPECT_EQ(completions[0].result, (512 << 10) + 100);
    completions.clear();
    reader->Submit({0, 1 << 20, 4096, memory.data(), 2});
    reader->Wait(completions, -1);
    ASSERT_EQ(completions.size(), 1u);
    EXPECT_EQ(completions[0].result, 0);
  }
}

TEST_F(AsyncReaderTest, FailedReadIsAResultNotAnException) {
  // The kernel cannot write to a read-only page: EFAULT.
  void* page = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  for (const ReadBackend backend : Backends(files_[0])) {
    if (backend == ReadBackend::kMapped) continue;  // a memcpy: the caller's bug is a signal
    SCOPED_TRACE(ReadBackendName(backend));
    auto reader = OpenAsyncReader(files_, backend, 2);
    AlignedBuffer memory(4096);
    std::vector<ReadCompletion> completions;
    reader->Submit({0, 0, 4096, static_cast<std::byte*>(page), 1});
    reader->Wait(completions, -1);
    ASSERT_EQ(completions.size(), 1u);
    EXPECT_EQ(completions[0].result, -EFAULT);
    // The reader goes on.
    completions.clear();
    reader->Submit({0, 0, 4096, memory.data(), 2});
    reader->Wait(completions, -1);
    ASSERT_EQ(completions.size(), 1u);
    EXPECT_EQ(completions[0].result, 4096);
  }
  munmap(page, 4096);
}

TEST_F(AsyncReaderTest, EndsWithReadsInFlightAndDoesNotTouchTheirBuffersAfterwards) {
  for (const ReadBackend backend : Backends(files_[0])) {
    for (int round = 0; round < 20; ++round) {
      SCOPED_TRACE(ReadBackendName(backend));
      AlignedBuffer memory(16 * (128 << 10));
      auto reader = OpenAsyncReader(files_, backend, 16);
      // Another thread drives, as a link's I/O thread does; this one destroys.
      std::thread driver([&] {
        for (uint64_t i = 0; i < 16; ++i) {
          reader->Submit({0, i * (128 << 10), 128 << 10, memory.data() + i * (128 << 10), i});
        }
        std::vector<ReadCompletion> completions;
        reader->Wait(completions, 0);
      });
      driver.join();
      reader.reset();
      std::memset(memory.data(), 0x5a, memory.bytes());
      std::this_thread::yield();
      // All bytes equal the first one.
      ASSERT_EQ(memory.data()[0], std::byte{0x5a});
      ASSERT_EQ(std::memcmp(memory.data(), memory.data() + 1, memory.bytes() - 1), 0);
    }
  }
}

TEST_F(AsyncReaderTest, SaysWhichFileIsMissing) {
  const fs::path missing = dir_.path() / "missing";
  for (const ReadBackend backend : {ReadBackend::kAuto, ReadBackend::kUring, ReadBackend::kThreads,
                                    ReadBackend::kBuffered, ReadBackend::kMapped}) {
    try {
      OpenAsyncReader({files_[0], missing}, backend, 2);
      FAIL() << ReadBackendName(backend);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
      EXPECT_NE(std::string(error.what()).find(missing.string()), std::string::npos)
          << error.what();
    }
  }
  EXPECT_THROW(OpenAsyncReader({dir_.path()}, ReadBackend::kBuffered, 2), Error);  // a directory
}

TEST(AsyncReaderFallbackTest, FileSystemWithoutDirectIo) {
  // procfs refuses O_DIRECT everywhere.
  const fs::path path = "/proc/self/stat";
  const auto reader = OpenAsyncReader({path}, ReadBackend::kAuto, 2);
  EXPECT_EQ(reader->backend(), ReadBackend::kBuffered);
  std::vector<std::byte> text(64);
  reader->Submit({0, 0, 64, text.data(), 3});
  std::vector<ReadCompletion> completions;
  reader->Wait(completions, -1);
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_GT(completions[0].result, 0);
  for (const ReadBackend backend : {ReadBackend::kUring, ReadBackend::kThreads}) {
    try {
      OpenAsyncReader({path}, backend, 2);
      FAIL() << ReadBackendName(backend);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      EXPECT_NE(std::string(error.what()).find("/proc/self/stat"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("O_DIRECT"), std::string::npos);
    }
  }
}

// Lets io_uring_setup fail on this thread (and those it starts) as Docker's seccomp profile does.
bool BlockIoUring() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {4, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_F(AsyncReaderTest, AutoFallsBackWhereIoUringIsBlocked) {
  // A thread of its own: a filter cannot be taken off again.
  std::thread([&] {
    ASSERT_TRUE(BlockIoUring());
    try {
      OpenAsyncReader(files_, ReadBackend::kUring, 2);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      EXPECT_NE(std::string(error.what()).find("io_uring"), std::string::npos) << error.what();
    }
    const auto reader = OpenAsyncReader(files_, ReadBackend::kAuto, 2);
    EXPECT_NE(reader->backend(), ReadBackend::kUring);
    AlignedBuffer memory(4096);
    reader->Submit({0, 0, 4096, memory.data(), 1});
    std::vector<ReadCompletion> completions;
    reader->Wait(completions, -1);
    ASSERT_EQ(completions.size(), 1u);
    EXPECT_TRUE(std::equal(memory.data(), memory.data() + 4096, data_[0].data()));
  }).join();
}

TEST(AsyncReaderNamesTest, EveryBackendHasOne) {
  for (const ReadBackend backend : {ReadBackend::kAuto, ReadBackend::kUring, ReadBackend::kThreads,
                                    ReadBackend::kBuffered, ReadBackend::kMapped}) {
    const Named<ReadBackend>* named = FindNamed(kReadBackends, ReadBackendName(backend));
    ASSERT_NE(named, nullptr);
    EXPECT_EQ(named->value, backend);
  }
  EXPECT_EQ(FindNamed(kReadBackends, "floppy"), nullptr);
}

TEST(AsyncReaderDeathTest, RequestThatBreaksTheRulesIsABug) {
  // A new process for each, because the readers have threads; it would not remove a temporary file.
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const std::vector<fs::path> files = {"/proc/self/exe"};
  AlignedBuffer memory(8192);
  EXPECT_DEATH(
      {
        auto reader = OpenAsyncReader(files, ReadBackend::kThreads, 2);
        reader->Submit({0, 512, 4096, memory.data(), 1});
      },
      "against|O_DIRECT");
  EXPECT_DEATH(
      {
        auto reader = OpenAsyncReader(files, ReadBackend::kBuffered, 2);
        reader->Submit({3, 0, 4096, memory.data(), 1});
      },
      "against");
}

TEST_F(AsyncReaderTest, AThrottledReaderReadsTheSameNoFasterThanItMay) {
  constexpr double kBytesPerS = 40e6;
  constexpr size_t kBytes = 1 << 20;
  for (const ReadBackend backend : Backends(files_[0])) {
    SCOPED_TRACE(ReadBackendName(backend));
    const auto reader = MakeThrottledReader(OpenAsyncReader({files_[0]}, backend, 4), kBytesPerS);
    AlignedBuffer buffer(3 * kBytes);
    const auto begin = std::chrono::steady_clock::now();
    for (size_t i = 0; i < 3; ++i) {
      reader->Submit({0, i * kBytes, kBytes, buffer.data() + i * kBytes, i});
    }
    std::vector<ReadCompletion> done;
    while (done.size() < 3) {
      const size_t before = done.size();
      reader->Wait(done, -1);
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
      for (size_t i = before; i < done.size(); ++i) {
        EXPECT_EQ(done[i].result, static_cast<int64_t>(kBytes));
        // One after another: the i-th cannot have come sooner.
        EXPECT_GE(spent.count(), static_cast<double>(i + 1) * kBytes / kBytesPerS * 0.999);
      }
    }
    EXPECT_EQ(std::memcmp(buffer.data(), data_[0].data(), 3 * kBytes), 0);
    // A wake ends a wait, with nothing.
    reader->Wake();
    done.clear();
    reader->Wait(done, -1);
    EXPECT_TRUE(done.empty());
  }
}

}  // namespace
}  // namespace moesaic
