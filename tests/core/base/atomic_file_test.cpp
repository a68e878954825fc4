#include "core/base/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "core/base/error.h"
#include "core/base/file.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

void Write(const fs::path& file, const std::string& text) {
  WriteFileAtomically(file, std::as_bytes(std::span(text)));
}

TEST(AtomicFileTest, ReplacesTheContentAndLeavesNothingElse) {
  const TempDir dir;
  const fs::path file = dir.path() / "state";
  Write(file, std::string(100000, 'a'));
  Write(file, "short");
  EXPECT_EQ(ReadTextFile(file, 1000), "short");
  // What a killed process left is no obstacle, and none of it ends up in the file.
  std::ofstream(file.string() + ".tmp") << std::string(5000, 'x');
  Write(file, "next");
  EXPECT_EQ(ReadTextFile(file, 1000), "next");
  int files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(dir.path())) ++files;
  EXPECT_EQ(files, 1);
}

TEST(AtomicFileTest, FailuresLeaveTheOldContent) {
  const TempDir dir;
  const fs::path file = dir.path() / "state";
  Write(file, "old");
  // Another process is in the middle of it.
  const std::string name = file.string() + ".tmp";
  const int fd = open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  try {
    Write(file, "new");
    FAIL() << "was written";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
  }
  close(fd);
  EXPECT_EQ(ReadTextFile(file, 1000), "old");
  EXPECT_THROW(Write(dir.path() / "absent" / "state", "new"), Error);
  // The name is a directory's: the rename fails after everything was written.
  fs::create_directories(dir.path() / "taken" / "inside");
  EXPECT_THROW(Write(dir.path() / "taken", "new"), Error);
  EXPECT_FALSE(fs::exists(dir.path() / "taken.tmp"));
}

TEST(AtomicFileTest, SetsFilesAsideUnderFreeNames) {
  const TempDir dir;
  const fs::path file = dir.path() / "state";
  for (int i = 1; i <= 3; ++i) {
    Write(file, std::to_string(i));
    EXPECT_EQ(SetFileAside(file, "rejected"), file.string() + ".rejected-" + std::to_string(i));
  }
  EXPECT_EQ(ReadTextFile(file.string() + ".rejected-2", 10), "2");
  EXPECT_FALSE(fs::exists(file));
  EXPECT_THROW(SetFileAside(file, "rejected"), Error);
}

}  // namespace
}  // namespace moesaic
