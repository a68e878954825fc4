// Files of lines: reading any file, and appending so that no part of a line stays.

#include "serving/batch/line_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

class LineFileTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  std::string Read() const { return ReadTextFile(path_, 1 << 24); }

  const TempDir directory_;
  const std::filesystem::path path_ = directory_.path() / "lines";
};

struct SeenLine {
  std::string text;
  bool whole = false;
  bool too_long = false;
  uint64_t end = 0;
};

std::vector<SeenLine> AllLines(const std::filesystem::path& path, uint64_t max_bytes) {
  LineReader reader(path, max_bytes);
  std::vector<SeenLine> lines;
  std::string line;
  while (reader.Next(&line)) {
    lines.push_back({line, reader.whole(), reader.too_long(), reader.end_offset()});
    EXPECT_EQ(reader.line_number(), static_cast<int64_t>(lines.size()));
  }
  return lines;
}

TEST_F(LineFileTest, ReadsLines) {
  Write("one\r\n\ntwo three\nfour");
  const auto lines = AllLines(path_, 100);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0].text, "one");
  EXPECT_EQ(lines[0].end, 5u);
  EXPECT_EQ(lines[1].text, "");
  EXPECT_EQ(lines[2].text, "two three");
  EXPECT_TRUE(lines[2].whole);
  EXPECT_EQ(lines[3].text, "four");
  EXPECT_FALSE(lines[3].whole);
  EXPECT_EQ(lines[3].end, 20u);
  Write("");
  EXPECT_TRUE(AllLines(path_, 100).empty());
  // A carriage return is part of an end only where a newline follows it.
  Write("one\rtwo\r\nthree\r");
  const auto returns = AllLines(path_, 100);
  ASSERT_EQ(returns.size(), 2u);
  EXPECT_EQ(returns[0].text, "one\rtwo");
  EXPECT_EQ(returns[1].text, "three\r");
}

TEST_F(LineFileTest, CutsLinesThatAreTooLong) {
  // Longer than the reader's buffer, too.
  Write(std::string(3'000'000, 'x') + "\nshort\n" + std::string(10, 'y') + "\n");
  const auto lines = AllLines(path_, 10);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].text, std::string(10, 'x'));
  EXPECT_TRUE(lines[0].too_long);
  EXPECT_EQ(lines[1].text, "short");
  EXPECT_FALSE(lines[1].too_long);
  EXPECT_EQ(lines[2].text, std::string(10, 'y'));
  EXPECT_FALSE(lines[2].too_long);
  EXPECT_EQ(AllLines(path_, LineReader::kMaxLineBytes)[0].text.size(), 3'000'000u);
}

TEST_F(LineFileTest, GoesOnAfterTheLastWholeLine) {
  for (const std::string whole : {"", "a\n", "a\nbb\n"}) {
    for (const std::string& rest : {std::string(), std::string("cut"), std::string(3'000'000, 'z'),
                                    std::string("nul\0\0", 5)}) {
      Write(whole + rest);
      LineFile file(path_, LineFile::Start::kGoOn);
      EXPECT_EQ(file.cut_bytes(), rest.size());
      file.Append("next");
      file.Sync();
      EXPECT_EQ(Read(), whole + "next\n");
    }
  }
}

TEST_F(LineFileTest, NewIsNewAndEmptyEmpties) {
  Write("a\n");
  EXPECT_THROW(LineFile(path_, LineFile::Start::kNew), Error);
  EXPECT_EQ(Read(), "a\n");
  LineFile(path_, LineFile::Start::kEmpty).Append("b");
  EXPECT_EQ(Read(), "b\n");
  Write("");
  LineFile(path_, LineFile::Start::kNew).Append("c");
  EXPECT_EQ(Read(), "c\n");
}

TEST_F(LineFileTest, OneWriterAtATime) {
  const LineFile file(path_, LineFile::Start::kGoOn);
  try {
    const LineFile second(path_, LineFile::Start::kEmpty);
    FAIL() << "a second writer was let in";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
  }
}

}  // namespace
}  // namespace moesaic
