// pull: downloads a model by Hugging Face's own program, `hf`, after a look at what that would
// take.

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/units.h"
#include "core/config/model_path.h"
#include "serving/cli/commands.h"
#include "serving/cli/output.h"

extern char** environ;

namespace moesaic {
namespace {

namespace fs = std::filesystem;

// What `hf download --dry-run` says in its first line.
struct Download {
  int64_t files = 0;
  std::optional<double> most_bytes;  // it rounds to a tenth of a unit; empty: it does not know
};

// "[dry-run] Will download 17 files (out of 17) totalling 61.1G." somewhere in the text; units of
// 1000, as huggingface_hub writes them. Empty: no such line.
std::optional<Download> ReadDryRun(std::string_view text) {
  constexpr std::string_view kBegin = "Will download ";
  constexpr std::string_view kTotal = " totalling ";
  const size_t begin = text.find(kBegin);
  if (begin == std::string_view::npos) return std::nullopt;
  text.remove_prefix(begin + kBegin.size());
  text = text.substr(0, text.find('\n'));
  Download download;
  const auto files = std::from_chars(text.data(), text.data() + text.size(), download.files);
  const size_t total = text.find(kTotal);
  if (files.ec != std::errc() || total == std::string_view::npos) return std::nullopt;
  text.remove_prefix(total + kTotal.size());
  double value = 0;
  const auto number = std::from_chars(text.data(), text.data() + text.size(), value);
  if (number.ec != std::errc() || !(value >= 0)) return download;
  text.remove_prefix(static_cast<size_t>(number.ptr - text.data()));
  double unit = 1;
  constexpr std::string_view kUnits = "KMGTP";
  const size_t index = text.empty() ? std::string_view::npos : kUnits.find(text.front());
  for (size_t i = 0; index != std::string_view::npos && i <= index; ++i) unit *= 1000;
  download.most_bytes = (value + (unit > 1 ? 0.05 : 0)) * unit;
  return download;
}

// The program in the PATH; empty: there is none.
fs::path FindProgram(const std::string& name, const std::vector<std::string>& environment) {
  constexpr std::string_view kPath = "PATH=";
  for (const std::string& variable : environment) {
    if (!variable.starts_with(kPath)) continue;
    const std::string_view path = std::string_view(variable).substr(kPath.size());
    for (size_t at = 0; at <= path.size();) {
      const size_t end = std::min(path.find(':', at), path.size());
      const fs::path file = fs::path(end == at ? "." : path.substr(at, end - at)) / name;
      std::error_code ignored;
      if (fs::is_regular_file(file, ignored) && access(file.c_str(), X_OK) == 0) return file;
      at = end + 1;
    }
  }
  return {};
}

std::vector<char*> Arguments(std::vector<std::string>& words) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  return arguments;
}

struct Finished {
  int exit_code = 0;
  std::string output;  // standard output and error, at most kMostOutputBytes of the end
};
constexpr size_t kMostOutputBytes = size_t{1} << 20;

// Runs a program to its end.
Finished RunToEnd(const fs::path& program, std::vector<std::string> words) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    Fail(ErrorKind::kIo, "{}: no pipe: {}", program.string(), ErrnoMessage(errno));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  pid_t child = 0;
  const int error =
      posix_spawn(&child, program.c_str(), &actions, nullptr, Arguments(words).data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  Finished finished;
  std::array<char, 4096> buffer{};
  while (error == 0) {
    const ssize_t got = read(ends[0], buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    finished.output.append(buffer.data(), static_cast<size_t>(got));
    if (finished.output.size() > 2 * kMostOutputBytes) {
      finished.output.erase(0, finished.output.size() - kMostOutputBytes);
    }
  }
  close(ends[0]);
  if (error != 0) {
    Fail(ErrorKind::kIo, "{}: cannot be run: {}", program.string(), ErrnoMessage(error));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  finished.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return finished;
}

// The last lines of what a program said, for a message.
std::string LastLines(std::string_view text) {
  constexpr size_t kMostLines = 8;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  size_t begin = text.size();
  for (size_t lines = 0; begin > 0 && lines < kMostLines; ++lines) {
    begin = text.rfind('\n', begin - 1);
    if (begin == std::string_view::npos) return std::string(text);
  }
  return std::string(text.substr(begin == 0 ? 0 : begin + 1));
}

// The directory itself, or the nearest above it that is there (or is in its place).
fs::path NearestExisting(fs::path directory) {
  std::error_code ignored;
  directory = fs::absolute(directory, ignored);
  while (!fs::exists(directory, ignored) && directory.has_relative_path()) {
    directory = directory.parent_path();
  }
  return directory;
}

}  // namespace

int PullCommand(const Invocation& invocation) {
  CommandLine line(
      {"pull",
       "ID",
       "Download a model from the Hugging Face Hub into the local cache, where every command finds "
       "it by its id. Hugging Face's own program, hf, does it, after it was asked what it would "
       "download: a model that the token has no right to, or that the disk has no room for, is "
       "refused before anything is written. HF_HOME, HF_HUB_CACHE, HF_ENDPOINT and HF_TOKEN mean "
       "what they mean to hf.",
       {"moesaic pull Qwen/Qwen3-30B-A3B",
        "moesaic pull unsloth/Qwen3-30B-A3B-GGUF --include '*Q4_K_M*'"}});
  std::string revision;
  std::vector<std::string> include;
  std::vector<std::string> exclude;
  bool dry_run = false;
  line.table().Add({"revision", &revision, "NAME", "A branch, a tag or a commit.", "Download"});
  line.table().Add(
      {"include", &include, "PATTERN", "Only files like this; may be repeated.", "Download"});
  line.table().Add(
      {"exclude", &exclude, "PATTERN", "No files like this; may be repeated.", "Download"});
  line.table().Add({"dry-run", &dry_run, "", "Only say what would be downloaded.", "Download"});
  if (!line.Parse(invocation)) return 0;
  line.RequireAtMost(1);
  if (line.positionals().empty() || !IsHubId(line.positionals().front())) {
    Fail(ErrorKind::kInvalidArgument, "expected the id of a model, as in: moesaic pull {}",
         "Qwen/Qwen3-30B-A3B");
  }
  const std::string& id = line.positionals().front();
  std::vector<std::string> words = {"hf", "download", id};
  if (!revision.empty()) words.insert(words.end(), {"--revision", revision});
  for (const std::string& pattern : include) words.insert(words.end(), {"--include", pattern});
  for (const std::string& pattern : exclude) words.insert(words.end(), {"--exclude", pattern});
  const std::string command = fmt::format("{}", fmt::join(words, " "));

  const fs::path program = FindProgram("hf", invocation.environment);
  if (program.empty()) {
    Fail(ErrorKind::kNotFound,
         "hf, which downloads models, is not in the PATH. Install it (pip install "
         "huggingface_hub) and try again, or run where it is: {}",
         command);
  }
  const fs::path cache = HubCacheDirectory();
  const fs::path existing = NearestExisting(cache);
  std::error_code error;
  errno = ENOTDIR;
  if (!fs::is_directory(existing, error) || access(existing.c_str(), W_OK | X_OK) != 0) {
    Fail(ErrorKind::kIo,
         "{}: cannot be written ({}); HF_HOME or HF_HUB_CACHE say where models are kept",
         existing.string(), ErrnoMessage(errno));
  }

  std::vector<std::string> question = words;
  question.emplace_back("--dry-run");
  const Finished asked = RunToEnd(program, question);
  if (asked.exit_code != 0) {
    Fail(ErrorKind::kIo,
         "{}: nothing was downloaded; `{} --dry-run` ended with {} and said:\n{}\n(An hf without "
         "--dry-run is too old: pip install -U huggingface_hub. A model that asks for consent "
         "wants a token: hf auth login.)",
         id, command, asked.exit_code, LastLines(asked.output));
  }
  const std::optional<Download> download = ReadDryRun(asked.output);
  if (!download || !download->most_bytes) {
    Fail(ErrorKind::kUnsupported,
         "{}: nothing was downloaded, because hf does not say how much it is; to do it all the "
         "same: {}\nhf said: {}",
         id, command, LastLines(asked.output));
  }
  if (download->files == 0) {
    Print("{}: everything is here, in {}\n", id, cache.string());
    return 0;
  }
  const fs::space_info space = fs::space(existing, error);
  if (error) {
    Fail(ErrorKind::kIo, "{}: how much room there is cannot be told: {}", existing.string(),
         error.message());
  }
  // Some room is left for what else writes there.
  constexpr double kReserveBytes = 256.0 * (1 << 20);
  const auto bytes = static_cast<uint64_t>(*download->most_bytes);
  if (*download->most_bytes + kReserveBytes > static_cast<double>(space.available)) {
    Fail(ErrorKind::kResourceExhausted,
         "{}: {} to download and {} free in {}: nothing was downloaded. HF_HOME or HF_HUB_CACHE "
         "put models on another disk",
         id, FormatBytes(bytes), FormatBytes(space.available), existing.string());
  }
  Print("{}: {} file{}, {} to download into {} ({} free)\n", id, download->files,
        download->files == 1 ? "" : "s", FormatBytes(bytes), cache.string(),
        FormatBytes(space.available));
  if (dry_run) return 0;
  std::fflush(nullptr);
  execv(program.c_str(), Arguments(words).data());
  Fail(ErrorKind::kIo, "{}: cannot be run: {}", program.string(), ErrnoMessage(errno));
}

}  // namespace moesaic
