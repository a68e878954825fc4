#include "serving/jobs/batch_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <span>
#include <system_error>
#include <utility>

#include "core/base/atomic_file.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/logging.h"
#include "core/base/units.h"
#include "serving/api/api_error.h"
#include "serving/api/json_text.h"
#include "serving/api/random_id.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxJsonBytes = uint64_t{1} << 20;
constexpr int64_t kDayS = 86400;

ApiError NotFound(const char* what, const std::string& id) {
  return ApiError(404, "invalid_request_error", fmt::format("No such {}: {}", what, Excerpt(id)),
                  {}, "not_found");
}
ApiError Conflict(std::string message) {
  return ApiError(409, "invalid_request_error", std::move(message), {}, "conflict");
}

void MakeDirectory(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) {
    Fail(ErrorKind::kIo, "--batch-dir: {}: cannot be made: {}", directory.string(),
         error.message());
  }
}

// What `record` reads of the JSON files of a directory.
template <typename Record>
void ReadRecords(const fs::path& directory, Record (*parse)(std::string_view, std::string_view),
                 std::map<std::string, Record>& records) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() != ".json") continue;
    try {
      Record record = parse(ReadTextFile(entry.path(), kMaxJsonBytes), entry.path().string());
      if (entry.path().stem() != record.id) {
        Fail(ErrorKind::kCorrupt, "{}: is of {}", entry.path().string(), record.id);
      }
      records.emplace(record.id, std::move(record));
    } catch (const Error& failure) {
      LogWarn("--batch-dir: left out: {}", failure.what());
    }
  }
  if (error) {
    Fail(ErrorKind::kIo, "--batch-dir: {}: cannot be listed: {}", directory.string(),
         error.message());
  }
}

template <typename Record>
std::vector<Record> NewestFirst(const std::map<std::string, Record>& records,
                                const std::string& owner) {
  std::vector<Record> found;
  for (const auto& [id, record] : records) {
    if (record.owner == owner) found.push_back(record);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Record& a, const Record& b) { return a.created_s > b.created_s; });
  return found;
}

uint64_t SizeOf(const fs::path& file) {
  std::error_code error;
  const auto bytes = fs::file_size(file, error);
  return error ? 0 : bytes;
}

}  // namespace

BatchStore::BatchStore(BatchStoreOptions options) : options_(std::move(options)) {
  MakeDirectory(options_.directory / "files");
  MakeDirectory(options_.directory / "batches");
  const fs::path lock = options_.directory / "lock";
  lock_ = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0) {
    Fail(ErrorKind::kIo, "--batch-dir: {}: cannot be opened: {}", lock.string(),
         ErrnoMessage(errno));
  }
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    close(lock_);
    Fail(ErrorKind::kUnavailable, "--batch-dir: {}: another process has it; give another directory",
         options_.directory.string());
  }
  try {
    Read();
    RemoveUnfinished();
    RemoveOld();
  } catch (...) {
    close(lock_);
    throw;
  }
}

BatchStore::~BatchStore() { close(lock_); }

int64_t BatchStore::Now() const { return options_.now_s ? options_.now_s() : std::time(nullptr); }

fs::path BatchStore::FileRecord(const std::string& id) const {
  return options_.directory / "files" / (id + ".json");
}
fs::path BatchStore::ContentOf(const std::string& file_id) const {
  return options_.directory / "files" / (file_id + ".jsonl");
}
fs::path BatchStore::BatchRecord(const std::string& id) const {
  return options_.directory / "batches" / (id + ".json");
}
fs::path BatchStore::OutputOf(const std::string& batch_id) const {
  return options_.directory / "batches" / (batch_id + ".output.jsonl");
}
fs::path BatchStore::ErrorsOf(const std::string& batch_id) const {
  return options_.directory / "batches" / (batch_id + ".errors.jsonl");
}

void BatchStore::Read() {
  const MutexLock lock(mutex_);
  ReadRecords(options_.directory / "files", ParseStoredFile, files_);
  ReadRecords(options_.directory / "batches", ParseStoredBatch, batches_);
  for (const auto& [id, file] : files_) bytes_ += file.bytes;
}

// Contents that nothing was written about: a process was killed while it received or made them.
void BatchStore::RemoveUnfinished() {
  const MutexLock lock(mutex_);
  std::error_code error;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(options_.directory / "files", error)) {
    const fs::path& path = entry.path();
    const std::string id = path.stem();
    if (path.extension() != ".jsonl" || !IsStoredId(id, "file-") || files_.contains(id)) continue;
    const bool awaited = std::any_of(batches_.begin(), batches_.end(), [&](const auto& batch) {
      return !HasEnded(batch.second.status) &&
             (batch.second.output_file_id == id || batch.second.error_file_id == id);
    });
    std::error_code ignored;
    if (!awaited && !fs::exists(FileRecord(id), ignored)) fs::remove(path, ignored);
  }
}

void BatchStore::AddRecord(const StoredFile& file) {
  SaveTextFile(FileRecord(file.id), PackStoredFile(file));
  const MutexLock lock(mutex_);
  files_.insert_or_assign(file.id, file);
}

StoredFile BatchStore::AddFile(std::string name, std::string purpose, std::string_view content,
                               const std::string& owner) {
  {
    const MutexLock lock(mutex_);
    if (content.size() > options_.max_bytes - std::min(bytes_, options_.max_bytes)) {
      throw ApiError(507, "insufficient_storage",
                     fmt::format("The file has {} and {} of {} are taken; delete files that are "
                                 "not needed any more.",
                                 FormatBytes(content.size()), FormatBytes(bytes_),
                                 FormatBytes(options_.max_bytes)),
                     {}, "batch_dir_full");
    }
    bytes_ += content.size();
  }
  StoredFile file;
  file.id = MakeRandomId("file-");
  file.name = std::move(name);
  file.purpose = std::move(purpose);
  file.bytes = content.size();
  file.created_s = Now();
  file.owner = owner;
  try {
    WriteFileAtomically(ContentOf(file.id), std::as_bytes(std::span(content)));
    AddRecord(file);
  } catch (...) {
    std::error_code ignored;
    fs::remove(ContentOf(file.id), ignored);
    const MutexLock lock(mutex_);
    bytes_ -= file.bytes;
    throw;
  }
  return file;
}

const StoredFile& BatchStore::Find(const std::string& id, const std::string& owner) const {
  const auto found = files_.find(id);
  if (found == files_.end() || found->second.owner != owner) throw NotFound("file", id);
  return found->second;
}

const StoredBatch& BatchStore::FindBatch(const std::string& id, const std::string& owner) const {
  const auto found = batches_.find(id);
  if (found == batches_.end() || found->second.owner != owner) throw NotFound("batch", id);
  return found->second;
}

StoredFile BatchStore::GetFile(const std::string& id, const std::string& owner) const {
  const MutexLock lock(mutex_);
  return Find(id, owner);
}

StoredBatch BatchStore::GetBatch(const std::string& id, const std::string& owner) const {
  const MutexLock lock(mutex_);
  return FindBatch(id, owner);
}

std::optional<BatchStatus> BatchStore::CutShort(const std::string& id) const {
  const MutexLock lock(mutex_);
  const StoredBatch& batch = batches_.at(id);
  if (batch.status == BatchStatus::kCancelling) return BatchStatus::kCancelled;
  if (Now() >= batch.expires_s) return BatchStatus::kExpired;
  return std::nullopt;
}

std::vector<StoredFile> BatchStore::ListFiles(const std::string& owner) const {
  const MutexLock lock(mutex_);
  return NewestFirst(files_, owner);
}

std::vector<StoredBatch> BatchStore::ListBatches(const std::string& owner) const {
  const MutexLock lock(mutex_);
  return NewestFirst(batches_, owner);
}

bool BatchStore::IsInUse(const std::string& file_id) const {
  return std::any_of(batches_.begin(), batches_.end(), [&](const auto& batch) {
    return batch.second.input_file_id == file_id && !HasEnded(batch.second.status);
  });
}

void BatchStore::Remove(const std::string& file_id) {
  const auto found = files_.find(file_id);
  std::error_code ignored;
  fs::remove(FileRecord(file_id), ignored);  // first: a file is there when this is
  fs::remove(ContentOf(file_id), ignored);
  bytes_ -= std::min(bytes_, found->second.bytes);
  files_.erase(found);
}

void BatchStore::DeleteFile(const std::string& id, const std::string& owner) {
  const MutexLock lock(mutex_);
  Find(id, owner);
  if (IsInUse(id)) {
    throw Conflict(
        fmt::format("{} is the input of a batch that has not ended; cancel it first.", id));
  }
  Remove(id);
}

void BatchStore::Save(const StoredBatch& batch) {
  SaveTextFile(BatchRecord(batch.id), PackStoredBatch(batch));
}

StoredBatch BatchStore::AddBatch(StoredBatch batch) {
  const MutexLock lock(mutex_);
  Find(batch.input_file_id, batch.owner);
  const auto open = std::count_if(batches_.begin(), batches_.end(),
                                  [](const auto& other) { return !HasEnded(other.second.status); });
  if (open >= options_.max_batches) {
    throw ApiError(429, "rate_limit_error",
                   fmt::format("{} batches have not ended yet; wait for some of them.", open), {},
                   "too_many_batches", 60);
  }
  batch.id = MakeRandomId("batch_");
  batch.status = BatchStatus::kValidating;
  batch.created_s = Now();
  batch.expires_s = batch.created_s + kDayS;
  Save(batch);
  return batches_.emplace(batch.id, batch).first->second;
}

StoredBatch BatchStore::CancelBatch(const std::string& id, const std::string& owner) {
  const MutexLock lock(mutex_);
  const StoredBatch& batch = FindBatch(id, owner);
  if (HasEnded(batch.status)) {
    throw Conflict(fmt::format("{} has ended: it is {}.", id, BatchStatusName(batch.status)));
  }
  // One that is being finished is finished.
  if (batch.status != BatchStatus::kValidating && batch.status != BatchStatus::kInProgress) {
    return batch;
  }
  const bool begun = batch.status == BatchStatus::kInProgress;
  return Change(id, [&](StoredBatch& changed) {
    changed.at[BatchStatus::kCancelling] = Now();
    changed.status = begun ? BatchStatus::kCancelling : BatchStatus::kCancelled;
  });
}

std::optional<StoredBatch> BatchStore::NextBatch(const std::set<std::string>& put_off) const {
  const MutexLock lock(mutex_);
  const StoredBatch* oldest = nullptr;
  for (const auto& [id, batch] : batches_) {
    if (HasEnded(batch.status) || put_off.contains(id)) continue;
    const auto rank = [](const StoredBatch& of) {
      return std::pair(of.status == BatchStatus::kValidating, of.created_s);
    };
    if (oldest == nullptr || rank(batch) < rank(*oldest)) oldest = &batch;
  }
  return oldest == nullptr ? std::nullopt : std::optional(*oldest);
}

StoredBatch BatchStore::UpdateBatch(const std::string& id,
                                    const std::function<void(StoredBatch&)>& change) {
  const MutexLock lock(mutex_);
  return Change(id, change);
}

// In memory only when it is written down.
StoredBatch BatchStore::Change(const std::string& id,
                               const std::function<void(StoredBatch&)>& change) {
  StoredBatch& batch = batches_.at(id);
  StoredBatch changed = batch;
  change(changed);
  if (changed.status != batch.status) changed.at[changed.status] = Now();
  Save(changed);
  batch = changed;
  return changed;
}

void BatchStore::ShowProgress(const std::string& id, int64_t total, int64_t completed,
                              int64_t failed) {
  const MutexLock lock(mutex_);
  StoredBatch& batch = batches_.at(id);
  batch.total = total;
  batch.completed = completed;
  batch.failed = failed;
}

void BatchStore::KeepAnswer(const std::string& id, const fs::path& from, std::string name,
                            const std::string& owner) {
  if (id.empty()) return;
  {
    const MutexLock lock(mutex_);
    if (files_.contains(id)) return;  // a process that was killed has done it
  }
  std::error_code error;
  if (fs::exists(from, error)) fs::rename(from, ContentOf(id), error);
  if (error) {
    Fail(ErrorKind::kIo, "{}: cannot be renamed: {}", from.string(), error.message());
  }
  StoredFile file;
  file.id = id;
  file.name = std::move(name);
  file.purpose = "batch_output";
  file.bytes = SizeOf(ContentOf(id));
  file.created_s = Now();
  file.owner = owner;
  AddRecord(file);
  const MutexLock lock(mutex_);
  bytes_ += file.bytes;
}

void BatchStore::KeepAnswers(const StoredBatch& batch) {
  KeepAnswer(batch.output_file_id, OutputOf(batch.id), batch.id + "_output.jsonl", batch.owner);
  KeepAnswer(batch.error_file_id, ErrorsOf(batch.id), batch.id + "_error.jsonl", batch.owner);
  std::error_code ignored;
  fs::path progress = OutputOf(batch.id);
  progress += ".progress";
  for (const fs::path& left : {OutputOf(batch.id), ErrorsOf(batch.id), progress}) {
    fs::remove(left, ignored);
  }
}

void BatchStore::RemoveOld() {
  const MutexLock lock(mutex_);
  const int64_t oldest_s = Now() - options_.max_age_s;
  for (auto batch = batches_.begin(); batch != batches_.end();) {
    if (!HasEnded(batch->second.status) || batch->second.created_s >= oldest_s) {
      ++batch;
      continue;
    }
    std::error_code ignored;
    fs::remove(BatchRecord(batch->first), ignored);
    batch = batches_.erase(batch);
  }
  std::vector<std::string> old;
  for (const auto& [id, file] : files_) {
    if (file.created_s < oldest_s && !IsInUse(id)) old.push_back(id);
  }
  for (const std::string& id : old) Remove(id);
}

}  // namespace moesaic
