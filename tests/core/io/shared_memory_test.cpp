// Memory that processes have together: who fills it, who gets it, what a process that is killed
// leaves behind.
#include "core/io/shared_memory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "tests/core/base/caught.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

constexpr uint64_t kBytes = uint64_t{8} << 20;
constexpr std::chrono::seconds kPatience{60};

class SharedMemoryTest : public testing::Test {
 protected:
  std::string Name() const { return (dir_.path() / "pool").string(); }

  // `body` in a process of its own, which is killed when it returns. It says how that went.
  template <typename Body>
  pid_t Start(const Body& body) {
    EXPECT_EQ(pipe(pipe_), 0);
    const pid_t child = fork();
    if (child == 0) {
      char answer = 'y';
      try {
        body();
      } catch (...) {
        answer = 'n';
      }
      if (write(pipe_[1], &answer, 1) != 1) _exit(1);
      for (;;) pause();
    }
    close(pipe_[1]);
    return child;
  }
  bool Succeeded() {
    char answer = 0;
    const bool read_it = read(pipe_[0], &answer, 1) == 1;
    close(pipe_[0]);
    return read_it && answer == 'y';
  }
  static void Kill(pid_t child) {
    kill(child, SIGKILL);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
  }

  TempDir dir_;
  int pipe_[2] = {-1, -1};
};

// Fills the memory and offers it; notes who has ended.
struct Filler {
  explicit Filler(const std::string& name, const std::string& key = "key")
      : claim(ShareClaim::Take(name)), memory(claim, kBytes, 4096) {
    std::memset(memory.memory().data(), 7, memory.memory().size());
    memory.Offer(key, [this](int member) {
      last_gone = member;
      ++gone;
    });
  }
  ShareClaim claim;
  std::atomic<int> gone{0};
  std::atomic<int> last_gone{-1};
  SharedMemory memory;
};

void WaitUntil(const std::function<bool()>& met) {
  while (!met()) std::this_thread::yield();
}

TEST_F(SharedMemoryTest, OneProcessFillsAndOthersRead) {
  EXPECT_TRUE(ShareClaim::Look(Name()).fills());
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
  std::optional<SharedMemoryView> view;
  {
    Filler filler(Name());
    EXPECT_TRUE(filler.claim.fills());
    EXPECT_FALSE(ShareClaim::Look(Name()).fills());
    const ShareClaim claim = ShareClaim::Take(Name());
    EXPECT_FALSE(claim.fills());
    EXPECT_TRUE(claim.HeldByOther());
    view.emplace(claim, "key", kPatience);
    EXPECT_EQ(view->member(), 0);
    EXPECT_EQ(SharedMemoryView(claim, "key", kPatience).member(), 1);
    WaitUntil([&] { return filler.gone == 1; });
    EXPECT_EQ(filler.last_gone, 1);
    EXPECT_EQ(filler.memory.members(), 1);
    ASSERT_EQ(view->memory().size(), kBytes);
    filler.memory.memory()[kBytes - 1] = std::byte{9};
    EXPECT_EQ(view->memory()[0], std::byte{7});
    EXPECT_EQ(view->memory()[kBytes - 1], std::byte{9});
    view->control()[5] = std::byte{1};
    EXPECT_EQ(filler.memory.control()[5], std::byte{1});
    EXPECT_TRUE(view->FillerLives());
    // Only files that nobody else can open.
    for (const auto& file : std::filesystem::directory_iterator(dir_.path())) {
      struct stat status;
      ASSERT_EQ(lstat(file.path().c_str(), &status), 0);
      EXPECT_EQ(status.st_mode & 0777, 0600u) << file.path();
    }
  }
  // Another one may fill new memory; who has the old one keeps it.
  EXPECT_FALSE(view->FillerLives());
  EXPECT_EQ(view->memory()[kBytes - 1], std::byte{9});
  EXPECT_FALSE(std::filesystem::exists(dir_.path() / "pool.socket"));
  EXPECT_TRUE(ShareClaim::Take(Name()).fills());
}

TEST_F(SharedMemoryTest, ItCannotBeWrittenOrCutOff) {
  const Filler filler(Name());
  const SharedMemoryView view(ShareClaim::Take(Name()), "key", kPatience);
  auto* const data = const_cast<std::byte*>(view.memory().data());
  EXPECT_NE(mprotect(data, kBytes, PROT_READ | PROT_WRITE), 0);
  // The descriptor as the filling process has it, by which another one would shrink it.
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(fd.path(), gone).string();
    if (target.find("moesaic-experts") == std::string::npos) continue;
    EXPECT_NE(truncate(fd.path().c_str(), 0), 0);
    EXPECT_EQ(errno, EPERM);
  }
}

TEST_F(SharedMemoryTest, AnotherKeyIsRefusedWithBoth) {
  const Filler filler(Name(), "a model in bf16");
  const ShareClaim claim = ShareClaim::Take(Name());
  const Error error = Caught([&] { SharedMemoryView(claim, "a model in int8", kPatience); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(Contains(error, "a model in bf16"));
  EXPECT_TRUE(Contains(error, "a model in int8"));
}

TEST_F(SharedMemoryTest, AMemberThatIsKilledIsNoticed) {
  const pid_t child = Start([&] {
    // Not before it is offered: the claim is taken anew until somebody else has it.
    std::optional<ShareClaim> claim;
    do {
      claim.emplace(ShareClaim::Look(Name()));
      usleep(1000);
    } while (claim->fills());
    static SharedMemoryView* const view = new SharedMemoryView(*claim, "key", kPatience);
    if (view->memory()[0] != std::byte{7}) throw Error(ErrorKind::kCorrupt, "");
  });
  Filler filler(Name());
  ASSERT_TRUE(Succeeded());
  EXPECT_EQ(filler.memory.members(), 1);
  EXPECT_EQ(filler.gone, 0);
  Kill(child);
  WaitUntil([&] { return filler.gone == 1; });
  EXPECT_EQ(filler.memory.members(), 0);
  const SharedMemoryView view(ShareClaim::Take(Name()), "key", kPatience);
  EXPECT_EQ(view.member(), 0);
}

TEST_F(SharedMemoryTest, WhatAFillerLeavesThatIsKilledIsUsedOn) {
  const pid_t child = Start([&] {
    static Filler* const filler = new Filler(Name());
    if (!filler->claim.fills()) throw Error(ErrorKind::kInternal, "");
  });
  ASSERT_TRUE(Succeeded());
  ShareClaim claim = ShareClaim::Take(Name());
  ASSERT_FALSE(claim.fills());
  const SharedMemoryView view(claim, "key", kPatience);
  EXPECT_TRUE(view.FillerLives());
  Kill(child);
  EXPECT_FALSE(view.FillerLives());
  EXPECT_FALSE(claim.HeldByOther());
  for (const size_t at : {size_t{0}, size_t{kBytes / 2}, size_t{kBytes - 1}}) {
    EXPECT_EQ(view.memory()[at], std::byte{7});
  }
  // Its socket is still there, and nobody behind it.
  EXPECT_TRUE(std::filesystem::exists(dir_.path() / "pool.socket"));
  const Error error = Caught([&] { SharedMemoryView(claim, "key", kPatience); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
  const Filler next(Name());
  EXPECT_EQ(SharedMemoryView(ShareClaim::Take(Name()), "key", kPatience).member(), 0);
}

TEST_F(SharedMemoryTest, ThereIsAMostOfMembers) {
  const Filler filler(Name());
  const ShareClaim claim = ShareClaim::Take(Name());
  std::vector<std::unique_ptr<SharedMemoryView>> views;
  for (int member = 0; member < kMostShareMembers; ++member) {
    views.push_back(std::make_unique<SharedMemoryView>(claim, "key", kPatience));
    EXPECT_EQ(views.back()->member(), member);
  }
  const Error error = Caught([&] { SharedMemoryView(claim, "key", kPatience); });
  EXPECT_EQ(error.kind(), ErrorKind::kResourceExhausted);
  views[5].reset();
  WaitUntil([&] { return filler.gone == 1; });
  EXPECT_EQ(SharedMemoryView(claim, "key", kPatience).member(), 5);
}

TEST_F(SharedMemoryTest, NamesAndFilesOfOthersAreRefused) {
  for (const char* name : {"", ".", "..", ".x", "a b", "a\n", "ä"}) {
    const Error error = Caught([&] { ShareClaim::Take(name); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << name;
  }
  EXPECT_EQ(Caught([&] { ShareClaim::Take(std::string(65, 'a')); }).kind(),
            ErrorKind::kInvalidArgument);
  EXPECT_EQ(Caught([&] { ShareClaim::Take(dir_.path().string() + "/"); }).kind(),
            ErrorKind::kInvalidArgument);
  const std::string deep = (dir_.path() / std::string(90, 'd')).string();
  EXPECT_EQ(Caught([&] { ShareClaim::Take(deep); }).kind(), ErrorKind::kInvalidArgument);
  EXPECT_EQ(Caught([&] { ShareClaim::Take((dir_.path() / "no/pool").string()); }).kind(),
            ErrorKind::kIo);
  std::filesystem::create_symlink("/etc/passwd", dir_.path() / "link.lock");
  EXPECT_EQ(Caught([&] { ShareClaim::Take((dir_.path() / "link").string()); }).kind(),
            ErrorKind::kIo);
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED: only root can make another user's file";
  { ShareClaim::Take(Name()); }
  ASSERT_EQ(chown((Name() + ".lock").c_str(), 65534, 65534), 0);
  EXPECT_TRUE(Contains(Caught([&] { ShareClaim::Take(Name()); }), "another user"));
}

}  // namespace
}  // namespace moesaic
