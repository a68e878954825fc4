// The files of a batch job: only what is the job's is changed, and a job that goes on does so on
// the input that its answers are of.
#include "serving/jobs/batch_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/logging.h"
#include "serving/api/api_error.h"
#include "serving/api/batch_line.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxBytes = 1 << 20;

std::string Answer(const std::string& id) { return BatchOutputLine(id, "req-1", "{}") + "\n"; }

std::string Refused(int64_t line) {
  return BatchErrorLine(line, "", ApiError(400, "invalid_request_error", "bad")) + "\n";
}

class BatchFilesTest : public ::testing::Test {
 protected:
  BatchFilesTest() { Write(paths_.input, "one\ntwo\nthree\n"); }

  static void Write(const fs::path& file, const std::string& text) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << text;
  }
  static std::string Read(const fs::path& file) { return ReadTextFile(file, kMaxBytes); }

  std::unique_ptr<BatchFiles> Open(BatchInputForm form = BatchInputForm::kAuto) const {
    return std::make_unique<BatchFiles>(paths_, form);
  }
  std::unique_ptr<BatchFiles> Resume(BatchInputForm form = BatchInputForm::kAuto) {
    paths_.resume = true;
    return Open(form);
  }
  // What Open throws; fails when it throws nothing. No file may change.
  std::string Refusal(BatchInputForm form = BatchInputForm::kAuto) const {
    const std::string before = Contents();
    std::string message;
    try {
      Open(form);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(ExitCode(error.kind()), 2) << error.what();
      message = error.what();
    }
    EXPECT_EQ(Contents(), before);
    return message;
  }
  std::string RefusalOfResume(BatchInputForm form = BatchInputForm::kAuto) {
    paths_.resume = true;
    return Refusal(form);
  }
  // A job that has answered the first two lines.
  void Begin() const {
    const auto files = Open();
    files->output().Append(BatchOutputLine("line-1", "req-1", "{}"));
    files->output().Append(BatchOutputLine("line-2", "req-1", "{}"));
  }
  std::string Contents() const {
    std::string all;
    for (const fs::path& file : {paths_.input, paths_.output, paths_.errors, paths_.record()}) {
      all += file.filename().string() + (fs::exists(file) ? ": " + Read(file) : " is not there");
    }
    return all;
  }

  const TempDir directory_;
  const fs::path here_ = directory_.path();
  BatchPaths paths_{here_ / "in", here_ / "out", here_ / "errors"};
};

TEST_F(BatchFilesTest, ANewJobWritesNothingAway) {
  EXPECT_EQ(Open()->input().requests(), 3);
  EXPECT_EQ(Read(paths_.output), "");
  EXPECT_EQ(Read(paths_.errors), "");
  EXPECT_EQ(ReadInputRecord(paths_.record()), LookAtInput(paths_.input, BatchInputForm::kAuto));
  Open();  // nothing was answered
  Write(paths_.errors, "precious");
  EXPECT_NE(Refusal().find("--errors"), std::string::npos);
  Write(paths_.errors, "");
  Write(paths_.output, "precious\n");
  EXPECT_NE(Refusal().find("--resume"), std::string::npos);
}

TEST_F(BatchFilesTest, AMissingInputChangesNothing) {
  Begin();
  Write(paths_.errors, Refused(1));
  fs::remove(paths_.input);
  const std::string before = Contents();
  for (const bool resume : {false, true}) {
    paths_.resume = resume;
    paths_.overwrite = !resume;
    EXPECT_THROW(Open(), Error);
    EXPECT_EQ(Contents(), before);
  }
}

// Who has another link to it keeps what it held.
TEST_F(BatchFilesTest, OverwritingPutsNewFilesInTheOldOnesPlace) {
  const std::string answer = Answer("a");
  Write(here_ / "real", answer);
  chmod((here_ / "real").c_str(), 0600);
  fs::create_symlink(here_ / "real", paths_.output);
  fs::create_hard_link(here_ / "real", here_ / "kept output");
  Write(paths_.errors, "anything");
  fs::create_hard_link(paths_.errors, here_ / "kept errors");
  paths_.overwrite = true;
  Open()->output().Append("new");
  EXPECT_TRUE(fs::is_symlink(paths_.output));
  EXPECT_EQ(Read(here_ / "real"), "new\n");
  EXPECT_EQ(fs::status(here_ / "real").permissions(), fs::perms(0600));
  EXPECT_EQ(Read(here_ / "kept output"), answer);
  EXPECT_EQ(Read(paths_.errors), "");
  EXPECT_EQ(Read(here_ / "kept errors"), "anything");
}

TEST_F(BatchFilesTest, AJobThatRunsKeepsItsFiles) {
  const auto first = Open();
  first->output().Append("a");
  first->errors().Append("b");
  paths_.overwrite = true;
  for (const bool other_output : {false, true}) {
    if (other_output) paths_.output = here_ / "other";  // but the same error file
    try {
      Open();
      FAIL() << "a second job was let in";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    }
  }
  EXPECT_EQ(Read(here_ / "out"), "a\n");
  EXPECT_EQ(Read(paths_.errors), "b\n");
}

TEST_F(BatchFilesTest, ATornLineOfOursIsCutOff) {
  const std::string line = Answer("line-3");
  const std::string whole = Answer("line-1") + Answer("line-2");
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{10}, size_t{40}, line.size() - 1}) {
    for (const std::string& rest : {std::string(), std::string(5, '\0')}) {
      for (const std::string& before : {whole, std::string()}) {
        fs::remove(paths_.output);
        fs::remove(paths_.record());
        paths_.resume = false;
        Open();
        Write(paths_.output, before + line.substr(0, bytes) + rest);
        if (bytes > 0 && bytes < 40 && !rest.empty()) {
          // Zeros behind less than a line's start are nobody's.
          EXPECT_NE(RefusalOfResume().find("out"), std::string::npos);
          continue;
        }
        const auto files = Resume();
        EXPECT_EQ(files->Answered("line-2"), !before.empty());
        EXPECT_FALSE(files->Answered("line-3"));
        EXPECT_EQ(Read(paths_.output), before);
      }
    }
  }
}

TEST_F(BatchFilesTest, AForeignOutputIsLeftAlone) {
  const std::string tail = "my notes, which have no end";
  for (const std::string& content :
       {tail, std::string("{"), std::string(R"({"id": 5})"), std::string(8, '\0'), "notes\n" + tail,
        Answer("line-1") + tail, Answer("line-1") + "{}", "notes\n" + Answer("line-1"),
        "notes\n" + Answer("line-1").substr(0, 50), Answer("line-1") + "\n" + tail}) {
    fs::remove(paths_.record());
    Write(paths_.output, content);
    EXPECT_NE(RefusalOfResume().find(paths_.output.string()), std::string::npos);
  }
}

TEST_F(BatchFilesTest, AForeignErrorFileIsLeftAlone) {
  Begin();
  for (const std::string& content : {std::string("precious"), Refused(1) + "precious",
                                     Refused(1) + "{}\n", Answer("line-1"), std::string("{}\n")}) {
    Write(paths_.errors, content);
    EXPECT_NE(RefusalOfResume().find("--errors"), std::string::npos) << content;
  }
  for (const std::string& content :
       {Refused(1), Refused(1) + Refused(7), Refused(1) + Refused(7).substr(0, 30)}) {
    Write(paths_.errors, content);
    Resume();
    EXPECT_EQ(Read(paths_.errors), "");
  }
}

TEST_F(BatchFilesTest, AForeignFileInTheRecordsPlaceIsLeftAlone) {
  Write(paths_.record(), "precious");
  for (const bool resume : {false, true}) {
    paths_.resume = resume;
    paths_.overwrite = !resume;
    EXPECT_NE(Refusal().find(".progress"), std::string::npos);
  }
}

TEST_F(BatchFilesTest, GoesOnWithTheSameInputAndALongerOne) {
  Begin();
  EXPECT_TRUE(Resume()->Answered("line-2"));
  Write(paths_.input, "one\ntwo\nthree\nfour\n");
  EXPECT_EQ(Resume()->input().requests(), 4);
  // What was appended is part of it from then on.
  Write(paths_.input, "one\ntwo\nthree\nfive\n");
  EXPECT_NE(RefusalOfResume().find("in:4:"), std::string::npos);
}

TEST_F(BatchFilesTest, AChangedInputIsRefused) {
  Begin();
  for (const auto& [text, number] : {std::pair{"new\none\ntwo\nthree\n", 1},
                                     {"one\n\ntwo\nthree\n", 2},
                                     {"one\ntwo\nTHREE\n", 3},
                                     {"one\ntwo\n", 3},
                                     {"", 1}}) {
    Write(paths_.input, text);
    const std::string message = RefusalOfResume();
    EXPECT_NE(message.find("in:" + std::to_string(number) + ":"), std::string::npos) << message;
    EXPECT_NE(message.find("out"), std::string::npos) << message;
  }
  // One that is begun anew has the new input.
  paths_.resume = false;
  paths_.overwrite = true;
  Open();
  EXPECT_EQ(ReadInputRecord(paths_.record())->lines.size(), 0u);
}

TEST_F(BatchFilesTest, WhatHasNoAnswersHasNoInputYet) {
  Open();
  Write(paths_.input, "others\n");
  EXPECT_EQ(Resume()->input().requests(), 1);
  EXPECT_EQ(ReadInputRecord(paths_.record())->requests(), 1);
}

TEST_F(BatchFilesTest, TheFormStaysWhatItWas) {
  Begin();
  EXPECT_NE(RefusalOfResume(BatchInputForm::kJsonl).find("--input-format"), std::string::npos);
  // Of an input that would look otherwise by now.
  Write(paths_.input, "one\ntwo\nthree\n{\"prompt\":\"x\"}\n");
  EXPECT_EQ(Resume()->input().form, BatchInputForm::kText);
}

TEST_F(BatchFilesTest, AnOutputOfAnOlderVersionWarnsOnce) {
  Begin();
  fs::remove(paths_.record());
  const auto resume = [&] {
    ::testing::internal::CaptureStderr();
    InitLogging({.level = LogLevel::kWarning});
    Resume();
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_NE(resume().find(".progress"), std::string::npos);
  EXPECT_EQ(resume(), "");
  Write(paths_.input, "ONE\ntwo\nthree\n");
  RefusalOfResume();
}

TEST_F(BatchFilesTest, ADamagedRecordIsTold) {
  Begin();
  std::string damaged = Read(paths_.record());
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  Write(paths_.record(), damaged);
  EXPECT_NE(RefusalOfResume().find(".progress: it is damaged"), std::string::npos);
  paths_.resume = false;
  paths_.overwrite = true;
  Open();
  EXPECT_TRUE(ReadInputRecord(paths_.record()).has_value());
}

TEST_F(BatchFilesTest, WhatIsNoFileHasNoRecord) {
  paths_.output = "/dev/full";
  EXPECT_EQ(paths_.record(), "");
  Open();
  EXPECT_FALSE(fs::exists("/dev/full.progress"));
}

}  // namespace
}  // namespace moesaic
