// StoredFile, StoredBatch: what OpenAI's Files and Batch APIs know of a file and of a batch; their
// JSON as clients get it, and as it lies in a directory (with what clients are not told). Plain
// data and functions of it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"

namespace moesaic {

struct StoredFile {
  std::string id;  // "file-..."
  std::string name;
  std::string purpose;  // "batch", or "batch_output"
  uint64_t bytes = 0;
  int64_t created_s = 0;  // Unix time, as all times here
  std::string owner;      // name of the key that it is of; empty: nobody's
};

enum class BatchStatus {
  kValidating,  // it waits for its turn
  kInProgress,
  kFinalizing,  // all lines have ended, its files are made
  kCompleted,
  kFailed,  // nothing can become of it
  kExpired,
  kCancelling,
  kCancelled,
};
const char* BatchStatusName(BatchStatus status);
// It stays as it is.
bool HasEnded(BatchStatus status);

struct StoredBatch {
  struct Problem {
    std::string code;
    std::string message;
    std::optional<int64_t> line;
  };

  std::string id;  // "batch_..."
  std::string endpoint;
  std::string input_file_id;
  std::string completion_window;
  std::string model;  // that its first line names
  std::map<std::string, std::string> metadata;
  BatchStatus status = BatchStatus::kValidating;
  // What it ends as when its files are made.
  BatchStatus outcome = BatchStatus::kCompleted;
  std::string output_file_id;  // empty: there is none (yet)
  std::string error_file_id;
  std::vector<Problem> problems;
  int64_t total = 0;  // lines
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t created_s = 0;
  int64_t expires_s = 0;
  std::map<BatchStatus, int64_t> at;  // when it came to be so
  std::string owner;
};

// As clients get them.
Json FileJson(const StoredFile& file);
Json BatchJson(const StoredBatch& batch);

std::string PackStoredFile(const StoredFile& file);
std::string PackStoredBatch(const StoredBatch& batch);
// Throw Error(kCorrupt); `name` goes into messages.
StoredFile ParseStoredFile(std::string_view text, std::string_view name);
StoredBatch ParseStoredBatch(std::string_view text, std::string_view name);

// Whether it can be an id of either, which become names of files.
bool IsStoredId(std::string_view id, std::string_view prefix);

}  // namespace moesaic
