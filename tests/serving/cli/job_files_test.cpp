// A file that is written is none that is read, or written as another one, whatever its name.
#include "serving/cli/job_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/base/error.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

class JobFilesTest : public ::testing::Test {
 protected:
  JobFilesTest() {
    std::ofstream(in_) << "x";
    std::ofstream(here_ / "other") << "y";
    fs::create_symlink(in_, here_ / "symlink");
    fs::create_hard_link(in_, here_ / "hardlink");
    fs::create_directory_symlink(here_, here_ / "dir");
    fs::create_directory(here_ / "sub");
  }

  // Empty: the files are accepted.
  static std::string Refusal(const JobFiles& files) {
    try {
      files.Check();
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.what();
    }
  }

  const TempDir directory_;
  const fs::path here_ = directory_.path();
  const fs::path in_ = here_ / "in";
};

TEST_F(JobFilesTest, NoFileIsWrittenThatIsRead) {
  for (const char* name : {"in", "symlink", "hardlink", "dir/in", "./sub/../in"}) {
    JobFiles files;
    files.Reads("-i", in_);
    files.Writes("-o", here_ / name);
    const std::string refusal = Refusal(files);
    EXPECT_NE(refusal.find("while it is read"), std::string::npos) << name << ": " << refusal;
    EXPECT_NE(refusal.find("-i"), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("-o"), std::string::npos) << refusal;
  }
  JobFiles files;
  files.Reads("-i", in_);
  files.Reads("--again", here_ / "symlink");
  files.Writes("-o", here_ / "other");
  files.Writes("--errors", here_ / "new");
  files.Writes("--report", "");  // not given
  EXPECT_EQ(Refusal(files), "");
}

TEST_F(JobFilesTest, NoFileIsWrittenTwice) {
  for (const char* name : {"new", "dir/new", "./sub/../new"}) {
    JobFiles files;
    files.Writes("-o", here_ / "new");
    files.Writes("--errors", here_ / name);
    EXPECT_NE(Refusal(files).find("written twice"), std::string::npos) << name;
  }
}

TEST_F(JobFilesTest, TemporaryFilesCount) {
  fs::rename(in_, here_ / "out.tmp");
  fs::create_symlink(here_ / "out", here_ / "link");
  std::ofstream(here_ / "out") << "z";
  for (const char* name : {"out", "link"}) {
    JobFiles files;
    files.Reads("-i", here_ / "out.tmp");
    files.Replaces("-o", here_ / name);
    EXPECT_NE(Refusal(files).find("temporary"), std::string::npos) << name;
  }
}

TEST_F(JobFilesTest, DevicesMayHaveManyUsers) {
  JobFiles files;
  files.Writes("-o", "/dev/null");
  files.Writes("--errors", "/dev/null");
  EXPECT_EQ(Refusal(files), "");
}

TEST_F(JobFilesTest, FilesOfADirectory) {
  JobFiles files;
  files.ReadsAllIn("the model's file", here_, [](const std::string& name) { return name == "in"; });
  files.ReadsAllIn("nothing", here_ / "nowhere", [](const std::string&) { return true; });
  files.Writes("--report", here_ / "other");
  EXPECT_EQ(Refusal(files), "");
  files.Writes("-o", here_ / "hardlink");
  EXPECT_NE(Refusal(files).find("the model's file"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
