// What a batch job's input is made of, and how a job knows it again.
#include "serving/jobs/input_record.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/base/error.h"
#include "core/base/file.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

class InputRecordTest : public ::testing::Test {
 protected:
  InputRecord Look(const std::string& text, BatchInputForm form = BatchInputForm::kAuto) const {
    std::ofstream(input_, std::ios::binary) << text;
    return LookAtInput(input_, form);
  }
  // The kind of what ParseInputRecord throws; kInternal: it throws nothing.
  static ErrorKind Refusal(const std::string& bytes) {
    try {
      ParseInputRecord(bytes, "name");
      return ErrorKind::kInternal;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("name"), std::string::npos);
      return error.kind();
    }
  }

  const TempDir directory_;
  const fs::path input_ = directory_.path() / "in";
};

constexpr const char* kRequest = R"({"prompt":"x"})";

TEST_F(InputRecordTest, TheFirstLinesThatParseSayTheForm) {
  const std::string request = std::string(kRequest) + "\n";
  for (const std::string before :
       {"", "\n \n", "broken\n", "{broken\n", "{\"a\":1,}\n[1]\n\"s\"\n"}) {
    EXPECT_EQ(Look(before + request).form, BatchInputForm::kJsonl) << before;
  }
  for (const std::string text : {"", "\n", "a prompt\nand {another}\n", "[1, 2]\n\"s\"\n5\n"}) {
    EXPECT_EQ(Look(text).form, BatchInputForm::kText) << text;
  }
  // Some begin like JSON, none is.
  for (const std::string text : {"{broken", "{name}, how are you?\nI am well\n"}) {
    try {
      Look(text);
      FAIL() << "took " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("--input-format"), std::string::npos);
    }
    EXPECT_EQ(Look(text, BatchInputForm::kText).form, BatchInputForm::kText);
    EXPECT_EQ(Look(text, BatchInputForm::kJsonl).form, BatchInputForm::kJsonl);
  }
  // Only the first lines count: what a prompt far behind looks like is nobody's business.
  std::string many;
  for (int64_t line = 1; line < kLinesLookedAt; ++line) many += "a prompt\n\n";
  EXPECT_EQ(Look(many + request).form, BatchInputForm::kJsonl);
  EXPECT_EQ(Look(many + "a prompt\n" + request).form, BatchInputForm::kText);
}

TEST_F(InputRecordTest, CountsLinesThatAreNotBlank) {
  EXPECT_EQ(Look("").requests(), 0);
  EXPECT_EQ(Look("a\n\n \t\r\nb\n\n\n").requests(), 2);
  EXPECT_EQ(Look("a\n\n \t\r\nb\n\n\n").lines.size(), 4u);
  EXPECT_EQ(Look("a\nb").lines, Look("a\r\nb\n").lines);
}

TEST_F(InputRecordTest, FindsTheFirstLineThatChanged) {
  const InputRecord before = Look("a\nb\n\nc\n");
  EXPECT_EQ(FirstChangedLine(before, before), 0);
  EXPECT_EQ(FirstChangedLine(before, Look("a\nb\n\nc\nd\n")), 0);  // appended
  EXPECT_EQ(FirstChangedLine(before, Look("a\nb\n\nc")), 0);
  EXPECT_EQ(FirstChangedLine(before, Look("a\nb\n\nc\n\n\n")), 0);
  EXPECT_EQ(FirstChangedLine(before, Look("new\na\nb\n\nc\n")), 1);
  EXPECT_EQ(FirstChangedLine(before, Look("a\nB\n\nc\n")), 2);
  EXPECT_EQ(FirstChangedLine(before, Look("a\n\nb\n\nc\n")), 2);
  EXPECT_EQ(FirstChangedLine(before, Look("b\na\n\nc\n")), 1);
  EXPECT_EQ(FirstChangedLine(before, Look("a\nb\nc\n")), 3);  // "line-4" is now line 3
  EXPECT_EQ(FirstChangedLine(before, Look("a\nb\n")), 3);
  EXPECT_EQ(FirstChangedLine(before, Look("")), 1);
}

TEST_F(InputRecordTest, IsReadAsItWasWritten) {
  const fs::path file = directory_.path() / "record";
  EXPECT_FALSE(ReadInputRecord(file).has_value());
  std::ofstream(file) << "";
  EXPECT_FALSE(ReadInputRecord(file).has_value());
  std::string many;
  for (int line = 0; line < 10000; ++line) many += "prompt " + std::to_string(line) + "\n";
  for (const std::string& text : {std::string(), std::string("a\n\nb"), many, many + kRequest}) {
    const InputRecord record = Look(text);
    WriteInputRecord(file, record);
    EXPECT_EQ(ReadInputRecord(file), record);
    EXPECT_LE(fs::file_size(file), record.lines.size() * 8 + 100);
  }
}

TEST_F(InputRecordTest, ForeignAndDamagedFilesAreRefused) {
  const std::string good = PackInputRecord(Look("a\n\nb\nc\n"));
  EXPECT_EQ(Refusal(good), ErrorKind::kInternal);
  for (const std::string& foreign : {std::string("precious"), std::string("{}"), good.substr(1)}) {
    EXPECT_EQ(Refusal(foreign), ErrorKind::kInvalidArgument) << foreign;
  }
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_NE(Refusal(good.substr(0, bytes)), ErrorKind::kInternal) << bytes;
  }
  for (size_t at = 0; at < good.size(); ++at) {
    std::string damaged = good;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    EXPECT_NE(Refusal(damaged), ErrorKind::kInternal) << at;
  }
  EXPECT_EQ(Refusal(good + "x"), ErrorKind::kCorrupt);
  EXPECT_EQ(Refusal("moesaic-batch-progress 1 jsonl 2305843009213693952 0\n"), ErrorKind::kCorrupt);
  EXPECT_EQ(Refusal("moesaic-batch-progress 2 x\n"), ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace moesaic
