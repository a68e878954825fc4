#include "serving/jobs/batch_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>

#include "core/base/atomic_file.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/logging.h"
#include "serving/api/api_error.h"
#include "serving/api/batch_line.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

bool HasContent(const fs::path& file) {
  std::error_code error;
  return fs::is_regular_file(file, error) && fs::file_size(file, error) > 0;
}

// Whether a last line without its end is what is left of one that a batch job was writing. `ours`:
// it is known from elsewhere that a job has begun this file.
bool IsTornLine(std::string_view tail, bool ours) {
  if (tail.starts_with(kBatchLineStart)) return true;
  // Zeros: the file was made longer, and the power was cut before the bytes were there.
  return ours && (kBatchLineStart.starts_with(tail) ||
                  std::all_of(tail.begin(), tail.end(), [](char c) { return c == '\0'; }));
}

// Holds the lock that LineFile takes, so that no other process has the file.
class Lock {
 public:
  explicit Lock(const fs::path& file) : fd_(open(file.c_str(), O_RDWR | O_CLOEXEC)) {
    if (fd_ < 0) {
      Fail(ErrorKind::kIo, "{}: cannot be opened for writing: {}", file.string(),
           ErrnoMessage(errno));
    }
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      close(fd_);
      Fail(ErrorKind::kUnavailable, "{}: another process is writing it", file.string());
    }
  }
  ~Lock() { close(fd_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int fd_;
};

std::unique_ptr<LineFile> Open(const fs::path& file, LineFile::Start start) {
  auto opened = std::make_unique<LineFile>(file, start);
  if (!opened->InPlace()) {
    Fail(ErrorKind::kUnavailable, "{}: another process has just replaced it; try again",
         file.string());
  }
  return opened;
}

// An empty file in the place of what is there, which other links to it keep.
std::unique_ptr<LineFile> Replace(const fs::path& file) {
  if (!HasContent(file)) return Open(file, LineFile::Start::kEmpty);
  const Lock lock(file);
  const fs::path target = fs::canonical(file);
  const fs::perms permissions = fs::status(target).permissions();
  WriteFileAtomically(target, {});
  fs::permissions(target, permissions);
  return Open(file, LineFile::Start::kNew);
}

// What is there, unless it is to be thrown away anyway and is damaged.
std::optional<InputRecord> ReadRecord(const BatchPaths& paths) {
  if (paths.record().empty()) return std::nullopt;
  try {
    return ReadInputRecord(paths.record());
  } catch (const Error& error) {
    if (paths.resume || error.kind() == ErrorKind::kInvalidArgument) throw;
    return std::nullopt;
  }
}

}  // namespace

fs::path BatchPaths::record() const {
  std::error_code error;
  const fs::file_status status = fs::status(output, error);
  const std::string name = output.string();
  if ((fs::exists(status) && !fs::is_regular_file(status)) || name.starts_with("/dev/") ||
      name.starts_with("/proc/")) {
    return {};
  }
  return name + ".progress";
}

BatchFiles::BatchFiles(const BatchPaths& paths, BatchInputForm form) : paths_(paths) {
  const std::optional<InputRecord> before = ReadRecord(paths_);
  if (paths_.resume) ReadAnswers(before.has_value());
  const bool goes_on = before && !answered_.empty();
  if (goes_on && form != BatchInputForm::kAuto && form != before->form) {
    Fail(ErrorKind::kInvalidArgument,
         "--input-format: {} was begun with the other form of lines; leave the flag out",
         paths_.output.string());
  }
  input_ = LookAtInput(paths_.input, goes_on ? before->form : form);
  if (!answered_.empty()) CheckInput(before);
  CheckErrors();

  output_ = paths_.overwrite ? Replace(paths_.output)
                             : Open(paths_.output,
                                    paths_.resume ? LineFile::Start::kGoOn : LineFile::Start::kNew);
  if (paths_.resume && fs::file_size(paths_.output) != answers_bytes_) {
    Fail(ErrorKind::kUnavailable, "{}: another process has just written to it; try again",
         paths_.output.string());
  }
  if (output_->cut_bytes() > 0) {
    LogInfo("{}: cut off an unfinished line of {} bytes", paths_.output.string(),
            output_->cut_bytes());
  }
  errors_ = Replace(paths_.errors);
  // Before the first answer: a record that is older than the answers would be of another input.
  const fs::path record = paths_.record();
  if (!record.empty() && !(goes_on && *before == input_)) WriteInputRecord(record, input_);
}

void BatchFiles::ReadAnswers(bool begun) {
  std::error_code error;
  if (!fs::exists(paths_.output, error)) return;
  LineReader reader(paths_.output);
  std::string line;
  while (reader.Next(&line)) {
    if (!reader.whole()) {
      if (IsTornLine(line, begun || !answered_.empty())) return;
      Fail(ErrorKind::kCorrupt,
           "{}:{}: the last line has no end, and is none that a batch job has written; the file "
           "stays as it is: give another -o, or remove the line",
           paths_.output.string(), reader.line_number());
    }
    try {
      answered_.insert(CustomIdOfOutput(line));
    } catch (const ApiError& refused) {
      Fail(ErrorKind::kCorrupt,
           "{}:{}: this is no line that a batch job has written ({}); give another -o, or remove "
           "the line",
           paths_.output.string(), reader.line_number(), refused.what());
    }
    answers_bytes_ = reader.end_offset();
  }
}

void BatchFiles::CheckInput(const std::optional<InputRecord>& before) {
  const std::string input = paths_.input.string();
  const std::string output = paths_.output.string();
  if (!before) {
    if (!paths_.record().empty()) {
      LogWarn(
          "{}: there is none (an older version wrote the answers?), so it cannot be told "
          "whether {} is what they are to; it is taken to be",
          paths_.record().string(), input);
    }
    return;
  }
  const int64_t line = FirstChangedLine(*before, input_);
  if (line == 0) return;
  const bool gone = line > std::ssize(input_.lines);
  Fail(ErrorKind::kInvalidArgument,
       "{}:{}: the line {} since {} was begun, and the answers there may belong to other lines "
       "now; put the lines back as they were (new ones may follow behind them), or begin anew with "
       "another -o",
       input, line, gone ? "has been removed" : "has changed", output);
}

// What is in it is the last run's, and thrown away by one that goes on with the job.
void BatchFiles::CheckErrors() const {
  if (!HasContent(paths_.errors) || paths_.overwrite) return;
  const std::string name = paths_.errors.string();
  if (!paths_.resume) {
    Fail(ErrorKind::kInvalidArgument,
         "--errors {}: there is something in it already; name another file, or throw it away with "
         "--overwrite",
         name);
  }
  LineReader reader(paths_.errors);
  std::string line;
  while (reader.Next(&line)) {
    if (reader.whole() ? IsBatchErrorLine(line) : IsTornLine(line, reader.line_number() > 1)) {
      continue;
    }
    Fail(ErrorKind::kInvalidArgument,
         "--errors {}: line {} is none that a batch job has written; the file stays as it is: name "
         "another one",
         name, reader.line_number());
  }
}

}  // namespace moesaic
