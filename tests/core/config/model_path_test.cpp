#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/config/model_config.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

class ModelPathTest : public testing::Test {
 protected:
  static constexpr const char* kVariables[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME",
                                               "XDG_CACHE_HOME", "HOME"};
  void SetUp() override {
    for (const char* name : kVariables) {
      const char* value = getenv(name);
      saved_[name] = value == nullptr ? std::nullopt : std::optional<std::string>(value);
      unsetenv(name);
    }
    Set("HOME", dir_.path());
  }
  void TearDown() override {
    for (const auto& [name, value] : saved_) {
      if (value) {
        setenv(name.c_str(), value->c_str(), 1);
      } else {
        unsetenv(name.c_str());
      }
    }
  }
  static void Set(const char* name, const fs::path& value) { setenv(name, value.c_str(), 1); }

  // A cached model under `cache`; returns its snapshot.
  static fs::path MakeModel(const fs::path& cache, const std::string& folder,
                            bool with_ref = true) {
    const fs::path repository = cache / folder;
    fs::path snapshot = repository / "snapshots" / "0123abcd";
    fs::create_directories(snapshot);
    if (with_ref) {
      fs::create_directories(repository / "refs");
      std::ofstream(repository / "refs" / "main") << "0123abcd\n";
    }
    return snapshot;
  }
  static Error ResolveError(const std::string& model) {
    try {
      ResolveModelPath(model);
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorKind::kInternal, "");
  }

  TempDir dir_;
  std::map<std::string, std::optional<std::string>> saved_;
};

TEST_F(ModelPathTest, Directory) {
  EXPECT_EQ(ResolveModelPath(dir_.path().string()), dir_.path());
  EXPECT_EQ(ResolveModelPath("~/"), dir_.path() / "");
  EXPECT_EQ(ResolveModelPath("."), fs::path("."));
}

TEST_F(ModelPathTest, EachVariableOverridesTheNext) {
  const std::string folder = "models--Qwen--Qwen3-30B-A3B";
  const std::string id = "Qwen/Qwen3-30B-A3B";
  const fs::path root = dir_.path();
  const fs::path home = MakeModel(root / ".cache" / "huggingface" / "hub", folder);
  EXPECT_EQ(ResolveModelPath(id), home);
  const fs::path xdg = MakeModel(root / "xdg" / "huggingface" / "hub", folder);
  Set("XDG_CACHE_HOME", root / "xdg");
  EXPECT_EQ(ResolveModelPath(id), xdg);
  const fs::path hf_home = MakeModel(root / "hf" / "hub", folder);
  Set("HF_HOME", "~/hf");
  EXPECT_EQ(ResolveModelPath(id), hf_home);
  const fs::path old = MakeModel(root / "old", folder);
  Set("HUGGINGFACE_HUB_CACHE", root / "old");
  EXPECT_EQ(ResolveModelPath(id), old);
  const fs::path hub = MakeModel(root / "hub", folder);
  Set("HF_HUB_CACHE", root / "hub");
  EXPECT_EQ(ResolveModelPath(id), hub);
}

TEST_F(ModelPathTest, Snapshots) {
  const fs::path cache = dir_.path() / "c";
  Set("HF_HUB_CACHE", cache);
  const fs::path only = MakeModel(cache, "models--gpt2", false);
  EXPECT_EQ(ResolveModelPath("gpt2"), only);
  fs::create_directories(only.parent_path() / "ffff");
  EXPECT_EQ(ResolveError("gpt2").kind(), ErrorKind::kNotFound);
  EXPECT_NE(std::string(ResolveError("gpt2").what()).find("refs/main"), std::string::npos);
  MakeModel(cache, "models--gpt2", true);
  EXPECT_EQ(ResolveModelPath("gpt2"), only);
  std::ofstream(cache / "models--gpt2" / "refs" / "main") << "../../../etc";
  EXPECT_EQ(ResolveError("gpt2").kind(), ErrorKind::kCorrupt);
  std::ofstream(cache / "models--gpt2" / "refs" / "main") << "abcdef";  // not downloaded
  EXPECT_EQ(ResolveError("gpt2").kind(), ErrorKind::kNotFound);
}

TEST_F(ModelPathTest, SaysWhereItLooked) {
  Set("HF_HUB_CACHE", dir_.path() / "hub");
  const Error error = ResolveError("org/model");
  EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
  const std::string message = error.what();
  EXPECT_NE(message.find("org/model"), std::string::npos);
  EXPECT_NE(message.find((dir_.path() / "hub" / "models--org--model").string()), std::string::npos);
  EXPECT_NE(message.find((fs::current_path() / "org/model").string()), std::string::npos);
  for (const char* odd : {"", "/no/such/dir", "../x", "a/b/c", "org/..", "a b"}) {
    EXPECT_EQ(ResolveError(odd).kind(), ErrorKind::kNotFound) << odd;
  }
  std::ofstream(dir_.path() / "file") << "x";
  EXPECT_NE(
      std::string(ResolveError((dir_.path() / "file").string()).what()).find("not a directory"),
      std::string::npos);
}

}  // namespace
}  // namespace moesaic
