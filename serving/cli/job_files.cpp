#include "serving/cli/job_files.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <optional>
#include <system_error>
#include <utility>

#include "core/base/error.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

// The same for two names of one file. Null: it may have many users.
std::optional<std::string> IdentityOf(const fs::path& file) {
  struct stat status;
  if (stat(file.c_str(), &status) == 0) {
    if (!S_ISREG(status.st_mode)) return std::nullopt;
    return fmt::format("{}:{}", status.st_dev, status.st_ino);
  }
  const fs::path directory = file.has_parent_path() ? file.parent_path() : fs::path(".");
  const std::string name = file.filename().string();
  if (stat(directory.c_str(), &status) == 0) {
    return fmt::format("{}:{}/{}", status.st_dev, status.st_ino, name);
  }
  return fs::absolute(file).lexically_normal().string();
}

}  // namespace

void JobFiles::Add(Use use) {
  if (use.file.empty()) return;
  if (auto identity = IdentityOf(use.file)) uses_[*identity].push_back(std::move(use));
}

void JobFiles::Reads(const std::string& what, const fs::path& file) { Add({what, file, false}); }

void JobFiles::Writes(const std::string& what, const fs::path& file) { Add({what, file, true}); }

void JobFiles::Replaces(const std::string& what, const fs::path& file) {
  if (file.empty()) return;
  Writes(what, file);
  // Of a link, what it leads to is replaced.
  std::error_code error;
  const fs::path target = fs::weakly_canonical(file, error);
  Writes(what + "'s temporary file", (error ? file : target).string() + ".tmp");
}

void JobFiles::ReadsAllIn(const std::string& what, const fs::path& directory,
                          const std::function<bool(const std::string& name)>& of_them) {
  std::error_code error;  // what cannot be listed is told by whoever opens it
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (of_them(entry->path().filename().string())) Reads(what, entry->path());
  }
}

void JobFiles::Check() const {
  for (const auto& [identity, uses] : uses_) {
    for (const Use& writer : uses) {
      if (!writer.writes) continue;
      for (const Use& other : uses) {
        if (&other == &writer) continue;
        Fail(ErrorKind::kInvalidArgument,
             "{} {} and {} {} are the same file, which would be {}: name another one", writer.what,
             writer.file.string(), other.what, other.file.string(),
             other.writes ? "written twice" : "written while it is read");
      }
    }
  }
}

}  // namespace moesaic
