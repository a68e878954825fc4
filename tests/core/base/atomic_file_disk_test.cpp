// WriteFileAtomically against a disk in memory: the order of its calls, each of them failing or
// interrupted, and a power cut behind each.

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "core/base/atomic_file.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "tests/core/base/caught.h"
#include "tests/core/base/model_disk.h"

namespace moesaic {
namespace {

using Contents = std::set<std::optional<std::string>>;

void Write(ModelDisk& disk, const std::string& file, const std::string& text) {
  WriteFileAtomically(file, std::as_bytes(std::span(text)), disk);
}

// Of the calls that change something, or wait for the disk.
std::vector<std::string> Steps(const ModelDisk& disk) {
  std::vector<std::string> steps;
  for (const std::string& call : disk.log()) {
    if (!call.starts_with("fstat") && !call.starts_with("stat") && !call.starts_with("close")) {
      steps.push_back(call);
    }
  }
  return steps;
}

TEST(AtomicFileDiskTest, FlushesTheContentBeforeTheNameAndTheNameAtTheEnd) {
  ModelDisk disk("dir");
  disk.Put("dir/state", "old");
  Write(disk, "dir/state", "new");
  EXPECT_EQ(Steps(disk), (std::vector<std::string>{"open dir", "open dir/state.tmp",
                                                   "flock dir/state.tmp", "ftruncate dir/state.tmp",
                                                   "write dir/state.tmp", "fsync dir/state.tmp",
                                                   "rename dir/state.tmp dir/state", "fsync dir"}));
  EXPECT_EQ(disk.open_files(), 0);
  // A name without a directory is in the working directory.
  ModelDisk here;
  Write(here, "state", "new");
  EXPECT_EQ(Steps(here).front(), "open .");
  EXPECT_EQ(Steps(here).back(), "fsync .");
}

TEST(AtomicFileDiskTest, APowerCutBehindAnyCallLeavesTheOldOrTheNew) {
  for (const std::optional<std::string>& old :
       {std::optional<std::string>(), std::optional<std::string>("old content")}) {
    ModelDisk disk;
    disk.most_write_bytes = 3;
    disk.Put("state.tmp", "what a killed process left");
    if (old) disk.Put("state", *old);
    const Contents either = {old, "new"};
    disk.after = [&] {
      for (const auto& content : disk.AfterPowerCut("state")) {
        EXPECT_TRUE(either.contains(content))
            << disk.log().back() << ": " << content.value_or("none");
      }
      EXPECT_TRUE(either.contains(disk.Read("state"))) << disk.log().back();
    };
    Write(disk, "state", "new");
    EXPECT_EQ(disk.AfterPowerCut("state"), Contents{"new"});
    EXPECT_EQ(disk.Read("state.tmp"), std::nullopt);
  }
}

TEST(AtomicFileDiskTest, SignalsAndShortWritesAreGoneThrough) {
  ModelDisk once;
  once.most_write_bytes = 2;
  Write(once, "state", "new");
  const auto calls = static_cast<int>(once.log().size());
  for (int interrupted = 0; interrupted < calls; ++interrupted) {
    const std::string& call = once.log()[static_cast<size_t>(interrupted)];
    // The others are never interrupted; close is not to be called twice.
    if (call.starts_with("fstat") || call.starts_with("stat") || call.starts_with("rename") ||
        call.starts_with("close")) {
      continue;
    }
    ModelDisk disk;
    disk.most_write_bytes = 2;
    disk.before = [&](const std::string&, int number) { return number == interrupted ? EINTR : 0; };
    Write(disk, "state", "new");
    EXPECT_EQ(disk.AfterPowerCut("state"), Contents{"new"}) << call;
    EXPECT_EQ(disk.open_files(), 0);
  }
}

TEST(AtomicFileDiskTest, EveryFailureLeavesTheOldAndNothingBeside) {
  ModelDisk once;
  Write(once, "state", "new");
  const auto calls = static_cast<int>(once.log().size());
  for (const int error : {EIO, ENOSPC, EDQUOT, ENOLCK}) {
    for (int failing = 0; failing < calls; ++failing) {
      const std::string& call = once.log()[static_cast<size_t>(failing)];
      SCOPED_TRACE(call + ": " + ErrnoMessage(error));
      ModelDisk disk;
      disk.Put("state", "old");
      disk.before = [&](const std::string&, int number) { return number == failing ? error : 0; };
      const Error thrown = Caught([&] { Write(disk, "state", "new"); });
      EXPECT_EQ(disk.open_files(), 0);
      // Without the lock it may be another writer's.
      if (!call.starts_with("flock")) {
        EXPECT_EQ(disk.Read("state.tmp"), std::nullopt);
      }
      // Looking again whether the file is in its place, and closing what was flushed, may fail.
      if (call.starts_with("fstat") || call.starts_with("stat") || call.starts_with("close")) {
        EXPECT_STREQ(thrown.what(), "");
        EXPECT_EQ(disk.AfterPowerCut("state"), Contents{"new"});
        continue;
      }
      EXPECT_EQ(thrown.kind(), ErrorKind::kIo);
      EXPECT_TRUE(Contains(thrown, ErrnoMessage(error))) << thrown.what();
      // Behind the rename nothing can be taken back.
      EXPECT_EQ(disk.Read("state"), call == "fsync ." ? "new" : "old");
    }
  }
}

TEST(AtomicFileDiskTest, ADiskThatTakesNothingIsFull) {
  ModelDisk disk;
  disk.most_write_bytes = 0;
  const Error error = Caught([&] { Write(disk, "state", "new"); });
  EXPECT_TRUE(Contains(error, ErrnoMessage(ENOSPC))) << error.what();
  EXPECT_EQ(disk.Read("state"), std::nullopt);
}

// Between opening FILE.tmp and locking it the other writer has finished: what was opened is FILE.
TEST(AtomicFileDiskTest, AnotherWritersFinishedFileIsNotTouched) {
  ModelDisk disk;
  disk.Put("state.tmp", "of the other writer");
  bool finished = false;
  disk.before = [&](const std::string& call, int) {
    if (call == "flock state.tmp" && !finished) {
      disk.Move("state.tmp", "state");
      finished = true;
    }
    return 0;
  };
  disk.after = [&] {
    if (!finished) return;
    const auto content = disk.Read("state");
    EXPECT_TRUE(content == "of the other writer" || content == "mine") << disk.log().back();
  };
  Write(disk, "state", "mine");
  EXPECT_TRUE(finished);
  EXPECT_EQ(disk.Read("state"), "mine");
  EXPECT_EQ(disk.open_files(), 0);
}

TEST(AtomicFileDiskTest, ALockedFileIsAnothersAndAFailedLockIsNot) {
  ModelDisk disk;
  disk.Put("state.tmp", "of the other writer");
  const int fd = disk.Open("state.tmp", O_RDWR, 0);
  ASSERT_EQ(disk.Flock(fd, 0), 0);
  EXPECT_EQ(Caught([&] { Write(disk, "state", "mine"); }).kind(), ErrorKind::kUnavailable);
  EXPECT_EQ(disk.Read("state.tmp"), "of the other writer");
  disk.Close(fd);
  Write(disk, "state", "mine");
  EXPECT_EQ(disk.Read("state"), "mine");
}

}  // namespace
}  // namespace moesaic
