#include "core/config/model_path.h"

#include <algorithm>
#include <cstdlib>
#include <system_error>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/config/model_config.h"
#include "core/io/gguf.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

fs::path ExpandHome(const std::string& path) {
  if (path != "~" && !path.starts_with("~/")) return path;
  const char* home = std::getenv("HOME");
  return home == nullptr ? fs::path(path) : fs::path(home + path.substr(1));
}

bool IsName(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !text.empty() && text.front() != '.' && std::all_of(text.begin(), text.end(), allowed);
}

bool IsDirectory(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// The snapshot that refs/main names; without refs/main, the only one there is. Empty: none.
fs::path FindSnapshot(const fs::path& repository) {
  const fs::path reference = repository / "refs" / "main";
  std::error_code ignored;
  if (fs::exists(reference, ignored)) {
    constexpr uint64_t kMostBytes = 4096;
    std::string revision = ReadTextFile(reference, kMostBytes);
    while (!revision.empty() && (revision.back() == '\n' || revision.back() == ' ')) {
      revision.pop_back();
    }
    if (!IsName(revision)) {
      Fail(ErrorKind::kCorrupt, "{}: expected the name of a snapshot, a commit hash",
           reference.string());
    }
    const fs::path snapshot = repository / "snapshots" / revision;
    return IsDirectory(snapshot) ? snapshot : fs::path();
  }
  fs::path only;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(repository / "snapshots", ignored)) {
    if (!entry.is_directory(ignored)) continue;
    if (!only.empty()) {
      Fail(ErrorKind::kNotFound,
           "{}: has several snapshots and no refs/main that chooses one; give the directory of a "
           "snapshot",
           repository.string());
    }
    only = entry.path();
  }
  return only;
}

}  // namespace

// Each variable overrides the next (huggingface_hub/constants.py).
fs::path HubCacheDirectory() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const char* value = std::getenv(name); value != nullptr && *value != 0) {
      return ExpandHome(value);
    }
  }
  if (const char* value = std::getenv("HF_HOME"); value != nullptr && *value != 0) {
    return ExpandHome(value) / "hub";
  }
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const fs::path cache = ExpandHome(xdg != nullptr && *xdg != 0 ? xdg : "~/.cache");
  return cache / "huggingface" / "hub";
}

bool IsHubId(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return IsName(text);
  return IsName(text.substr(0, slash)) && IsName(text.substr(slash + 1));
}

fs::path ResolveModelPath(std::string_view model) {
  fs::path path = ExpandHome(std::string(model));
  if (IsDirectory(path)) return path;
  std::error_code ignored;
  if (fs::exists(path, ignored)) {
    if (IsGgufModel(path)) return path;
    Fail(ErrorKind::kNotFound,
         "{}: is not a directory and no .gguf file; give the directory that holds config.json",
         path.string());
  }
  if (!IsHubId(model)) {
    Fail(ErrorKind::kNotFound,
         "{:.300}: no such directory or file, and not a Hugging Face id (\"organisation/name\") "
         "either; "
         "looked "
         "at {:.300}",
         model, fs::absolute(path, ignored).string());
  }
  std::string folder = "models--" + std::string(model);
  if (const size_t slash = folder.find('/'); slash != std::string::npos) {
    folder.replace(slash, 1, "--");
  }
  const fs::path repository = HubCacheDirectory() / folder;
  fs::path snapshot = FindSnapshot(repository);
  if (!snapshot.empty()) return snapshot;
  Fail(ErrorKind::kNotFound,
       "{}: no such model here; looked at {} and {}. Download it (moesaic pull {}), or "
       "give "
       "the directory that holds config.json; HF_HUB_CACHE or HF_HOME say where the cache is",
       model, fs::absolute(path, ignored).string(), repository.string(), model);
}

}  // namespace moesaic
