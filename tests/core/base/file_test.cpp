#include "core/base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "core/base/error.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

template <typename Body>
ErrorKind CaughtKind(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.kind();
  }
  return ErrorKind::kInternal;
}

TEST(FileTest, ReadsAtOffsets) {
  const TempDir dir;
  const auto path = dir.path() / "digits";
  std::ofstream(path) << "0123456789";
  const File file(path);
  EXPECT_EQ(file.size_bytes(), 10u);
  std::string text(4, '?');
  EXPECT_EQ(file.ReadAt(3, std::as_writable_bytes(std::span(text))), 4u);
  EXPECT_EQ(text, "3456");
  EXPECT_EQ(file.ReadAt(8, std::as_writable_bytes(std::span(text))), 2u);
  EXPECT_EQ(text, "8956");
  EXPECT_EQ(file.ReadAt(10, std::as_writable_bytes(std::span(text))), 0u);
  EXPECT_EQ(ReadTextFile(path, 10), "0123456789");
  EXPECT_EQ(CaughtKind([&] { ReadTextFile(path, 9); }), ErrorKind::kCorrupt);
}

TEST(FileTest, RefusesWhatIsNoFile) {
  const TempDir dir;
  EXPECT_EQ(CaughtKind([&] { File(dir.path() / "none"); }), ErrorKind::kNotFound);
  EXPECT_EQ(CaughtKind([&] { File(dir.path()); }), ErrorKind::kIo);
  const auto fifo = dir.path() / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(CaughtKind([&] { File{fifo}; }), ErrorKind::kIo);  // at once, without a writer
}

TEST(FileTest, ReportsAFailedRead) {
  const File memory("/proc/self/mem");
  std::byte byte;
  EXPECT_EQ(CaughtKind([&] {
              memory.ReadAt(0, {&byte, 1});
            }),
            ErrorKind::kIo);  // nothing is mapped at 0
}

}  // namespace
}  // namespace moesaic
