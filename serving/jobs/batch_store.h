// BatchStore: the files and batches of clients, in a directory:
//   lock                      held by the process that has the directory open
//   files/ID.json, ID.jsonl   what a file is (batch_records.h), and what is in it
//   batches/ID.json           a batch
//   batches/ID.output.jsonl, .errors.jsonl   its answers while it runs
// A file is there when its JSON is: its content was written before. JSON is replaced as a whole, so
// a process that is killed leaves what was, or what is.
//
// Thread contract: any thread; functions that write a file take as long as that takes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/mutex.h"
#include "serving/jobs/batch_records.h"

namespace moesaic {

struct BatchStoreOptions {
  std::filesystem::path directory;
  uint64_t max_bytes = uint64_t{10} << 30;  // of all files
  int64_t max_batches = 1000;               // that have not ended
  int64_t max_age_s = int64_t{30} * 86400;  // files and ended batches are removed then
  std::function<int64_t()> now_s = {};      // Unix time; empty: the system's
};

// Functions that take an `owner` know only what is his: to them the rest is not there.
class BatchStore {
 public:
  // Makes the directory where there is none, and removes what a killed process left unfinished.
  // What cannot be read is left alone, with a warning. Throws Error: kIo, kUnavailable (another
  // process has it).
  explicit BatchStore(BatchStoreOptions options);
  ~BatchStore();
  BatchStore(const BatchStore&) = delete;
  BatchStore& operator=(const BatchStore&) = delete;

  // Throws ApiError: 507 when the directory is full, Error(kIo).
  StoredFile AddFile(std::string name, std::string purpose, std::string_view content,
                     const std::string& owner);
  // Throw ApiError (404).
  StoredFile GetFile(const std::string& id, const std::string& owner) const;
  StoredBatch GetBatch(const std::string& id, const std::string& owner) const;
  // The newest first.
  std::vector<StoredFile> ListFiles(const std::string& owner) const;
  std::vector<StoredBatch> ListBatches(const std::string& owner) const;
  // Throws ApiError: 404, or 409 for the input of a batch that has not ended.
  void DeleteFile(const std::string& id, const std::string& owner);
  std::filesystem::path ContentOf(const std::string& file_id) const;

  // Fills in id, times and status. Throws ApiError: 404 for the input, 429 when too many wait.
  StoredBatch AddBatch(StoredBatch batch);
  // Of one that has not ended: kCancelling, or kCancelled where it has not begun. Throws ApiError:
  // 404, and 409 where it has ended.
  StoredBatch CancelBatch(const std::string& id, const std::string& owner);

  // For who runs them.

  // What the batch is to end as though lines are left: somebody has cancelled it, or its time is
  // up.
  std::optional<BatchStatus> CutShort(const std::string& id) const;
  // The oldest one that has not ended and is not `put_off`; one that has begun comes first.
  std::optional<StoredBatch> NextBatch(const std::set<std::string>& put_off = {}) const;
  // Changes it and writes it down; the status that it gets is dated. Throws Error(kIo).
  StoredBatch UpdateBatch(const std::string& id, const std::function<void(StoredBatch&)>& change);
  // Counts for clients, not written down.
  void ShowProgress(const std::string& id, int64_t total, int64_t completed, int64_t failed);
  std::filesystem::path OutputOf(const std::string& batch_id) const;
  std::filesystem::path ErrorsOf(const std::string& batch_id) const;
  // Makes files of a batch's answers, under the ids that it names. May be done again. Throws
  // Error(kIo).
  void KeepAnswers(const StoredBatch& batch);
  // Removes what is too old.
  void RemoveOld();

 private:
  int64_t Now() const;
  std::filesystem::path FileRecord(const std::string& id) const;
  std::filesystem::path BatchRecord(const std::string& id) const;
  void Read();
  void RemoveUnfinished();
  void AddRecord(const StoredFile& file) EXCLUDES(mutex_);
  void KeepAnswer(const std::string& id, const std::filesystem::path& from, std::string name,
                  const std::string& owner) EXCLUDES(mutex_);
  const StoredFile& Find(const std::string& id, const std::string& owner) const REQUIRES(mutex_);
  const StoredBatch& FindBatch(const std::string& id, const std::string& owner) const
      REQUIRES(mutex_);
  bool IsInUse(const std::string& file_id) const REQUIRES(mutex_);
  void Remove(const std::string& file_id) REQUIRES(mutex_);
  StoredBatch Change(const std::string& id, const std::function<void(StoredBatch&)>& change)
      REQUIRES(mutex_);
  void Save(const StoredBatch& batch);

  const BatchStoreOptions options_;
  int lock_ = -1;
  mutable Mutex mutex_;
  std::map<std::string, StoredFile> files_ GUARDED_BY(mutex_);
  std::map<std::string, StoredBatch> batches_ GUARDED_BY(mutex_);
  uint64_t bytes_ GUARDED_BY(mutex_) = 0;  // of all files, those that are being written included
};

}  // namespace moesaic
