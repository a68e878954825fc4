// LineFile against a disk in memory: calls that fail, are interrupted or write little, a power cut
// behind each, and what another process does between opening and locking.

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "serving/batch/line_file.h"
#include "tests/core/base/caught.h"
#include "tests/core/base/model_disk.h"

namespace moesaic {
namespace {

using Contents = std::set<std::optional<std::string>>;

const std::vector<std::string> kLines = {"one", "two words", "three"};

// The first `count` of the lines.
std::string Whole(size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += kLines[i] + "\n";
  return text;
}

// What a job finds that goes on with this content.
std::string GoOn(const std::string& content) {
  ModelDisk disk;
  disk.Put("lines", content);
  const LineFile file("lines", LineFile::Start::kGoOn, disk);
  EXPECT_EQ(file.cut_bytes() + disk.Read("lines")->size(), content.size());
  return *disk.Read("lines");
}

// Appends and flushes every line; which calls that takes.
std::vector<std::string> CallsOfAJob(LineFile::Start start, const std::string& before) {
  ModelDisk disk;
  disk.Put("lines", before);
  {
    LineFile file("lines", start, disk);
    for (const std::string& line : kLines) file.Append(line);
    file.Sync();
  }
  return disk.log();
}

TEST(LineFileDiskTest, APowerCutLosesNoFlushedLineAndLeavesNoPartOfOne) {
  ModelDisk disk;
  disk.most_write_bytes = 2;
  size_t appended = 0;
  size_t flushed = 0;
  disk.after = [&] {
    for (const auto& content : disk.AfterPowerCut("lines")) {
      if (!content) {
        EXPECT_EQ(flushed, 0u) << disk.log().back();
        continue;
      }
      const std::string found = GoOn(*content);
      bool whole = false;
      for (size_t count = flushed; count <= appended + 1 && count <= kLines.size(); ++count) {
        whole = whole || found == Whole(count);
      }
      EXPECT_TRUE(whole) << disk.log().back() << ": " << found;
    }
  };
  LineFile file("lines", LineFile::Start::kNew, disk);
  for (const std::string& line : kLines) {
    file.Append(line);
    ++appended;
    file.Sync();
    flushed = appended;
    EXPECT_EQ(disk.AfterPowerCut("lines"), Contents{Whole(appended)});
  }
}

TEST(LineFileDiskTest, TheDirectoryIsFlushedOnce) {
  ModelDisk disk("out");
  LineFile file("out/lines", LineFile::Start::kNew, disk);
  file.Append("one");
  for (int i = 0; i < 3; ++i) file.Sync();
  EXPECT_EQ(std::count(disk.log().begin(), disk.log().end(), "fsync out"), 1);
  EXPECT_EQ(std::count(disk.log().begin(), disk.log().end(), "fdatasync out/lines"), 3);
}

TEST(LineFileDiskTest, SignalsAreGoneThrough) {
  const std::string cut = "zero\nunfinished";
  for (const LineFile::Start start : {LineFile::Start::kGoOn, LineFile::Start::kEmpty}) {
    const std::vector<std::string> calls = CallsOfAJob(start, cut);
    for (size_t interrupted = 0; interrupted < calls.size(); ++interrupted) {
      const std::string& call = calls[interrupted];
      // Never interrupted, or not to be called twice.
      if (call.starts_with("fstat") || call.starts_with("stat") || call.starts_with("lseek") ||
          call.starts_with("close")) {
        continue;
      }
      SCOPED_TRACE(call);
      ModelDisk disk;
      disk.Put("lines", cut);
      disk.before = [&](const std::string&, int number) {
        return number == static_cast<int>(interrupted) ? EINTR : 0;
      };
      {
        LineFile file("lines", start, disk);
        for (const std::string& line : kLines) file.Append(line);
        file.Sync();
      }
      EXPECT_EQ(disk.AfterPowerCut("lines"),
                Contents{(start == LineFile::Start::kGoOn ? "zero\n" : "") + Whole(3)});
      EXPECT_EQ(disk.open_files(), 0);
    }
  }
}

// Whichever call fails: the file holds the lines whose Append returned, and those alone.
TEST(LineFileDiskTest, EveryFailureLeavesWholeLines) {
  const std::vector<std::string> calls = CallsOfAJob(LineFile::Start::kGoOn, "unfinished");
  for (const int error : {EIO, ENOSPC, EDQUOT}) {
    for (size_t failing = 0; failing < calls.size(); ++failing) {
      SCOPED_TRACE(calls[failing] + ": " + ErrnoMessage(error));
      ModelDisk disk;
      disk.Put("lines", "unfinished");
      disk.before = [&](const std::string&, int number) {
        return number == static_cast<int>(failing) ? error : 0;
      };
      std::string expected;
      bool opened = false;
      int errors = 0;
      const auto attempt = [&](const auto& body) {
        const Error thrown = Caught(body);
        if (std::string(thrown.what()).empty()) return true;
        EXPECT_EQ(thrown.kind(), ErrorKind::kIo);
        EXPECT_TRUE(Contains(thrown, "lines: ")) << thrown.what();
        EXPECT_TRUE(Contains(thrown, ErrnoMessage(error))) << thrown.what();
        ++errors;
        return false;
      };
      attempt([&] {
        LineFile file("lines", LineFile::Start::kGoOn, disk);
        opened = true;
        for (const std::string& line : kLines) {
          if (attempt([&] { file.Append(line); })) expected += line + "\n";
        }
        const bool flushed = attempt([&] { file.Sync(); });
        // A page that could not be written is clean afterwards; a second fsync would say that all
        // is well.
        if (!flushed && calls[failing].starts_with("fdatasync")) {
          attempt([&] { file.Sync(); });
          EXPECT_EQ(errors, 2);
        }
      });
      EXPECT_EQ(disk.open_files(), 0);
      if (opened) {
        EXPECT_EQ(disk.Read("lines"), expected);
      }
      // Closing may fail, looking at the file's place is done again, and a directory need not be
      // readable.
      const bool harmless = calls[failing].starts_with("close") ||
                            calls[failing].starts_with("stat") || calls[failing] == "open .";
      if (!calls[failing].starts_with("fstat")) {
        EXPECT_EQ(errors == 0, harmless);
      }
    }
  }
}

TEST(LineFileDiskTest, BehindAPartThatCannotBeTakenBackNothingIsWritten) {
  for (const char* failing : {"ftruncate lines", "lseek lines"}) {
    ModelDisk disk;
    LineFile file("lines", LineFile::Start::kNew, disk);
    file.Append("one");
    disk.most_write_bytes = 4;
    int writes = 0;
    disk.before = [&](const std::string& call, int) {
      if (call == "write lines") return ++writes == 2 ? ENOSPC : 0;
      return call == failing ? EIO : 0;
    };
    EXPECT_TRUE(Contains(Caught([&] { file.Append("two words"); }), ErrnoMessage(ENOSPC)));
    disk.before = nullptr;
    EXPECT_TRUE(Contains(Caught([&] { file.Append("three"); }), ErrnoMessage(ENOSPC)));
    EXPECT_EQ(GoOn(*disk.Read("lines")), "one\n") << failing;
  }
}

TEST(LineFileDiskTest, ATakenBackLineLeavesNoHole) {
  ModelDisk disk;
  LineFile file("lines", LineFile::Start::kNew, disk);
  disk.most_write_bytes = 4;
  int writes = 0;
  disk.before = [&](const std::string& call, int) {
    return call == "write lines" && ++writes == 2 ? ENOSPC : 0;
  };
  EXPECT_EQ(Caught([&] { file.Append("two words"); }).kind(), ErrorKind::kIo);
  EXPECT_EQ(disk.Read("lines"), "");
  file.Append("three");
  EXPECT_EQ(disk.Read("lines"), "three\n");
}

// Between opening and locking, whoever had the lock has put another file in its place.
TEST(LineFileDiskTest, WritesToTheFileThatHasTheName) {
  ModelDisk disk;
  disk.Put("lines", "old\n");
  disk.Put("beside", "new\n");
  bool moved = false;
  disk.before = [&](const std::string& call, int) {
    if (call == "flock lines" && !moved) {
      disk.Move("beside", "lines");
      moved = true;
    }
    return 0;
  };
  LineFile file("lines", LineFile::Start::kGoOn, disk);
  file.Append("more");
  EXPECT_EQ(disk.Read("lines"), "new\nmore\n");
  EXPECT_EQ(disk.open_files(), 1);
}

TEST(LineFileDiskTest, AFailedLockIsNoOtherProcess) {
  ModelDisk disk;
  disk.before = [](const std::string& call, int) { return call == "flock lines" ? ENOLCK : 0; };
  EXPECT_EQ(Caught([&] { LineFile("lines", LineFile::Start::kNew, disk); }).kind(), ErrorKind::kIo);
  EXPECT_EQ(disk.open_files(), 0);
}

}  // namespace
}  // namespace moesaic
